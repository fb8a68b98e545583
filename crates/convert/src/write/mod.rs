//! Makes a GGUF file from the bytes of others.
//!
//! Everything is planned before the first byte is written: the header, and for each tensor the location
//! of its rows in the sources and their conversion. Then threads make pieces of the file, in order, and
//! write them around the page cache. The bytes depend on the plan alone.

mod item;
mod maker;
mod merge;
mod rows;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::num::NonZero;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use alight_formats::ggml::blocks::Losses;
use alight_formats::gguf::MAX_HEADER;
use alight_formats::gguf::write::Builder;
use alight_formats::packed::PACKED_ALIGNMENT;
use alight_kernels::{Isa, WeightType};
use alight_pages::Threads;
use alight_pages::assemble::{AssembleError, Reader, assemble};

pub(crate) use item::{
    Change, Elements, Importance, Item, ItemData, Order, Piece, Scales, Tiles, Transform,
};

pub(crate) use merge::{Dora, LowRank, Merge, Term};

use crate::dest::Target;
use crate::files::Files;
use crate::{ConvertError, OnProgress, Progress};
use maker::{Pieces, Placed, Work};
use rows::Units;

/// Number of threads that copy: they mostly wait for the disk.
const COPIERS: usize = 4;
/// Maximum number of bytes of a row (or of a transposed matrix) that has to be assembled or split as a whole.
const MAX_ROW: u64 = 32 << 20;

/// The plan of a file.
pub(crate) struct Plan {
    /// Up to its last significant byte; zeros follow.
    header: Vec<u8>,
    items: Vec<Item>,
    /// Importance of the columns of tensors, by tensor name.
    importance: HashMap<String, Importance>,
    /// Changes of tensors by adapters, by tensor name.
    merges: HashMap<String, Merge>,
    /// Offset of each tensor in the file.
    starts: Vec<u64>,
    /// Bytes of the file: whole pages.
    pub(crate) len: u64,
}

impl Plan {
    /// Plans a file with the metadata in `builder`, and these tensors in this order. `path` is the
    /// source's, for messages.
    ///
    /// # Errors
    /// A tensor cannot be made from its source, or the header is too long.
    pub(crate) fn new(
        path: &Path,
        mut builder: Builder,
        items: Vec<Item>,
    ) -> Result<Plan, ConvertError> {
        let invalid = |source| ConvertError::Header { path: path.into(), source };
        for item in &items {
            builder.tensor(&item.name, item.to, &item.ne).map_err(invalid)?;
            let (path, tensor) = (path.into(), item.name.clone());
            if !rows::fit(item) {
                return Err(ConvertError::Pieces { path, tensor });
            }
            let ty = item.from.current();
            if item.transform().is_none() {
                return Err(ConvertError::Unreadable { path, tensor, ty });
            }
            let unit = Units::of(item);
            let before = item.from.bytes(unit.elements).unwrap_or(0);
            let found = before.max(unit.bytes).max(unit.elements * 4);
            if found > MAX_ROW {
                return Err(ConvertError::LongRow { path, tensor, found, limit: MAX_ROW });
            }
        }
        let header = builder.unpadded_header();
        if header.len() > MAX_HEADER {
            let (found, limit) = (header.len() as u64, MAX_HEADER as u64);
            return Err(ConvertError::HeaderTooLong { path: path.into(), found, limit });
        }
        let start = builder.data_start(&header);
        let starts: Vec<u64> = builder.layout().iter().map(|t| start + t.offset).collect();
        let len = (start + builder.data_end()).next_multiple_of(PACKED_ALIGNMENT);
        Ok(Plan { header, items, importance: HashMap::new(), merges: HashMap::new(), starts, len })
    }

    /// The same, with the importance of the columns of some tensors.
    pub(crate) fn weighted(self, importance: HashMap<String, Importance>) -> Plan {
        Plan { importance, ..self }
    }

    /// The same, with the changes by adapters of tensors that consist of pieces.
    pub(crate) fn merged(self, merges: HashMap<String, Merge>) -> Plan {
        Plan { merges, ..self }
    }

    /// The tensors, in the order of the file.
    pub(crate) fn items(&self) -> &[Item] {
        &self.items
    }

    /// Writes the file to `target`; returns the losses, and the threads that were available. Progress
    /// is in bytes of the new file.
    ///
    /// # Errors
    /// See [`ConvertError`]. In that case there is no file, or still the earlier one.
    pub(crate) fn write(
        &self,
        files: &Files,
        target: &Target<'_>,
        threads: usize,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<(Losses, Threads), ConvertError> {
        let maps = files.maps();
        let mut readers = Vec::new();
        for map in maps {
            let read = |source| ConvertError::Read { path: map.path().into(), at: 0, source };
            readers.push(Reader::new(map.file(), map.path()).map_err(read)?);
        }
        let place = |(item, start): (_, &u64)| {
            let item: &Item = item;
            let merge = self.merges.get(&item.name);
            // Checked when the plan was made.
            let mut transform = item.transform().unwrap_or(Transform::Copy);
            if let (Some(_), Some(ty)) = (merge, WeightType::of(item.to)) {
                transform = Transform::ViaF32(ty);
            }
            let (units, nbytes) = (Units::of(item), item.nbytes());
            let importance = self.importance.get(&item.name);
            Placed { item, transform, importance, merge, units, start: *start, nbytes }
        };
        let places: Vec<_> = self.items.iter().zip(&self.starts).map(place).collect();
        let computes = places.iter().any(|placed| matches!(placed.transform, Transform::ViaF32(_)));
        let threads = if computes { threads } else { threads.max(COPIERS) };
        let work = Work {
            header: &self.header,
            places,
            maps,
            readers,
            isa: Isa::best(),
            stopped: AtomicBool::new(false),
        };
        let losses = Mutex::new(Losses::default());
        let lose = |lost| {
            // Nothing panics while holding the lock.
            if let Ok(mut losses) = losses.lock() {
                *losses += lost;
            }
        };
        let replacement = target.create(self.len)?;
        let total = self.len;
        let made = assemble(
            replacement.file(),
            self.len,
            NonZero::new(threads).unwrap_or(NonZero::<usize>::MIN),
            || Pieces::new(&work, lose),
            &mut |done| {
                let next = on_progress(Progress { done, total });
                work.stopped.fetch_or(next.is_break(), Relaxed);
                next
            },
        );
        // If a source has changed in the meantime, that is the reason for any error in it.
        let is_stopped = matches!(
            made,
            Err(AssembleError::Stopped | AssembleError::Piece(ConvertError::Stopped))
        );
        if !is_stopped && !matches!(made, Err(AssembleError::Write { .. })) {
            files.check()?;
        }
        let threads = made.map_err(|error| match error {
            AssembleError::Piece(error) => error,
            AssembleError::Write { source, .. } => {
                ConvertError::Write { path: target.path.into(), source }
            }
            AssembleError::Stopped => ConvertError::Stopped,
        })?;
        let _ = on_progress(Progress { done: total, total });
        replacement.commit()?;
        Ok((losses.into_inner().unwrap_or_default(), threads))
    }
}
