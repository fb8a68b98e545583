//! Quantising, against others' results on the same weights (`data/quantize`, made by
//! `python -m evidence make quantize-vectors`).

use std::path::Path;

use alight_kernels::{Isa, WeightType, dequantize_row, quantize_row, quantize_row_weighted};

fn data(name: &str) -> Vec<u8> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/quantize/{name}.bin"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn floats(name: &str) -> Vec<f32> {
    data(name).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn input() -> Vec<f32> {
    let floats = floats("input");
    assert!(floats.len() >= 30 * 256);
    floats
}

/// How much errors count, of every 256 weights the same.
fn importance(x: &[f32]) -> Vec<f32> {
    floats("importance").into_iter().cycle().take(x.len()).collect()
}

fn weighted(isa: Isa, ty: WeightType, x: &[f32], weights: &[f32]) -> Vec<u8> {
    let mut blocks = vec![0; ty.row_bytes(x.len()).unwrap()];
    quantize_row_weighted(isa, ty, x, weights, &mut blocks);
    blocks
}

fn quantized(ty: WeightType, x: &[f32]) -> Vec<u8> {
    let mut blocks = vec![0; ty.row_bytes(x.len()).unwrap()];
    quantize_row(Isa::best(), ty, x, &mut blocks);
    blocks
}

fn dequantized(ty: WeightType, blocks: &[u8], len: usize) -> Vec<f32> {
    let mut out = vec![0.0; len];
    dequantize_row(ty, blocks, &mut out);
    out
}

/// The types that floats are made into.
fn made() -> impl Iterator<Item = WeightType> {
    WeightType::ALL.into_iter().filter(|ty| ty.quantizes())
}

#[test]
fn types_that_are_only_read_say_so() {
    use WeightType::{IQ2_S, Q8_0};
    assert!(Q8_0.quantizes() && !IQ2_S.quantizes());
    let panics = std::panic::catch_unwind(|| quantized(IQ2_S, &[0.0; 256])).unwrap_err();
    let text = panics.downcast_ref::<String>().unwrap();
    assert_eq!(text, "IQ2_S is only read");
}

#[test]
fn simple_types_are_the_reference_bit_for_bit() {
    use WeightType::*;
    let x = input();
    let floats = [F16, BF16];
    let small = [MXFP4, TQ1_0, TQ2_0, Q1_0, Q2_0];
    for ty in [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0].into_iter().chain(floats).chain(small) {
        let (ours, theirs) = (quantized(ty, &x), data(&ty.to_string()));
        assert_eq!(ours.len(), theirs.len(), "{ty}");
        let size = ty.block_bytes();
        for (i, (a, b)) in ours.chunks(size).zip(theirs.chunks(size)).enumerate() {
            assert_eq!(a, b, "{ty}: block {i}");
        }
    }
}

/// The root of the mean squared error, each error in proportion to the typical weight of its block.
fn error(x: &[f32], y: &[f32]) -> f64 {
    error_by(x, y, &vec![1.0; x.len()])
}

/// The same, errors counting as `w` says.
fn error_by(x: &[f32], y: &[f32], w: &[f32]) -> f64 {
    let blocks = x.chunks(256).zip(y.chunks(256)).zip(w.chunks(256)).filter_map(|((x, y), w)| {
        let sum = |f: &dyn Fn(usize) -> f64| (0..256).map(|i| f64::from(w[i]) * f(i)).sum::<f64>();
        let power = sum(&|i| f64::from(x[i]).powi(2));
        let error = sum(&|i| (f64::from(x[i]) - f64::from(y[i])).powi(2));
        (power > 0.0).then(|| error / power)
    });
    let errors: Vec<f64> = blocks.collect();
    (errors.iter().sum::<f64>() / errors.len() as f64).sqrt()
}

#[test]
fn searched_types_are_no_worse_than_llama_cpp() {
    use WeightType::{IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K};
    let x = input();
    for ty in [Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS] {
        let ours = dequantized(ty, &quantized(ty, &x), x.len());
        let theirs = dequantized(ty, &data(&ty.to_string()), x.len());
        // The blocks as models have them.
        let n = 26 * 256;
        let (a, b) = (error(&x[..n], &ours[..n]), error(&x[..n], &theirs[..n]));
        println!("{ty}: {a:.5}, llama.cpp {b:.5}");
        assert!(a <= b, "{ty}: {a} against {b}");
        let (a, b) = (error(&x, &ours), error(&x, &theirs));
        println!("{ty}: all {a:.5}, llama.cpp {b:.5}");
        assert!(a <= b * 1.01, "{ty}: {a} against {b}");
    }
}

#[test]
fn what_matters_is_served_as_well_as_by_llama_cpp() {
    use WeightType::*;
    let x = input();
    let w = importance(&x);
    for ty in [Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, Q4_0, Q4_1, Q5_0, Q5_1] {
        let blocks = weighted(Isa::best(), ty, &x, &w);
        let ours = dequantized(ty, &blocks, x.len());
        let theirs = dequantized(ty, &data(&format!("{ty}.weighted")), x.len());
        let plain = dequantized(ty, &quantized(ty, &x), x.len());
        let n = 26 * 256;
        let of = |y: &[f32]| error_by(&x[..n], &y[..n], &w);
        println!(
            "{ty}: {:.5}, llama.cpp {:.5}, all alike {:.5}",
            of(&ours),
            of(&theirs),
            of(&plain)
        );
        assert!(of(&ours) <= of(&theirs), "{ty}");
        assert!(of(&ours) < 0.97 * of(&plain), "{ty}");
        let (a, b) = (error_by(&x, &ours, &w), error_by(&x, &theirs, &w));
        println!("{ty}: all {a:.5}, llama.cpp {b:.5}");
        for isa in Isa::available() {
            assert!(weighted(isa, ty, &x, &w) == blocks, "{ty}, {isa}");
        }
        // What does not matter at all.
        let nothing = dequantized(ty, &weighted(Isa::best(), ty, &x, &vec![0.0; x.len()]), x.len());
        assert!(nothing.iter().all(|v| v.is_finite()), "{ty}");
        assert!(weighted(Isa::best(), ty, &x, &[]) == quantized(ty, &x), "{ty}");
    }
    assert!(weighted(Isa::best(), Q8_0, &x, &w) == quantized(Q8_0, &x));
}

#[test]
fn what_was_quantised_is_quantised_to_itself() {
    use WeightType::{Q4_0, Q5_0, Q8_0};
    let x = input();
    for ty in [Q4_0, Q5_0, Q8_0, WeightType::F32, WeightType::F16, WeightType::BF16] {
        let once = quantized(ty, &x);
        let y = dequantized(ty, &once, x.len());
        let twice = dequantized(ty, &quantized(ty, &y), x.len());
        for (a, b) in y.iter().zip(&twice) {
            // The scale is rounded to f16 once more, and it may round differently.
            assert!((a - b).abs() <= a.abs() * 1e-3 + 1e-9, "{ty}: {a} {b}");
        }
    }
}

#[test]
fn every_simd_level_has_the_same_bits() {
    let x = input();
    for ty in made() {
        let expected = quantized(ty, &x);
        for isa in Isa::available() {
            let mut blocks = vec![0; expected.len()];
            quantize_row(isa, ty, &x, &mut blocks);
            assert!(blocks == expected, "{ty}, {isa}");
        }
    }
}

#[test]
fn zeroes_and_extremes() {
    for ty in made() {
        let zero = dequantized(ty, &quantized(ty, &[0.0; 256]), 256);
        assert!(zero.iter().all(|&v| v == 0.0), "{ty}");
        let mut x = [0.0; 256];
        (x[3], x[200]) = (1e4, -1e4);
        let y = dequantized(ty, &quantized(ty, &x), 256);
        assert!(y.iter().all(|v| v.is_finite()), "{ty}");
        // Q1_0 has one magnitude for 128 weights; from 8 times a power of two to 12 times there is nothing in MXFP4.
        let off = match ty {
            WeightType::Q1_0 => 1e4,
            WeightType::MXFP4 => 2000.0,
            _ => 1000.0,
        };
        assert!(
            (y[3] - 1e4).abs() < off && (y[200] + 1e4).abs() < off,
            "{ty}: {} {}",
            y[3],
            y[200]
        );
        // Nothing finite makes it panic.
        for scale in [f32::MIN_POSITIVE, 1e-30, 1e30, f32::MAX] {
            quantized(
                ty,
                &std::array::from_fn::<f32, 256, _>(|i| scale * (i as f32 / 256.0 - 0.5)),
            );
        }
    }
}
