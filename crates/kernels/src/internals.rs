//! Internals that the tests in `tests/` access. They are not part of the interface, and change without notice.

use crate::Isa;
use crate::lanes::{self, Lanes, Unary, by_level};

/// `x = e^x`, as all kernels compute it: for any `x`, or in the form for negative ones.
pub fn exp(isa: Isa, negative: bool, x: &mut [f32]) {
    let f = Exp { negative };
    by_level!(isa, (x: &mut [f32], f: Exp) -> (), exp_lanes)
}

#[derive(Clone, Copy)]
struct Exp {
    negative: bool,
}

impl Unary for Exp {
    #[inline(always)]
    unsafe fn apply<S: Lanes>(self, x: S::V) -> S::V {
        // SAFETY: the caller vouches for the features.
        unsafe { if self.negative { lanes::exp_negative::<S>(x) } else { lanes::exp::<S>(x) } }
    }
}

#[inline(always)]
unsafe fn exp_lanes<S: Lanes>(x: &mut [f32], f: Exp) {
    // SAFETY: the caller vouches for the features.
    unsafe { lanes::map::<S>(x, f) }
}

/// `a[i] · b[i] + c[i]`, rounded once. Panics on different lengths.
pub fn fma(isa: Isa, a: &[f32], b: &[f32], c: &[f32]) -> Vec<f32> {
    assert!(a.len() == b.len() && b.len() == c.len(), "lengths of factors and sums");
    let mut out = vec![0.0; a.len()];
    let sums = &mut out[..];
    by_level!(isa, (a: &[f32], b: &[f32], c: &[f32], sums: &mut [f32]) -> (), fma_lanes);
    out
}

#[inline(always)]
unsafe fn fma_lanes<S: Lanes>(a: &[f32], b: &[f32], c: &[f32], sums: &mut [f32]) {
    for i in (0..sums.len()).step_by(S::N) {
        let n = S::N.min(sums.len() - i);
        // SAFETY: n elements follow in all; the caller vouches for the features.
        unsafe {
            let load = |x: &[f32]| lanes::load_up_to::<S>(x.as_ptr().add(i), n);
            let (to, sum) = (sums.as_mut_ptr().add(i), S::fma(load(a), load(b), load(c)));
            if n == S::N { S::store(to, sum) } else { S::store_n(to, sum, n) }
        }
    }
}

/// The hooks of a new type of blocks: Q2_0 with only its decoding, and all hooks derived from it.
#[cfg(target_arch = "x86_64")]
pub mod derived {
    use alight_types::GgmlType;
    use std::arch::x86_64::*;

    use crate::blocks::avx2_rows::RowsAvx2;
    use crate::blocks::avx2_tiles::TilesAvx2;
    use crate::blocks::avx512_rows::RowsAvx512;
    use crate::blocks::avx512_tiles::TilesAvx512;
    use crate::blocks::decoded::decoded;
    use crate::blocks::q2_0::Q2_0;
    use crate::blocks::{BlockFormat, Group32, ScaleField};
    use crate::fields::Field;
    use crate::tiles::TILE_ROWS;
    use crate::{Isa, SimdLevel};

    struct Derived;

    impl BlockFormat for Derived {
        const TYPE: GgmlType = GgmlType::Q2_0;
        const ZERO: i32 = Q2_0::ZERO;
        const MAX_CODE: i32 = Q2_0::MAX_CODE;
        const SCALES: usize = Q2_0::SCALES;
        const OFFSETS: usize = Q2_0::OFFSETS;
        const FIELDS: &'static [Field] = Q2_0::FIELDS;
        const SCALE_FIELDS: &'static [ScaleField] = Q2_0::SCALE_FIELDS;

        fn group(b: &[u8], g: usize) -> Group32 {
            Q2_0::group(b, g)
        }
    }

    decoded!(Derived: RowsAvx2, RowsAvx512, TilesAvx2, TilesAvx512);

    /// Returns the weights of a row of blocks by the hooks of a level; `None` where the level has none.
    pub fn row(isa: Isa, row: &[u8]) -> Option<Vec<f32>> {
        match isa.level() {
            // SAFETY: an `Isa` can run here.
            SimdLevel::Avx2 => Some(unsafe { row_avx2(row) }),
            // SAFETY: as above.
            SimdLevel::Avx512 => Some(unsafe { row_avx512(row) }),
            _ => None,
        }
    }

    /// Returns the weights of a unit of a tile, row by row.
    pub fn unit(isa: Isa, unit: &[u8]) -> Option<Vec<f32>> {
        match isa.level() {
            // SAFETY: an `Isa` can run here.
            SimdLevel::Avx2 => Some(unsafe { unit_avx2(unit) }),
            // SAFETY: as above.
            SimdLevel::Avx512 => Some(unsafe { unit_avx512(unit) }),
            _ => None,
        }
    }

    fn groups(row: &[u8]) -> usize {
        row.len() / Derived::BYTES * Derived::BLOCK / 32
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn row_avx2(row: &[u8]) -> Vec<f32> {
        let mut out = Vec::new();
        for b in 0..groups(row) {
            // SAFETY: a group of the row; vectors and arrays have the same number of bytes.
            unsafe {
                let scales = Derived::group256(row.as_ptr(), b).d;
                let words = Derived::words(row.as_ptr(), b);
                let words: [[i16; 16]; 2] = std::mem::transmute(words);
                let halves = words.into_iter().zip(scales);
                out.extend(halves.flat_map(|(words, d)| words.map(|w| f32::from(w) * d)));
            }
        }
        out
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c")]
    unsafe fn row_avx512(row: &[u8]) -> Vec<f32> {
        let mut out = Vec::new();
        for g in 0..groups(row).div_ceil(8) {
            let count = (groups(row) - 8 * g).min(8);
            // SAFETY: groups of the row; vectors and arrays have the same number of bytes.
            unsafe {
                let group = <Derived as RowsAvx512>::begin(row.as_ptr(), g, count);
                let scales: [f32; 16] = std::mem::transmute(group.scales);
                for (i, d) in scales.into_iter().enumerate().take(count) {
                    let two = if i + 1 == count && i % 2 == 0 {
                        Derived::quants::<true>(group.at, i / 2)
                    } else {
                        Derived::quants::<false>(group.at, i / 2)
                    };
                    let two: [[u8; 32]; 2] = std::mem::transmute(two);
                    out.extend(two[i % 2].map(|q| (f32::from(q) - Derived::ZERO as f32) * d));
                }
            }
        }
        out
    }

    /// Moves lines of four codes of each row, which begin at column `32·g` of row `first`, to the places of the weights.
    fn put<const R: usize>(
        lines: [[[u8; 4]; R]; 8],
        scales: [[f32; R]; 2],
        (g, first): (usize, usize),
        out: &mut [f32],
    ) {
        for (j, line) in lines.iter().enumerate() {
            for (r, codes) in line.iter().enumerate() {
                for (i, q) in codes.iter().enumerate() {
                    let weight = (f32::from(*q) - Derived::ZERO as f32) * scales[j / 4][r];
                    out[(first + r) * Derived::BLOCK + 32 * g + 4 * j + i] = weight;
                }
            }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn unit_avx2(unit: &[u8]) -> Vec<f32> {
        let (mut out, unit) = (vec![f32::NAN; TILE_ROWS * Derived::BLOCK], unit.as_ptr());
        for (g, half) in (0..Derived::BLOCK / 32).flat_map(|g| [(g, 0), (g, 1)]) {
            // SAFETY: a group of the unit; vectors and arrays have the same number of bytes.
            unsafe {
                let group = <Derived as TilesAvx2>::begin(unit, g, half);
                let line = |j| <Derived as TilesAvx2>::line(unit, &group, g, j, half);
                let lines = std::array::from_fn(|j| std::mem::transmute::<__m256i, _>(line(j)));
                let scales = <Derived as TilesAvx2>::scales(unit, &group, g, half).d;
                let scales = scales.map(|d| std::mem::transmute::<__m256, [f32; 8]>(d));
                put(lines, scales, (g, 8 * half), &mut out);
            }
        }
        out
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c")]
    unsafe fn unit_avx512(unit: &[u8]) -> Vec<f32> {
        let (mut out, unit) = (vec![f32::NAN; TILE_ROWS * Derived::BLOCK], unit.as_ptr());
        // SAFETY: a unit; vectors and arrays have the same number of bytes.
        unsafe {
            let head = <Derived as TilesAvx512>::head(unit);
            for g in 0..Derived::BLOCK / 32 {
                let line = |j| <Derived as TilesAvx512>::line::<0>(unit, &head, g, j);
                let lines = std::array::from_fn(|j| std::mem::transmute::<__m512i, _>(line(j)));
                let scales = <Derived as TilesAvx512>::scales(unit, &head, g).d;
                let scales = scales.map(|d| std::mem::transmute::<__m512, [f32; 16]>(d));
                put(lines, scales, (g, 0), &mut out);
            }
        }
        out
    }
}
