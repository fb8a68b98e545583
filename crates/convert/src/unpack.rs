//! Restores the source of a packed file.

use std::borrow::Cow;
use std::path::Path;
use std::time::Instant;

use alight_formats::gguf::TensorInfo;
use alight_pages::Map;

use crate::copy::{self, Hashed, Step, StepInput, Tiling};
use crate::dest::Target;
use crate::restore;
use crate::source::{self, tiled_type};
use crate::{ConvertError, OnProgress, Options, Volume};

/// The result of [`unpack`].
#[derive(Clone, Debug)]
pub struct Unpacked {
    /// Bytes and time.
    pub volume: Volume,
    /// Tensors of the model.
    pub tensors: usize,
    /// Tensors that had been in tiles or planes.
    pub packed: usize,
    /// The checksum of the new file, in hexadecimal; it equals that of the file that was packed.
    pub sha256: String,
}

/// Restores the file that was packed into `source`, at `dest`, bit for bit; a split model is
/// restored as one file. Its checksum is compared before it gets its name.
///
/// # Errors
/// See [`ConvertError`]. In that case there is no file at `dest`, or still the earlier one.
pub fn unpack(
    source: &Path,
    dest: &Path,
    options: Options,
    on_progress: &mut OnProgress<'_>,
) -> Result<Unpacked, ConvertError> {
    let started = Instant::now();
    let maps = [source::map(source)?];
    let map = &maps[0];
    let copy = alight_files::copy(map);
    let gguf = alight_files::parse(map, &copy)?;
    if !gguf.packed {
        return Err(ConvertError::NotPacked { path: source.into() });
    }
    let record = restore::read(map, &gguf)?;
    let target = Target::new(dest, options, &maps, &[])?;

    let tensors: Vec<_> =
        record.order.iter().filter_map(|index| gguf.tensors.get(*index as usize)).collect();
    let header = match &record.header {
        Some(header) => header.clone(),
        None => {
            let tensors = tensors.iter().copied();
            let made = restore::header(record.version, record.alignment, &gguf.metadata, tensors);
            let made =
                made.map_err(|source| ConvertError::Header { path: map.path().into(), source });
            Cow::Owned(made?.unpadded_header())
        }
    };
    let sizes = tensors.iter().map(|info| info.nbytes);
    let gaps = restore::gaps(header.len() as u64, record.alignment(), sizes, record.bytes);
    let plausible = |gaps: &Vec<u64>| gaps.last().is_some_and(|tail| *tail <= restore::MAX_TAIL);
    let gaps = gaps.filter(plausible).ok_or_else(|| ConvertError::Restore {
        path: map.path().into(),
        key: "alight.source.bytes",
        problem: format!("is {}, which does not go with its tensors", record.bytes),
    })?;

    let steps = steps(map, &header, &record.filler, &gaps, &tensors)?;
    let replacement = target.create(record.bytes)?;
    let to = (replacement.file(), dest);
    let (found, threads) = copy::run(&steps, to, Hashed::Result, on_progress)?;
    map.check_unchanged()?;
    if found != record.sha256 {
        let (path, expected) = (map.path().into(), record.sha256);
        return Err(ConvertError::Checksum { path, found, expected });
    }
    let set = replacement.file().set_len(record.bytes);
    set.map_err(|source| ConvertError::Write { path: dest.into(), source })?;
    replacement.commit()?;
    Ok(Unpacked {
        volume: Volume {
            read: map.len() as u64,
            written: record.bytes,
            took: started.elapsed(),
            threads,
        },
        tensors: tensors.len(),
        packed: tensors.iter().filter(|info| info.packed.is_some()).count(),
        sha256: found,
    })
}

/// The new file from beginning to end: its header, then the gap before each tensor and the tensor, and the
/// gap at the end. The first bytes of the gaps are `filler`, all others zero.
fn steps<'a>(
    map: &'a Map,
    header: &'a [u8],
    mut filler: &'a [u8],
    gaps: &[u64],
    tensors: &[&TensorInfo<'_>],
) -> Result<Vec<Step<'a>>, ConvertError> {
    let mut steps = Vec::new();
    let mut at = 0;
    let mut put = |from, len, tiling| {
        steps.push(Step { from, len, to: Some(at), tiling });
        at += len;
    };
    put(StepInput::Memory(header), header.len() as u64, Tiling::Keep);
    for (index, gap) in gaps.iter().enumerate() {
        let (known, rest) =
            filler.split_at(filler.len().min(usize::try_from(*gap).unwrap_or(usize::MAX)));
        filler = rest;
        put(StepInput::Memory(known), known.len() as u64, Tiling::Keep);
        put(StepInput::Zeros, gap - known.len() as u64, Tiling::Keep);
        let Some(info) = tensors.get(index) else { continue };
        let tiling = tiling(map, info)?;
        for piece in info.pieces() {
            put(StepInput::File { map, at: piece.start }, piece.end - piece.start, tiling);
        }
    }
    Ok(steps)
}

/// Returns the change of layout for a tensor.
fn tiling(map: &Map, info: &TensorInfo<'_>) -> Result<Tiling, ConvertError> {
    let wrong = |problem| ConvertError::Restore {
        path: map.path().into(),
        key: alight_formats::packed::LAYOUT_KEY,
        problem,
    };
    if info.packed.is_none() {
        return Ok(Tiling::Keep);
    }
    let Some(ty) = tiled_type(info.ty) else {
        return Err(wrong(format!("does not say what a tile of {} is", info.ty)));
    };
    if info.row_bytes() > copy::MAX_TILE / alight_formats::packed::TILE_ROWS {
        return Err(wrong(format!("does not go with rows of {} bytes", info.row_bytes())));
    }
    Ok(Tiling::Unpack { from: info.packed.into(), ty, cols: info.ne[0] as usize })
}
