//! Floats into blocks: the way back from [`dequantize_row`](crate::dequantize_row).
//!
//! The types with one scale (and offset) per 32 weights are made as the reference (ggml, and the
//! `gguf` package) makes them, bit for bit: [`simple`]. For those with scales of scales that method is
//! a search, and ours is another one: [`groups`].

mod groups;
mod simple;

use crate::Isa;
use crate::half::{f32_to_bf16, f32_to_f16};
use crate::types::WeightType;

/// Quantises a row (or any whole number of blocks): `x` `[x.len()]` → `bytes`.
///
/// The weights are expected to be finite; what becomes of a block with one that is not is not
/// specified for quantised types. A scale that exceeds what f16 holds becomes infinite, as it does
/// for the reference.
///
/// The result does not depend on `isa`.
///
/// # Panics
/// If `bytes` is not exactly the size of `x.len()` weights of that type.
pub fn quantize_row(isa: Isa, ty: WeightType, x: &[f32], bytes: &mut [u8]) {
    assert_eq!(
        ty.row_bytes(x.len()),
        Some(bytes.len()),
        "a row of {} {ty} weights does not take {} bytes",
        x.len(),
        bytes.len()
    );
    isa.assert_available();
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the CPU has the features, which was just checked.
        Isa::Avx2 => unsafe { avx2(ty, x, bytes) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx512 => unsafe { avx512(ty, x, bytes) },
        _ => blocks(ty, x, bytes),
    }
}

/// [`blocks`], compiled for AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(ty: WeightType, x: &[f32], bytes: &mut [u8]) {
    blocks(ty, x, bytes);
}

/// [`blocks`], compiled for AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
fn avx512(ty: WeightType, x: &[f32], bytes: &mut [u8]) {
    blocks(ty, x, bytes);
}

#[inline(always)]
fn blocks(ty: WeightType, x: &[f32], bytes: &mut [u8]) {
    let halves = |narrow: fn(f32) -> u16, bytes: &mut [u8]| {
        for (x, out) in x.iter().zip(bytes.chunks_exact_mut(2)) {
            out.copy_from_slice(&narrow(*x).to_le_bytes());
        }
    };
    let blocks = x.chunks_exact(ty.block_len()).zip(bytes.chunks_exact_mut(ty.block_bytes()));
    // A loop and not a closure, which would be a function of its own without the tier's features.
    macro_rules! each {
        ($quantize:path) => {
            for (x, out) in blocks {
                $quantize(x, out);
            }
        };
    }
    match ty {
        WeightType::F32 => {
            for (x, out) in x.iter().zip(bytes.chunks_exact_mut(4)) {
                out.copy_from_slice(&x.to_le_bytes());
            }
        }
        WeightType::F16 => halves(f32_to_f16, bytes),
        WeightType::BF16 => halves(f32_to_bf16, bytes),
        WeightType::Q4_0 => each!(simple::q4_0),
        WeightType::Q4_1 => each!(simple::q4_1),
        WeightType::Q5_0 => each!(simple::q5_0),
        WeightType::Q5_1 => each!(simple::q5_1),
        WeightType::Q8_0 => each!(simple::q8_0),
        WeightType::Q4_K => each!(groups::q4_k),
        WeightType::Q5_K => each!(groups::q5_k),
        WeightType::Q6_K => each!(groups::q6_k),
    }
}
