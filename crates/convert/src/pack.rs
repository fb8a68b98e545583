//! Packs a model into one file with its matrices in tiles.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use alight_formats::gguf::write::{Builder, New};
use alight_formats::gguf::{Gguf, GgufError, MAX_ENTRIES, MAX_HEADER, TensorInfo, Value};
use alight_formats::packed::{PACKED_ALIGNMENT, Packing, TILE_ROWS};
use alight_formats::{GgmlType, Header, Source as _};
use alight_kernels::{Layout, WeightType, planes, tiles};
use alight_pages::{Map, Replacement};

use crate::copy::{self, Hashed, MAX_TILE, Step, StepInput, Tiling};
use crate::dest::Target;
use crate::order::{SPARE, execution_order, experts_side_by_side};
use crate::restore::{self, Original};
use alight_files::Headers;

use crate::source::{self, tiled_type};
use crate::{ConvertError, OnProgress, Options, Volume, read};

/// Maximum number of bytes that belong to nothing in the source and are still kept.
const MAX_FILLER: u64 = 16 << 20;

/// The result of [`pack`].
#[derive(Clone, Debug)]
pub struct Packed {
    /// Bytes and time.
    pub volume: Volume,
    /// Tensors of the model.
    pub tensors: usize,
    /// Tensors that are now in tiles or planes.
    pub packed: usize,
    /// Bytes of the tensors that are now in tiles or planes.
    pub packed_bytes: u64,
    /// The output matrix, if it is in planes.
    pub planes: Option<String>,
    /// Tensors that stay as they were.
    pub kept: Vec<Kept>,
    /// The checksum of the source, in hexadecimal.
    pub sha256: String,
}

/// A tensor that was not packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub nbytes: u64,
    /// The reason.
    pub reason: KeptReason,
}

/// The reason why a tensor was not packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum KeptReason {
    /// It is not a matrix.
    Vector,
    /// Only single rows of it are read, one for each token.
    Lookup,
    /// Its type has no packed form.
    Type(GgmlType),
    /// Its rows are not a multiple of 16.
    Rows,
    /// Sixteen of its rows exceed the limit for one transformation.
    LongRows,
}

impl fmt::Display for KeptReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeptReason::Vector => write!(f, "vectors"),
            KeptReason::Lookup => write!(f, "read by single rows"),
            KeptReason::Type(ty) => write!(f, "{ty} has no packed form"),
            KeptReason::Rows => write!(f, "rows not a multiple of {TILE_ROWS}"),
            KeptReason::LongRows => write!(f, "rows too long"),
        }
    }
}

/// A tensor of the source, and whether it is packed.
struct PackItem<'m> {
    info: TensorInfo<'m>,
    map: &'m Map,
    tiles: Result<(WeightType, Packing), KeptReason>,
}

/// Packs the model at `source` (any shard of a split model) into a new file at `dest`.
///
/// The new file is GGUF version 3 with the source's metadata and tensors. Tensors begin on pages and are in the order of use;
/// matrices are in tiles where possible, and the matrices of an expert are side by side, on pages of their own.
/// [`unpack`](crate::unpack) restores the source.
///
/// # Errors
/// See [`ConvertError`]. In that case there is no file at `dest`, or still the earlier one.
pub fn pack(
    source: &Path,
    dest: &Path,
    options: Options,
    on_progress: &mut OnProgress<'_>,
) -> Result<Packed, ConvertError> {
    let started = Instant::now();
    let (replacement, mut packed) = packed(source, dest, options, on_progress)?;
    replacement.commit()?;
    packed.volume.took = started.elapsed();
    Ok(packed)
}

/// Packs the model at `source` into an unnamed file, on the disk of the folder of `place`, where no
/// file may exist. It exists as long as it is open.
///
/// # Errors
/// As for [`pack`].
pub fn pack_unnamed(
    source: &Path,
    place: &Path,
    on_progress: &mut OnProgress<'_>,
) -> Result<(File, Packed), ConvertError> {
    let (replacement, packed) = packed(source, place, Options::default(), on_progress)?;
    let file = replacement.into_unnamed().map_err(|source| write_error(place, source))?;
    Ok((file, packed))
}

/// Returns true if the file at `packed` was packed from a model with the same number of bytes as that of these `shards` (in one
/// file, if it is split).
///
/// # Errors
/// `packed` is not a packed file, or the model cannot be read.
pub fn is_packed_from(packed: &Path, shards: &[PathBuf]) -> Result<bool, ConvertError> {
    let map = Map::open(packed)?;
    let copy = alight_files::copy(&map);
    let gguf = alight_files::parse(&map, &copy)?;
    if !gguf.packed {
        return Err(ConvertError::NotPacked { path: packed.into() });
    }
    let expected = restore::read(&map, &gguf)?.bytes;
    let maps = shards.iter().map(|shard| Map::open(shard)).collect::<Result<Vec<_>, _>>()?;
    let len = match &maps[..] {
        [one] => one.len() as u64,
        _ => {
            let copies = alight_files::copies(&maps);
            let headers = source::canonical_headers(&maps, &copies)?;
            Canonical::of(&headers, &maps, &copies)?.len()
        }
    };
    Ok(expected == len)
}

/// Returns the new file, complete, before it gets its name.
fn packed(
    source: &Path,
    dest: &Path,
    options: Options,
    on_progress: &mut OnProgress<'_>,
) -> Result<(Replacement, Packed), ConvertError> {
    let started = Instant::now();
    let maps = source::open(source)?;
    let copies = alight_files::copies(&maps);
    let headers = source::canonical_headers(&maps, &copies)?;
    let target = Target::new(dest, options, &maps, &[])?;

    let items = items(&headers, &maps, options.planes);
    let names: Vec<&str> = items.iter().map(|item| item.info.name).collect();
    let order = execution_order(&names);
    let ordered: Vec<_> = order.iter().map(|index| &items[*index].info).collect();
    let experts = experts_side_by_side(&ordered);
    let invalid = |source| ConvertError::Header { path: maps[0].path().into(), source };
    let canonical = Canonical::of(&headers, &maps, &copies)?;
    let mut source = canonical.source(&headers, &maps, &order)?;
    let metadata = headers.metadata();
    let builder = header(&metadata, &source, &items, (&order, &experts)).map_err(invalid)?;
    let unpadded = builder.unpadded_header();
    let start = builder.data_start(&unpadded);
    let entries = metadata.len() as u64 + restore::MAX_RESTORE_ENTRIES;
    if unpadded.len() > MAX_HEADER || entries > MAX_ENTRIES {
        let (found, limit) = (unpadded.len() as u64, MAX_HEADER as u64);
        return Err(ConvertError::HeaderTooLong { path: maps[0].path().into(), found, limit });
    }
    let mut places = vec![(0, None); items.len()];
    for (index, planned) in order.iter().zip(builder.layout()) {
        places[*index] = (start + planned.offset, planned.stride);
    }
    let end = start + builder.data_end();
    // To the end of a page, so that direct reads of the last tensor need no special care.
    let written = end.next_multiple_of(PACKED_ALIGNMENT);
    // Everything except the padding for experts side by side and pages. The length of a split model as one file depends on the
    // alignment of its first shard.
    let found = written.max(canonical.len());
    let read = maps.iter().map(|map| map.len() as u64).sum::<u64>();
    let pages = PACKED_ALIGNMENT * (items.len() as u64 + 2);
    let limit = read + read / 2 + SPARE + pages;
    if found > limit {
        return Err(ConvertError::Padding { path: maps[0].path().into(), found, limit });
    }

    let replacement = target.create(written)?;
    let steps = steps(&canonical, &items, &places, &maps[0]);
    let to = (replacement.file(), dest);
    let (sha256, threads) = copy::run(&steps, to, Hashed::Source, on_progress)?;
    source.sha256 = sha256;
    maps.iter().try_for_each(Map::check_unchanged)?;
    // The checksum is known only now. It is as long as its placeholder.
    let header = header(&metadata, &source, &items, (&order, &experts)).map_err(invalid)?;
    let header = header.unpadded_header();
    let step = Step {
        from: StepInput::Memory(&header),
        len: header.len() as u64,
        to: Some(0),
        tiling: Tiling::Keep,
    };
    copy::run(&[step], to, Hashed::Result, &mut |_| std::ops::ControlFlow::Continue(()))?;
    replacement.file().set_len(written).map_err(|source| write_error(dest, source))?;

    let volume = Volume { read: canonical.len(), written, took: started.elapsed(), threads };
    let tiled = || items.iter().filter(|item| item.tiles.is_ok());
    let kept = order.iter().filter_map(|index| {
        let PackItem { info, tiles, .. } = &items[*index];
        let reason = tiles.err()?;
        Some(Kept { name: info.name.into(), nbytes: info.nbytes, reason })
    });
    let packed = Packed {
        volume,
        tensors: items.len(),
        packed: tiled().count(),
        packed_bytes: tiled().map(|item| item.info.nbytes).sum(),
        planes: tiled().find(|item| item.is_in_planes()).map(|item| item.info.name.into()),
        kept: kept.collect(),
        sha256: source.sha256,
    };
    Ok((replacement, packed))
}

fn write_error(path: &Path, source: std::io::Error) -> ConvertError {
    ConvertError::Write { path: path.into(), source }
}

/// The tensors of the source, in its order.
fn items<'m>(headers: &Headers<'m>, maps: &'m [Map], planes: bool) -> Vec<PackItem<'m>> {
    let tied = headers.catalog.get("output.weight").is_none();
    let output = if tied { "token_embd.weight" } else { "output.weight" };
    let item = |placed: &alight_formats::split::Placed<'m>| PackItem {
        info: placed.info,
        map: &maps[placed.shard],
        tiles: packable(&placed.info, tied).map(|ty| {
            let in_planes = planes && placed.info.name == output;
            (ty, packing(&placed.info, ty, in_planes))
        }),
    };
    headers.catalog.tensors.iter().map(item).collect()
}

/// Returns the packed type of a tensor, or the reason why it cannot be packed.
fn packable(info: &TensorInfo<'_>, tied: bool) -> Result<WeightType, KeptReason> {
    if info.elements() == info.ne[0] {
        return Err(KeptReason::Vector);
    }
    let ty = tiled_type(info.ty).ok_or(KeptReason::Type(info.ty))?;
    if info.name == "token_embd.weight" && !tied {
        return Err(KeptReason::Lookup);
    }
    if info.row_bytes() > MAX_TILE / TILE_ROWS {
        return Err(KeptReason::LongRows);
    }
    // Both fit: they are less than the number of bytes of the file, which is mapped.
    if !tiles::packable(ty, info.ne[1] as usize, info.ne[0] as usize) {
        return Err(KeptReason::Rows);
    }
    Ok(ty)
}

/// Returns the form in which a tensor is packed.
fn packing(info: &TensorInfo<'_>, ty: WeightType, in_planes: bool) -> Packing {
    let [cols, rows, ..] = info.ne;
    // They fit, as in `packable`.
    match in_planes && planes::has_planes_for(ty, rows as usize, cols as usize) {
        true => Packing::Planes,
        false => Packing::Tiles,
    }
}

impl PackItem<'_> {
    fn packing(&self) -> Option<Packing> {
        self.tiles.ok().map(|(_, packing)| packing)
    }

    fn is_in_planes(&self) -> bool {
        self.packing() == Some(Packing::Planes)
    }
}

/// The header of the packed file.
fn header(
    metadata: &[(&str, Value<'_>)],
    source: &Original<'_>,
    items: &[PackItem<'_>],
    (order, experts): (&[usize], &[Range<usize>]),
) -> Result<Builder, GgufError> {
    // The source's alignment, if it is more than a page.
    let alignment = source.alignment().max(PACKED_ALIGNMENT) as u32;
    let mut out = restore::header(3, Some(alignment), metadata, std::iter::empty())?;
    if source.alignment.is_none() {
        out.alignment(alignment);
    }
    source.write(&mut out, experts, items.iter().any(PackItem::is_in_planes));
    let new = |index: &usize| {
        let item = &items[*index];
        let info = &item.info;
        New { name: info.name, ty: info.ty, packed: item.packing(), shape: info.shape() }
    };
    let mut at = 0;
    for run in experts.iter().cloned().chain(std::iter::once(order.len()..order.len())) {
        for index in &order[at..run.start] {
            out.add(new(index))?;
        }
        if !run.is_empty() {
            out.side_by_side(&order[run.clone()].iter().map(new).collect::<Vec<_>>())?;
        }
        at = run.end;
    }
    Ok(out)
}

/// The source as a sequence of bytes: header, then a gap before each tensor, and one at the end.
struct Canonical<'m> {
    version: u32,
    alignment: Option<u32>,
    header: Cow<'m, [u8]>,
    /// The header follows from the metadata and the tensors.
    regular: bool,
    gaps: Vec<u64>,
    tensors: u64,
    /// The shards' own gaps are ignored: those of the one file are zeros.
    merged: bool,
}

impl<'m> Canonical<'m> {
    fn of(
        headers: &Headers<'m>,
        maps: &[Map],
        copies: &'m [Header<'_>],
    ) -> Result<Canonical<'m>, ConvertError> {
        let path = || maps[0].path().into();
        let first = &headers.files[0];
        if let Some((key, _)) = first.metadata.iter().find(|(key, _)| restore::is_reserved(key)) {
            let problem = format!("({key}) is reserved for packed files, and this is none");
            return Err(ConvertError::Restore { path: path(), key: "alight.*", problem });
        }
        let merged = maps.len() > 1;
        let alignment = first.get("general.alignment").map(|_| first.alignment as u32);
        let version = if merged { 3 } else { first.version };
        let infos = || headers.catalog.tensors.iter().map(|placed| &placed.info);
        let metadata = headers.metadata();
        let made = restore::header(version, alignment, &metadata, infos())
            .map_err(|source| ConvertError::Header { path: path(), source })?;
        let made = made.unpadded_header();
        let found = copies.first().and_then(|copy| copy.get(0..first.header_len));
        maps[0].check()?;
        let found = found.unwrap_or_default();
        let regular = merged || made == found;
        let header = if merged { Cow::Owned(made) } else { Cow::Borrowed(found) };
        let tensors = infos().map(|info| info.nbytes).sum();
        let sizes = || infos().map(|info| info.nbytes);
        let len = match merged {
            false => maps[0].len() as u64,
            // Padded at the end too, as merging tools do.
            true => {
                let end = restore::gaps(header.len() as u64, first.alignment, sizes(), u64::MAX);
                let end = end.and_then(|gaps| gaps.last().map(|rest| u64::MAX - rest));
                end.unwrap_or(0).next_multiple_of(first.alignment)
            }
        };
        let gaps = restore::gaps(header.len() as u64, first.alignment, sizes(), len);
        // The parser has checked that all tensors are within the file.
        let gaps = gaps.unwrap_or_else(|| vec![0; headers.catalog.tensors.len() + 1]);
        let tail = gaps.last().copied().unwrap_or(0);
        if tail > restore::MAX_TAIL {
            let limit = restore::MAX_TAIL;
            return Err(ConvertError::Junk { path: path(), found: tail, limit });
        }
        Ok(Canonical { version, alignment, header, regular, gaps, tensors, merged })
    }

    fn len(&self) -> u64 {
        self.header.len() as u64 + self.gaps.iter().sum::<u64>() + self.tensors
    }

    /// Returns the description of the source for the packed file; the checksum is not known yet.
    fn source(
        &self,
        headers: &Headers<'m>,
        maps: &[Map],
        order: &[usize],
    ) -> Result<Original<'m>, ConvertError> {
        let mut position = vec![0; order.len()];
        for (packed, index) in order.iter().enumerate() {
            position[*index] = packed as u32;
        }
        Ok(Original {
            version: self.version,
            alignment: self.alignment,
            order: position,
            bytes: self.len(),
            filler: match self.merged {
                true => Cow::Borrowed(&[]),
                false => Cow::Owned(self.filler(&headers.files[0], &maps[0])?),
            },
            header: (!self.regular).then(|| self.header.clone()),
            sha256: "0".repeat(64),
        })
    }

    /// Returns the contents of the gaps, up to the last byte that is not zero.
    fn filler(&self, gguf: &Gguf<'_>, map: &Map) -> Result<Vec<u8>, ConvertError> {
        let mut out = Vec::new();
        // Zeros that are omitted unless something follows.
        let mut zeros = 0_u64;
        let mut buffer = vec![0; 1 << 20];
        let mut at = self.header.len() as u64;
        let sizes = gguf.tensors.iter().map(|info| info.nbytes).chain([0]);
        for (gap, nbytes) in self.gaps.iter().zip(sizes) {
            let mut left = *gap;
            while left > 0 {
                let piece = &mut buffer[..left.min(1 << 20) as usize];
                read::exact(map, at, piece)?;
                left -= piece.len() as u64;
                at += piece.len() as u64;
                let Some(last) = piece.iter().rposition(|byte| *byte != 0) else {
                    zeros += piece.len() as u64;
                    continue;
                };
                let found = out.len() as u64 + zeros + last as u64 + 1;
                if found > MAX_FILLER {
                    let (path, found) = (map.path().into(), self.gaps.iter().sum());
                    return Err(ConvertError::Junk { path, found, limit: MAX_FILLER });
                }
                out.resize(out.len() + zeros as usize, 0);
                out.extend_from_slice(&piece[..=last]);
                zeros = (piece.len() - last - 1) as u64;
            }
            at += nbytes;
        }
        Ok(out)
    }
}

/// All reads, in the order of the source. `places`: the offset of each tensor, and the distance between its experts if they are
/// stored side by side with those of others.
fn steps<'a>(
    canonical: &'a Canonical<'a>,
    items: &[PackItem<'a>],
    places: &[(u64, Option<u64>)],
    first: &'a Map,
) -> Vec<Step<'a>> {
    let header = &canonical.header[..];
    let mut at = header.len() as u64;
    let step = |from, len, to, tiling| Step { from, len, to, tiling };
    let mut out = vec![step(StepInput::Memory(header), at, None, Tiling::Keep)];
    let gap = |at, len| {
        let from =
            if canonical.merged { StepInput::Zeros } else { StepInput::File { map: first, at } };
        step(from, len, None, Tiling::Keep)
    };
    for ((item, place), before) in items.iter().zip(places).zip(&canonical.gaps) {
        out.push(gap(at, *before));
        let tiling = match item.tiles {
            Ok((ty, packing)) => {
                let to = Layout::from(Some(packing));
                Tiling::Pack { to, ty, cols: item.info.ne[0] as usize }
            }
            Err(_) => Tiling::Keep,
        };
        let (place, stride) = *place;
        let (count, stride) = stride.map_or((1, 0), |stride| (item.info.ne[2], stride));
        let one = item.info.nbytes / count;
        for expert in 0..count {
            let from = StepInput::File { map: item.map, at: item.info.offset + expert * one };
            out.push(step(from, one, Some(place + expert * stride), tiling));
        }
        at += before + item.info.nbytes;
    }
    out.push(gap(at, canonical.gaps.last().copied().unwrap_or(0)));
    out
}
