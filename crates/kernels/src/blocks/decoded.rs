//! Hooks that are derived from the portable decoding: what a type uses that has none of its own for
//! a SIMD level or a layout. They are as exact and slower: weights are decoded to the stack first.
//!
//! Every type has hooks of its own by now: these are what a new one begins with, and what the tests compare
//! hooks with.

#![cfg_attr(not(test), allow(dead_code, unused_macros, unused_imports))]

use super::{BlockFormat, TileGroup};
use crate::tiles::TILE_ROWS;
use crate::tiles::fields;

/// Gives a type the derived hooks that are named: `decoded!(T: RowsAvx2, RowsAvx512, TilesAvx2,
/// TilesAvx512, RowsNeon, TilesNeon)`.
macro_rules! decoded {
    ($ty:ident: $($hook:ident),*) => {
        $($crate::blocks::decoded::decoded!(@ $hook $ty);)*
    };
    (@ RowsAvx2 $ty:ident) => {
        #[cfg(target_arch = "x86_64")]
        impl $crate::blocks::avx2_rows::RowsAvx2 for $ty {
            #[inline(always)]
            unsafe fn group256(row: *const u8, b: usize) -> $crate::blocks::avx2_rows::Group {
                // SAFETY: by the trait's contract.
                unsafe { $crate::blocks::decoded::avx2_group::<Self>(row, b) }
            }
        }
    };
    (@ RowsAvx512 $ty:ident) => {
        #[cfg(target_arch = "x86_64")]
        impl $crate::blocks::avx512_rows::RowsAvx512 for $ty {
            type Offsets = std::arch::x86_64::__m512;

            #[inline(always)]
            unsafe fn begin(
                row: *const u8,
                g: usize,
                count: usize,
            ) -> $crate::blocks::avx512_rows::Group<std::arch::x86_64::__m512> {
                // SAFETY: by the trait's contract.
                unsafe { $crate::blocks::decoded::avx512_begin::<Self>(row, g, count) }
            }

            #[inline(always)]
            unsafe fn quants<const HALF: bool>(
                at: *const u8,
                j: usize,
            ) -> std::arch::x86_64::__m512i {
                // SAFETY: by the trait's contract.
                unsafe { $crate::blocks::decoded::avx512_quants::<Self, HALF>(at, j) }
            }
        }
    };
    (@ TilesAvx2 $ty:ident) => {
        #[cfg(target_arch = "x86_64")]
        impl $crate::blocks::avx2_tiles::TilesAvx2 for $ty {
            type Group = $crate::blocks::TileGroup<8>;

            #[inline(always)]
            unsafe fn begin(unit: *const u8, g: usize, half: usize) -> Self::Group {
                // SAFETY: by the trait's contract.
                unsafe { $crate::blocks::decoded::tile_group_at::<Self, 8>(unit, g, 8 * half) }
            }

            #[inline(always)]
            unsafe fn scales(
                _: *const u8,
                group: &Self::Group,
                _: usize,
                _: usize,
            ) -> $crate::blocks::avx2_tiles::Scales {
                // SAFETY: by the trait's contract.
                unsafe { group.scales_avx2() }
            }

            #[inline(always)]
            unsafe fn line(
                _: *const u8,
                group: &Self::Group,
                _: usize,
                j: usize,
                _: usize,
            ) -> std::arch::x86_64::__m256i {
                // SAFETY: by the trait's contract.
                unsafe { std::arch::x86_64::_mm256_loadu_si256(group.q[j].as_ptr().cast()) }
            }
        }
    };
    (@ TilesAvx512 $ty:ident) => {
        #[cfg(target_arch = "x86_64")]
        impl $crate::blocks::avx512_tiles::TilesAvx512 for $ty {
            const PHASES: usize = 1;
            type Head = [$crate::blocks::TileGroup<16>; <$ty>::BLOCK / 32];

            #[inline(always)]
            unsafe fn head(unit: *const u8) -> Self::Head {
                // SAFETY: by the trait's contract.
                std::array::from_fn(|g| unsafe {
                    $crate::blocks::decoded::tile_group_at::<Self, 16>(unit, g, 0)
                })
            }

            #[inline(always)]
            unsafe fn scales(
                _: *const u8,
                head: &Self::Head,
                g: usize,
            ) -> $crate::blocks::avx512_tiles::Scales {
                // SAFETY: by the trait's contract.
                unsafe { head[g].scales_avx512() }
            }

            #[inline(always)]
            unsafe fn line<const P: usize>(
                _: *const u8,
                head: &Self::Head,
                g: usize,
                j: usize,
            ) -> std::arch::x86_64::__m512i {
                // SAFETY: by the trait's contract.
                unsafe { std::arch::x86_64::_mm512_loadu_si512(head[g].q[j].as_ptr().cast()) }
            }
        }
    };
    (@ RowsNeon $ty:ident) => {
        #[cfg(target_arch = "aarch64")]
        impl $crate::blocks::neon_rows::RowsNeon for $ty {
            #[inline(always)]
            unsafe fn group128(row: *const u8, b: usize) -> $crate::blocks::neon_rows::Group {
                // SAFETY: by the trait's contract.
                unsafe { $crate::blocks::decoded::neon_group::<Self>(row, b) }
            }
        }
    };
    (@ TilesNeon $ty:ident) => {
        #[cfg(target_arch = "aarch64")]
        impl $crate::blocks::neon_tiles::TilesNeon for $ty {
            type Group = $crate::blocks::TileGroup<8>;

            #[inline(always)]
            unsafe fn begin(unit: *const u8, g: usize, half: usize) -> Self::Group {
                // SAFETY: by the trait's contract.
                unsafe { $crate::blocks::decoded::tile_group_at::<Self, 8>(unit, g, 8 * half) }
            }

            #[inline(always)]
            unsafe fn scales(
                _: *const u8,
                group: &Self::Group,
                _: usize,
                _: usize,
            ) -> $crate::blocks::neon_tiles::Scales {
                // SAFETY: by the trait's contract.
                unsafe { group.scales_neon() }
            }

            #[inline(always)]
            unsafe fn line(
                _: *const u8,
                group: &Self::Group,
                _: usize,
                j: usize,
                _: usize,
            ) -> [std::arch::aarch64::uint8x16_t; 2] {
                // SAFETY: by the trait's contract.
                unsafe { $crate::blocks::neon_rows::load(group.q[j].as_ptr().cast()) }
            }
        }
    };
}
pub(crate) use decoded;

/// Groups `32·b ..` of a row's blocks from `blocks` on.
///
/// # Safety
/// The block that holds group `b` can be read.
#[inline(always)]
unsafe fn group<Q: BlockFormat>(blocks: *const u8, b: usize) -> super::Group32 {
    let per = Q::BLOCK / 32;
    // SAFETY: by the caller's promise.
    let block = unsafe { std::slice::from_raw_parts(blocks.add(b / per * Q::BYTES), Q::BYTES) };
    Q::group(block, b % per)
}

/// Group `g` of rows `first .. first + R` of a unit.
#[inline(always)]
pub(crate) fn tile_group<Q: BlockFormat, const R: usize>(
    unit: &[u8],
    g: usize,
    first: usize,
) -> TileGroup<R> {
    let mut out = TileGroup::NONE;
    let mut block = [0; super::MAX_BYTES];
    for r in 0..R {
        fields::row(Q::FIELDS, unit, first + r, &mut block[..Q::BYTES]);
        let u = Q::group(&block[..Q::BYTES], g);
        for (line, q) in out.q.iter_mut().zip(u.q.as_chunks().0) {
            line[r] = *q;
        }
        for h in 0..2 {
            (out.d[h][r], out.m[h][r]) = (u.d[h], u.m[h]);
        }
    }
    out
}

/// As [`tile_group`], where a unit is an address.
///
/// # Safety
/// `unit` points to a whole unit.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
pub(crate) unsafe fn tile_group_at<Q: BlockFormat, const R: usize>(
    unit: *const u8,
    g: usize,
    first: usize,
) -> TileGroup<R> {
    // SAFETY: by the caller's promise.
    let unit = unsafe { std::slice::from_raw_parts(unit, TILE_ROWS * Q::BYTES) };
    tile_group::<Q, R>(unit, g, first)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{BlockFormat, TileGroup, group};
    use crate::blocks::{avx2_rows, avx2_tiles, avx512_rows, avx512_tiles, per_16};
    use std::arch::x86_64::*;

    /// # Safety
    /// As for `RowsAvx2::group256`.
    #[inline(always)]
    pub(crate) unsafe fn avx2_group<Q: BlockFormat>(row: *const u8, b: usize) -> avx2_rows::Group {
        // SAFETY: by the caller's promise.
        unsafe {
            let u = group::<Q>(row, b);
            avx2_rows::Group { q: _mm256_loadu_si256(u.q.as_ptr().cast()), d: u.d, m: u.m }
        }
    }

    /// # Safety
    /// As for `RowsAvx512::begin`.
    #[inline(always)]
    pub(crate) unsafe fn avx512_begin<Q: BlockFormat>(
        row: *const u8,
        g: usize,
        count: usize,
    ) -> avx512_rows::Group<__m512> {
        let (mut scales, mut offsets) = ([0f32; 16], [0f32; 16]);
        // SAFETY: by the caller's promise.
        unsafe {
            let at = row.add(g * (256 / Q::BLOCK) * Q::BYTES);
            for i in 0..count {
                let u = group::<Q>(at, i);
                if per_16::<Q>() {
                    scales[2 * i..][..2].copy_from_slice(&u.d);
                    offsets[2 * i..][..2].copy_from_slice(&u.m);
                } else {
                    (scales[i], scales[8 + i]) = (u.d[0], u.m[0]);
                }
            }
            let [scales, offsets] = [scales, offsets].map(|v| _mm512_loadu_ps(v.as_ptr()));
            avx512_rows::Group { at, scales, offsets }
        }
    }

    /// # Safety
    /// As for `RowsAvx512::quants`.
    #[inline(always)]
    pub(crate) unsafe fn avx512_quants<Q: BlockFormat, const HALF: bool>(
        at: *const u8,
        j: usize,
    ) -> __m512i {
        let mut q = [[0u8; 32]; 2];
        // SAFETY: by the caller's promise.
        unsafe {
            q[0] = group::<Q>(at, 2 * j).q;
            if !HALF {
                q[1] = group::<Q>(at, 2 * j + 1).q;
            }
            _mm512_loadu_si512(q.as_ptr().cast())
        }
    }

    impl TileGroup<8> {
        /// # Safety
        /// The CPU has AVX2.
        #[inline(always)]
        pub(crate) unsafe fn scales_avx2(&self) -> avx2_tiles::Scales {
            // SAFETY: by the caller's promise.
            unsafe {
                let load = |v: &[f32; 8]| _mm256_loadu_ps(v.as_ptr());
                let [d, m] = [&self.d, &self.m].map(|v| [load(&v[0]), load(&v[1])]);
                avx2_tiles::Scales { d, m }
            }
        }
    }

    impl TileGroup<16> {
        /// # Safety
        /// The CPU has the SIMD level.
        #[inline(always)]
        pub(crate) unsafe fn scales_avx512(&self) -> avx512_tiles::Scales {
            // SAFETY: by the caller's promise.
            unsafe {
                let load = |v: &[f32; 16]| _mm512_loadu_ps(v.as_ptr());
                let [d, m] = [&self.d, &self.m].map(|v| [load(&v[0]), load(&v[1])]);
                avx512_tiles::Scales { d, m }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{avx2_group, avx512_begin, avx512_quants};

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::{BlockFormat, TileGroup, group};
    use crate::blocks::{neon_rows, neon_tiles};
    use std::arch::aarch64::*;

    /// # Safety
    /// As for `RowsNeon::group128`.
    #[inline(always)]
    pub(crate) unsafe fn neon_group<Q: BlockFormat>(row: *const u8, b: usize) -> neon_rows::Group {
        // SAFETY: by the caller's promise.
        unsafe {
            let u = group::<Q>(row, b);
            neon_rows::Group { q: neon_rows::load(u.q.as_ptr()), d: u.d, m: u.m }
        }
    }

    impl TileGroup<8> {
        /// # Safety
        /// The CPU has NEON.
        #[inline(always)]
        pub(crate) unsafe fn scales_neon(&self) -> neon_tiles::Scales {
            // SAFETY: by the caller's promise.
            unsafe {
                let load = |v: &[f32; 8]| [vld1q_f32(v.as_ptr()), vld1q_f32(v.as_ptr().add(4))];
                neon_tiles::Scales {
                    d: [load(&self.d[0]), load(&self.d[1])],
                    m: [load(&self.m[0]), load(&self.m[1])],
                }
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(crate) use neon::neon_group;

/// What the tests of the levels read.
#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) mod samples {
    use crate::blocks::{ScaleField, WeightType};

    /// `n` blocks of any bits but for finite scales.
    pub(in crate::blocks) fn blocks(ty: WeightType, n: usize) -> Vec<u8> {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as u8
        };
        let mut bytes: Vec<u8> = (0..n * ty.block_bytes()).map(|_| random()).collect();
        for block in bytes.chunks_exact_mut(ty.block_bytes()) {
            for field in ty.scale_fields() {
                match *field {
                    // Not infinite, not NaN: the exponent's highest bit is clear.
                    ScaleField::F16(at) => block[at + 1] &= 0xbf,
                    ScaleField::F16Nibbles(at) => block[at + 7] &= 0xbf,
                    ScaleField::Exponent(at) => block[at] %= 253,
                    ScaleField::E4M3(_) => {}
                }
            }
        }
        bytes
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::samples::blocks;
    use super::*;
    use crate::blocks::avx2_rows::RowsAvx2;
    use crate::blocks::avx2_tiles::TilesAvx2;
    use crate::blocks::avx512_rows::{Offsets, RowsAvx512};
    use crate::blocks::avx512_tiles::TilesAvx512;
    use crate::blocks::q2_0::Q2_0;
    use crate::blocks::{Group32, ScaleField, WeightType, per_16, with_block, with_tiles};
    use crate::{Isa, SimdLevel, tiles};
    use alight_types::GgmlType;
    use std::arch::x86_64::*;

    fn bytes256(v: __m256i) -> [u8; 32] {
        // SAFETY: as many bytes.
        unsafe { std::mem::transmute(v) }
    }

    fn bytes512(v: __m512i) -> [u8; 64] {
        // SAFETY: as many bytes.
        unsafe { std::mem::transmute(v) }
    }

    fn floats256(v: __m256) -> [f32; 8] {
        // SAFETY: as many bytes.
        unsafe { std::mem::transmute(v) }
    }

    fn floats512(v: __m512) -> [f32; 16] {
        // SAFETY: as many bytes.
        unsafe { std::mem::transmute(v) }
    }

    fn words256(v: __m256i) -> [i16; 16] {
        // SAFETY: both are 32 bytes of integers.
        unsafe { std::mem::transmute(v) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    fn rows_avx2<Q: RowsAvx2>(row: &[u8]) {
        let ty = Q::TYPE;
        // SAFETY: groups of the row.
        unsafe {
            for b in 0..row.len() / Q::BYTES * Q::BLOCK / 32 {
                let (hook, derived) =
                    (Q::group256(row.as_ptr(), b), avx2_group::<Q>(row.as_ptr(), b));
                assert_eq!(bytes256(hook.q), bytes256(derived.q), "{ty} AVX2 codes of group {b}");
                assert_eq!(
                    (hook.d, hook.m),
                    (derived.d, derived.m),
                    "{ty} AVX2 scales of group {b}"
                );
                let words = Q::words(row.as_ptr(), b).map(words256).concat();
                let expected = bytes256(derived.q).map(|q| i32::from(q) - Q::ZERO);
                assert!(
                    words.into_iter().map(i32::from).eq(expected),
                    "{ty} AVX2 words of group {b}"
                );
                if Q::EIGHT && 32 * (b / 8 + 1) * 8 <= row.len() / Q::BYTES * Q::BLOCK {
                    let (eight, i) = (Q::eight(row.as_ptr(), b / 8), b % 8);
                    let scales = &eight.d[Q::SCALES * i..][..Q::SCALES];
                    assert_eq!(scales, &derived.d[..Q::SCALES], "{ty} AVX2 scales of eight, {b}");
                    if Q::OFFSETS != 0 {
                        assert_eq!(eight.m[i], derived.m[0], "{ty} AVX2 offsets of eight, {b}");
                    }
                }
            }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    fn tiles_avx2<Q: TilesAvx2>(unit: &[u8]) {
        let ty = Q::TYPE;
        // SAFETY: groups of the unit.
        unsafe {
            for (g, half) in (0..Q::BLOCK / 32).flat_map(|g| [(g, 0), (g, 1)]) {
                let derived = tile_group::<Q, 8>(unit, g, 8 * half);
                let hook = <Q as TilesAvx2>::begin(unit.as_ptr(), g, half);
                for (j, q) in derived.q.iter().enumerate() {
                    let line = <Q as TilesAvx2>::line(unit.as_ptr(), &hook, g, j, half);
                    assert_eq!(bytes256(line), *q.as_flattened(), "{ty} AVX2 line {j} of {g}");
                }
                let scales = <Q as TilesAvx2>::scales(unit.as_ptr(), &hook, g, half);
                assert_eq!(scales.d.map(floats256), derived.d, "{ty} AVX2 tile {g}");
                assert_eq!(scales.m.map(floats256), derived.m, "{ty} AVX2 tile {g}");
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c")]
    fn rows_avx512<Q: RowsAvx512>(row: &[u8]) {
        let ty = Q::TYPE;
        // SAFETY: groups of the row.
        unsafe {
            let runs = row.len() / Q::BYTES * Q::BLOCK / 32;
            for g in 0..runs.div_ceil(8) {
                let count = (runs - 8 * g).min(8);
                let hook = Q::begin(row.as_ptr(), g, count);
                let derived = avx512_begin::<Q>(row.as_ptr(), g, count);
                let what = format!("{ty} AVX-512 group {g} of {count} runs");
                assert_eq!(hook.at, derived.at, "{what}");
                assert_eq!(floats512(hook.scales), floats512(derived.scales), "{what}");
                if per_16::<Q>() {
                    let hook = floats512(hook.offsets.lanes());
                    assert_eq!(hook, floats512(derived.offsets), "{what}");
                }
                for j in 0..count / 2 {
                    let hook = bytes512(Q::quants::<false>(hook.at, j));
                    let derived = bytes512(avx512_quants::<Q, false>(derived.at, j));
                    assert_eq!(hook, derived, "{what} step {j}");
                }
                if !count.is_multiple_of(2) {
                    let hook = bytes512(Q::quants::<true>(hook.at, count / 2));
                    let derived = bytes512(avx512_quants::<Q, true>(derived.at, count / 2));
                    assert_eq!(hook[..32], derived[..32], "{what}, its last half step");
                }
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c")]
    fn tiles_avx512<Q: TilesAvx512>(unit: &[u8]) {
        let ty = Q::TYPE;
        // SAFETY: groups of the unit.
        unsafe {
            let head = <Q as TilesAvx512>::head(unit.as_ptr());
            for g in 0..Q::BLOCK / 32 {
                let derived = tile_group::<Q, TILE_ROWS>(unit, g, 0);
                for (j, q) in derived.q.iter().enumerate() {
                    let at = unit.as_ptr();
                    let line = match g % Q::PHASES {
                        0 => Q::line::<0>(at, &head, g, j),
                        1 => Q::line::<1>(at, &head, g, j),
                        2 => Q::line::<2>(at, &head, g, j),
                        _ => Q::line::<3>(at, &head, g, j),
                    };
                    assert_eq!(bytes512(line), *q.as_flattened(), "{ty} AVX-512 line {j} of {g}");
                }
                let scales = <Q as TilesAvx512>::scales(unit.as_ptr(), &head, g);
                assert_eq!(scales.d.map(floats512), derived.d, "{ty} AVX-512 tile {g}");
                assert_eq!(scales.m.map(floats512), derived.m, "{ty} AVX-512 tile {g}");
            }
        }
    }

    /// A type that has nothing but its decoding.
    struct Derived;

    impl BlockFormat for Derived {
        const TYPE: GgmlType = GgmlType::Q2_0;
        const ZERO: i32 = Q2_0::ZERO;
        const MAX_CODE: i32 = Q2_0::MAX_CODE;
        const SCALES: usize = Q2_0::SCALES;
        const OFFSETS: usize = Q2_0::OFFSETS;
        const FIELDS: &'static [fields::Field] = Q2_0::FIELDS;
        const SCALE_FIELDS: &'static [ScaleField] = Q2_0::SCALE_FIELDS;

        fn group(b: &[u8], g: usize) -> Group32 {
            Q2_0::group(b, g)
        }
    }

    decoded!(Derived: RowsAvx2, RowsAvx512, TilesAvx2, TilesAvx512);

    #[test]
    fn a_type_without_hooks_has_all_of_them() {
        let row = blocks(WeightType::Q2_0, TILE_ROWS);
        if Isa::of(SimdLevel::Avx2).is_some() {
            // SAFETY: the CPU has the features.
            unsafe { (rows_avx2::<Derived>(&row), tiles_avx2::<Derived>(&row)) };
        }
        if Isa::of(SimdLevel::Avx512).is_some() {
            // SAFETY: the CPU has the features.
            unsafe { (rows_avx512::<Derived>(&row), tiles_avx512::<Derived>(&row)) };
        }
    }

    /// What makes a type fast gives what its portable decoding gives, on rows with every tail.
    #[test]
    fn hooks_of_rows_are_the_portable_decoding() {
        for ty in WeightType::ALL.into_iter().filter(|ty| !ty.is_float()) {
            let per_256 = 256 / ty.block_len();
            for n in [per_256, 2 * per_256].into_iter().chain(1..per_256).chain([3 * per_256 + 1]) {
                let row = blocks(ty, n);
                if Isa::of(SimdLevel::Avx2).is_some() {
                    // SAFETY: the CPU has the features.
                    with_block!(ty, Q => unsafe { rows_avx2::<Q>(&row) }, unreachable!());
                }
                if Isa::of(SimdLevel::Avx512).is_some() {
                    // SAFETY: the CPU has the features.
                    with_block!(ty, Q => unsafe { rows_avx512::<Q>(&row) }, unreachable!());
                }
            }
        }
    }

    /// The same of tiles.
    #[test]
    fn hooks_of_tiles_are_the_portable_decoding() {
        let packable = |ty: &WeightType| tiles::packable(*ty, TILE_ROWS, ty.block_len());
        for ty in WeightType::ALL.into_iter().filter(|ty| !ty.is_float()).filter(packable) {
            let canonical = blocks(ty, TILE_ROWS);
            let mut unit = vec![0; canonical.len()];
            tiles::pack(ty, ty.block_len(), &canonical, &mut unit);
            if Isa::of(SimdLevel::Avx2).is_some() {
                // SAFETY: the CPU has the features.
                with_tiles!(ty, Q => unsafe { tiles_avx2::<Q>(&unit) }, unreachable!());
            }
            if Isa::of(SimdLevel::Avx512).is_some() {
                // SAFETY: the CPU has the features.
                with_tiles!(ty, Q => unsafe { tiles_avx512::<Q>(&unit) }, unreachable!());
            }
        }
    }
}
