//! A model into one with weights of other types.

mod recipe;

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::Instant;

use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;
use alight_formats::gguf::{GgufError, MAX_HEADER, TensorInfo, Value};
use alight_formats::packed::PACKED_ALIGNMENT;
use alight_kernels::quantize::quantize_row;
use alight_kernels::{Isa, WeightType, dequantize_row};
use alight_pages::{Map, Replacement};

pub use recipe::{Recipe, UnknownRecipe};

use crate::order::execution_order;
use crate::pipe::pipe;
use crate::sink::Sink;
use crate::source::{self, Headers};
use crate::{ConvertError, OnProgress, Options, Progress, Volume, dest, read};

/// Bytes of a source that are read at once, if a row is not longer.
const PIECE: u64 = 4 << 20;
/// Metadata that is written anew.
const FILE_TYPE: &str = "general.file_type";
const VERSION: &str = "general.quantization_version";
const ALIGNMENT: &str = "general.alignment";

/// What [`quantize`] did.
#[derive(Clone, Debug)]
pub struct Quantized {
    /// Bytes and time.
    pub volume: Volume,
    /// For each pair of types, how many tensors went from the one to the other, and the bytes they
    /// have now.
    pub changes: BTreeMap<(GgmlType, GgmlType), (usize, u64)>,
    /// Tensors that were made of blocks already, so that they are rounded twice.
    pub rounded_twice: usize,
}

/// A tensor and what becomes of it.
struct Item<'m> {
    info: TensorInfo<'m>,
    map: &'m Map,
    to: GgmlType,
}

/// Quantises the model at `source` (of a split model, any shard) into a new file at `dest`, with
/// `threads` threads.
///
/// The new file is a GGUF of version 3 with the source's metadata and tensors, which begin on pages
/// and stand in the order in which they are used. Vectors and norms stay as they are. The same source
/// gives the same bytes, whatever the number of threads and the processor.
///
/// # Errors
/// See [`ConvertError`]. There is no file at `dest` then, or the one that was there before.
pub fn quantize(
    source: &Path,
    dest: &Path,
    recipe: Recipe,
    threads: usize,
    options: Options,
    on_progress: &mut OnProgress<'_>,
) -> Result<Quantized, ConvertError> {
    let started = Instant::now();
    let maps = source::open(source)?;
    let headers = source::canonical_headers(&maps)?;
    let dest = dest::check(dest, options, &maps)?;
    let items = items(&headers, &maps, recipe)?;
    let invalid = |source| ConvertError::Header { path: maps[0].path().into(), source };
    let builder = header(&headers, &items, recipe).map_err(invalid)?;
    let header = builder.header();
    if header.len() > MAX_HEADER {
        let (found, limit) = (header.len() as u64, MAX_HEADER as u64);
        return Err(ConvertError::HeaderTooLong { path: maps[0].path().into(), found, limit });
    }
    let start = header.len() as u64;
    let end = builder.layout().last().map_or(start, |last| start + last.offset + last.nbytes);
    let written = end.next_multiple_of(PACKED_ALIGNMENT);

    let replacement = Replacement::create(&dest, written)?;
    let write = |source| ConvertError::Write { path: dest.clone(), source };
    let mut sink = Sink::new(replacement.file());
    sink.put(header.len(), |out| out.copy_from_slice(&header)).map_err(write)?;
    let total = items.iter().map(|item| item.info.nbytes).sum();
    let mut progress = Progress { done: 0, total };
    for (item, planned) in items.iter().zip(builder.layout()) {
        sink.seek(start + planned.offset).map_err(write)?;
        convert(item, threads, &mut sink, &dest, &mut progress, on_progress)?;
    }
    sink.flush().map_err(write)?;
    let _ = on_progress(progress);
    for map in &maps {
        map.check()?;
    }
    replacement.file().set_len(written).map_err(write)?;
    replacement.commit()?;

    let mut changes = BTreeMap::new();
    for (item, planned) in items.iter().zip(builder.layout()) {
        let (count, bytes) = changes.entry((item.info.ty, item.to)).or_insert((0, 0));
        *count += 1;
        *bytes += planned.nbytes;
    }
    let again = |item: &&Item<'_>| item.info.ty.block_len() > 1 && item.to != item.info.ty;
    Ok(Quantized {
        volume: Volume { read: total, written, took: started.elapsed() },
        changes,
        rounded_twice: items.iter().filter(again).count(),
    })
}

/// The tensors in the order of use, and what becomes of them.
fn items<'m>(
    headers: &Headers<'m>,
    maps: &'m [Map],
    recipe: Recipe,
) -> Result<Vec<Item<'m>>, ConvertError> {
    let tensors = &headers.catalog.tensors;
    let names: Vec<&str> = tensors.iter().map(|placed| placed.info.name).collect();
    let tied = !names.contains(&"output.weight");
    let layer = |name: &&str| name.strip_prefix("blk.")?.split_once('.')?.0.parse::<u64>().ok();
    let layers = names.iter().filter_map(layer).max().map_or(0, |last| last.saturating_add(1));
    execution_order(&names)
        .into_iter()
        .map(|index| {
            let (info, map) = (tensors[index].info, &maps[tensors[index].shard]);
            let to = recipe.of(&info, layers, tied).unwrap_or(info.ty);
            if to != info.ty && WeightType::from_gguf(info.ty.id()).is_none() {
                let (path, tensor) = (map.path().into(), info.name.to_owned());
                return Err(ConvertError::Unreadable { path, tensor, ty: info.ty });
            }
            Ok(Item { info, map, to })
        })
        .collect()
}

fn header(headers: &Headers<'_>, items: &[Item<'_>], recipe: Recipe) -> Result<Builder, GgufError> {
    let first = headers.files.first();
    let alignment = first.map_or(0, |gguf| gguf.alignment).max(PACKED_ALIGNMENT) as u32;
    let mut out = Builder::with_alignment(alignment);
    for (key, value) in headers.metadata() {
        if !matches!(key, FILE_TYPE | VERSION | ALIGNMENT) {
            out.value(key, &value);
        }
    }
    out.value(FILE_TYPE, &Value::U32(recipe.file_type())).value(VERSION, &Value::U32(2));
    for item in items {
        out.tensor(item.info.name, item.to, item.info.shape())?;
    }
    Ok(out)
}

/// Reads, converts and writes one tensor, in pieces of whole rows.
fn convert(
    item: &Item<'_>,
    threads: usize,
    sink: &mut Sink<'_>,
    dest: &Path,
    progress: &mut Progress,
    on_progress: &mut OnProgress<'_>,
) -> Result<(), ConvertError> {
    let Item { info, map, to } = item;
    let types = (info.ty != *to)
        .then(|| WeightType::from_gguf(info.ty.id()).zip(WeightType::from_gguf(to.id())))
        .flatten();
    let unit = if types.is_some() { info.row_bytes() } else { 1 };
    let piece = (PIECE / unit).max(1) * unit;
    let write = |source| ConvertError::Write { path: dest.into(), source };
    let mut at = 0;
    pipe(
        |buffer| {
            if on_progress(*progress).is_break() {
                return Err(ConvertError::Stopped);
            }
            let len = piece.min(info.nbytes - at);
            buffer.resize(len as usize, 0);
            read::exact(map, info.offset + at, buffer)?;
            at += len;
            progress.done += len;
            Ok((len > 0).then_some(()))
        },
        |(), bytes| match types {
            None => sink.put(bytes.len(), |out| out.copy_from_slice(bytes)).map_err(write),
            Some((from, to)) => {
                let columns = info.ne[0] as usize;
                let rows = bytes.len() / info.row_bytes() as usize;
                let row = to.row_bytes(columns).unwrap_or(0);
                let mut finite = true;
                sink.put(rows * row, |out| {
                    finite = in_parallel(threads, (from, to), columns, bytes, out);
                })
                .map_err(write)?;
                let (path, tensor) = (map.path().to_owned(), info.name.to_owned());
                if finite { Ok(()) } else { Err(ConvertError::NotFinite { path, tensor }) }
            }
        },
    )
}

/// Whole rows from one type into another. Returns whether all weights are finite.
fn in_parallel(
    threads: usize,
    (from, to): (WeightType, WeightType),
    columns: usize,
    bytes: &[u8],
    out: &mut [u8],
) -> bool {
    // Both types have rows of this length: the one was read, the other chosen for it.
    let (Some(source), Some(dest)) = (from.row_bytes(columns), to.row_bytes(columns)) else {
        return true;
    };
    let isa = Isa::best();
    let share = (bytes.len() / source.max(1)).div_ceil(threads.max(1)).max(1);
    let work = |bytes: &[u8], out: &mut [u8]| {
        let mut row = vec![0.0; columns];
        let mut finite = true;
        for (bytes, out) in bytes.chunks_exact(source).zip(out.chunks_exact_mut(dest)) {
            dequantize_row(from, bytes, &mut row);
            finite &= row.iter().all(|x| x.is_finite());
            quantize_row(isa, to, &row, out);
        }
        finite
    };
    thread::scope(|scope| {
        let parts = bytes.chunks(share * source).zip(out.chunks_mut(share * dest));
        let running: Vec<_> =
            parts.map(|(bytes, out)| scope.spawn(move || work(bytes, out))).collect();
        running.into_iter().all(|part| match part.join() {
            Ok(finite) => finite,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}
