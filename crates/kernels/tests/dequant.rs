//! Dequantising agrees bit for bit with the `gguf` package, whose results for random and special
//! blocks lie in `data/dequant` (made by `python -m evidence make dequant-vectors`).

use alight_kernels::{WeightType, dequantize_row};
use std::path::Path;

#[test]
fn every_type_matches_the_reference_bit_for_bit() {
    for ty in WeightType::ALL {
        if ty == WeightType::F32 {
            continue;
        }
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/dequant/{ty}.bin"));
        let data = std::fs::read(&path).unwrap();
        let n = u32::from_le_bytes(data[..4].try_into().unwrap()) as usize;
        let (blocks, floats) = data[4..].split_at(n * ty.block_bytes());
        assert_eq!(floats.len(), n * ty.block_len() * 4, "{ty}: the file's size");
        assert!(n >= 8, "{ty}: too few blocks to mean anything");
        let mut out = vec![0f32; n * ty.block_len()];
        dequantize_row(ty, blocks, &mut out);
        for (i, (out, want)) in out.iter().zip(floats.chunks_exact(4)).enumerate() {
            let want = f32::from_le_bytes(want.try_into().unwrap());
            let same = out.to_bits() == want.to_bits() || (out.is_nan() && want.is_nan());
            assert!(same, "{ty}: weight {i} is {out:e}, the reference has {want:e}");
        }
    }
}

#[test]
fn f32_is_read_as_it_is() {
    let values = [0.0f32, -0.0, 1.5, f32::MIN_POSITIVE / 2.0, f32::MAX, f32::NEG_INFINITY];
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut out = [1.0; 6];
    dequantize_row(WeightType::F32, &bytes, &mut out);
    assert_eq!(out.map(f32::to_bits), values.map(f32::to_bits));
}
