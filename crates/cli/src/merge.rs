//! `alight merge`: a model with adapters merged into its weights.

use std::path::PathBuf;

use alight_convert::{QuantizationMix, ScaledAdapter};

use crate::conversion::{speed, with_progress};
use crate::hub::HubArgs;
use crate::lora::ScaledFile;
use crate::outcome::Outcome;
use crate::pack::OutputArgs;

use crate::{convert, say, source, threads};

/// Arguments of `alight merge`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  alight merge Qwen3-0.6B-BF16.gguf my-lora.gguf -o mine.gguf
  alight merge base-f16.gguf my-lora.gguf:0.5 other.gguf -o both.gguf   at scales, in this order
  alight merge base-f16.gguf my-lora.gguf -o mine-q4_k_m.gguf --type q4_k_m

An adapter is a GGUF file; `alight convert` makes one of a PEFT folder. The changed weights are computed in f32: W + scale · B · A, with \
DoRA's norms, and full tensors in place of the model's.

Without --type every tensor keeps its type, and those that no adapter changes are copied as they are. Changed matrices of blocks are \
quantised again, which loses part of a small change: merge into a model of F16 or BF16, with --type for the result.

The new file appears when it is complete; until then, whatever happens, an old one stays.")]
pub struct MergeArgs {
    /// The model: a .gguf file (of a split model, any shard), or a folder with one model in it
    pub model: PathBuf,

    /// Adapters: GGUF files, each perhaps with a scale [default: 1]
    #[arg(value_name = "ADAPTER[:SCALE]", required = true)]
    adapters: Vec<ScaledFile>,

    /// Type of all matrices in the new file: one of those of `alight quantize` [default: what they are]
    #[arg(long = "type", value_name = "TYPE", ignore_case = true)]
    mix: Option<QuantizationMix>,

    /// Threads [default: one for each processor]
    #[arg(short = 't', long, value_name = "N", value_parser = threads::number)]
    threads: Option<usize>,

    #[command(flatten)]
    pub hub: HubArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
pub fn main(args: &MergeArgs) -> Outcome {
    let model = source::model_file(&args.model)?;
    for adapter in &args.adapters {
        source::check_path(&adapter.path)?;
    }
    let adapters: Vec<ScaledAdapter<'_>> = args
        .adapters
        .iter()
        .map(|adapter| ScaledAdapter { path: &adapter.path, scale: adapter.scale })
        .collect();
    let threads = threads::or_all(args.threads);
    let output = &args.output.output;
    let (about, done) = with_progress("merging", |on_progress| {
        alight_convert::merge(
            &model,
            &adapters,
            args.mix,
            output,
            threads,
            args.output.options(),
            on_progress,
        )
    })
    .map_err(|stop| source::explain_stop(&model, stop))?;
    say::line(&format!("{}: {}", output.display(), speed(&done.volume)));
    threads::note(done.volume.threads);
    convert::plan(&about);
    Ok(())
}
