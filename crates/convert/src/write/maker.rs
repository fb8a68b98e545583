//! Makes pieces of the new file.

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use alight_formats::GgmlType;
use alight_formats::ggml::blocks::{BlockError, Losses, convert};
use alight_kernels::{Isa, WeightType, dequantize_row, quantize_row_weighted};
use alight_pages::Map;
use alight_pages::assemble::{Buffer, Maker, Parts, Reader};

use super::item::{Elements, Importance, Item, ItemData, Order, Piece, Scales, Tiles, Transform};
use super::merge::{self, Merge};
use super::rows::{Run, Units};
use crate::{ConvertError, read};

/// Maximum number of bytes read at once, unless a unit is longer.
const READ: u64 = 4 << 20;
/// Maximum number of elements held as floats at once, unless a unit is longer.
const FLOATS: u64 = 1 << 20;
/// The smallest number that does not round to a finite f16.
const F16_LIMIT: f32 = 65_520.0;

/// Blocks of smaller numbers have finite scales, whatever their type.
const LARGE: f32 = 32_768.0;

/// True if blocks that were made of finite numbers stand for others.
fn has_infinite_scale(ty: WeightType, blocks: &[u8], elements: usize) -> bool {
    let mut values = vec![0.0; elements];
    dequantize_row(ty, blocks, &mut values);
    values.iter().any(|value| !value.is_finite())
}

/// Data shared by all makers.
pub(super) struct Work<'a> {
    pub(super) header: &'a [u8],
    /// The tensors, in the order of the file.
    pub(super) places: Vec<Placed<'a>>,
    pub(super) maps: &'a [Map],
    /// One for each map.
    pub(super) readers: Vec<Reader<'a>>,
    pub(super) isa: Isa,
    /// True once the callback has ended the work: a piece takes up to a second to compute.
    pub(super) stopped: AtomicBool,
}

/// A tensor and its place.
pub(super) struct Placed<'a> {
    pub(super) item: &'a Item,
    pub(super) transform: Transform,
    pub(super) importance: Option<&'a Importance>,
    /// Changes of its rows by adapters.
    pub(super) merge: Option<&'a Merge>,
    pub(super) units: Units,
    /// Offset in the new file, in bytes.
    pub(super) start: u64,
    pub(super) nbytes: u64,
}

impl Placed<'_> {
    /// The number of units that a row of the tensor consists of.
    fn units_per_row(&self) -> u64 {
        (self.item.columns() / self.units.elements.max(1)).max(1)
    }
}

/// Makes pieces on one thread.
pub(super) struct Pieces<'w, 'a, F: FnMut(Losses)> {
    work: &'w Work<'a>,
    buffer: Buffer,
    gathered: Vec<u8>,
    scratch: Vec<u8>,
    floats: Vec<f32>,
    /// Importance of the columns of a matrix, and which matrix: where its tensor begins, and its number
    /// there.
    weights: Vec<f32>,
    weighted: Option<(u64, u64)>,
    merging: merge::Scratch,
    on_losses: F,
}

/// A part of the new file that is being made.
struct Out<'o> {
    bytes: &'o mut [u8],
    /// The bytes of the tensor that are to be made.
    range: Range<u64>,
}

impl Out<'_> {
    /// Stores `bytes`, which belong at byte `at` of the tensor; bytes outside the range are
    /// dropped.
    fn put(&mut self, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        let (from, to) = (at.max(self.range.start), end.min(self.range.end));
        if from < to {
            let inside = (from - self.range.start) as usize..(to - self.range.start) as usize;
            let part = &bytes[(from - at) as usize..(to - at) as usize];
            self.bytes[inside].copy_from_slice(part);
        }
    }
}

impl<F: FnMut(Losses)> Maker for Pieces<'_, '_, F> {
    type Error = ConvertError;

    fn make(&mut self, range: Range<u64>, out: &mut [u8]) -> Result<(), ConvertError> {
        let header = self.work.header;
        let mut at = range.start;
        if let Some(rest) = header.get(at as usize..) {
            let len = rest.len().min(out.len());
            out[..len].copy_from_slice(&rest[..len]);
            at += len as u64;
        }
        let places = &self.work.places;
        let first = places.partition_point(|placed| placed.start + placed.nbytes <= at);
        for placed in &places[first..] {
            if placed.start >= range.end {
                break;
            }
            let end = (placed.start + placed.nbytes).min(range.end);
            let from = placed.start.max(at);
            out[(at - range.start) as usize..(from - range.start) as usize].fill(0);
            let bytes = &mut out[(from - range.start) as usize..(end - range.start) as usize];
            let inside = from - placed.start..end - placed.start;
            self.tensor(placed, Out { bytes, range: inside })?;
            at = end;
        }
        out[(at - range.start) as usize..].fill(0);
        Ok(())
    }
}

impl<'w, 'a, F: FnMut(Losses)> Pieces<'w, 'a, F> {
    pub(super) fn new(work: &'w Work<'a>, on_losses: F) -> Self {
        let (buffer, gathered) = (Buffer::default(), Vec::new());
        let (scratch, floats, weights) = (Vec::new(), Vec::new(), Vec::new());
        let (weighted, merging) = (None, merge::Scratch::default());
        Pieces { work, buffer, gathered, scratch, floats, weights, weighted, merging, on_losses }
    }

    /// Makes a part of a tensor.
    fn tensor(&mut self, placed: &Placed<'_>, mut out: Out<'_>) -> Result<(), ConvertError> {
        let units = &placed.units;
        if let ItemData::Bytes(bytes) = &placed.item.data {
            out.put(0, bytes);
            return Ok(());
        }
        let Range { start, end } = out.range;
        // Adapters change whole rows.
        let per_row = placed.merge.map_or(1, |_| placed.units_per_row());
        let mut from = start / units.bytes / per_row * per_row;
        let to = end.div_ceil(units.bytes).next_multiple_of(per_row);
        let read = placed.item.from.bytes(units.elements).unwrap_or(1).max(1);
        let mut batch = (READ / read).max(1);
        if matches!(placed.transform, Transform::ViaF32(_)) {
            batch = batch.min((FLOATS / units.elements).max(1));
        }
        batch = (batch / per_row).max(1) * per_row;
        while from < to {
            if self.work.stopped.load(Relaxed) {
                return Err(ConvertError::Stopped);
            }
            let next = (from + batch).min(to);
            match placed.transform {
                Transform::Copy | Transform::UpgradeLegacy(..) => {
                    for run in units.runs(from, next) {
                        self.bytes(placed, run, &mut out)?;
                    }
                }
                Transform::ViaF32(ty) => self.floats(placed, ty, from..next, &mut out)?,
            }
            from = next;
        }
        Ok(())
    }

    /// Copies bytes of units, or upgrades their blocks.
    fn bytes(
        &mut self,
        placed: &Placed<'_>,
        run: Run,
        out: &mut Out<'_>,
    ) -> Result<(), ConvertError> {
        let (item, units) = (placed.item, &placed.units);
        let blocks = match placed.transform {
            Transform::UpgradeLegacy(era, ty) => Some((era, ty)),
            Transform::Copy | Transform::ViaF32(_) => None,
        };
        let mut scratch = std::mem::take(&mut self.scratch);
        let (buffer, gathered) = (&mut self.buffer, &mut self.gathered);
        let (bytes, unit) = read_units(self.work, item, &run, buffer, gathered)?;
        let column = item.to.row_bytes(run.piece.first_column).unwrap_or(0);
        let part = item.to.row_bytes(run.piece.columns).unwrap_or(0) as usize;
        let mut losses = Losses::default();
        let is_plain = blocks.is_none() && item.order == Order::Same;
        if is_plain && run.step == 1 && part as u64 == units.bytes {
            out.put(run.first * units.bytes, bytes);
        } else {
            for (i, bytes) in (0..).zip(bytes.chunks_exact(unit.max(1))) {
                let at = (run.first + i * run.step) * units.bytes + column;
                let Some((era, ty)) = blocks else {
                    if item.order == Order::Same {
                        out.put(at, bytes);
                    } else {
                        let size = item.from.bytes(1).unwrap_or(1) as usize;
                        item.order.arrange(bytes, size, &mut scratch);
                        out.put(at, &scratch);
                    }
                    continue;
                };
                scratch.resize(part, 0);
                let mut lost = Losses::default();
                convert(era, ty, bytes, &mut scratch, &mut lost)
                    .map_err(|source| bad_blocks(self.work, item, &run, source))?;
                // A unit that spans two pieces of the file is made twice, and counts once.
                if at >= out.range.start {
                    losses += lost;
                }
                out.put(at, &scratch);
            }
        }
        self.scratch = scratch;
        (self.on_losses)(losses);
        Ok(())
    }

    /// Converts units through floats.
    fn floats(
        &mut self,
        placed: &Placed<'_>,
        ty: WeightType,
        range: Range<u64>,
        out: &mut Out<'_>,
    ) -> Result<(), ConvertError> {
        let (item, units) = (placed.item, &placed.units);
        let columns = units.elements as usize;
        let mut floats = std::mem::take(&mut self.floats);
        let mut scratch = std::mem::take(&mut self.scratch);
        floats.resize((range.end - range.start) as usize * columns, 0.0);
        for run in units.runs(range.start, range.end) {
            let (buffer, gathered) = (&mut self.buffer, &mut self.gathered);
            let (bytes, unit) = read_units(self.work, item, &run, buffer, gathered)?;
            let first = run.piece.first_column as usize;
            let part = run.piece.columns as usize;
            for (i, bytes) in (0..).zip(bytes.chunks_exact(unit.max(1))) {
                let row = (run.first + i * run.step - range.start) as usize;
                let row = &mut floats[row * columns + first..][..part];
                decode(item.from, bytes, row, &mut scratch)
                    .map_err(|source| bad_blocks(self.work, item, &run, source))?;
                item.change.apply(row);
            }
            if let Some(tiles) = run.piece.tiles {
                let scaled = Scaled { tiles, run: &run, unit: unit as u64, from: range.start };
                scaled.apply(self.work, &mut floats, columns, &mut self.buffer)?;
            }
        }
        if item.order != Order::Same {
            for row in floats.chunks_exact_mut(columns.max(1)) {
                item.order.arrange(bytes_of(row, &mut self.gathered), 4, &mut scratch);
                for (value, bytes) in row.iter_mut().zip(scratch.as_chunks().0) {
                    *value = f32::from_le_bytes(*bytes);
                }
            }
        }
        if let Some(merge) = placed.merge {
            let columns = item.columns() as usize;
            let first = range.start / placed.units_per_row();
            for (index, row) in (first..).zip(floats.chunks_exact_mut(columns.max(1))) {
                merge.apply(self.work.isa, index, row, &mut self.merging);
            }
        }
        let limit = if ty == WeightType::F16 { F16_LIMIT } else { f32::INFINITY };
        scratch.resize(units.bytes as usize, 0);
        for (unit, row) in (range.start..).zip(floats.chunks_exact(columns.max(1))) {
            // NaN is not below any limit either.
            let fits = |value: &f32| value.abs() < limit;
            if let Some(found) = row.iter().find(|value| !fits(value)) {
                let (path, tensor) = (self.source(item), item.name.clone());
                return Err(match found.is_finite() {
                    true => ConvertError::TooLarge { path, tensor, found: *found },
                    false => ConvertError::NotFinite { path, tensor },
                });
            }
            let isa = self.work.isa;
            let weights = self.weights(placed, unit)?;
            quantize_row_weighted(isa, ty, row, weights, &mut scratch);
            if ty.block_len() > 1 {
                let largest = row.iter().fold(0f32, |most, value| most.max(value.abs()));
                if largest >= LARGE && has_infinite_scale(ty, &scratch, columns) {
                    let (path, tensor, ty) = (self.source(item), item.name.clone(), ty.ggml());
                    return Err(ConvertError::ScaleTooLarge { path, tensor, found: largest, ty });
                }
            }
            out.put(unit * units.bytes, &scratch);
        }
        (self.floats, self.scratch) = (floats, scratch);
        Ok(())
    }

    /// Returns the importance of a unit's elements, in addition to their magnitude; empty if all
    /// are equal.
    fn weights(&mut self, placed: &Placed<'_>, unit: u64) -> Result<&[f32], ConvertError> {
        let Some(importance) = placed.importance else { return Ok(&[]) };
        let elements = placed.units.elements;
        let per_row = (importance.columns / elements.max(1)).max(1);
        let matrix = unit / per_row / importance.rows.max(1);
        let count = importance.counts.get(matrix as usize).copied().unwrap_or(0.0);
        if count <= 0.0 {
            return Ok(&[]);
        }
        if self.weighted != Some((placed.start, matrix)) {
            self.weighted = None;
            let (file, size) = (importance.file, importance.columns * 4);
            let rows =
                Rows { file, first: importance.offset + matrix * size, stride: size, unit: size };
            let bytes = rows.read(self.work, 1, &mut self.buffer)?;
            let sums = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            self.weights.clear();
            self.weights.extend(sums.map(|sum| sum / count));
            if self.weights.iter().any(|weight| !weight.is_finite() || *weight < 0.0) {
                return Err(ConvertError::Source {
                    path: self.work.maps[file].path().into(),
                    problem: format!(
                        "has a sum of squares of \"{}\" that none can be",
                        placed.item.name
                    ),
                });
            }
            self.weighted = Some((placed.start, matrix));
        }
        let first = (unit % per_row * elements) as usize;
        Ok(self.weights.get(first..first + elements as usize).unwrap_or_default())
    }

    /// Returns a file that a tensor comes from.
    fn source(&self, item: &Item) -> std::path::PathBuf {
        let file = match &item.data {
            ItemData::Pieces(pieces) => pieces.first().map_or(0, |piece| piece.file),
            ItemData::Bytes(_) => 0,
        };
        self.work.maps.get(file).map(|map| map.path().to_owned()).unwrap_or_default()
    }
}

/// Reads the units of a run, which are contiguous afterwards, and blocks together with their scales. Returns them
/// and the bytes per unit.
fn read_units<'b>(
    work: &Work<'_>,
    item: &Item,
    run: &Run,
    buffer: &'b mut Buffer,
    gathered: &'b mut Vec<u8>,
) -> Result<(&'b [u8], usize), ConvertError> {
    let unit = item.from.bytes(run.piece.columns).unwrap_or(0);
    if let Some(across) = run.piece.across {
        read_columns(work, item, run, across, buffer, gathered)?;
        return Ok((gathered, unit as usize));
    }
    let stride = run.piece.stride.unwrap_or(unit);
    let rows =
        Rows { file: run.piece.file, first: run.piece.offset + run.skip * stride, stride, unit };
    if stride == unit && run.piece.scales.is_none() {
        return Ok((rows.read(work, run.count, buffer)?, unit as usize));
    }
    gathered.clear();
    let bytes = rows.read(work, run.count, buffer)?;
    for row in bytes.chunks(stride.max(1) as usize) {
        gathered.extend_from_slice(&row[..unit as usize]);
    }
    let Some(Scales { file, offset, stride }) = run.piece.scales else {
        return Ok((gathered, unit as usize));
    };
    let rows = Rows { file, first: offset + run.skip * stride, stride, unit: unit / 16 };
    let scales = rows.read(work, run.count, buffer)?.chunks(stride.max(1) as usize);
    let scales = scales.flat_map(|row| &row[..rows.unit as usize]);
    let halves: Vec<u8> = std::mem::take(gathered);
    for (block, scale) in halves.as_chunks::<16>().0.iter().zip(scales) {
        gathered.push(*scale);
        gathered.extend(in_halves(block));
    }
    Ok((gathered, (unit / 16 * 17) as usize))
}

/// Reads units that are columns of the source, whose rows are `across` bytes apart.
fn read_columns(
    work: &Work<'_>,
    item: &Item,
    run: &Run,
    across: u64,
    buffer: &mut Buffer,
    out: &mut Vec<u8>,
) -> Result<(), ConvertError> {
    let Piece { file, offset, rows, columns, .. } = run.piece;
    let size = item.from.bytes(1).unwrap_or(1);
    let parts = Parts { first: offset, stride: across, len: rows * size, count: columns };
    let range = run.skip * size..(run.skip + run.count) * size;
    let read = work.readers[file].read_columns(&parts, range, buffer);
    let bytes =
        read.map_err(|source| read::failed(&work.maps[file], offset + run.skip * size, source))?;
    out.clear();
    out.resize(bytes.len(), 0);
    let (size, columns, count) = (size as usize, columns as usize, run.count as usize);
    // By squares, so that reads and writes stay in the cache.
    for first in (0..columns).step_by(SQUARE) {
        for unit in (0..count).step_by(SQUARE) {
            for unit in unit..(unit + SQUARE).min(count) {
                for column in first..(first + SQUARE).min(columns) {
                    let (from, to) =
                        ((column * count + unit) * size, (unit * columns + column) * size);
                    out[to..to + size].copy_from_slice(&bytes[from..from + size]);
                }
            }
        }
    }
    Ok(())
}

/// Side of the squares for transposing a matrix, in elements.
const SQUARE: usize = 64;

/// Converts an MXFP4 block in which neighbours share a byte to GGUF's order: byte `j` has the elements `j` and `j + 16`.
fn in_halves(pairs: &[u8; 16]) -> [u8; 16] {
    let element = |i: usize| pairs[i / 2] >> (4 * (i % 2)) & 15;
    std::array::from_fn(|j| element(j) | element(j + 16) << 4)
}

/// Returns the bytes of floats.
fn bytes_of<'b>(values: &[f32], out: &'b mut Vec<u8>) -> &'b [u8] {
    out.clear();
    values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
    out
}

/// Decoded elements of a matrix with a scale for each tile.
struct Scaled<'r> {
    tiles: Tiles,
    run: &'r Run,
    /// Bytes, and elements, of a unit of the source.
    unit: u64,
    /// The unit of the first decoded row.
    from: u64,
}

impl Scaled<'_> {
    /// Multiplies the elements of the run's units, which are rows of `columns` floats, by the scales of their tiles.
    fn apply(
        &self,
        work: &Work<'_>,
        floats: &mut [f32],
        columns: usize,
        buffer: &mut Buffer,
    ) -> Result<(), ConvertError> {
        let Scaled { tiles, run, unit, from } = self;
        if run.count == 0 || *unit == 0 {
            return Ok(());
        }
        let stride = run.piece.stride.unwrap_or(*unit);
        let begin = |i: u64| run.piece.offset + (run.skip + i) * stride;
        let last = tiles.position(begin(run.count - 1) + unit - 1).0 / tiles.tile.0;
        let first = tiles.position(begin(0)).0 / tiles.tile.0;
        let per_row = tiles.columns.div_ceil(tiles.tile.1);
        let size = tiles.ty.row_bytes(1).unwrap_or(4);
        let (at, count) = (tiles.offset + first * per_row * size, (last - first + 1) * per_row);
        let rows = Rows { file: tiles.file, first: at, stride: size, unit: size };
        let bytes = rows.read(work, count, buffer)?;
        let mut scales = vec![0.0; count as usize];
        // Its existence has been checked.
        if let Some(ty) = WeightType::of(tiles.ty) {
            dequantize_row(ty, bytes, &mut scales);
        }
        for i in 0..run.count {
            let row = (run.first + i * run.step - from) as usize;
            let values = &mut floats[row * columns + run.piece.first_column as usize..];
            for (byte, value) in (begin(i)..begin(i) + unit).zip(values) {
                let (row, column) = tiles.position(byte);
                let tile = (row / tiles.tile.0 - first) * per_row + column / tiles.tile.1;
                *value *= scales[tile as usize];
            }
        }
        Ok(())
    }
}

/// Rows of a file.
struct Rows {
    file: usize,
    /// Offset of the first.
    first: u64,
    /// Bytes from the start of one row to the next.
    stride: u64,
    /// Bytes of one row.
    unit: u64,
}

impl Rows {
    /// Reads all bytes from the start of the first of `count` rows to the end of the last.
    fn read<'b>(
        &self,
        work: &Work<'_>,
        count: u64,
        buffer: &'b mut Buffer,
    ) -> Result<&'b [u8], ConvertError> {
        let end =
            self.first + count.saturating_sub(1) * self.stride + self.unit.min(count * self.unit);
        let read = work.readers[self.file].read(self.first..end, buffer);
        read.map_err(|source| read::failed(&work.maps[self.file], self.first, source))
    }
}

fn bad_blocks(work: &Work<'_>, item: &Item, run: &Run, source: BlockError) -> ConvertError {
    let path = work.maps[run.piece.file].path().into();
    ConvertError::Blocks { path, tensor: item.name.clone(), source }
}

/// F8_E4M3FN: four exponent bits with bias 7, three mantissa bits, no infinities; 0x7F and 0xFF are NaN.
fn from_e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let size = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 512.0,
        _ => (8.0 + mantissa) / 8.0 * 2f32.powi(exponent - 7),
    };
    if byte & 0x80 == 0 { size } else { -size }
}

/// Decodes whole blocks to floats.
fn decode(
    from: Elements,
    bytes: &[u8],
    out: &mut [f32],
    scratch: &mut Vec<u8>,
) -> Result<(), BlockError> {
    let today = |ty: GgmlType, bytes: &[u8], out: &mut [f32]| match ty {
        GgmlType::F64 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = f64::from_le_bytes(*bytes) as f32;
            }
        }
        // Its existence has been checked.
        _ => {
            if let Some(ty) = WeightType::of(ty) {
                dequantize_row(ty, bytes, out);
            }
        }
    };
    match from {
        Elements::Gguf(ty) => today(ty, bytes, out),
        Elements::Mxfp4Apart => today(GgmlType::MXFP4, bytes, out),
        Elements::Fp8 => {
            out.iter_mut().zip(bytes).for_each(|(value, byte)| *value = from_e4m3(*byte));
        }
        Elements::Legacy(era, ty) => {
            let len = ty.current().row_bytes(out.len() as u64).unwrap_or(0);
            scratch.resize(len as usize, 0);
            convert(era, ty, bytes, scratch, &mut Losses::default())?;
            today(ty.current(), scratch, out);
        }
    }
    Ok(())
}
