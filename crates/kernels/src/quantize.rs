//! Quantises floats into blocks: the inverse of [`dequantize_row`](crate::dequantize_row).
//!
//! The types with one scale (and offset) per 32 weights are quantised as in the reference (ggml, and the `gguf` package), bit
//! for bit: `fit/simple.rs`. For those with scales of scales the reference's method is a search, and ours is a different one:
//! `fit/search.rs`. Code specific to a type is in its file in [`blocks`](crate::blocks); types without a quantiser are only
//! read.

use crate::Isa;
#[cfg(target_arch = "x86_64")]
use crate::SimdLevel;
use crate::blocks::{BlockFormat, WeightType, with_block};
use crate::half::{f32_to_bf16, f32_to_f16};

/// Quantises a row (or any whole number of blocks): `x` `[x.len()]` → `bytes`.
///
/// The weights are expected to be finite; the result of a block with one that is not is unspecified for quantised types. A scale
/// that exceeds the range of f16 becomes infinite, as in the reference.
///
/// The result does not depend on `isa`.
///
/// # Panics
/// If `bytes` is not exactly the size of `x.len()` weights of that type, or the type is only read
/// ([`WeightType::quantizes`]).
pub fn quantize_row(isa: Isa, ty: WeightType, x: &[f32], bytes: &mut [u8]) {
    quantize_row_weighted(isa, ty, x, &[], bytes);
}

/// As [`quantize_row`], with the error of each weight weighted by `weights` `[x.len()]` (an importance matrix: the mean square
/// of the activations that the weight is multiplied with), in addition to its size. Without weights it is [`quantize_row`].
/// Q8_0, MXFP4 and the types of one and two values ignore them; for the others every scale is searched for.
///
/// # Panics
/// As [`quantize_row`], and if the number of weights is neither 0 nor that of the elements.
pub fn quantize_row_weighted(
    isa: Isa,
    ty: WeightType,
    x: &[f32],
    weights: &[f32],
    bytes: &mut [u8],
) {
    assert!(
        weights.is_empty() || weights.len() == x.len(),
        "{} weights of importance for {} elements",
        weights.len(),
        x.len()
    );
    assert_eq!(
        ty.row_bytes(x.len()),
        Some(bytes.len()),
        "a row of {} {ty} weights does not take {} bytes",
        x.len(),
        bytes.len()
    );
    assert!(ty.quantizes(), "{ty} is only read");
    match isa.base() {
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 => with_block!(
            ty,
            // SAFETY: an `Isa` can run here.
            Q => unsafe { avx2::<Quantized<Q>>(ty, x, weights, bytes) },
            // SAFETY: as above.
            unsafe { avx2::<Floats>(ty, x, weights, bytes) }
        ),
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512 => with_block!(
            ty,
            // SAFETY: as above.
            Q => unsafe { avx512::<Quantized<Q>>(ty, x, weights, bytes) },
            // SAFETY: as above.
            unsafe { avx512::<Floats>(ty, x, weights, bytes) }
        ),
        _ => with_block!(
            ty,
            Q => portable::<Quantized<Q>>(ty, x, weights, bytes),
            portable::<Floats>(ty, x, weights, bytes)
        ),
    }
}

/// [`Row::make`], compiled for AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2<R: Row>(ty: WeightType, x: &[f32], weights: &[f32], bytes: &mut [u8]) {
    R::make(ty, x, weights, bytes);
}

/// [`Row::make`], compiled for AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
fn avx512<R: Row>(ty: WeightType, x: &[f32], weights: &[f32], bytes: &mut [u8]) {
    R::make(ty, x, weights, bytes);
}

/// [`Row::make`]. A separate function for each type: one for all takes much longer to compile.
#[inline(never)]
fn portable<R: Row>(ty: WeightType, x: &[f32], weights: &[f32], bytes: &mut [u8]) {
    R::make(ty, x, weights, bytes);
}

/// Quantises a row.
trait Row {
    fn make(ty: WeightType, x: &[f32], weights: &[f32], bytes: &mut [u8]);
}

/// Blocks.
struct Quantized<Q>(std::marker::PhantomData<Q>);

impl<Q: BlockFormat> Row for Quantized<Q> {
    #[inline(always)]
    fn make(_: WeightType, x: &[f32], weights: &[f32], bytes: &mut [u8]) {
        // A loop and not a closure, which would be a separate function without the level's features.
        let blocks = x.chunks_exact(Q::BLOCK).zip(bytes.chunks_exact_mut(Q::BYTES));
        for (i, (x, out)) in blocks.enumerate() {
            let weights = weights.get(i * Q::BLOCK..(i + 1) * Q::BLOCK).unwrap_or_default();
            Q::quantize(x, weights, out);
        }
    }
}

/// Floats of 16 and 32 bits.
struct Floats;

impl Row for Floats {
    #[inline(always)]
    fn make(ty: WeightType, x: &[f32], _: &[f32], bytes: &mut [u8]) {
        floats(ty, x, bytes);
    }
}

#[inline(always)]
fn floats(ty: WeightType, x: &[f32], bytes: &mut [u8]) {
    let halves = |narrow: fn(f32) -> u16, bytes: &mut [u8]| {
        for (x, out) in x.iter().zip(bytes.chunks_exact_mut(2)) {
            out.copy_from_slice(&narrow(*x).to_le_bytes());
        }
    };
    match ty {
        WeightType::F16 => halves(f32_to_f16, bytes),
        WeightType::BF16 => halves(f32_to_bf16, bytes),
        _ => {
            for (x, out) in x.iter().zip(bytes.chunks_exact_mut(4)) {
                out.copy_from_slice(&x.to_le_bytes());
            }
        }
    }
}
