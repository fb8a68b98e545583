//! The files of the model at a path: a file with the others of its model, or a folder with one model in it. Formats are detected by
//! content, as everywhere.

use std::path::{Path, PathBuf};

use alight_files::file_name;
use alight_formats::recognise::{HEAD, recognise};
use alight_formats::{Format, safetensors};
use alight_pages::Map;
use pyo3::prelude::*;

use crate::error;

/// Maximum number of files of a folder that are examined.
const FILES: usize = 4096;

/// A model's files, mapped.
#[derive(Debug)]
pub struct ModelFiles {
    pub format: Format,
    pub files: Vec<Map>,
    /// The index that names them, for safetensors that have one.
    pub index: Option<Map>,
}

/// Finds and maps the model that `path` is, contains or belongs to.
pub fn open(path: &Path) -> PyResult<ModelFiles> {
    if path.is_dir() {
        return folder(path);
    }
    let map = Map::open(path).map_err(error::map)?;
    match format_of(&map) {
        Some(Format::SafeTensorsIndex) => by_index(map),
        Some(Format::SafeTensors) => {
            Ok(ModelFiles { format: Format::SafeTensors, files: vec![map], index: None })
        }
        Some(Format::Gguf) => shards(map),
        Some(other) => Err(other_format(path, other)),
        None => Err(error::format(path, "is neither GGUF nor safetensors")),
    }
}

fn format_of(map: &Map) -> Option<Format> {
    recognise(&map.head(HEAD))
}

pub fn other_format(path: &Path, format: Format) -> PyErr {
    let named = path.display();
    let what = format.describe();
    error::format(path, format!("is {what}; `alight convert {named} -o NEW.gguf` makes GGUF of it"))
}

/// The one model in a folder.
fn folder(folder: &Path) -> PyResult<ModelFiles> {
    let entries = folder.read_dir().map_err(|e| error::system(folder, &e))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).take(FILES).collect();
    paths.sort();
    let mut found: Vec<(Format, Map)> = Vec::new();
    for path in paths.into_iter().filter(|path| path.is_file()) {
        // Files that cannot be read are skipped: a folder may contain others.
        let Ok(map) = Map::open(&path) else { continue };
        if let Some(format) = format_of(&map) {
            found.push((format, map));
        }
    }
    let order = [Format::SafeTensorsIndex, Format::SafeTensors, Format::Gguf];
    let Some(format) = order.into_iter().find(|of| found.iter().any(|(format, _)| format == of))
    else {
        return Err(match found.first() {
            Some((other, _)) => other_format(folder, *other),
            None => error::format(folder, "is a folder without a model in it"),
        });
    };
    let files = found.into_iter().filter(|(found, _)| *found == format).map(|(_, map)| map);
    let mut files: Vec<Map> = files.collect();
    let several = |files: &[Map]| {
        let first = files[0].path().display();
        error::format(folder, format!("is a folder of several models: give one, such as '{first}'"))
    };
    match format {
        Format::SafeTensors => {
            let names: Vec<String> = files.iter().map(|map| file_name(map.path())).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            safetensors::whole(&names).map_err(|e| error::format(folder, e))?;
            Ok(ModelFiles { format, files, index: None })
        }
        _ if files.len() == 1 && format == Format::SafeTensorsIndex => by_index(files.remove(0)),
        Format::SafeTensorsIndex => Err(several(&files)),
        _ => {
            let count = files.len();
            match shards(files.swap_remove(0))? {
                source if source.files.len() == count => Ok(source),
                source => Err(several(&source.files)),
            }
        }
    }
}

/// The safetensors files that an index names.
fn by_index(map: Map) -> PyResult<ModelFiles> {
    let path = map.path().to_owned();
    let files = {
        let copy = alight_files::copy(&map);
        let index = safetensors::parse_index(&copy);
        map.check().map_err(error::map)?;
        let index = index.map_err(|e| error::format(&path, e))?;
        let open = |name: &str| Map::open(&path.with_file_name(name)).map_err(error::map);
        index.files.iter().map(|name| open(name.as_ref())).collect::<PyResult<Vec<Map>>>()?
    };
    Ok(ModelFiles { format: Format::SafeTensors, files, index: Some(map) })
}

/// All shards of the model that a GGUF file is or belongs to.
fn shards(map: Map) -> PyResult<ModelFiles> {
    let others = {
        let copy = alight_files::copy(&map);
        let gguf = alight_files::parse(&map, &copy);
        gguf.and_then(|gguf| alight_files::shards(&map, &gguf)).map_err(error::files)?
    };
    let Some(paths) = others else {
        return Ok(ModelFiles { format: Format::Gguf, files: vec![map], index: None });
    };
    let open = |path: PathBuf| Map::open(&path).map_err(error::map);
    let files = paths.into_iter().map(open).collect::<PyResult<Vec<Map>>>()?;
    Ok(ModelFiles { format: Format::Gguf, files, index: None })
}
