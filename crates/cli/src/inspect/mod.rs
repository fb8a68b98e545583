//! `alight inspect`: the contents of a model's files, whatever their format. Needs only the
//! headers, so it also shows models that alight cannot run.
//!
//! [`crate::source`] detects the format of a path by content; each format then has one file (or folder) here. GGUF writes its own
//! text and JSON; every other format makes a [`listing::Listing`] of what it read, and `listing` does the rest: sizes, what is
//! cached, text, JSON. To plug in a format: a file here with `pub fn list(paths: &[PathBuf]) -> anyhow::Result<Listing>`, and its
//! line in [`list`].

mod cached;
mod ggml;
mod gguf;
mod listing;
mod parts;
mod safetensors;
pub mod summary;
mod torch;
mod watch;

use std::path::{Path, PathBuf};
use std::time::Duration;

use alight_formats::Format;
use alight_pages::Map;
use anyhow::anyhow;

use crate::hub::{self, Fetched, HubArgs};
use crate::outcome::{Outcome, Stop, chain};
use crate::source::{self, Recognised};
use crate::{output, say};
use cached::{AsFound, Canvas};
pub use gguf::{shards, shards_and_layout};
use listing::Listing;
use parts::View;

/// Arguments of `alight inspect`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  alight inspect model.gguf
  alight inspect model-00001-of-00003.gguf  all shards of a split model
  alight inspect model.gguf --tensors
  alight inspect model.gguf --json | jq '.types'
  alight inspect model.gguf --json | jq -r '.metadata[].key'
  alight inspect model.safetensors          a file of another format
  alight inspect *.gguf                     several, one after the other
  alight inspect Llama-3.2-1B/              the model in a folder
  alight inspect hf.co/USER/REPO:Q4_K_M     one of the hub: only its header is fetched
  alight inspect my-lora.gguf --base model.gguf  an adapter, and whether it fits a model
  alight inspect model.gguf --watch         what is in memory, live

The content of a file decides what it is, and not its name. \
Shapes of GGUF and legacy GGML are as these have them, innermost first: a matrix of 3 rows and 5 columns \
is 5 × 3. Shapes of safetensors and PyTorch are outermost first: 3 × 5. \
`align` is the largest power of two that a tensor's offset in its file is a multiple of. \
`cached` is the part that was in memory (in the page cache) before this command read anything: a start \
reads only the rest. A file of which nothing was cached is left like that. On a terminal the file is \
drawn from its beginning to its end.")]
pub struct InspectArgs {
    /// Models: of each a file of it, or the folder that holds it
    #[arg(value_name = "MODEL", required = true)]
    pub models: Vec<PathBuf>,

    /// List every tensor, and show values in longer lines
    #[arg(long, conflicts_with = "json")]
    tensors: bool,

    /// Everything as one line of JSON for each model, arrays in full
    #[arg(long)]
    json: bool,

    /// Show what of each layer is in memory, live; without a terminal a line for each look
    ///
    /// Looks every second, or every SECONDS. The headers are read once; after that the system is only asked, which brings
    /// nothing into memory. With --json each look is a line of JSON.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1",
          value_parser = pause, conflicts_with = "tensors")]
    watch: Option<Duration>,

    /// Compare an adapter with this model; if it does not fit, the status is 1
    #[arg(long, value_name = "MODEL", conflicts_with = "watch")]
    base: Option<PathBuf>,

    #[command(flatten)]
    pub hub: HubArgs,
}

/// Parses the interval between two samples.
fn pause(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.05..=86_400.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected seconds, from 0.05 to 86400".to_owned())
}

/// The output format.
#[derive(Clone, Copy)]
enum Show {
    Text {
        /// True if its tensors are listed.
        tensors: bool,
    },
    Json,
}

/// Runs the command. A model that cannot be shown does not prevent the others from being shown.
pub fn main(args: &InspectArgs) -> Outcome {
    if let Some(every) = args.watch {
        let [model] = args.models.as_slice() else {
            return Err(Stop::Usage(
                "--watch takes one model, and its seconds after '=': --watch=2".to_owned(),
            ));
        };
        // Only a model that is here can be watched.
        let mut model = model.clone();
        hub::resolve(vec![&mut model], args.hub.offline)?;
        return watch::main(&model, every, args.json);
    }
    let show = if args.json { Show::Json } else { Show::Text { tensors: args.tensors } };
    let [model] = args.models.as_slice() else {
        let mut all = Ok(());
        for (i, model) in args.models.iter().enumerate() {
            if i > 0 && !args.json {
                output::report("\n")?;
            }
            match one(model, args, show) {
                Err(Stop::Failed(error)) => {
                    say::error(&chain(&error));
                    all = Err(Stop::AlreadyReported);
                }
                shown => shown?,
            }
        }
        return all;
    };
    one(model, args, show)
}

/// Shows one model, or the header of one that is on the hub.
fn one(model: &Path, args: &InspectArgs, show: Show) -> Outcome {
    let base = args.base.as_deref();
    match hub::header(model, args.hub.offline)? {
        Fetched::Path(path) => shown(&path, &AsFound::of(&path), show, base),
        Fetched::Header { folder, path, repo } => {
            shown(&path, &AsFound::of_hub(repo, folder), show, base)
        }
    }
}

/// Shows a model, whose files were queried before any part of them was read.
fn shown(model: &Path, found: &AsFound, show: Show, base: Option<&Path>) -> Outcome {
    let source = source::find(model)?;
    if source.format == Format::Gguf {
        return gguf::main(&source.paths[0], found, show, base);
    }
    if base.is_some() {
        let problem = format!("'{}' is no adapter in GGUF, which --base is for", model.display());
        return Err(Stop::Failed(anyhow!(problem)));
    }
    if model.is_dir() && source::recognised(model)?.iter().any(|(of, _)| *of == Format::Gguf) {
        say::note(&format!(
            "there are GGUF files in '{}' as well: name one to see it",
            model.display()
        ));
    }
    let listing = list(&source)?;
    let mut text = Vec::new();
    match show {
        Show::Json => listing::json::write(&listing, found, &mut text)?,
        Show::Text { tensors } => {
            let view = View { canvas: Canvas::stdout(), tensors };
            listing::human::write(&listing, found, view, &mut text)?;
        }
    }
    print(listing.files.iter().map(|file| &file.map), found, show, &text)
}

/// Reads a format other than GGUF.
fn list(source: &Recognised) -> anyhow::Result<Listing> {
    let path = source.paths[0].display();
    let what = source.format.describe();
    match source.format {
        Format::SafeTensors => safetensors::list(&source.paths),
        Format::SafeTensorsIndex => safetensors::list_index(&source.paths),
        // The older one is never read: its reader returns an error with advice.
        Format::TorchZip | Format::TorchPickle => torch::list(&source.paths),
        Format::LegacyGgml => ggml::list(&source.paths),
        Format::LegacyLora | Format::LegacySession => {
            Err(anyhow!("'{path}' is {what}, which is no model"))
        }
        _ => Err(anyhow!("'{path}' is {what}, which `alight inspect` does not read yet")),
    }
}

/// Writes the text, if the files still have their length: a file truncated under its map reads as
/// zeros, so nothing is written before this check.
fn print<'a>(
    maps: impl IntoIterator<Item = &'a Map>,
    found: &AsFound,
    show: Show,
    text: &[u8],
) -> Outcome {
    for map in maps {
        map.check().map_err(|e| anyhow!(e))?;
        found.leave(map);
    }
    match (show, str::from_utf8(text)) {
        (Show::Text { .. }, Ok(text)) => output::lines(text),
        (Show::Text { .. } | Show::Json, _) => output::report(text),
    }
}

fn map(path: &Path) -> anyhow::Result<Map> {
    Map::open(path).map_err(|error| source::explain(path, anyhow!(error)))
}

/// Returns a parser's result for the bytes of `map`; an error gets the file's name.
fn parsed<T, E>(map: &Map, result: Result<T, E>) -> anyhow::Result<T>
where
    E: std::error::Error + Send + Sync + 'static,
{
    // If the file shrank meanwhile, that is the reason for any other error.
    map.check().map_err(|e| anyhow!(e))?;
    result.map_err(|error| anyhow!(error).context(format!("'{}'", map.path().display())))
}
