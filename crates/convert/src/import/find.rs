//! Finds out which program's files are at a path, and which of them form one model.

use std::io::Read;
use std::path::{Path, PathBuf};

use alight_formats::Format;
use alight_formats::ggml::parts::part_name;
use alight_formats::recognise::{HEAD, recognise};
use alight_formats::safetensors::{MAX_INDEX, SafeTensorsShardName, parse_index, whole};
use alight_formats::split;
use alight_pages::open_file;

use super::side::SmallFiles;
use super::torch;
use crate::ConvertError;
use alight_files::file_name;

/// Maximum number of files of a folder that are examined.
const FILES: usize = 4096;
/// The files of a PEFT folder.
const ADAPTER_CONFIG: &str = "adapter_config.json";
const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";
/// Maximum number of parts of a model.
const PARTS: u32 = 64;

/// The files found at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The program that wrote them.
    pub(crate) kind: Kind,
    /// Folder of the small files that accompany them.
    pub(crate) folder: PathBuf,
    /// The weight files, in order.
    pub(crate) weights: Vec<PathBuf>,
    /// The index that names them, if there is one.
    pub(crate) index: Option<PathBuf>,
}

impl Found {
    /// True if the headers of a file are all at its beginning.
    pub(crate) fn headers_first(&self) -> bool {
        let is_zip = |path: &PathBuf| format_of(path) == Some(Format::TorchZip);
        match self.kind {
            Kind::Gguf => true,
            Kind::Peft => true,
            Kind::HuggingFace => !self.weights.first().is_some_and(is_zip),
            Kind::Meta | Kind::Legacy => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A Hugging Face folder: `config.json`, and weights in safetensors or torch zip files.
    HuggingFace,
    /// A folder of Meta's: `params.json`, and `consolidated.00.pth` and so on.
    Meta,
    /// llama.cpp files from before GGUF.
    Legacy,
    /// GGUF, perhaps in shards.
    Gguf,
    /// A PEFT folder: `adapter_config.json` and `adapter_model.safetensors`.
    Peft,
}

/// Determines what is at `path`; an index of weight files is then among the `small` files.
///
/// # Errors
/// There is nothing that can be converted, or a file is missing.
pub(crate) fn find(path: &Path, small: &SmallFiles) -> Result<Found, ConvertError> {
    let metadata = path.metadata().map_err(|source| ConvertError::Read {
        path: path.into(),
        at: 0,
        source,
    })?;
    if metadata.is_dir() { in_folder(path, small) } else { of_file(path, small) }
}

fn no(path: &Path, problem: impl Into<String>) -> ConvertError {
    ConvertError::NoModel { path: path.into(), problem: problem.into() }
}

/// Returns the format of a readable regular file; `None` for any other.
pub fn format_of(path: &Path) -> Option<Format> {
    let mut head = Vec::new();
    if let Ok((file, _)) = open_file(path) {
        file.take(HEAD as u64).read_to_end(&mut head).ok()?;
    }
    recognise(&head)
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.into(),
        _ => ".".into(),
    }
}

fn in_folder(folder: &Path, small: &SmallFiles) -> Result<Found, ConvertError> {
    let read = |source| ConvertError::Read { path: folder.into(), at: 0, source };
    let entries = folder.read_dir().map_err(read)?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).take(FILES).collect();
    paths.sort();
    let has = |name: &str| folder.join(name).is_file();
    let of: Vec<(PathBuf, Format)> =
        paths.iter().filter_map(|path| Some((path.clone(), format_of(path)?))).collect();
    let all = |format| {
        let of = of.iter().filter(move |(_, found)| *found == format);
        of.map(|(path, _)| path.clone()).collect::<Vec<PathBuf>>()
    };
    let meta: Vec<PathBuf> =
        all(Format::TorchZip).into_iter().filter(|path| part_number(path).is_some()).collect();

    let is_model = index_in(folder).is_some() || has("model.safetensors");
    if has(ADAPTER_CONFIG) && !is_model {
        return adapter(folder);
    }
    if has("config.json") {
        if let Some(index) = index_in(folder) {
            return indexed(&index, small);
        }
        if has("model.safetensors") {
            return one(Kind::HuggingFace, &folder.join("model.safetensors"));
        }
        // Some publishers ship the same weights a second time under Meta's names.
        let named = |path: &PathBuf| !file_name(path).starts_with("consolidated");
        let safetensors: Vec<PathBuf> =
            all(Format::SafeTensors).into_iter().filter(named).collect();
        if let Some(first) = safetensors.first() {
            let names: Vec<String> = safetensors.iter().map(|path| file_name(path)).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let wrong = |source| ConvertError::Index { path: first.clone(), source };
            whole(&names).map_err(wrong)?;
            let (folder, index) = (folder.into(), None);
            return Ok(Found { kind: Kind::HuggingFace, folder, weights: safetensors, index });
        }
        if has("pytorch_model.bin") {
            return one(Kind::HuggingFace, &folder.join("pytorch_model.bin"));
        }
    }
    if let Some(first) = meta.first() {
        return parts_of_meta(first);
    }
    if let Some(first) = all(Format::LegacyGgml).first() {
        return legacy(first);
    }
    let gguf = all(Format::Gguf);
    if let Some(first) = gguf.first() {
        let names: Vec<String> = gguf.iter().map(|path| file_name(path)).collect();
        if gguf.len() > 1 && !split::one_model(&names) {
            return Err(no(folder, "is a folder of several models: give one of its .gguf files"));
        }
        return one(Kind::Gguf, first);
    }
    if let Some(old) = all(Format::TorchPickle).first() {
        return of_file(old, small);
    }
    Err(no(
        folder,
        "holds no model that alight knows: neither config.json with .safetensors files \
         (Hugging Face), nor params.json with consolidated.NN.pth (Meta), nor ggml or GGUF files",
    ))
}

/// Returns the file of an adapter.
fn adapter(folder: &Path) -> Result<Found, ConvertError> {
    let weights = folder.join(ADAPTER_WEIGHTS);
    if weights.is_file() {
        return one(Kind::Peft, &weights);
    }
    let old = folder.join("adapter_model.bin");
    if old.is_file() {
        return Err(no(
            &old,
            "is an adapter as a pickle, which can run programs and is not read: load it with PEFT and save it again \
             (save_pretrained), which writes adapter_model.safetensors",
        ));
    }
    Err(no(
        &weights,
        format!("does not exist, and {ADAPTER_CONFIG} is in its folder: where is the adapter?"),
    ))
}

/// Returns the index of the weights in a folder.
fn index_in(folder: &Path) -> Option<PathBuf> {
    ["model.safetensors.index.json", "pytorch_model.bin.index.json"]
        .map(|name| folder.join(name))
        .into_iter()
        .find(|path| path.is_file())
}

fn one(kind: Kind, path: &Path) -> Result<Found, ConvertError> {
    Ok(Found { kind, folder: folder_of(path), weights: vec![path.into()], index: None })
}

fn of_file(path: &Path, small: &SmallFiles) -> Result<Found, ConvertError> {
    let folder = folder_of(path);
    let name = file_name(path);
    let has = |name: &str| folder.join(name).is_file();
    match format_of(path) {
        Some(Format::Gguf) => one(Kind::Gguf, path),
        Some(Format::LegacyGgml) => legacy(path),
        _ if (name == ADAPTER_WEIGHTS || name == "adapter_model.bin") && has(ADAPTER_CONFIG) => {
            adapter(&folder)
        }
        Some(Format::SafeTensorsIndex) => indexed(path, small),
        Some(Format::SafeTensors | Format::TorchZip)
            if !has("config.json") && !has("params.json") =>
        {
            Err(no(
                path,
                format!(
                    "lacks what belongs to it: there is neither config.json (Hugging Face) nor \
                     params.json (Meta) in '{}', and without one its tensors mean nothing",
                    folder.display()
                ),
            ))
        }
        Some(Format::SafeTensors) if has("config.json") => {
            // One of several shards: the others belong to it.
            match (SafeTensorsShardName::parse(&name), index_in(&folder)) {
                (Some(_), Some(index)) => indexed(&index, small),
                (Some(shard), None) => {
                    let weights = (0..shard.count.min(FILES as u64))
                        .map(|no| folder.join(shard.file_name(no)));
                    let (weights, index) = (weights.collect(), None);
                    Ok(Found { kind: Kind::HuggingFace, folder, weights, index })
                }
                (None, _) => one(Kind::HuggingFace, path),
            }
        }
        Some(Format::TorchZip) if part_number(path).is_some() && has("params.json") => {
            parts_of_meta(path)
        }
        Some(Format::TorchZip) if has("config.json") => match index_in(&folder) {
            Some(index) if name.contains("-of-") => indexed(&index, small),
            _ => one(Kind::HuggingFace, path),
        },
        Some(Format::TorchPickle) => Err(no(
            path,
            format!(
                "is {}: only PyTorch itself can read these; load it there and save it again \
                 (torch.save), or get the safetensors files of the model",
                Format::TorchPickle.describe()
            ),
        )),
        Some(format) => {
            Err(no(path, format!("is {}: that is no model to convert", format.describe())))
        }
        None => {
            // A file that cannot be opened has an error of its own.
            open_file(path)?;
            Err(no(
                path,
                "is in no format that alight knows (safetensors, PyTorch's .pth, ggml, GGUF, or the index \
             of safetensors files)",
            ))
        }
    }
}

/// The files listed in an index.
fn indexed(index: &Path, small: &SmallFiles) -> Result<Found, ConvertError> {
    let folder = folder_of(index);
    if !folder.join("config.json").is_file() {
        return Err(no(index, "has no config.json beside it, which says what model it is"));
    }
    let bytes = small.read(index, MAX_INDEX)?.unwrap_or_default();
    let names: Vec<String> = if file_name(index).starts_with("pytorch") {
        torch::index_files(index, &bytes)?
    } else {
        let wrong = |source| ConvertError::Index { path: index.into(), source };
        let parsed = parse_index(&bytes).map_err(wrong)?;
        parsed.files.iter().map(|name| name.clone().into_owned()).collect()
    };
    let weights: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    if let Some(missing) = weights.iter().find(|path| !path.exists()) {
        let problem = format!("does not exist, and '{}' names it", index.display());
        return Err(no(missing, problem));
    }
    Ok(Found { kind: Kind::HuggingFace, folder, weights, index: Some(index.into()) })
}

/// Returns the number in `consolidated.NN.pth`.
fn part_number(path: &Path) -> Option<u32> {
    let name = file_name(path);
    let number = name.strip_prefix("consolidated.")?.strip_suffix(".pth")?;
    let digits = number.len() == 2 && number.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| number.parse().ok())?
}

/// Returns all parts of a Meta model of which `path` is one.
fn parts_of_meta(path: &Path) -> Result<Found, ConvertError> {
    let folder = folder_of(path);
    let part = |number: u32| folder.join(format!("consolidated.{number:02}.pth"));
    let weights = without_gap(part, |path| path.exists())?;
    Ok(Found { kind: Kind::Meta, folder, weights, index: None })
}

/// Returns the parts of a model from number 0 on.
fn without_gap(
    part: impl Fn(u32) -> PathBuf,
    there: impl Fn(&PathBuf) -> bool,
) -> Result<Vec<PathBuf>, ConvertError> {
    let parts: Vec<PathBuf> = (0..PARTS).map(&part).take_while(&there).collect();
    // A part after a gap shows that one is missing.
    match (0..PARTS).rev().map(&part).find(|path| there(path)) {
        Some(last) if !parts.contains(&last) => {
            let problem = format!("does not exist, but '{}' does", last.display());
            Err(no(&part(parts.len() as u32), problem))
        }
        _ => Ok(parts),
    }
}

/// Returns all parts of an old model of which `path` is one: `X`, `X.1` and so on.
fn legacy(path: &Path) -> Result<Found, ConvertError> {
    let name = file_name(path);
    let first = match name.rsplit_once('.') {
        Some((stem, number)) if number.parse::<u32>().is_ok_and(|number| number < PARTS) => {
            let first = path.with_file_name(stem);
            if format_of(&first) == Some(Format::LegacyGgml) { first } else { path.into() }
        }
        _ => path.to_path_buf(),
    };
    let name = file_name(&first);
    let part = |number: u32| first.with_file_name(part_name(&name, number));
    let there = |path: &PathBuf| format_of(path) == Some(Format::LegacyGgml);
    let weights = without_gap(part, there)?;
    Ok(Found { kind: Kind::Legacy, folder: folder_of(path), weights, index: None })
}
