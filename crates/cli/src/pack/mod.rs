//! `alight pack` and `alight unpack`: a model file in the layout that the kernels read fastest, and
//! back.

mod keep;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use alight_convert::{KeptReason, Options, Packed, Unpacked};
use clap::builder::{PathBufValueParser, TypedValueParser};

pub use self::keep::KeepArgs;
use crate::conversion::{speed, with_progress};
use crate::hub::HubArgs;
use crate::outcome::Outcome;
use crate::{say, source, threads, units};

/// Arguments of `alight pack`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  alight pack model.gguf -o model.packed.gguf
  alight pack model-00001-of-00003.gguf -o model.packed.gguf  a split model
  alight unpack model.packed.gguf -o model.gguf               the original again

A packed file is as large as the original and is run in the same way: mapped, without copying or \
repacking, and faster. It is a GGUF file that only alight reads; other programs refuse it. Its \
weights are the same bits in another order, nothing is rounded.

The new file appears when it is complete; until then, whatever happens, an old one stays.")]
pub struct PackArgs {
    /// The model: a .gguf file (of a split model, any shard), or a folder with one model in it
    pub model: PathBuf,

    #[command(flatten)]
    pub hub: HubArgs,

    /// Keep the high and the low bits of the output matrix apart: answers of a model with a large vocabulary in Q8_0 then read half of
    /// it, unless all logits are needed (a grammar, log-probabilities, no top-k), which becomes slower, as prompts do a little
    #[arg(long)]
    planes: bool,

    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `alight unpack`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  alight unpack model.packed.gguf -o model.gguf

The result is the file that `alight pack` was given, bit for bit: its SHA-256 is in the packed file \
and is compared before the new file appears. A split model comes out in one file.")]
pub struct UnpackArgs {
    /// The packed model: a file that `alight pack` wrote
    packed: PathBuf,

    #[command(flatten)]
    output: OutputArgs,
}

/// The output file.
#[derive(Debug, clap::Args)]
pub struct OutputArgs {
    /// The file to write
    #[arg(short, long, value_name = "OUT", value_parser = new_model())]
    pub output: PathBuf,

    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,
}

/// Parses the name of a model to be written. It gets its name when it is complete, which is not possible for a stream.
pub fn new_model() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path == Path::new("-") {
        true => Err("a model is written to a file, and not to standard output"),
        false => Ok(path),
    })
}

/// Runs `alight pack`.
pub fn pack(args: &PackArgs) -> Outcome {
    let model = source::model_file(&args.model)?;
    let done = with_progress("packing", |on_progress| {
        let options = Options { planes: args.planes, ..args.output.options() };
        alight_convert::pack(&model, &args.output.output, options, on_progress)
    });
    let Packed { volume, tensors, packed, packed_bytes, kept, planes, .. } =
        done.map_err(|stop| source::explain_stop(&model, stop))?;
    say::line(&format!(
        "{}: {}; {packed} of {tensors} tensors packed ({})",
        args.output.output.display(),
        speed(&volume),
        units::bytes(packed_bytes),
    ));
    threads::note(volume.threads);
    if args.planes && planes.is_none() {
        say::note(
            "the output matrix is not in planes: it would have to be Q8_0 with a multiple of 16 rows",
        );
    }
    let mut reasons: BTreeMap<KeptReason, (usize, u64)> = BTreeMap::new();
    for tensor in kept {
        let (count, bytes) = reasons.entry(tensor.reason).or_default();
        *count += 1;
        *bytes += tensor.nbytes;
    }
    if !reasons.is_empty() {
        let text = |(reason, (count, bytes)): (KeptReason, (usize, u64))| {
            format!("{count} ({}): {reason}", units::bytes(bytes))
        };
        let text: Vec<String> = reasons.into_iter().map(text).collect();
        say::line(&format!("as they were: {}", text.join("; ")));
    }
    Ok(())
}

/// Runs `alight unpack`.
pub fn unpack(args: &UnpackArgs) -> Outcome {
    source::check_path(&args.packed)?;
    let Unpacked { volume, tensors, packed, sha256 } = with_progress("unpacking", |on_progress| {
        alight_convert::unpack(
            &args.packed,
            &args.output.output,
            args.output.options(),
            on_progress,
        )
    })?;
    say::line(&format!(
        "{}: {}; {packed} of {tensors} tensors unpacked; the original bit for bit, SHA-256 {sha256}",
        args.output.output.display(),
        speed(&volume),
    ));
    threads::note(volume.threads);
    Ok(())
}

impl OutputArgs {
    /// Returns the options for the library.
    pub fn options(&self) -> Options {
        Options { force: self.force, ..Options::default() }
    }
}
