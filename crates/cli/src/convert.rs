//! `alight convert`: converts a model in another program's format into one GGUF file. And the code
//! shared with `alight quantize`, which does the same from GGUF to GGUF.

use std::collections::BTreeMap;
use std::path::PathBuf;

use alight_convert::{
    About, Conversion, ConvertError, Converted, Options, QuantizationMix, Request,
};
use anyhow::anyhow;

use crate::conversion::{speed, with_progress};
use crate::hub::{self, HubArgs};
use crate::outcome::{Outcome, Stop};
use crate::pack::new_model;
use crate::{say, source, text_input, threads, units};

/// Maximum number of omitted tensors shown by name.
const SHOWN: usize = 3;

/// Arguments of `alight convert`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  alight convert Llama-3.2-1B/ -o llama.gguf                Hugging Face's
  alight convert Llama-3.2-1B/ -o llama.gguf --type q4_k_m  quantised
  alight convert hf.co/USER/REPO -o model.gguf              safetensors of the hub, fetched first
  alight convert llama-2-13b/ -o llama2.gguf                Meta's
  alight convert ggml-model-q4_0.bin -o old.gguf --tokenizer tokenizer.model
  alight convert model-00001-of-00003.gguf -o model.gguf    shards
  alight convert my-lora/ -o my-lora.gguf --base Qwen3-0.6B/  a LoRA adapter (PEFT)

Sources: Hugging Face's folders (config.json with .safetensors, or PyTorch's .bin), PEFT's of LoRA adapters \
(adapter_config.json with adapter_model.safetensors), Meta's (params.json \
with consolidated.NN.pth), llama.cpp's files before GGUF (ggml, ggmf, ggjt, in one part or several), and \
GGUF. Give the folder, or one of the files. docs/reference/converting.md names the architectures.

Without --type every matrix keeps its type, exactly; what cannot be kept is reported. The types are those of \
`alight quantize`. The new file appears when it is complete; until then, whatever happens, an old one \
stays. Nothing in a source is executed.")]
pub struct ConvertArgs {
    /// The model: a folder, or one of its files, or hf.co/USER/REPO
    source: PathBuf,

    /// The file to write
    #[arg(short, long, value_name = "OUT", required_unless_present = "dry_run", value_parser = new_model())]
    output: Option<PathBuf>,

    /// Type of the matrices in the new file [default: what they are]
    #[arg(long = "type", value_name = "TYPE")]
    mix: Option<QuantizationMix>,

    /// A tokenizer (tokenizer.model or tokenizer.json, or the folder of one) instead of the source's own
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,

    /// Of an adapter: the folder of its base, of which config.json is enough [default: the folder that adapter_config.json names]
    #[arg(long, value_name = "FOLDER")]
    base: Option<PathBuf>,

    /// Added to the mean square in norms, where the source does not say: 1e-6 in LLaMA 1, 1e-5 in LLaMA 2
    #[arg(long, value_name = "NUMBER", value_parser = eps)]
    eps: Option<f32>,

    /// Positions that the model was trained for, where the source does not say
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    context: Option<u32>,

    /// For a ggml file of the first days, 10 to about 14 March 2023, which nothing in it tells
    #[arg(long, value_name = "DATE", value_parser = ["2023-03-10"])]
    era: Option<String>,

    /// Threads [default: one for each processor]
    #[arg(short = 't', long, value_name = "N", value_parser = threads::number)]
    threads: Option<usize>,

    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,

    /// Say what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    hub: HubArgs,
}

fn eps(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(eps) if (0.0..1.0).contains(&eps) => Ok(eps),
        _ => Err("expected a number from 0 to below 1".into()),
    }
}

/// Runs the command.
pub fn main(args: &ConvertArgs) -> Outcome {
    let fetched = hub::source_of(&args.source, args.hub.offline)?;
    let source = fetched.as_ref().unwrap_or(&args.source);
    for path in std::iter::once(source).chain(&args.tokenizer).chain(&args.base) {
        if let Err(error) = path.metadata() {
            return Err(text_input::cannot_open(path, "a model's file or folder", error).into());
        }
    }
    let options = Options { force: args.force, ..Options::default() };
    let request = Request {
        mix: args.mix,
        tokenizer: args.tokenizer.as_deref(),
        first_days: args.era.is_some(),
        eps: args.eps,
        context: args.context,
        base: args.base.as_deref(),
    };
    let failed = |error: ConvertError| Stop::Failed(source::with_next_step(anyhow!(error)));
    let conversion = Conversion::plan(source, request).map_err(failed)?;
    let about = conversion.about();
    say::line(&format!("{}: {}; {}", source.display(), about.recognised, about.architecture));
    if let Some(output) = &args.output {
        conversion.check_dest(output, options).map_err(failed)?;
    }
    say::line(&format!(
        "{} tensors, {} to read, {} to write",
        about.tensors,
        units::bytes(about.reads),
        units::bytes(about.writes)
    ));
    plan(about);
    let output = match &args.output {
        Some(output) if !args.dry_run => output,
        _ => return Ok(()),
    };
    let done = with_progress("converting", |on_progress| {
        conversion.write(output, threads::or_all(args.threads), options, on_progress)
    })?;
    say::line(&format!("{}: {}", output.display(), speed(&done.volume)));
    threads::note(done.volume.threads);
    losses(&done);
    Ok(())
}

/// Prints how the tensors will be converted.
pub fn plan(about: &About) {
    let change = |((from, to), (count, bytes)): (&(String, _), &(usize, u64))| {
        let (to, bytes) = (format!("{to}"), units::bytes(*bytes));
        match *from == to {
            true => format!("{count} stay {to} ({bytes})"),
            false => format!("{count} from {from} to {to} ({bytes})"),
        }
    };
    let changes: Vec<String> = about.changes.iter().map(change).collect();
    say::line(&format!("tensors: {}", changes.join("; ")));
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, reason) in &about.skipped {
        reasons.entry(reason).or_default().push(name);
    }
    for (reason, names) in reasons {
        let more = if names.len() > SHOWN { ", …" } else { "" };
        let shown = names[..names.len().min(SHOWN)].join(", ");
        say::line(&format!("left out: {} ({shown}{more}): {reason}", names.len()));
    }
    for note in &about.notes {
        say::note(note);
    }
    if about.rounded_twice > 0 {
        say::note(&format!(
            "{} tensors were quantised already and are now rounded twice: a file of this type made \
             from F16, BF16 or F32 is better",
            about.rounded_twice
        ));
    }
}

/// Prints what old blocks lost in the conversion.
fn losses(done: &Converted) {
    let lost = done.losses;
    if lost.rounded > 0 {
        say::note(&format!(
            "{} of {} scales of old blocks were rounded from 32 to 16 bits, by one part in 2048 at most",
            lost.rounded, lost.numbers
        ));
    }
    if lost.subnormal > 0 || lost.vanished > 0 {
        say::note(&format!(
            "{} of them are so small that they lost more than that, {} became zero",
            lost.subnormal + lost.vanished,
            lost.vanished
        ));
    }
    if lost.not_finite > 0 {
        say::note(&format!(
            "{} scales are infinite or not a number, as they were in the source: it may be damaged",
            lost.not_finite
        ));
    }
}
