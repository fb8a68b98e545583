//! The packed layout: there and back without a bit changed, and read as what it was.

use alight_kernels::tiles::{TILE_ROWS, pack, packable, unpack};
use alight_kernels::{Layout, Matrix, WeightType};

use crate::common::{Rng, random_blocks};

fn types() -> impl Iterator<Item = WeightType> {
    WeightType::ALL.into_iter().filter(|ty| packable(*ty, TILE_ROWS, ty.block_len()))
}

#[test]
fn any_bytes_come_back() {
    let mut rng = Rng(1);
    for ty in types() {
        for (rows, blocks) in [(16, 1), (16, 3), (48, 2), (160, 5)] {
            let cols = blocks * ty.block_len();
            let mut rows_bytes = vec![0u8; rows * ty.row_bytes(cols).unwrap()];
            rows_bytes.iter_mut().for_each(|b| *b = rng.next() as u8);
            // Dirty, so that what is not written would show.
            let mut tiles = vec![0xa5; rows_bytes.len()];
            pack(ty, cols, &rows_bytes, &mut tiles);
            assert!(rows == 16 && ty.is_float() && blocks == 1 || tiles != rows_bytes, "{ty}");
            let mut back = vec![0x5a; rows_bytes.len()];
            unpack(ty, cols, &tiles, &mut back);
            assert!(back == rows_bytes, "{ty} {rows} × {cols}");
        }
    }
}

/// As many bits are set: nothing is stored twice and nothing is left out.
#[test]
fn packing_is_a_permutation_of_bits() {
    let mut rng = Rng(2);
    for ty in types().filter(|ty| *ty != WeightType::Q8_0) {
        let cols = 2 * ty.block_len();
        let len = TILE_ROWS * ty.row_bytes(cols).unwrap();
        for _ in 0..50 {
            let mut rows = vec![0u8; len];
            let bit = rng.range(0, 8 * len);
            rows[bit / 8] = 1 << (bit % 8);
            let mut tiles = vec![0; len];
            pack(ty, cols, &rows, &mut tiles);
            assert_eq!(tiles.iter().map(|b| b.count_ones()).sum::<u32>(), 1, "{ty} bit {bit}");
        }
    }
}

#[test]
fn a_row_of_a_tile_has_the_same_weights() {
    let mut rng = Rng(3);
    for ty in types() {
        let (rows, cols) = (48, 512);
        let blocks = random_blocks(&mut rng, ty, rows, cols);
        let mut tiles = vec![0; blocks.len()];
        pack(ty, cols, &blocks, &mut tiles);
        let canonical = Matrix::new(ty, &blocks, rows, cols).unwrap();
        let packed = Matrix::with_layout(Layout::Tiles, ty, &tiles, rows, cols).unwrap();
        let (mut a, mut b) = (vec![0f32; cols], vec![1f32; cols]);
        for r in 0..rows {
            canonical.dequantize_row(r, &mut a);
            packed.dequantize_row(r, &mut b);
            assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()), "{ty} row {r}");
        }
    }
}

#[test]
fn what_has_no_packed_form_is_refused() {
    assert!(!packable(WeightType::F32, 16, 32));
    assert!(!packable(WeightType::IQ2_XS, 16, 256));
    assert!(!packable(WeightType::Q4_0, 8, 32));
    assert!(!packable(WeightType::Q4_0, 17, 32));
    assert!(!packable(WeightType::Q4_0, 0, 32));
    assert!(!packable(WeightType::Q4_K, 16, 32));
    assert!(packable(WeightType::F16, 32, 7));
    let bytes = vec![0; 18 * 8];
    let error = Matrix::with_layout(Layout::Tiles, WeightType::Q4_0, &bytes, 8, 32).err().unwrap();
    assert!(error.to_string().contains("8 rows of Q4_0"), "{error}");
}
