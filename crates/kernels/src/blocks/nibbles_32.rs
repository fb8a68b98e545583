//! Reads tiles of Q4_0, Q4_1, Q5_0, Q5_1 and IQ4_NL, and their rows with AVX2, AVX-512 and NEON: blocks of 32 weights that begin
//! with an f16 scale and an optional f16 offset, and end with 16 bytes of nibbles, optionally after 32 fifth bits. The type's
//! fields give the positions of these.

use super::BlockFormat;
#[cfg(target_arch = "x86_64")]
use super::avx512_rows::{Table, nibble_table, scale_table};
use super::tile_groups::{TileGroup, add_fifth, halves, nibbles};
use crate::fields::NibblePlaces;

/// A block type of this kind.
pub(super) trait Nibbles32: BlockFormat {
    /// Positions of its nibbles and fifth bits.
    const AT: NibblePlaces = NibblePlaces::of(Self::FIELDS);
    /// The code of each nibble, if it is not the nibble itself.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    const CODES: Option<&'static [u8; 16]> = None;
    /// Positions of the scales of eight blocks, and of the nibbles of two.
    #[cfg(target_arch = "x86_64")]
    const SCALE_TABLE: &'static Table = &scale_table(Self::BYTES);
    #[cfg(target_arch = "x86_64")]
    const NIBBLE_TABLE: &'static Table = &nibble_table(Self::BYTES, Self::AT.nibbles);

    /// Returns the code of a nibble, by arithmetic.
    #[inline(always)]
    fn code(nibble: u8) -> u8 {
        nibble
    }
}

/// Implements [`BlockFormat::tile_group`].
#[inline(always)]
pub(super) fn tile_group<Q: Nibbles32>(unit: &[u8], to: &mut TileGroup) {
    nibbles(unit, Q::AT.lines, 0, &mut to.q, Q::code);
    if let Some(masks) = Q::AT.masks {
        for (j, q) in to.q.iter_mut().enumerate() {
            add_fifth(unit, masks, mask(j), q);
        }
    }
    to.d = [halves(unit, 0); 2];
    if Q::OFFSETS != 0 {
        to.m = [halves(unit, 32); 2];
    }
}

/// The mask with the fifth bits of line `j`.
const fn mask(j: usize) -> usize {
    2 * (j % 4) + j / 4
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Nibbles32, mask};
    use crate::blocks::avx2_rows::{self, RowsAvx2, f16_at, fifth_bits};
    use crate::blocks::avx2_tiles;
    use crate::blocks::avx512_rows::{self, RowsAvx512, add_fifth, leading_scales, nibbles};
    use crate::blocks::avx512_tiles;
    use crate::blocks::avx512_units::quarters;
    use crate::blocks::plain_tiles::PlainTiles;
    use std::arch::x86_64::*;

    #[inline(always)]
    unsafe fn codes256<Q: Nibbles32>(nibbles: __m256i) -> __m256i {
        match Q::CODES {
            // SAFETY: the callers' CPU has AVX2.
            Some(codes) => unsafe { avx2_rows::looked_up(codes, nibbles) },
            None => nibbles,
        }
    }

    #[inline(always)]
    unsafe fn codes512<Q: Nibbles32>(nibbles: __m512i) -> __m512i {
        match Q::CODES {
            // SAFETY: the callers' CPU has the SIMD level.
            Some(codes) => unsafe { avx512_rows::looked_up(codes, nibbles) },
            None => nibbles,
        }
    }

    impl<Q: Nibbles32> RowsAvx2 for Q {
        #[inline(always)]
        unsafe fn group256(row: *const u8, b: usize) -> avx2_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let p = row.add(b * Q::BYTES);
                let mut q = codes256::<Q>(avx2_rows::nibbles(p.add(Q::AT.nibbles)));
                if let Some(at) = Q::AT.fifth {
                    q = _mm256_or_si256(q, fifth_bits(p.add(at)));
                }
                let m = if Q::OFFSETS == 0 { 0.0 } else { f16_at(p.add(2)) };
                avx2_rows::Group { q, d: [f16_at(p); 2], m: [m; 2] }
            }
        }

        #[inline(always)]
        unsafe fn words(row: *const u8, b: usize) -> [__m256i; 2] {
            // SAFETY: by the trait's contract.
            unsafe {
                if Q::CODES.is_none() && Q::AT.fifth.is_none() {
                    avx2_rows::nibble_words(row.add(b * Q::BYTES + Q::AT.nibbles), Q::ZERO)
                } else {
                    avx2_rows::widened::<Self>(row, b)
                }
            }
        }

        const EIGHT: bool = true;

        #[inline(always)]
        unsafe fn eight(row: *const u8, g: usize) -> avx2_rows::Eight {
            // SAFETY: by the trait's contract.
            unsafe { avx2_rows::leading_eight::<Q>(row, g) }
        }
    }

    impl<Q: Nibbles32> RowsAvx512 for Q {
        type Offsets = ();

        #[inline(always)]
        unsafe fn begin(row: *const u8, g: usize, count: usize) -> avx512_rows::Group256<()> {
            // SAFETY: by the trait's contract.
            unsafe { leading_scales::<Q>(row, g, count, Q::SCALE_TABLE) }
        }

        #[inline(always)]
        unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe {
                let p = at.add(j * 2 * Q::BYTES);
                let q = codes512::<Q>(nibbles::<Q, HALF>(p, Q::NIBBLE_TABLE));
                match Q::AT.fifth {
                    Some(at) => add_fifth::<Q, HALF>(q, p, at),
                    None => q,
                }
            }
        }
    }

    impl<Q: Nibbles32> PlainTiles for Q {
        #[inline(always)]
        unsafe fn line256(unit: *const u8, j: usize, half: usize) -> __m256i {
            // SAFETY: by the trait's contract.
            unsafe {
                let q = avx2_tiles::nibbles(unit.add(Q::AT.lines), j % 4, half, j / 4 * 4);
                let q = codes256::<Q>(q);
                match Q::AT.masks {
                    Some(masks) => avx2_tiles::with_fifth(q, unit.add(masks), mask(j), half),
                    None => q,
                }
            }
        }

        #[inline(always)]
        unsafe fn line512(unit: *const u8, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe {
                let q = codes512::<Q>(avx512_tiles::nibbles(unit.add(Q::AT.lines), j));
                match Q::AT.masks {
                    Some(masks) => avx512_tiles::with_fifth(q, unit.add(masks), mask(j)),
                    None => q,
                }
            }
        }

        const IN_ROWS: bool = true;

        #[inline(always)]
        unsafe fn columns512(block: *const u8, stride: usize, half: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe {
                let v = quarters(block.add(Q::AT.nibbles), stride);
                let v = if half == 0 { avx512_tiles::low(v) } else { avx512_tiles::high(v) };
                let q = codes512::<Q>(v);
                let Some(at) = Q::AT.fifth else { return q };
                // 16 bits of each row.
                let mut mask = 0;
                for row in 0..4 {
                    let bits = block.add(4 * row * stride + at + 2 * half).cast::<u16>();
                    mask |= u64::from(bits.read_unaligned()) << (16 * row);
                }
                _mm512_mask_add_epi8(q, mask, q, _mm512_set1_epi8(16))
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::{Nibbles32, mask};
    use crate::blocks::neon_rows::{self, RowsNeon, f16_at, fifth_bits};
    use crate::blocks::neon_tiles::{self, TilesNeon};
    use std::arch::aarch64::*;

    #[inline(always)]
    unsafe fn codes<Q: Nibbles32>(nibbles: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        match Q::CODES {
            // SAFETY: the callers' CPU has NEON.
            Some(codes) => unsafe { neon_rows::looked_up(codes, nibbles) },
            None => nibbles,
        }
    }

    impl<Q: Nibbles32> RowsNeon for Q {
        #[inline(always)]
        unsafe fn group128(row: *const u8, b: usize) -> neon_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let p = row.add(b * Q::BYTES);
                let mut q = codes::<Q>(neon_rows::nibbles(p.add(Q::AT.nibbles)));
                if let Some(at) = Q::AT.fifth {
                    q = neon_rows::or(q, fifth_bits(p.add(at)));
                }
                let m = if Q::OFFSETS == 0 { 0.0 } else { f16_at(p.add(2)) };
                neon_rows::Group { q, d: [f16_at(p); 2], m: [m; 2] }
            }
        }
    }

    impl<Q: Nibbles32> TilesNeon for Q {
        type Group = ();

        #[inline(always)]
        unsafe fn begin(_: *const u8, _: usize, _: usize) {}

        #[inline(always)]
        unsafe fn scales(unit: *const u8, _: &(), _: usize, half: usize) -> neon_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe { neon_tiles::one_scale::<Q>(unit, half) }
        }

        #[inline(always)]
        unsafe fn line(
            unit: *const u8,
            _: &(),
            _: usize,
            j: usize,
            half: usize,
        ) -> [uint8x16_t; 2] {
            // SAFETY: by the trait's contract.
            unsafe {
                let q = neon_tiles::nibbles(unit.add(Q::AT.lines), j % 4, half, j / 4 * 4);
                let q = codes::<Q>(q);
                match Q::AT.masks {
                    Some(masks) => neon_tiles::with_fifth(q, unit.add(masks), mask(j), half),
                    None => q,
                }
            }
        }
    }
}
