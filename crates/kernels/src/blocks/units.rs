//! Packs a unit of a tile from sixteen rows while they are multiplied: the walk over the fields of a block, and what the levels do with each kind.

use super::BlockFormat;
use crate::fields::Field::{Bits32, Bits256, Elements, Signed};
use crate::fields::{TILE_ROWS, offset};
use std::arch::x86_64::*;

/// A level's way of moving a field of sixteen blocks to its place in a unit. The field of row `r` begins at `p + r · stride`, its place at `to`.
///
/// # Safety
/// For all functions: the blocks can be read, the unit written; the CPU has the level.
pub(crate) trait UnitPacker: Sized {
    /// `count` elements of four bytes of each row, each a line of a unit; with `SIGNED` the sign bits of their bytes are inverted.
    unsafe fn lines<const SIGNED: bool>(p: *const u8, stride: usize, count: usize, to: *mut u8);

    /// Elements of one or two bytes, of the four bytes at `p` that are left after a shift by `skipped` bytes. `sizes` are the bytes of an element, and the
    /// maximum number of bytes of each row.
    unsafe fn four_bytes(
        p: *const u8,
        stride: usize,
        skipped: usize,
        sizes: [usize; 2],
        to: *mut u8,
    );

    /// Elements of one or two bytes, of blocks that begin at `blocks`.
    #[inline(always)]
    unsafe fn elements<Q: BlockFormat>(
        blocks: *const u8,
        stride: usize,
        [at, size, count]: [usize; 3],
        to: *mut u8,
    ) {
        // SAFETY: by the trait's contract.
        unsafe { few_elements::<Self, Q>(blocks, stride, [at, size, count], to) }
    }

    /// The fifth bits of 32 weights.
    unsafe fn bits32(p: *const u8, stride: usize, to: *mut u8);

    /// The fifth bits of 256 weights.
    unsafe fn bits256(p: *const u8, stride: usize, to: *mut u8);
}

/// Elements of one or two bytes, four bytes of each row at a time.
///
/// # Safety
/// As for [`UnitPacker`].
#[inline(always)]
pub(super) unsafe fn few_elements<P: UnitPacker, Q: BlockFormat>(
    blocks: *const u8,
    stride: usize,
    [at, size, count]: [usize; 3],
    to: *mut u8,
) {
    let bytes = size * count;
    for first in (0..bytes).step_by(4) {
        // The last four of the block if there are no more.
        let wanted = at + first;
        let from = wanted.min(Q::BYTES - 4);
        // SAFETY: by the caller's promise; inside the block.
        unsafe {
            let (p, to) = (blocks.add(from), to.add(TILE_ROWS * first));
            P::four_bytes(p, stride, wanted - from, [size, bytes - first], to);
        }
    }
}

/// Fills a unit from sixteen blocks: the block of row `r` begins at `blocks + r · stride`.
///
/// # Safety
/// As for [`UnitPacker`].
#[inline(always)]
pub(crate) unsafe fn pack<P: UnitPacker, Q: BlockFormat>(
    blocks: *const u8,
    stride: usize,
    unit: *mut u8,
) {
    const { assert!(Q::FIELDS.len() <= 5) };
    // Separate code for each field, in which its place is a constant.
    // SAFETY: by the caller's promise.
    unsafe {
        field::<P, Q, 0>(blocks, stride, unit);
        field::<P, Q, 1>(blocks, stride, unit);
        field::<P, Q, 2>(blocks, stride, unit);
        field::<P, Q, 3>(blocks, stride, unit);
        field::<P, Q, 4>(blocks, stride, unit);
    }
}

/// Field `N` of a type, if there is one.
#[inline(always)]
unsafe fn field<P: UnitPacker, Q: BlockFormat, const N: usize>(
    blocks: *const u8,
    stride: usize,
    unit: *mut u8,
) {
    if N >= Q::FIELDS.len() {
        return;
    }
    // SAFETY: by the caller's promise; the field is inside the block and the unit.
    unsafe {
        let to = unit.add(offset(Q::FIELDS, N));
        match Q::FIELDS[N] {
            Elements { at, size: 4, count } => P::lines::<false>(blocks.add(at), stride, count, to),
            Elements { at, size, count } => P::elements::<Q>(blocks, stride, [at, size, count], to),
            Signed { at, count } => P::lines::<true>(blocks.add(at), stride, count, to),
            Bits32 { at } => P::bits32(blocks.add(at), stride, to),
            Bits256 { at } => P::bits256(blocks.add(at), stride, to),
        }
    }
}

/// Four bytes of four rows.
#[inline(always)]
pub(super) unsafe fn four_rows(p: *const u8, stride: usize) -> __m128i {
    // SAFETY: by the caller's promise.
    unsafe {
        let v = _mm_cvtsi32_si128(p.cast::<i32>().read_unaligned());
        let v = _mm_insert_epi32::<1>(v, p.add(stride).cast::<i32>().read_unaligned());
        let v = _mm_insert_epi32::<2>(v, p.add(2 * stride).cast::<i32>().read_unaligned());
        _mm_insert_epi32::<3>(v, p.add(3 * stride).cast::<i32>().read_unaligned())
    }
}
