//! Q4_K and Q5_K: blocks of 256 weights with 6-bit scales and minima, and 128 bytes of nibbles, optionally after 256 fifth bits;
//! and their reading with AVX2, AVX-512 and NEON. The type's fields give the positions of the parts.

use super::BlockFormat;
use super::tile_groups::{TileGroup, add_fifth, bytes, each, halves, line};
use crate::fields::TILE_ROWS;
use crate::fields::{NibblePlaces, mask256};

/// A block type of this kind; its codes have `BITS` bits, 4 or 5.
pub(crate) struct Nibbles256<const BITS: u32>;

impl<const BITS: u32> Nibbles256<BITS>
where
    Self: BlockFormat,
{
    /// Positions of its nibbles and fifth bits.
    const AT: NibblePlaces = NibblePlaces::of(Self::FIELDS);

    /// Implements [`BlockFormat::tile_group`].
    #[inline(always)]
    pub(super) fn group_of_tile(unit: &[u8], g: usize, to: &mut TileGroup) {
        for (j, q) in to.q.iter_mut().enumerate() {
            let (l, from) = (8 * (g / 2) + j, g % 2 * 4);
            line(unit, Self::AT.lines, l, q, |byte| byte >> from & 15);
            if let Some(masks) = Self::AT.masks {
                add_fifth(unit, masks, mask256(g, j), q);
            }
        }
        // Byte i of the twelve, for all rows: see `scale_min_k` in `shared` for the bits.
        let at = |i: usize| bytes(unit, 64 + TILE_ROWS * i);
        let (sc, min) = if g < 4 {
            (each(|r| at(g)[r] & 63), each(|r| at(g + 4)[r] & 63))
        } else {
            (
                each(|r| at(g + 4)[r] & 15 | at(g - 4)[r] >> 6 << 4),
                each(|r| at(g + 4)[r] >> 4 | at(g)[r] >> 6 << 4),
            )
        };
        let (d, dmin) = (halves(unit, 0), halves(unit, 32));
        to.d = [each(|r| d[r] * f32::from(sc[r])); 2];
        to.m = [each(|r| -(dmin[r] * f32::from(min[r]))); 2];
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Nibbles256;
    use crate::blocks::BlockFormat;
    use crate::blocks::avx2_rows::{self, RowsAvx2, scale_and_offset_k, shr};
    use crate::blocks::avx2_tiles::{self, TilesAvx2, scales_k};
    use crate::blocks::avx512_rows::{self, RowsAvx512, group_k, low_high};
    use crate::blocks::avx512_tiles::{self, HeadK, TilesAvx512, nibbles_k};
    use crate::fields::mask256;
    use std::arch::x86_64::*;

    impl<const BITS: u32> RowsAvx2 for Nibbles256<BITS>
    where
        Self: BlockFormat,
    {
        #[inline(always)]
        unsafe fn group256(row: *const u8, b: usize) -> avx2_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let (p, g) = (row.add(b / 8 * Self::BYTES), b % 8);
                let (d, m) = scale_and_offset_k(p, g);
                let v = _mm256_loadu_si256(p.add(Self::AT.nibbles + 32 * (g / 2)).cast());
                let mut q = _mm256_and_si256(shr(v, 4 * (g & 1)), _mm256_set1_epi8(15));
                if let Some(at) = Self::AT.fifth {
                    let h = shr(_mm256_loadu_si256(p.add(at).cast()), g);
                    let h = _mm256_and_si256(h, _mm256_set1_epi8(1));
                    q = _mm256_or_si256(q, _mm256_slli_epi16::<4>(h));
                }
                avx2_rows::Group { q, d: [d; 2], m: [m; 2] }
            }
        }

        #[inline(always)]
        unsafe fn words(row: *const u8, b: usize) -> [__m256i; 2] {
            // SAFETY: by the trait's contract.
            unsafe {
                if Self::AT.fifth.is_some() {
                    return avx2_rows::widened::<Self>(row, b);
                }
                let (p, g) = (row.add(b / 8 * Self::BYTES), b % 8);
                let p = p.add(Self::AT.nibbles + 32 * (g / 2));
                let [a, b] = [avx2_rows::nibble_words(p, 0), avx2_rows::nibble_words(p.add(16), 0)];
                [a[g % 2], b[g % 2]]
            }
        }

        const EIGHT: bool = true;
        const PHASES: usize = 2;
        const TOGETHER: usize = if BITS == 4 { 2 } else { 1 };

        #[inline(always)]
        unsafe fn eight(row: *const u8, g: usize) -> avx2_rows::Eight {
            // SAFETY: by the trait's contract.
            unsafe { avx2_rows::eight_k(row.add(g * Self::BYTES)) }
        }
    }

    impl<const BITS: u32> RowsAvx512 for Nibbles256<BITS>
    where
        Self: BlockFormat,
    {
        type Offsets = ();

        #[inline(always)]
        unsafe fn begin(row: *const u8, g: usize, _: usize) -> avx512_rows::Group256<()> {
            // SAFETY: by the trait's contract.
            unsafe { group_k(row.add(g * Self::BYTES)) }
        }

        #[inline(always)]
        unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe {
                let q = low_high(at.add(Self::AT.nibbles + 32 * j));
                let Some(fifth) = Self::AT.fifth else { return q };
                let h = _mm512_broadcast_i64x4(_mm256_loadu_si256(at.add(fifth).cast()));
                // Bit 2j of the bytes for the low nibbles, bit 2j + 1 for the high ones.
                let (low, high) = (0x0101_0101_0101_0101, 0x0202_0202_0202_0202);
                let bit = _mm512_set_epi64(high, high, high, high, low, low, low, low);
                let bit = _mm512_sll_epi64(bit, _mm_cvtsi32_si128(2 * j as i32));
                let set = _mm512_test_epi8_mask(h, bit);
                _mm512_mask_add_epi8(q, set, q, _mm512_set1_epi8(16))
            }
        }
    }

    impl<const BITS: u32> TilesAvx2 for Nibbles256<BITS>
    where
        Self: BlockFormat,
    {
        type Group = ();

        #[inline(always)]
        unsafe fn begin(_: *const u8, _: usize, _: usize) {}

        #[inline(always)]
        unsafe fn scales(unit: *const u8, _: &(), g: usize, half: usize) -> avx2_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe { scales_k(unit, g, half) }
        }

        #[inline(always)]
        unsafe fn line(unit: *const u8, _: &(), g: usize, j: usize, half: usize) -> __m256i {
            // SAFETY: by the trait's contract.
            unsafe {
                let q =
                    avx2_tiles::nibbles(unit.add(Self::AT.lines), 8 * (g / 2) + j, half, g % 2 * 4);
                match Self::AT.masks {
                    Some(masks) => avx2_tiles::with_fifth(q, unit.add(masks), mask256(g, j), half),
                    None => q,
                }
            }
        }
    }

    impl<const BITS: u32> TilesAvx512 for Nibbles256<BITS>
    where
        Self: BlockFormat,
    {
        /// Pairs of groups share lines of nibbles.
        const PHASES: usize = 2;
        type Head = HeadK;

        #[inline(always)]
        unsafe fn head(unit: *const u8) -> HeadK {
            // SAFETY: by the trait's contract.
            unsafe { HeadK::of(unit) }
        }

        #[inline(always)]
        unsafe fn scales(_: *const u8, head: &HeadK, g: usize) -> avx512_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe { head.scales(g) }
        }

        #[inline(always)]
        unsafe fn line<const P: usize>(unit: *const u8, _: &HeadK, g: usize, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe {
                let q = nibbles_k::<P>(unit.add(Self::AT.lines), g, j);
                match Self::AT.masks {
                    Some(masks) => {
                        avx512_tiles::with_fifth(q, unit.add(masks), 16 * (g / 2) + 2 * j + P)
                    }
                    None => q,
                }
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::Nibbles256;
    use crate::blocks::BlockFormat;
    use crate::blocks::neon_rows::{self, RowsNeon};
    use crate::blocks::neon_tiles::{self, TilesNeon, scales_k};
    use crate::blocks::shared::scale_and_offset_k;
    use crate::fields::mask256;
    use std::arch::aarch64::*;

    impl<const BITS: u32> RowsNeon for Nibbles256<BITS>
    where
        Self: BlockFormat,
    {
        #[inline(always)]
        unsafe fn group128(row: *const u8, b: usize) -> neon_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let (p, g) = (row.add(b / 8 * Self::BYTES), b % 8);
                let block = std::slice::from_raw_parts(p, Self::BYTES);
                let (d, m) = scale_and_offset_k(block, g);
                let v = neon_rows::load(p.add(Self::AT.nibbles + 32 * (g / 2)));
                let mut q = neon_rows::bits(v, 4 * (g & 1), 15);
                if let Some(at) = Self::AT.fifth {
                    let h = neon_rows::bits(neon_rows::load(p.add(at)), g, 1);
                    q = neon_rows::or(q, [vshlq_n_u8::<4>(h[0]), vshlq_n_u8::<4>(h[1])]);
                }
                neon_rows::Group { q, d: [d; 2], m: [m; 2] }
            }
        }

        const EIGHT: bool = true;

        #[inline(always)]
        unsafe fn eight(row: *const u8, g: usize) -> neon_rows::Eight {
            // SAFETY: by the trait's contract.
            unsafe { neon_rows::eight_k(row.add(g * Self::BYTES)) }
        }
    }

    impl<const BITS: u32> TilesNeon for Nibbles256<BITS>
    where
        Self: BlockFormat,
    {
        type Group = ();

        #[inline(always)]
        unsafe fn begin(_: *const u8, _: usize, _: usize) {}

        #[inline(always)]
        unsafe fn scales(unit: *const u8, _: &(), g: usize, half: usize) -> neon_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe { scales_k(unit, g, half) }
        }

        #[inline(always)]
        unsafe fn line(
            unit: *const u8,
            _: &(),
            g: usize,
            j: usize,
            half: usize,
        ) -> [uint8x16_t; 2] {
            // SAFETY: by the trait's contract.
            unsafe {
                let l = 8 * (g / 2) + j;
                let q = neon_tiles::nibbles(unit.add(Self::AT.lines), l, half, g % 2 * 4);
                match Self::AT.masks {
                    Some(masks) => neon_tiles::with_fifth(q, unit.add(masks), mask256(g, j), half),
                    None => q,
                }
            }
        }
    }
}
