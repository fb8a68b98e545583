//! Prefetches. A prefetch never faults: the address may point anywhere.

use super::Matrix;
use crate::tiles::TILE_ROWS;
use std::arch::x86_64::*;

/// Prefetches `bytes` from `p` on into the first-level cache.
#[inline(always)]
pub(super) fn near(p: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: SSE is part of the architecture.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(64 * line).cast()) }
    }
}

/// Prefetches `bytes` from `p` on into the second-level cache.
#[inline(always)]
pub(super) fn far(p: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.wrapping_add(64 * line).cast()) }
    }
}

/// Cache lines of the columns of row after row, if other columns lie in between.
pub(super) struct CacheLines {
    at: *const u8,
    /// End of the columns of this row.
    end: *const u8,
    row_bytes: usize,
    gap: usize,
}

impl CacheLines {
    /// Starts with the columns of the row at `row`.
    #[inline(always)]
    pub(super) fn new(row: *const u8, row_bytes: usize, gap: usize) -> CacheLines {
        CacheLines { at: line_of(row), end: row.wrapping_add(row_bytes), row_bytes, gap }
    }

    /// Maximum number of lines of a row.
    #[inline(always)]
    pub(super) fn per_row(&self) -> usize {
        self.row_bytes.div_ceil(64) + 1
    }

    /// The next line.
    #[inline(always)]
    pub(super) fn next(&mut self) -> *const u8 {
        let at = self.at;
        self.at = at.wrapping_add(64);
        if self.at >= self.end {
            let row = self.end.wrapping_add(self.gap);
            (self.at, self.end) = (line_of(row), row.wrapping_add(self.row_bytes));
        }
        at
    }
}

/// The start of the cache line that contains this byte.
#[inline(always)]
fn line_of(p: *const u8) -> *const u8 {
    p.wrapping_sub(p.addr() % 64)
}

/// Prefetches the next rows, a part with every 256 columns of the current rows, in the order of the file: measured twice as fast
/// as prefetching along each of the rows.
pub(super) struct RowsAhead {
    /// The next address, if rows are contiguous.
    next: *const u8,
    /// The same if other columns lie between them; `per_part` lines for each part.
    lines: CacheLines,
    per_part: usize,
    /// True to prefetch into the second-level cache.
    long: bool,
}

impl RowsAhead {
    /// Prefetch distance in bytes, rounded up to whole sets of rows that are multiplied together: the amount that a core reads
    /// during about two latencies of a loaded memory.
    const DISTANCE: usize = 2048;

    /// The same if other columns lie between those of the rows: nothing else prefetches these in time. (Measured: as fast
    /// as without other columns, into the second-level cache; 2 KiB ahead or into the first, half as fast.)
    const STRIDED: usize = 4096;

    /// Bytes of the rows above which they go into the second-level cache: with their activations they would overflow the first
    /// (measured 18 against 24 GB/s at 24 KiB).
    const LONG: usize = 12 * 1024;

    /// Prefetches after `rows` rows of `cols` columns that are multiplied, the first of which is at `row`.
    #[inline(always)]
    pub(super) fn new(row: *const u8, rows: usize, w: &Matrix<'_>, cols: usize) -> RowsAhead {
        let (row_bytes, strided) = (w.row_bytes, w.gap() != 0);
        let distance = if strided { Self::STRIDED } else { Self::DISTANCE };
        let next = row.wrapping_add((rows * w.stride) * distance.div_ceil(rows * row_bytes));
        let lines = CacheLines::new(next, row_bytes, w.gap());
        let parts = cols.div_ceil(256);
        let per_part = if strided { (rows * lines.per_row()).div_ceil(parts) } else { 0 };
        RowsAhead { next, lines, per_part, long: strided || rows * row_bytes > Self::LONG }
    }

    /// Prefetches one part; `bytes` is its size in all rows.
    #[inline(always)]
    pub(super) fn ask(&mut self, bytes: usize) {
        if self.per_part == 0 {
            self.line(self.next, bytes);
            self.next = self.next.wrapping_add(bytes);
        }
        for _ in 0..self.per_part {
            let line = self.lines.next();
            self.line(line, 64);
        }
    }

    #[inline(always)]
    fn line(&self, p: *const u8, bytes: usize) {
        if self.long { far(p, bytes) } else { near(p, bytes) }
    }
}

/// The address a distance ahead of a position in a tile, in the order in which the columns of the tiles are read.
#[derive(Clone, Copy)]
pub(super) struct PrefetchAddress {
    /// From this address of the tile on, the target is one tile further.
    turn: *const u8,
    before: usize,
    after: usize,
}

impl PrefetchAddress {
    /// `distance` bytes ahead in a tile whose columns are all read, before those of the next tile.
    #[inline(always)]
    pub(super) fn of_tile(w: &Matrix<'_>, tile: *const u8, distance: usize) -> PrefetchAddress {
        PrefetchAddress::new(tile, distance, TILE_ROWS * w.row_bytes, TILE_ROWS * w.gap())
    }

    /// `distance` bytes of columns ahead, if a tile has `bytes` of them, followed by a gap of `gap` until the next.
    #[inline(always)]
    pub(super) fn new(
        tile: *const u8,
        distance: usize,
        bytes: usize,
        gap: usize,
    ) -> PrefetchAddress {
        if gap == 0 {
            return PrefetchAddress { turn: tile, before: distance, after: distance };
        }
        let (tiles, rest) = (distance / bytes, distance % bytes);
        let before = distance + tiles * gap;
        PrefetchAddress { turn: tile.wrapping_add(bytes - rest), before, after: before + gap }
    }

    /// The address to prefetch at this position of the tile.
    #[inline(always)]
    pub(super) fn of(&self, at: *const u8) -> *const u8 {
        at.wrapping_add(if at < self.turn { self.before } else { self.after })
    }
}
