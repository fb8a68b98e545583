//! Hooks derived from the portable decoding, for types that have none of their own for a SIMD level or a layout. They are as
//! exact but slower: weights are first decoded to the stack.
//!
//! By now every type has hooks of its own, except for some on NEON: a new type starts with these. The tests check them through
//! the type in [`internals`](crate::internals).

use super::{BlockFormat, TileGroup};
use crate::fields;
use crate::fields::TILE_ROWS;

/// Implements the named derived hooks for a type: `decoded!(T: RowsAvx2, RowsAvx512, TilesAvx2, TilesAvx512, RowsNeon,
/// TilesNeon)`.
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
            ) -> $crate::blocks::avx512_rows::Group256<std::arch::x86_64::__m512> {
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

/// Weights `32·b .. 32·b + 32` of a row whose blocks begin at `blocks`.
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

/// As [`tile_group`], with the unit given by address.
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
    ) -> avx512_rows::Group256<__m512> {
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
            avx512_rows::Group256 { at, scales, offsets }
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
