//! Asking for memory ahead of its use. A prefetch never faults: the address may point anywhere.

use std::arch::x86_64::*;

/// Asks for `bytes` from `p` on, into the first-level cache.
#[inline(always)]
pub(super) fn near(p: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: SSE is part of the architecture.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(64 * line).cast()) }
    }
}

/// Asks for `bytes` from `p` on, into the second-level cache.
#[inline(always)]
pub(super) fn far(p: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.wrapping_add(64 * line).cast()) }
    }
}

/// A place that moves on through the columns of row after row, past the gaps between them.
pub(super) struct Stream {
    at: *const u8,
    /// Where the columns of this row end.
    end: *const u8,
    row_bytes: usize,
    gap: usize,
}

impl Stream {
    /// From byte `skipped` of the columns of the row at `row` on (or of a row after it).
    #[inline(always)]
    pub(super) fn new(row: *const u8, skipped: usize, row_bytes: usize, gap: usize) -> Stream {
        let past = if gap == 0 { 0 } else { skipped / row_bytes };
        let start = row.wrapping_add(past * (row_bytes + gap));
        let at = start.wrapping_add(skipped - past * row_bytes);
        Stream { at, end: start.wrapping_add(row_bytes), row_bytes, gap }
    }

    /// Asks for the next line, into the second-level cache.
    #[inline(always)]
    pub(super) fn far(&mut self) {
        far(self.at, 64);
        self.at = self.at.wrapping_add(64);
        self.turn();
    }

    /// The next `bytes`; those past the end of the row are not of the next one.
    #[inline(always)]
    pub(super) fn take(&mut self, bytes: usize) -> *const u8 {
        let at = self.at;
        self.at = at.wrapping_add(bytes);
        self.turn();
        at
    }

    #[inline(always)]
    fn turn(&mut self) {
        if self.gap != 0 && self.at >= self.end {
            self.at = self.at.wrapping_add(self.gap);
            self.end = self.end.wrapping_add(self.row_bytes + self.gap);
        }
    }
}

/// What lies a distance ahead of a place in a tile, in the order in which the columns of the tiles are read.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    /// From here on in the tile it lies a tile further.
    turn: *const u8,
    before: usize,
    after: usize,
}

impl Ahead {
    /// `distance` bytes of columns ahead, where a tile has `bytes` of them and `gap` more follow until the next.
    #[inline(always)]
    pub(super) fn new(tile: *const u8, distance: usize, bytes: usize, gap: usize) -> Ahead {
        if gap == 0 {
            return Ahead { turn: tile, before: distance, after: distance };
        }
        let (tiles, rest) = (distance / bytes, distance % bytes);
        let before = distance + tiles * gap;
        Ahead { turn: tile.wrapping_add(bytes - rest), before, after: before + gap }
    }

    /// What is to be asked for at this place of the tile.
    #[inline(always)]
    pub(super) fn of(&self, at: *const u8) -> *const u8 {
        at.wrapping_add(if at < self.turn { self.before } else { self.after })
    }
}
