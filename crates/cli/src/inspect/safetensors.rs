//! safetensors: one file, or all files of a model, found by its index or by their names.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use alight_formats::safetensors::{
    self, Index, SafeTensors, SafeTensorsCatalog, SafeTensorsPlaced, SafeTensorsShard,
    SafeTensorsShardName, merge,
};
use alight_pages::Map;
use anyhow::{Context, anyhow};
use serde_json::Value;

use super::listing::{ListedFile, ListedTensor, Listing, ShapeOrder};
use super::{map, parsed};
use crate::source;
use alight_files::file_name;

/// Reads a file, or all safetensors files of a folder that has no index.
pub fn list(paths: &[PathBuf]) -> anyhow::Result<Listing> {
    let names: Vec<String> = paths.iter().map(|path| file_name(path)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    if names.len() > 1 {
        safetensors::whole(&names).with_context(|| {
            let folder = folder(&paths[0]).display();
            format!("'{folder}' has no index of its safetensors files")
        })?;
    }
    let mut listing = read(paths, None)?;
    if let ([name], Some(shard)) = (names.as_slice(), SafeTensorsShardName::parse(names[0])) {
        listing.notes.push(format!("{name} is one of the {} files of a model", shard.count));
    }
    Ok(listing)
}

/// Reads an index, and the files that it names.
pub fn list_index(paths: &[PathBuf]) -> anyhow::Result<Listing> {
    let path = &paths[0];
    if let Some(other) = paths.get(1) {
        return Err(anyhow!(
            "'{}' is a folder with several models: give the index of one, '{}' or '{}'",
            folder(path).display(),
            path.display(),
            other.display()
        ));
    }
    let of_index = map(path)?;
    let copy = alight_files::copy(&of_index);
    let index = parsed(&of_index, safetensors::parse_index(&copy))?;
    let shards: Vec<PathBuf> =
        index.files.iter().map(|name| path.with_file_name(name.as_ref())).collect();
    for shard in &shards {
        if !shard.exists() {
            let (shard, count) = (shard.display(), shards.len());
            return Err(anyhow!(
                "'{shard}' does not exist, and '{}' names it as one of {count} files",
                path.display()
            ));
        }
        source::check_path(shard)?;
    }
    read(&shards, Some((path, &index)))
}

fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

/// Reads files that form one model, the one of `index` if there is one.
fn read(paths: &[PathBuf], index: Option<(&Path, &Index<'_>)>) -> anyhow::Result<Listing> {
    let maps = paths.iter().map(|path| map(path)).collect::<anyhow::Result<Vec<Map>>>()?;
    // In a block: the parsed headers borrow from the maps, which the listing takes.
    let (tensors, metadata, data) = {
        let copies = alight_files::copies(&maps);
        let headers = maps
            .iter()
            .zip(&copies)
            .map(|(map, copy)| parsed(map, safetensors::parse(copy)))
            .collect::<anyhow::Result<Vec<SafeTensors<'_>>>>()?;
        let names: Vec<String> = paths.iter().map(|path| file_name(path)).collect();
        let shards: Vec<SafeTensorsShard<'_, '_>> = names
            .iter()
            .zip(&headers)
            .map(|(name, file)| SafeTensorsShard { name, file })
            .collect();
        let named = index.map_or(paths[0].as_path(), |(path, _)| path);
        let catalog = merge(index.map(|(_, index)| index), &shards)
            .with_context(|| format!("'{}'", named.display()))?;
        let data: Vec<_> = headers.iter().map(|h| h.data_start..h.data_end).collect();
        (tensors(&catalog), metadata(&headers), data)
    };
    let bytes = tensors.iter().map(ListedTensor::bytes).fold(0, u64::saturating_add);
    let said = index.and_then(|(_, index)| index.total_size).filter(|said| *said != bytes);
    let notes = said.map(|said| {
        format!("the index says that all tensors together have {said} bytes; they have {bytes}")
    });
    Ok(Listing {
        format: "safetensors",
        described: match (paths.len(), index) {
            (1, None) => "safetensors".to_owned(),
            (n, None) => format!("safetensors, {n} files, without an index"),
            (n, Some(_)) => format!("safetensors, {n} files by their index"),
        },
        order: ShapeOrder::OutermostFirst,
        files: maps
            .into_iter()
            .zip(data)
            .map(|(map, data)| ListedFile {
                map,
                about: String::new(),
                header_bytes: data.start,
                data,
            })
            .collect(),
        metadata,
        tensors,
        notes: notes.into_iter().collect(),
    })
}

fn tensors(catalog: &SafeTensorsCatalog<'_, '_>) -> Vec<ListedTensor> {
    let tensor = |placed: &SafeTensorsPlaced<'_, '_>| ListedTensor {
        name: placed.info.name.as_ref().to_owned(),
        ty: placed.info.dtype.name(),
        shape: placed.info.shape.clone(),
        file: placed.shard,
        range: placed.info.range.clone(),
    };
    catalog.tensors.iter().map(tensor).collect()
}

/// Returns the metadata of all files. Each has its own, which is mostly the same.
fn metadata(headers: &[SafeTensors<'_>]) -> Vec<(String, Value)> {
    let mut seen = HashSet::new();
    headers
        .iter()
        .flat_map(|header| &header.metadata)
        .filter(|entry| seen.insert(*entry))
        .map(|(key, value)| (key.as_ref().to_owned(), Value::from(value.as_ref())))
        .collect()
}
