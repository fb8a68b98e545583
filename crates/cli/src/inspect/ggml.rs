//! llama.cpp's files before GGUF: all parts of a model, with its header and vocabulary. An
//! incomplete model is shown as far as it is present, with a note of the missing part.

use std::path::{Path, PathBuf};

use alight_formats::Format;
use alight_formats::ggml::{Ggml, Magic, parse, parts};
use anyhow::anyhow;
use serde_json::{Value, json};

use super::listing::{ListedFile, ListedTensor, Listing, ShapeOrder};
use super::{map, parsed};
use crate::source::format_of;

/// Reads all parts of the model that `paths` are or belong to.
pub fn list(paths: &[PathBuf]) -> anyhow::Result<Listing> {
    let first = first_part(paths)?;
    let mut maps = vec![map(&first)?];
    let mut wanted = 1;
    // The width of the first part implies the number of parts; missing ones are noted below.
    let count = {
        let copy = alight_files::copy(&maps[0]);
        parts::count(&parsed(&maps[0], parse(&copy))?)
    };
    if let Ok(count) = count {
        wanted = count;
        // A header can claim any number; the files that exist limit it.
        for part in 1..count {
            let path = part_path(&first, part);
            if format_of(&path) != Some(Format::LegacyGgml) {
                break;
            }
            maps.push(map(&path)?);
        }
    }
    let copies = alight_files::copies(&maps);
    let catalogs = maps
        .iter()
        .zip(&copies)
        .map(|(map, copy)| parsed(map, parse(copy)))
        .collect::<anyhow::Result<Vec<Ggml<'_>>>>()?;
    let model = parts::merge(&catalogs);
    let head = &catalogs[0];
    let mut notes: Vec<String> =
        about_parts(&model, maps.len(), wanted, &first).into_iter().collect();
    notes.extend(about_header(head));

    let kind = match head.version {
        Some(version) => format!("{} version {version}", head.magic),
        None => head.magic.to_string(),
    };
    let several = if maps.len() > 1 { format!(", {} parts", maps.len()) } else { String::new() };
    let mut metadata = header(head);
    if let Ok(model) = &model {
        metadata.push(("n_ff".into(), model.n_ff.into()));
        metadata.push(("n_head_kv".into(), model.n_head_kv.into()));
    }
    metadata.extend(vocabulary(head));
    let tensors = catalogs.iter().enumerate().flat_map(|(file, catalog)| {
        catalog.tensors.iter().map(move |tensor| ListedTensor {
            name: tensor.name.into(),
            ty: tensor.ty.name(),
            shape: tensor.shape().into(),
            file,
            range: tensor.offset..tensor.offset + tensor.nbytes,
        })
    });
    let tensors = tensors.collect();
    let described = format!("legacy GGML ({kind}{several}), blocks: {}", head.era);
    let files: Vec<(u64, std::ops::Range<u64>)> = catalogs.iter().map(data).collect();
    drop(copies);
    let files = maps
        .into_iter()
        .zip(files)
        .map(|(map, (bytes, data))| ListedFile {
            header_bytes: map.len() as u64 - bytes,
            map,
            about: String::new(),
            data,
        })
        .collect();
    let order = ShapeOrder::InnermostFirst;
    Ok(Listing { format: "ggml", described, order, files, metadata, tensors, notes })
}

/// Returns a description of the parts together.
fn about_parts<M, E: std::fmt::Display>(
    model: &Result<M, E>,
    found: usize,
    wanted: u32,
    first: &Path,
) -> Option<String> {
    match model {
        Err(_) if (found as u64) < u64::from(wanted) => Some(format!(
            "not a whole model: {found} of {wanted} parts are here, '{}' is missing",
            part_path(first, found as u32).display()
        )),
        Err(error) => Some(format!("not a whole LLaMA model: {error}")),
        Ok(_) => (found > 1).then(|| "vectors are in every part, and counted in each".into()),
    }
}

/// Returns notes on what files of this kind leave unspecified.
fn about_header(head: &Ggml<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if head.magic == Magic::Ggml {
        notes.push(
            "has no scores of tokens: cutting text needs the original tokenizer.model".into(),
        );
        notes.push(
            "nothing in it tells whether it is of the first days of March 2023, when quantised rows held \
             all scales first; shown as if not"
                .into(),
        );
    }
    if head.vocabulary.lacks_padding() {
        notes.push("the last token, padding, is left out, as in files of GPT4All".into());
    }
    notes
}

/// Returns the bytes of tensors in a file, and the range that they occupy.
fn data(file: &Ggml<'_>) -> (u64, std::ops::Range<u64>) {
    let bytes = file.tensors.iter().map(|tensor| tensor.nbytes).sum();
    let start = file.tensors.first().map_or(file.tensors_start, |tensor| tensor.offset);
    let end = file.tensors.last().map_or(start, |tensor| tensor.offset + tensor.nbytes);
    (bytes, start..end)
}

fn header(file: &Ggml<'_>) -> Vec<(String, Value)> {
    let h = &file.hparams;
    let ftype = h.ftype_name().map_or(h.ftype.into(), Value::from);
    let numbers = [
        ("n_vocab", h.n_vocab.into()),
        ("n_embd", h.n_embd.into()),
        ("n_mult", h.n_mult.into()),
        ("n_head", h.n_head.into()),
        ("n_layer", h.n_layer.into()),
        ("n_rot", h.n_rot.into()),
        ("ftype", ftype),
    ];
    numbers.map(|(key, value)| (key.into(), value)).into()
}

/// Returns the tokens as stored in the file, and their scores.
fn vocabulary(file: &Ggml<'_>) -> Vec<(String, Value)> {
    let tokens = &file.vocabulary.tokens;
    let texts = tokens.iter().map(|token| String::from_utf8_lossy(token.text).into());
    let mut out = vec![("tokens".into(), Value::Array(texts.collect()))];
    if file.vocabulary.scored {
        let scores = tokens.iter().map(|token| json!(token.score));
        out.push(("scores".into(), Value::Array(scores.collect())));
    }
    out
}

/// Turns `model.bin` and 3 into `model.bin.3`.
fn part_path(first: &Path, part: u32) -> PathBuf {
    let name = first.file_name().unwrap_or_default().to_string_lossy();
    first.with_file_name(parts::part_name(&name, part))
}

/// Returns the file without a number that the part `path` belongs to, if `path` has a number and
/// that file exists.
fn first_of(path: &Path) -> Option<PathBuf> {
    let number = path.extension()?.to_str()?;
    let is_number = number.parse::<u32>().is_ok_and(|n| n > 0 && n.to_string() == number);
    let first = path.with_extension("");
    (is_number && format_of(&first) == Some(Format::LegacyGgml)).then_some(first)
}

/// Returns the first part of the one model that `paths` belong to.
fn first_part(paths: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let mut models: Vec<PathBuf> =
        paths.iter().map(|path| first_of(path).unwrap_or_else(|| path.clone())).collect();
    models.sort();
    models.dedup();
    match &models[..] {
        [model] => Ok(model.clone()),
        models => Err(anyhow!(
            "there are {} legacy GGML models in the folder: give one of them, such as '{}'",
            models.len(),
            models[0].display()
        )),
    }
}
