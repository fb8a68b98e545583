//! Dequantises blocks exactly as the reference (ggml, and the `gguf` package) rounds them: one
//! multiplication and at most one addition per weight, never fused.

use crate::blocks::{BlockFormat, Group32, WeightType, with_block};
use crate::half::{bf16_to_f32, f16_to_f32};

/// Returns numbers that are stored as f32, in place; `None` if the bytes are not whole numbers at addresses of f32.
pub fn floats(bytes: &[u8]) -> Option<&[f32]> {
    const { assert!(cfg!(target_endian = "little"), "files are little-endian") };
    // SAFETY: any four bytes are an f32.
    let (before, floats, after) = unsafe { bytes.align_to::<f32>() };
    (before.is_empty() && after.is_empty()).then_some(floats)
}

/// Dequantises one row (or any whole number of blocks): `bytes` → `out` `[out.len()]`.
///
/// # Panics
/// If `bytes` is not exactly the size of `out.len()` weights of that type.
pub fn dequantize_row(ty: WeightType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        ty.row_bytes(out.len()),
        Some(bytes.len()),
        "a row of {} {ty} weights does not take {} bytes",
        out.len(),
        bytes.len()
    );
    with_block!(ty, Q => dequantize::<Q>(bytes, out), dequantize_float(ty, bytes, out))
}

#[inline(never)]
fn dequantize<Q: BlockFormat>(bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.chunks_exact(Q::BYTES).zip(out.chunks_exact_mut(Q::BLOCK)) {
        block::<Q>(bytes, out);
    }
}

/// Dequantises a block.
#[inline(always)]
pub(crate) fn block<Q: BlockFormat>(bytes: &[u8], out: &mut [f32]) {
    for (g, out) in out.chunks_exact_mut(32).enumerate() {
        put::<Q>(&Q::group(bytes, g), out);
    }
}

/// Writes the 32 weights of a group.
#[inline(always)]
fn put<Q: BlockFormat>(u: &Group32, out: &mut [f32]) {
    for (i, out) in out.iter_mut().enumerate() {
        let v = u.d[i / 16] * (u.q[i] as i32 - Q::ZERO) as f32;
        // Adding a zero would turn −0 into +0.
        *out = if Q::OFFSETS == 0 { v } else { v + u.m[i / 16] };
    }
}

fn dequantize_float(ty: WeightType, bytes: &[u8], out: &mut [f32]) {
    match ty {
        WeightType::F32 => {
            for (b, out) in bytes.chunks_exact(4).zip(out) {
                *out = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        WeightType::F16 => {
            for (b, out) in bytes.chunks_exact(2).zip(out) {
                *out = f16_to_f32(u16::from_le_bytes([b[0], b[1]]));
            }
        }
        _ => {
            for (b, out) in bytes.chunks_exact(2).zip(out) {
                *out = bf16_to_f32(u16::from_le_bytes([b[0], b[1]]));
            }
        }
    }
}
