//! Rows that are packed into units of a tile while they are multiplied, in the first-level cache.

use crate::blocks::{BlockFormat, MAX_BYTES_OF_256};
use crate::matmul::Matrix;
use crate::tiles::TILE_ROWS;
use std::mem::MaybeUninit;

/// 256 columns of sixteen rows.
#[repr(align(64))]
pub(in crate::matmul) struct Columns(MaybeUninit<[u8; TILE_ROWS * MAX_BYTES_OF_256]>);

impl Columns {
    pub(in crate::matmul) const EMPTY: Columns = Columns(MaybeUninit::uninit());

    #[inline(always)]
    pub(in crate::matmul) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// Sixteen rows' blocks of 256 columns: those of row `r` begin at `first + r · stride`.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Blocks {
    pub(in crate::matmul) first: *const u8,
    pub(in crate::matmul) stride: usize,
}

impl Blocks {
    /// `count` groups of the `g`-th 256 columns of sixteen rows from row `row` on. If there are fewer, they are copied to `copy`, where the last row is
    /// repeated.
    #[inline(always)]
    pub(in crate::matmul) fn of<Q: BlockFormat>(
        w: &Matrix<'_>,
        row: usize,
        g: usize,
        count: usize,
        copy: &mut Columns,
    ) -> Blocks {
        if w.rows() < row + TILE_ROWS {
            return copy_rows::<Q>(w, row, g, count, copy);
        }
        let first = w.row(row).as_ptr().wrapping_add(256 / Q::BLOCK * g * Q::BYTES);
        Blocks { first, stride: w.stride() }
    }

    /// Returns the first row of the sixteen of a matrix that have row `r`.
    #[inline(always)]
    pub(super) fn first_row(w: &Matrix<'_>, r: usize) -> usize {
        (r / TILE_ROWS * TILE_ROWS).min(w.rows().saturating_sub(TILE_ROWS))
    }
}

/// True of no type: rows of every type that has tiles are packed.
pub(super) const fn never<Q: BlockFormat>() -> bool {
    Q::FIELDS.is_empty()
}

#[cold]
fn copy_rows<Q: BlockFormat>(
    w: &Matrix<'_>,
    row: usize,
    g: usize,
    count: usize,
    to: &mut Columns,
) -> Blocks {
    let (at, bytes) = (256 / Q::BLOCK * g * Q::BYTES, count * 32 / Q::BLOCK * Q::BYTES);
    let first = to.as_mut_ptr();
    for r in 0..TILE_ROWS {
        let row = &w.row((row + r).min(w.rows() - 1))[at..][..bytes];
        // SAFETY: `to` has place for as many rows of 256 columns of any type.
        unsafe {
            std::ptr::copy_nonoverlapping(row.as_ptr(), first.add(r * MAX_BYTES_OF_256), bytes);
        }
    }
    Blocks { first, stride: MAX_BYTES_OF_256 }
}
