//! `alight inspect`: what is in a model file. Needs only the header to make sense, so it also shows
//! architectures that alight cannot run and types that it has no kernels for.

mod cached;
mod human;
mod json;
mod summary;

use std::io::{BufWriter, Write, stdout};
use std::path::{Path, PathBuf};

use alight_formats::gguf::{self, Gguf};
use alight_formats::split::{self, Catalog, Shard};
use alight_pages::Map;
use anyhow::{Context, anyhow};

use crate::open;
use crate::outcome::Outcome;
use cached::{Cached, Canvas};
use summary::Summary;

/// Arguments of `alight inspect`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  alight inspect model.gguf
  alight inspect model-00001-of-00003.gguf         all shards of a split model; any of them will do
  alight inspect model.gguf --json | jq '.types'
  alight inspect model.gguf --json | jq -r '.metadata[] | select(.key == \"tokenizer.chat_template\").value'

Shapes are as GGUF has them, innermost first: a matrix of 3 rows and 5 columns is 5 × 3.
`align` is the largest power of two that a tensor's offset in its file is a multiple of.
`cached` is the part that is in memory now (in the page cache): a start reads only the rest. On a
terminal the file is drawn from its beginning to its end.")]
pub struct InspectArgs {
    /// The model: a .gguf file (of a split model, any shard)
    model: PathBuf,

    /// Everything as one line of JSON, arrays in full
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn main(args: &InspectArgs) -> Outcome {
    let paths = shards(&args.model)?;
    let maps = paths.iter().map(|path| map(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let headers = paths
        .iter()
        .zip(&maps)
        .map(|(path, map)| parse(path, map))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let names: Vec<String> = paths.iter().map(|path| file_name(path)).collect();
    let shards: Vec<Shard<'_, '_>> =
        names.iter().zip(&headers).map(|(name, gguf)| Shard { name, gguf }).collect();
    let catalog = split::merge(&shards)
        .map_err(|e| anyhow!(e))
        .with_context(|| format!("'{}'", args.model.display()))?;
    let model = Opened {
        files: paths
            .iter()
            .zip(&maps)
            .zip(&headers)
            .map(|((path, map), gguf)| OpenedFile { path, bytes: map.len() as u64, gguf })
            .collect(),
        cached: Cached::of(&maps, &catalog),
        summary: Summary::of(&catalog),
        catalog: &catalog,
    };
    // A file that was cut short under the map would show as zeros: nothing is written before this.
    let mut text = Vec::new();
    if args.json {
        json::write(&model, &mut text)?;
    } else {
        human::write(&model, Canvas::stdout(), &mut text)?;
    }
    for map in &maps {
        map.check().map_err(|e| anyhow!(e))?;
    }
    let mut out = BufWriter::new(stdout().lock());
    out.write_all(&text)?;
    out.flush()?;
    Ok(())
}

/// A model's files and what they hold together.
#[derive(Debug)]
struct Opened<'a> {
    files: Vec<OpenedFile<'a>>,
    catalog: &'a Catalog<'a>,
    summary: Summary,
    cached: Cached,
}

/// One file.
#[derive(Debug)]
struct OpenedFile<'a> {
    path: &'a Path,
    bytes: u64,
    gguf: &'a Gguf<'a>,
}

/// All files of the model that `path` is or belongs to.
pub fn shards(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    open::check_path(path)?;
    let first = map(path)?;
    let gguf = parse(path, &first)?;
    let names = split::names(&file_name(path), &gguf)
        .map_err(|e| anyhow!(e))
        .with_context(|| format!("'{}'", path.display()))?;
    if names.len() == 1 {
        return Ok(vec![path.to_owned()]);
    }
    let shards: Vec<PathBuf> = names.into_iter().map(|name| path.with_file_name(name)).collect();
    for shard in &shards {
        open::check_path(shard)
            .with_context(|| format!("'{}' is one of {} shards", path.display(), shards.len()))?;
    }
    Ok(shards)
}

fn map(path: &Path) -> anyhow::Result<Map> {
    Map::open(path).map_err(|error| open::explain(path, anyhow!(error)))
}

fn parse<'a>(path: &Path, map: &'a Map) -> anyhow::Result<Gguf<'a>> {
    let parsed = gguf::parse(map.bytes());
    // If the file shrank meanwhile, that is the reason for whatever else is wrong.
    map.check().map_err(|e| anyhow!(e))?;
    parsed.map_err(|error| {
        open::explain(path, anyhow!(error).context(format!("'{}'", path.display())))
    })
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
