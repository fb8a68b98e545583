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

/// Lines of the columns of row after row, where other columns lie in between.
pub(super) struct Lines {
    at: *const u8,
    /// Where the columns of this row end.
    end: *const u8,
    row_bytes: usize,
    gap: usize,
}

impl Lines {
    /// From the columns of the row at `row` on.
    #[inline(always)]
    pub(super) fn new(row: *const u8, row_bytes: usize, gap: usize) -> Lines {
        Lines { at: line_of(row), end: row.wrapping_add(row_bytes), row_bytes, gap }
    }

    /// At most so many lines has a row.
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

/// Where the line begins that has this byte.
#[inline(always)]
fn line_of(p: *const u8) -> *const u8 {
    p.wrapping_sub(p.addr() % 64)
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
