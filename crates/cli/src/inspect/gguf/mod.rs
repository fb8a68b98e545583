//! GGUF: all shards of a model, with its metadata. Shows architectures that alight cannot run and types
//! that it has no kernels for, too.

mod human;
mod json;

use std::path::{Path, PathBuf};

use alight_formats::Header;
use alight_formats::gguf::{self, Gguf};
use alight_formats::split::{self, Catalog, Shard};
use alight_pages::Map;
use anyhow::{Context, anyhow};

use super::cached::{Cached, Canvas};
use super::summary::Summary;
use super::{copy_of, map};
use crate::open;
use crate::outcome::Outcome;
use crate::source::file_name;

/// Shows the model that `path` is or belongs to.
pub fn main(path: &Path, as_json: bool) -> Outcome {
    let paths = shards(path)?;
    let maps = paths.iter().map(|path| map(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let copies: Vec<Header<'_>> = maps.iter().map(copy_of).collect();
    let headers = paths
        .iter()
        .zip(maps.iter().zip(&copies))
        .map(|(path, (map, copy))| parse(path, map, copy))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let names: Vec<String> = paths.iter().map(|path| file_name(path)).collect();
    let shards: Vec<Shard<'_, '_>> =
        names.iter().zip(&headers).map(|(name, gguf)| Shard { name, gguf }).collect();
    let catalog = split::merge(&shards)
        .map_err(|e| anyhow!(e))
        .with_context(|| format!("'{}'", path.display()))?;
    let model = Opened {
        files: paths
            .iter()
            .zip(&maps)
            .zip(&headers)
            .map(|((path, map), gguf)| OpenedFile { path, bytes: map.len() as u64, gguf })
            .collect(),
        cached: Cached::of(
            &maps,
            catalog.tensors.iter().map(|t| (t.shard, t.info.offset..t.info.offset + t.info.nbytes)),
        ),
        summary: Summary::of(
            catalog.tensors.iter().map(|t| (t.info.ty.name(), t.info.elements(), t.info.nbytes)),
        ),
        catalog: &catalog,
    };
    let mut text = Vec::new();
    if as_json {
        json::write(&model, &mut text)?;
    } else {
        human::write(&model, Canvas::stdout(), &mut text)?;
    }
    super::print(&maps, &text)
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
    let copy = copy_of(&first);
    let gguf = parse(path, &first, &copy)?;
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

fn parse<'a>(path: &Path, map: &Map, copy: &'a Header<'_>) -> anyhow::Result<Gguf<'a>> {
    let parsed = gguf::parse(copy);
    // If the file shrank meanwhile, that is the reason for whatever else is wrong.
    map.check().map_err(|e| anyhow!(e))?;
    parsed.map_err(|error| {
        open::explain(path, anyhow!(error).context(format!("'{}'", path.display())))
    })
}
