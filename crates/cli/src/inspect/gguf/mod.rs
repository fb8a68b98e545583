//! GGUF: all shards of a model, with its metadata. Architectures that alight cannot run and types
//! without kernels are shown too.

mod adapter;
mod experts;
mod human;
mod json;
mod session;

use std::path::{Path, PathBuf};

use alight_files::Headers;
use alight_formats::adapter::AdapterFile;
use alight_formats::gguf::Gguf;
use alight_formats::split::Catalog;
use alight_model::{ModelSpec, describe};
use alight_pages::Map;
use alight_text::Vocabulary;
use anyhow::{Context, anyhow};

use self::adapter::Adapter;
use self::experts::Experts;
use self::session::SessionMemory;
use super::cached::{AsFound, Cached, Canvas};
use super::parts::View;
use super::summary::Summary;
use super::watch::Placed;
use super::{Show, map};
use crate::outcome::{Outcome, Stop};
use crate::{say, source};

/// Shows the model that `path` is or belongs to; an adapter is compared with the model at `base`.
pub fn main(path: &Path, found: &AsFound, show: Show, base: Option<&Path>) -> Outcome {
    let paths = shards(path)?;
    let maps = paths.iter().map(|path| map(path)).collect::<anyhow::Result<Vec<_>>>()?;
    found.opened();
    let copies = alight_files::copies(&maps);
    let headers = alight_files::headers(&maps, &copies);
    let Headers { files, catalog } = headers.map_err(|e| source::explain(path, anyhow!(e)))?;
    let spec = ModelSpec::from_gguf(&files[0]).ok();
    let vocabulary = vocabulary(&files[0]);
    let mut warnings: Vec<String> = spec.iter().filter_map(describe::unread_keys).collect();
    let misfit = vocabulary.as_ref().and_then(|vocabulary| vocabulary.tokenizer.misfit());
    warnings.extend(misfit.map(|misfit| misfit.to_string()));
    let mut adapter = None;
    if AdapterFile::is_adapter(&files[0]) {
        match Adapter::read(&files[0], base) {
            Ok(read) => adapter = Some(read),
            Err(error) if base.is_some() => return Err(Stop::Failed(error)),
            Err(error) => warnings.push(format!("the adapter cannot be used: {error}")),
        }
    } else if base.is_some() {
        let problem = format!("'{}' is no adapter, which --base is for", path.display());
        return Err(Stop::Failed(anyhow!(problem)));
    }
    if !matches!(show, Show::Json) {
        warnings.iter().for_each(|warning| say::note(warning));
    }
    let shown: Vec<PathBuf> = paths.iter().map(|path| found.shown(path)).collect();
    let model = Opened {
        files: shown
            .iter()
            .zip(&maps)
            .zip(&files)
            .map(|((path, map), gguf)| OpenedFile { path, bytes: map.len() as u64, gguf })
            .collect(),
        cached: Cached::of(
            &maps,
            catalog.tensors.iter().map(|t| (t.shard, t.info.pieces())),
            found,
        ),
        summary: Summary::of_catalog(&catalog),
        tool_format: vocabulary.map(|vocabulary| vocabulary.output_format().name()),
        experts: Experts::of(&files[0], &catalog, &maps, found),
        session: spec
            .map(|spec| SessionMemory::of(&spec, maps.iter().map(|map| map.len() as u64).sum())),
        warnings,
        adapter,
        catalog: &catalog,
    };
    let mut text = Vec::new();
    match show {
        Show::Json => json::write(&model, &mut text)?,
        Show::Text { tensors } => {
            human::write(&model, View { canvas: Canvas::stdout(), tensors }, &mut text)?;
        }
    }
    super::print(&maps, found, show, &text)?;
    match model.adapter.as_ref().and_then(Adapter::misfit) {
        None => Ok(()),
        Some(misfit) => {
            let (path, base) = (path.display(), base.unwrap_or(path).display());
            Err(Stop::Failed(anyhow!("'{path}' does not fit '{base}': {misfit}")))
        }
    }
}

/// Returns all files of the model, and the locations of its tensors.
pub fn placed(path: &Path) -> anyhow::Result<(Vec<Map>, Vec<Placed>)> {
    let maps = shards(path)?.iter().map(|path| map(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let placed = {
        let copies = alight_files::copies(&maps);
        let headers = alight_files::headers(&maps, &copies);
        let catalog = headers.map_err(|e| source::explain(path, anyhow!(e)))?.catalog;
        let placed = catalog.tensors.iter().map(|t| Placed {
            name: t.info.name.to_owned(),
            file: t.shard,
            // If experts are stored side by side, the bytes in between are in memory just as they are.
            range: t.info.offset..t.info.range().end as u64,
        });
        placed.collect()
    };
    Ok((maps, placed))
}

/// A model's files and their combined contents.
#[derive(Debug)]
struct Opened<'a> {
    files: Vec<OpenedFile<'a>>,
    catalog: &'a Catalog<'a>,
    summary: Summary,
    cached: Cached,
    experts: Option<Experts>,
    session: Option<SessionMemory>,
    /// The summary of an adapter.
    adapter: Option<Adapter>,
    /// The notation of thinking and tool calls, if there is a chat template.
    tool_format: Option<&'static str>,
    /// Reasons to doubt answers.
    warnings: Vec<String>,
}

/// Returns the tokenizer and the chat template, if there is a chat template.
fn vocabulary(gguf: &Gguf<'_>) -> Option<Vocabulary> {
    // Without one, no tokenizer is built, which takes most of the time of large vocabularies.
    gguf.get_str("tokenizer.chat_template").ok().flatten()?;
    let vocabulary = Vocabulary::from_gguf(gguf).ok()?;
    vocabulary.template_source()?;
    Some(vocabulary)
}

/// One file.
#[derive(Debug)]
struct OpenedFile<'a> {
    path: &'a Path,
    bytes: u64,
    gguf: &'a Gguf<'a>,
}

/// Returns all files of the model that `path` is or belongs to.
pub fn shards(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    shards_and_layout(path).map(|(shards, _)| shards)
}

/// Like [`shards`], and returns true if the model is packed.
pub fn shards_and_layout(path: &Path) -> anyhow::Result<(Vec<PathBuf>, bool)> {
    source::check_path(path)?;
    let found = alight_files::shards_and_layout(path);
    let (shards, is_packed) = found.map_err(|e| source::explain(path, anyhow!(e)))?;
    for shard in &shards {
        source::check_path(shard)
            .with_context(|| format!("'{}' is one of {} shards", path.display(), shards.len()))?;
    }
    Ok((shards, is_packed))
}
