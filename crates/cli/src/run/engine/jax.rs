//! The JAX engine: a Python process (`alight.jax._engine`) that receives prompts as token ids and returns tokens.
//!
//! Each direction has its own pipe, with one JSON value a line ([`ProcessRequest`], [`ProcessReply`]); standard error is the user's. The process
//! is started before the model's file is opened, so that it imports JAX meanwhile, and it ends when the pipe of orders is closed,
//! however this process ended. Its output is checked: a line has a limit, and an invalid one ends the conversation with an error.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use alight_model::{Finish, ModelError, SamplerOptions};
use anyhow::anyhow;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{About, Answered, Description, Engine, Event, Request, fields};
use crate::outcome::{Outcome, Stop};
use crate::{python, units};

/// Maximum bytes of a line from Python.
const MAX_LINE: usize = 64 << 10;
/// Maximum bytes of such a line that an error shows.
const SHOWN: usize = 80;
/// Maximum time until the process ends once it has closed its pipe.
const PATIENCE: Duration = Duration::from_secs(10);

/// Options that only the JAX engine has.
#[derive(Clone, Debug, Serialize, clap::Args)]
pub struct JaxArgs {
    /// With --engine jax: devices that share the work
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = ranks)]
    tp: usize,

    /// With --engine jax: native (the blocks of the file, on the CPU in place), or arrays of bf16 or f32
    #[arg(long, value_name = "KIND", default_value = "native", value_parser = ["native", "bf16", "f32"])]
    weights: String,

    /// With --engine jax, for a run in several processes: where process 0 listens. All of them are given
    /// the same arguments, except for --process, and process 0 writes the answer
    #[arg(long, value_name = "HOST:PORT")]
    coordinator: Option<String>,

    /// With --engine jax: how many processes there are
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = ranks)]
    processes: usize,

    /// With --engine jax: which of them this is, from 0 on
    #[arg(long, value_name = "I")]
    process: Option<usize>,

    /// With --engine jax: compile again, and keep nothing for the next time
    #[arg(long)]
    #[serde(rename = "no_cache")]
    no_compile_cache: bool,
}

/// Parses a number of devices.
fn ranks(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=64) => Ok(n),
        _ => Err("expected a number from 1 to 64".to_owned()),
    }
}

impl JaxArgs {
    /// Returns true if several processes answer together.
    pub fn are_several(&self) -> bool {
        self.processes > 1
    }

    /// Returns true if this process is the one that writes the answer.
    pub fn speaks(&self) -> bool {
        self.process.unwrap_or(0) == 0
    }

    /// Rejects options that cannot be combined. `drawn`: tokens are sampled, and there is no seed.
    pub fn check(&self, drawn: bool) -> Outcome {
        self.refused(drawn).map_or(Ok(()), |why| Err(Stop::Usage(why)))
    }

    fn refused(&self, drawn: bool) -> Option<String> {
        let (processes, tp) = (self.processes, self.tp);
        let (coordinator, process) = match (&self.coordinator, self.process) {
            (None, None) if processes == 1 => return None,
            (Some(coordinator), Some(process)) if processes > 1 => (coordinator, process),
            _ => {
                return Some(
                    "a run in several processes needs --coordinator, --processes and --process"
                        .to_owned(),
                );
            }
        };
        let host_and_port = coordinator.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p > 0)
        });
        if process >= processes {
            let last = processes - 1;
            Some(format!("--process is {process}, expected 0 to {last}: there are {processes}"))
        } else if !tp.is_multiple_of(processes) {
            Some(format!(
                "--tp is {tp}, expected a multiple of the {processes} processes: each has as many devices"
            ))
        } else if !host_and_port {
            Some(format!(
                "--coordinator is '{coordinator}', expected a host and a port, such as 127.0.0.1:7000"
            ))
        } else if drawn {
            Some(
                "a run in several processes that draws tokens needs a --seed: all have to draw the same"
                    .to_owned(),
            )
        } else {
            None
        }
    }
}

/// A message to the Python process.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum ProcessRequest<'o> {
    /// The first order: load the model. [`ProcessReply::Ready`] follows.
    Open { context: usize, memory: Option<u64>, options: &'o JaxArgs },
    /// [`ProcessReply::Kept`], tokens, and [`ProcessReply::Done`] follow.
    Answer { ids: &'o [u32], max_tokens: usize, stop: &'o [u32], sampling: Sampling },
    /// The answer, if there is one, ends early.
    Stop,
}

impl ProcessRequest<'_> {
    /// Returns its serialized line.
    fn line(&self) -> Outcome<String> {
        Ok(serde_json::to_string(self).map_err(|e| anyhow!(e))? + "\n")
    }
}

/// The sampling options of JAX.
#[derive(Serialize)]
struct Sampling {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    seed: u64,
}

impl Sampling {
    fn of(options: SamplerOptions) -> Sampling {
        let SamplerOptions { temperature, top_k, top_p, min_p, seed, .. } = options;
        Sampling { temperature, top_k, top_p, min_p, seed }
    }
}

/// A message from the Python process.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ProcessReply {
    /// The model is loaded; the seconds that JAX and the model took.
    Ready { jax: f64, model: f64 },
    /// An answer begins: this number of tokens of its prompt are not computed again.
    Kept(usize),
    /// A token of the answer.
    Token(u32),
    /// The answer is over.
    Done,
    /// No more messages will follow, for this reason.
    Error(String),
}

/// A conversation with a Python process.
pub struct Jax {
    child: Child,
    /// `None` once the process has been asked to exit.
    orders: Option<PipeWriter>,
    reports: BufReader<PipeReader>,
    args: JaxArgs,
    /// Properties of the model.
    context: usize,
    trained: usize,
    vocab: usize,
    ends: Vec<u32>,
    /// The duration of each part of the start.
    start: Vec<(&'static str, Duration)>,
    /// True if an answer was stopped whose end has not been read yet.
    stopped: bool,
}

impl Jax {
    /// Starts Python, which begins importing JAX, for the model at `path`.
    pub fn start(path: &Path, args: &JaxArgs) -> Outcome<Jax> {
        let python::Started { child, orders, reports } =
            python::start("alight.jax._engine", "--engine jax", path.as_os_str())?;
        Ok(Jax {
            child,
            orders: Some(orders),
            reports: BufReader::new(reports),
            args: args.clone(),
            context: 0,
            trained: 0,
            vocab: 0,
            ends: Vec::new(),
            start: Vec::new(),
            stopped: false,
        })
    }

    /// Makes it load the model, which took `open` to open here, into at most `memory` bytes.
    pub fn open(&mut self, about: &About<'_>, open: Duration, memory: Option<u64>) -> Outcome {
        let tokenizer = &about.vocabulary.tokenizer;
        (self.context, self.trained) = (about.context, about.trained);
        self.vocab = tokenizer.vocab_size();
        self.ends = tokenizer.ends().to_vec();
        self.start = vec![("open", open)];
        let order =
            ProcessRequest::Open { context: self.context, memory, options: &self.args }.line()?;
        self.order(&order)
    }

    /// Sends the line of an [`ProcessRequest`]. If the process is gone, the error is the one it reported, or that it is gone.
    fn order(&mut self, line: &str) -> Outcome {
        let written = self.orders.as_mut().map(|orders| orders.write_all(line.as_bytes()));
        match written {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => loop {
                // Its last report is still in the pipe.
                self.report()?;
            },
        }
    }

    /// Returns its next report; `None` when it has closed its pipe.
    fn next(&mut self) -> Outcome<Option<ProcessReply>> {
        let mut line = Vec::new();
        let read = self.reports.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut line);
        let shown = || String::from_utf8_lossy(&line[..line.len().min(SHOWN)]).into_owned();
        if read.is_err() || !line.ends_with(b"\n") && line.len() < MAX_LINE {
            return Ok(None);
        }
        if !line.ends_with(b"\n") {
            let what = anyhow!("the JAX engine sent more than {} KiB in a line", MAX_LINE >> 10);
            return Err(what.context(format!("it begins with '{}'", shown())).into());
        }
        match serde_json::from_slice(&line) {
            Ok(ProcessReply::Error(why)) => Err(anyhow!(why).into()),
            Ok(report) => Ok(Some(report)),
            Err(error) => Err(anyhow!(
                "the JAX engine sent '{}', which is no message of its protocol ({error}): are the command \
                 and the Python package of the same version?",
                shown().trim_end()
            )
            .into()),
        }
    }

    /// Returns its next report. A closed pipe is an error.
    fn report(&mut self) -> Outcome<ProcessReply> {
        match self.next()? {
            Some(report) => Ok(report),
            None => Err(self.gone().into()),
        }
    }

    /// Returns the error for a closed pipe.
    fn gone(&mut self) -> anyhow::Error {
        match self.ended() {
            Some(status) => anyhow!("the JAX engine, a process of Python, has ended ({status})"),
            None => anyhow!("the JAX engine, a process of Python, has closed its pipe"),
        }
    }

    /// Returns its exit status, if it ends.
    fn ended(&mut self) -> Option<ExitStatus> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) => thread::sleep(Duration::from_millis(2)),
                Err(_) => return None,
            }
        }
        None
    }

    /// Reads the rest of an answer that was stopped.
    fn settle(&mut self) -> Outcome {
        while self.stopped {
            match self.report()? {
                ProcessReply::Token(_) => {}
                ProcessReply::Done => self.stopped = false,
                other => return Err(misplaced(&other).into()),
            }
        }
        Ok(())
    }

    /// Reads the tokens of an answer to a prompt of `prompt` tokens.
    fn tokens(
        &mut self,
        prompt: usize,
        most: usize,
        on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Outcome<Finish> {
        let mut count = 0;
        // The last token is not computed, so it uses no position of the context.
        let positions = self.context + 1 - prompt;
        loop {
            match self.report()? {
                ProcessReply::Token(id)
                    if (id as usize) < self.vocab && count < most.min(positions) =>
                {
                    count += 1;
                    if on_event(Event::Token(id)).is_break() {
                        self.stopped = true;
                        self.order(&ProcessRequest::Stop.line()?)?;
                        return Ok(Finish::Interrupted);
                    }
                }
                ProcessReply::Done if count == most => return Ok(Finish::Length),
                ProcessReply::Done if count == positions => return Ok(Finish::ContextFull),
                ProcessReply::Done => return Ok(Finish::Stop),
                other => return Err(misplaced(&other).into()),
            }
        }
    }
}

/// Returns the error for a message that is not valid at this point.
fn misplaced(report: &ProcessReply) -> anyhow::Error {
    anyhow!("the JAX engine sent {report:?}, which has no meaning here")
}

impl Engine for Jax {
    fn ready(&mut self) -> Outcome {
        let ProcessReply::Ready { jax, model } = self.report()? else {
            return Err(anyhow!("the JAX engine sent something else before it was ready").into());
        };
        for (name, seconds) in [("jax", jax), ("model", model)] {
            let took = Duration::try_from_secs_f64(seconds);
            self.start.push((name, took.map_err(|e| anyhow!("the JAX engine: {name}: {e}"))?));
        }
        Ok(())
    }

    fn answer(
        &mut self,
        request: &Request<'_>,
        on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Outcome<Answered> {
        let (prompt, most) = (request.prompt.len(), request.limits.max_tokens);
        if most == 0 {
            return Ok(Answered { finish: Finish::Length, computed: prompt });
        }
        if prompt > self.context {
            let (limit, trained) = (self.context, self.trained);
            let full = ModelError::ContextFull {
                used: 0,
                asked: prompt,
                limit,
                trained,
                computable: usize::MAX,
            };
            return Err(anyhow!(full).into());
        }
        self.settle()?;
        let stop: &[u32] = if request.limits.ignore_eos { &[] } else { &self.ends };
        let sampling = Sampling::of(request.sampling);
        let order =
            ProcessRequest::Answer { ids: request.prompt, max_tokens: most, stop, sampling };
        let order = order.line()?;
        self.order(&order)?;
        let kept = match self.report()? {
            ProcessReply::Kept(kept) if kept < prompt => kept,
            other => return Err(misplaced(&other).into()),
        };
        let finish = self.tokens(prompt, most, on_event)?;
        Ok(Answered { finish, computed: prompt - kept })
    }

    fn finish(&mut self, _: usize) -> Outcome {
        if !self.args.are_several() {
            return Ok(());
        }
        // A process that exits before the others would terminate them: it waits for them.
        self.orders = None;
        match self.next()? {
            None if self.child.wait().is_ok_and(|status| status.success()) => Ok(()),
            None => Err(self.gone().into()),
            Some(other) => Err(misplaced(&other).into()),
        }
    }

    fn description(&self) -> Description {
        let JaxArgs { tp, weights, .. } = &self.args;
        let parts = self.start.iter().map(|(name, took)| {
            let took = units::ms(took.as_secs_f64() * 1e3);
            format!("{name} {took}")
        });
        Description {
            fields: fields(json!({"engine": "jax", "tp": tp, "weights": weights})),
            start: self.start.clone(),
            start_line: format!("start        {}", parts.collect::<Vec<_>>().join(", ")),
            by: format!("JAX, tp {tp}, {weights} weights"),
            held: None,
            load: None,
            slots: None,
            output: None,
        }
    }
}

impl Drop for Jax {
    fn drop(&mut self) {
        // It has nothing to clean up, and its current work is not needed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
