//! What makes a type fast with NEON gives what its portable decoding gives.

use super::decoded::samples::blocks;
use super::decoded::{neon_group, tile_group};
use super::neon_rows::RowsNeon;
use super::neon_tiles::TilesNeon;
use super::{WeightType, with_block, with_tiles};
use crate::tiles::{self, TILE_ROWS};
use std::arch::aarch64::*;

fn bytes(v: [uint8x16_t; 2]) -> [u8; 32] {
    // SAFETY: as many bytes.
    unsafe { std::mem::transmute(v) }
}

fn floats(v: [float32x4_t; 2]) -> [f32; 8] {
    // SAFETY: as many bytes.
    unsafe { std::mem::transmute(v) }
}

fn rows<Q: RowsNeon>(row: &[u8]) {
    let ty = Q::TYPE;
    for b in 0..row.len() / Q::BYTES * Q::BLOCK / 32 {
        // SAFETY: groups of the row; every aarch64 has NEON.
        let (hook, derived) =
            unsafe { (Q::group128(row.as_ptr(), b), neon_group::<Q>(row.as_ptr(), b)) };
        assert_eq!(bytes(hook.q), bytes(derived.q), "{ty} codes of group {b}");
        assert_eq!((hook.d, hook.m), (derived.d, derived.m), "{ty} scales of group {b}");
        if Q::EIGHT {
            // SAFETY: a block of the row.
            let eight = unsafe { Q::eight(row.as_ptr(), b / 8) };
            let d = &eight.d[Q::SCALES * (b % 8)..][..Q::SCALES];
            assert_eq!([d[0], d[Q::SCALES - 1]], derived.d, "{ty} scales of group {b} of eight");
            assert_eq!([eight.m[b % 8]; 2], derived.m, "{ty} offsets of group {b} of eight");
        }
    }
}

fn units<Q: TilesNeon>(unit: &[u8]) {
    let ty = Q::TYPE;
    for (g, half) in (0..Q::BLOCK / 32).flat_map(|g| [(g, 0), (g, 1)]) {
        let derived = tile_group::<Q, 8>(unit, g, 8 * half);
        let unit = unit.as_ptr();
        // SAFETY: groups of the unit; every aarch64 has NEON.
        unsafe {
            let hook = Q::begin(unit, g, half);
            for (j, q) in derived.q.iter().enumerate() {
                let line = Q::line(unit, &hook, g, j, half);
                assert_eq!(bytes(line), *q.as_flattened(), "{ty} line {j} of {g}");
            }
            let (hook, derived) = (Q::scales(unit, &hook, g, half), derived.scales_neon());
            assert_eq!(hook.d.map(floats), derived.d.map(floats), "{ty} scales of {g}");
            assert_eq!(hook.m.map(floats), derived.m.map(floats), "{ty} offsets of {g}");
        }
    }
}

/// On rows with every tail.
#[test]
fn hooks_of_rows_are_the_portable_decoding() {
    for ty in WeightType::ALL.into_iter().filter(|ty| !ty.is_float()) {
        let per_256 = 256 / ty.block_len();
        for n in [per_256, 2 * per_256].into_iter().chain(1..per_256).chain([3 * per_256 + 1]) {
            let row = blocks(ty, n);
            with_block!(ty, Q => rows::<Q>(&row), unreachable!());
        }
    }
}

#[test]
fn hooks_of_tiles_are_the_portable_decoding() {
    let packable = |ty: &WeightType| tiles::packable(*ty, TILE_ROWS, ty.block_len());
    for ty in WeightType::ALL.into_iter().filter(|ty| !ty.is_float()).filter(packable) {
        let canonical = blocks(ty, TILE_ROWS);
        let mut unit = vec![0; canonical.len()];
        tiles::pack(ty, ty.block_len(), &canonical, &mut unit);
        with_tiles!(ty, Q => units::<Q>(&unit), unreachable!());
    }
}
