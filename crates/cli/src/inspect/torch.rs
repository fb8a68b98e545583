//! PyTorch's zip files: one, or all in a folder (shards, or the parts of a model split for several
//! devices).

use std::collections::HashSet;
use std::ops::Range;
use std::path::PathBuf;

use alight_formats::torch::{self, PickleError, Scalar, Torch, TorchError};
use alight_pages::Map;
use anyhow::anyhow;
use serde_json::{Value, json};

use super::listing::{ListedFile, ListedTensor, Listing, ShapeOrder};
use alight_files::file_name;

/// Reads the combined contents of `paths`.
pub fn list(paths: &[PathBuf]) -> anyhow::Result<Listing> {
    let mut listing = Listing {
        format: "torch",
        described: String::new(),
        order: ShapeOrder::OutermostFirst,
        files: Vec::new(),
        metadata: Vec::new(),
        tensors: Vec::new(),
        notes: Vec::new(),
    };
    for path in paths {
        let map = super::map(path)?;
        let copy = alight_files::copy(&map);
        let parsed = torch::parse(&copy);
        if let (Err(error), true) = (&parsed, paths.len() > 1)
            && holds_no_tensors(error)
        {
            listing.notes.push(format!("{} is left out: {error}", file_name(path)));
            continue;
        }
        let file = super::parsed(&map, parsed)?;
        let (about, header_bytes, data) = add(&mut listing, &map, &file);
        drop(copy);
        listing.files.push(ListedFile { map, about, header_bytes, data });
    }
    let count = listing.files.len();
    if count == 0 {
        return Err(anyhow!("no file of tensors: {}", listing.notes.join("; ")));
    }
    listing.described = match count {
        1 => "PyTorch (zip)".to_owned(),
        _ => format!("PyTorch (zip), {count} files"),
    };
    // Stable: tensors that share bytes stay in the order of the dictionaries.
    listing.tensors.sort_by_key(|tensor| (tensor.file, tensor.range.start));
    let names: HashSet<&str> = listing.tensors.iter().map(|tensor| &*tensor.name).collect();
    let repeated = listing.tensors.len() - names.len();
    if repeated > 0 {
        listing.notes.push(format!(
            "{repeated} names occur in more than one file: parts of one model, or several models"
        ));
    }
    Ok(listing)
}

/// Returns true for files that are stored next to models: training arguments, optimiser state.
fn holds_no_tensors(error: &TorchError) -> bool {
    use PickleError::{Global, Opcode};
    matches!(
        error,
        TorchError::Pickle(Global { .. } | Opcode { .. })
            | TorchError::NotADict { .. }
            | TorchError::TorchScript
    )
}

/// Adds the tensors of the next file; returns its description, its bytes that belong to no tensor,
/// and the range of its tensors.
fn add(listing: &mut Listing, map: &Map, file: &Torch<'_>) -> (String, u64, Range<u64>) {
    let mut ranges: Vec<_> = file
        .tensors
        .iter()
        .map(|t| t.offset..t.offset + t.nbytes)
        .filter(|r| !r.is_empty())
        .collect();
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let data = match (ranges.first(), ranges.iter().map(|range| range.end).max()) {
        (Some(first), Some(end)) => first.start..end,
        _ => 0..0,
    };
    // Bytes of tensors; bytes that several share count once.
    let (mut covered, mut upto) = (0, 0);
    for range in &ranges {
        covered += range.end.saturating_sub(range.start.max(upto));
        upto = upto.max(range.end);
    }
    let shared: u64 = file.tensors.iter().map(|tensor| tensor.nbytes).sum::<u64>() - covered;
    if shared > 0 {
        let name = file_name(map.path());
        listing.notes.push(format!("{name}: tensors share {shared} bytes with others"));
    }
    let index = listing.files.len();
    listing
        .metadata
        .extend(file.scalars.iter().map(|(name, value)| (name.to_string(), plain(value))));
    listing.tensors.extend(file.tensors.iter().map(|tensor| ListedTensor {
        name: tensor.name.to_string(),
        ty: tensor.dtype.name(),
        shape: tensor.shape.to_vec(),
        file: index,
        range: tensor.offset..tensor.offset + tensor.nbytes,
    }));
    let about = format!("container version {}", file.version);
    (about, map.len() as u64 - covered, data)
}

fn plain(value: &Scalar<'_>) -> Value {
    match *value {
        Scalar::None => Value::Null,
        Scalar::Bool(value) => json!(value),
        Scalar::Int(value) => json!(value),
        Scalar::Float(value) => json!(value),
        Scalar::Str(value) => json!(value),
    }
}
