//! Half-precision bits and f32: IEEE binary16 (f16) and bfloat16.
//!
//! The scalar functions are exact on every bit pattern, including subnormals and NaN. Narrowing rounds to nearest, ties to
//! even, and overflows to infinity. A NaN stays a NaN, becomes quiet and keeps its sign and the upper bits of its payload;
//! f16 behaves like the F16C instructions, so that all levels agree bit for bit.

/// Returns the f32 equal to the f16 with these bits. Signalling NaNs become quiet.
#[inline(always)]
pub const fn f16_to_f32(bits: u16) -> f32 {
    // Branchless, so that loops over it are vectorised.
    let sign = ((bits & 0x8000) as u32) << 16;
    let magnitude = (bits & 0x7fff) as u32;
    // The exponent bias grows from 15 to 127. Below the normal numbers the exponent is one more, and the implied leading one
    // is subtracted again; that difference is exact.
    let small = if magnitude < 0x0400 { u32::MAX } else { 0 };
    let rebiased = (magnitude << 13) + (112 << 23) + (small & (1 << 23));
    let value = f32::from_bits(rebiased) - f32::from_bits(small & (113 << 23));
    let special = if magnitude >= 0x7c00 { 0x7f80_0000 } else { 0 };
    let quiet = if magnitude > 0x7c00 { 0x0040_0000 } else { 0 };
    f32::from_bits(value.to_bits() | sign | special | quiet)
}

/// Returns the bits of the f16 nearest to `value` (ties to even; beyond 65519.99… to infinity).
#[inline]
pub const fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00 | ((magnitude >> 13) & 0x3ff) as u16;
    }
    if magnitude >= 0x4780_0000 {
        // At least 65536, or infinity. (65520..65536 rounds up to infinity by the carry below.)
        return sign | 0x7c00;
    }
    if magnitude >= 0x3880_0000 {
        // At least 2^-14, a normal f16: round the 13 dropped bits, the carry may raise the exponent.
        let odd = (magnitude >> 13) & 1;
        return sign | ((magnitude - (112 << 23) + 0xfff + odd) >> 13) as u16;
    }
    if magnitude < 0x3300_0000 {
        // Below 2^-25, half the smallest subnormal.
        return sign;
    }
    // Subnormal f16: mantissa with its hidden bit, shifted so that one unit is 2^-24.
    let shift = 126 - (magnitude >> 23); // 14..=24
    let mantissa = (magnitude & 0x007f_ffff) | 0x0080_0000;
    let kept = mantissa >> shift;
    let dropped = mantissa & ((1 << shift) - 1);
    let half = 1 << (shift - 1);
    let up = dropped > half || (dropped == half && kept & 1 == 1);
    sign | (kept + up as u32) as u16
}

/// Returns the f32 equal to the bfloat16 with these bits.
#[inline]
pub const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// Returns the bits of the bfloat16 nearest to `value` (ties to even).
#[inline]
pub const fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        return ((bits >> 16) | 0x40) as u16;
    }
    // Cannot overflow: the largest finite pattern rounds to infinity's.
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// Applies [`bf16_to_f32`] to every element (compilers vectorise the plain loop). Panics on different lengths.
pub fn widen_bf16(from: &[u16], to: &mut [f32]) {
    assert_eq!(from.len(), to.len(), "lengths of a conversion");
    from.iter().zip(to).for_each(|(&x, y)| *y = bf16_to_f32(x));
}
