//! The process of a cell `resident`: opens a model as `alight run` does, answers the prompt once,
//! and then again and again, each time in a new session. Not for users: `alight bench load` starts
//! it.

use std::path::PathBuf;
use std::time::Instant;

use alight_model::{Session, SessionOptions};
use alight_text::{Encoder, Style};
use anyhow::anyhow;
use serde_json::json;

use crate::open::{self, EngineArgs};
use crate::outcome::{Outcome, Stop};
use crate::output;
use rusage::{Mark, Memory, Summary};

/// Arguments of `alight bench resident`.
#[derive(Debug, clap::Args)]
pub struct ResidentArgs {
    /// The model
    model: PathBuf,

    /// Text whose first token of continuation is waited for
    #[arg(short = 'p', long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: String,

    /// Sessions after the first
    #[arg(short = 'r', long, value_name = "N", default_value_t = 4,
          value_parser = super::super::at_least_one)]
    repetitions: usize,

    #[command(flatten)]
    engine: EngineArgs,
}

/// Runs the command: prints one line of JSON with the same fields as `alight run --json`. The time
/// is the median of the sessions after the first.
pub fn main(args: &ResidentArgs) -> Outcome {
    let model = open::model(&args.model, &args.engine)?;
    let prompt = Encoder::new(model.vocabulary(), Style::Raw, false)
        .raw(&args.prompt)
        .map_err(|e| anyhow!(e))?;
    let mut times = Vec::new();
    let mut token = None;
    let mut first = Mark::now();
    for i in 0..=args.repetitions {
        let began = Instant::now();
        let mut session =
            Session::new(&model, &SessionOptions::default()).map_err(|e| anyhow!(e))?;
        let logits = session.feed(&prompt).map_err(|e| anyhow!(e))?;
        let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        token = best.map(|(id, _)| id);
        if i > 0 {
            times.push(began.elapsed().as_secs_f64() * 1e3);
        } else {
            first = Mark::now();
        }
    }
    let time = Summary::of(&times)
        .ok_or_else(|| Stop::Failed(anyhow!("the clock gave no usable times")))?;
    let since = first.elapsed();
    let line = json!({
        "timings": {"first_token_ms": time.median},
        "tokens": [token],
        "prompt_tokens": prompt.len(),
        "faults": {"minor": since.minor_faults, "major": since.major_faults},
        "memory": Memory::of_self(),
        "load": {"method": model.load_report().method().name()},
    });
    output::json(&line)
}
