//! Tiles that AVX2 and AVX-512 read line by line, with nothing to compute first: those of all blocks of 32 weights with hooks of
//! their own.

use super::BlockFormat;
use super::avx2_tiles::{self, TilesAvx2};
use super::avx512_tiles::{self, TilesAvx512};
use std::arch::x86_64::*;

/// A block type of 32 weights whose lines are each read on their own. It gets [`TilesAvx2`] and [`TilesAvx512`] from this.
///
/// # Safety
/// For all functions: `unit` points to a whole unit, the lines exist, and the CPU has the SIMD level.
pub(super) trait PlainTiles: BlockFormat {
    /// Scales and offsets of rows 0 to 7, or 8 to 15.
    #[inline(always)]
    unsafe fn scales256(unit: *const u8, half: usize) -> avx2_tiles::Scales {
        // SAFETY: by the trait's contract.
        unsafe { avx2_tiles::one_scale::<Self>(unit, half) }
    }

    /// Weights `4j .. 4j + 4` of rows 0 to 7, or 8 to 15, as unsigned codes.
    unsafe fn line256(unit: *const u8, j: usize, half: usize) -> __m256i;

    /// Scales and offsets of all rows.
    #[inline(always)]
    unsafe fn scales512(unit: *const u8) -> avx512_tiles::Scales {
        // SAFETY: by the trait's contract.
        unsafe { avx512_tiles::one_scale::<Self>(unit) }
    }

    /// Weights `4j .. 4j + 4` of all rows, as unsigned codes.
    unsafe fn line512(unit: *const u8, j: usize) -> __m512i;

    /// As [`TilesAvx512::IN_ROWS`].
    const IN_ROWS: bool = false;

    /// As [`TilesAvx512::columns`].
    #[inline(always)]
    unsafe fn columns512(_block: *const u8, _stride: usize, _half: usize) -> __m512i {
        unreachable!("codes are packed into lines")
    }
}

impl<Q: PlainTiles> TilesAvx2 for Q {
    type Group = ();

    #[inline(always)]
    unsafe fn begin(_: *const u8, _: usize, _: usize) {}

    #[inline(always)]
    unsafe fn scales(unit: *const u8, _: &(), _: usize, half: usize) -> avx2_tiles::Scales {
        // SAFETY: by the trait's contract.
        unsafe { Q::scales256(unit, half) }
    }

    #[inline(always)]
    unsafe fn line(unit: *const u8, _: &(), _: usize, j: usize, half: usize) -> __m256i {
        // SAFETY: by the trait's contract.
        unsafe { Q::line256(unit, j, half) }
    }
}

impl<Q: PlainTiles> TilesAvx512 for Q {
    const PHASES: usize = 1;
    type Head = ();

    #[inline(always)]
    unsafe fn head(_: *const u8) {}

    #[inline(always)]
    unsafe fn scales(unit: *const u8, _: &(), _: usize) -> avx512_tiles::Scales {
        // SAFETY: by the trait's contract.
        unsafe { Q::scales512(unit) }
    }

    #[inline(always)]
    unsafe fn line<const P: usize>(unit: *const u8, _: &(), _: usize, j: usize) -> __m512i {
        // SAFETY: by the trait's contract.
        unsafe { Q::line512(unit, j) }
    }

    const IN_ROWS: bool = <Q as PlainTiles>::IN_ROWS;

    #[inline(always)]
    unsafe fn columns(block: *const u8, stride: usize, half: usize) -> __m512i {
        // SAFETY: by the trait's contract.
        unsafe { Q::columns512(block, stride, half) }
    }
}
