//! Numbers of 16 bits: every bit pattern, every midpoint between two of them, and slices on every SIMD level.

use alight_kernels::Isa;
use alight_kernels::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, widen_bf16};
use alight_kernels::vec::{narrow_f16, widen_f16};

/// The value of an f16 by its definition, in f64, where it is exact.
fn f16_by_definition(bits: u16) -> f64 {
    let sign = if bits & 0x8000 != 0 { -1.0 } else { 1.0 };
    let exponent = ((bits >> 10) & 31) as i32;
    let mantissa = (bits & 0x3ff) as f64;
    match exponent {
        0 => sign * mantissa * 2f64.powi(-24),
        31 if mantissa == 0.0 => sign * f64::INFINITY,
        31 => f64::NAN,
        _ => sign * (1.0 + mantissa / 1024.0) * 2f64.powi(exponent - 15),
    }
}

#[test]
fn every_f16_widens_to_its_value_and_comes_back() {
    for bits in 0..=u16::MAX {
        let wide = f16_to_f32(bits);
        let expected = f16_by_definition(bits);
        if expected.is_nan() {
            assert!(wide.is_nan());
            assert_eq!(f32_to_f16(wide), bits | 0x200, "{bits:04x}");
        } else {
            assert_eq!(wide as f64, expected, "{bits:04x}");
            assert_eq!(wide.is_sign_negative(), bits & 0x8000 != 0);
            assert_eq!(f32_to_f16(wide), bits, "{bits:04x}");
        }
    }
}

#[test]
fn narrowing_to_f16_rounds_to_nearest_even() {
    // Around every midpoint between neighbours: below goes down, above goes up, the midpoint
    // itself to the even one.
    for bits in 0..0x7c00u16 {
        let low = f16_by_definition(bits);
        let high = if bits == 0x7bff { 65536.0 } else { f16_by_definition(bits + 1) };
        let middle = ((low + high) / 2.0) as f32; // exact: one more bit than f16 has
        let even = if bits & 1 == 0 { bits } else { bits + 1 };
        assert_eq!(f32_to_f16(middle), even, "{bits:04x}");
        assert_eq!(f32_to_f16(-middle), even | 0x8000, "{bits:04x}");
        assert_eq!(f32_to_f16(f32::from_bits(middle.to_bits() - 1)), bits);
        assert_eq!(f32_to_f16(f32::from_bits(middle.to_bits() + 1)), bits + 1);
    }
    assert_eq!(f32_to_f16(f32::MAX), 0x7c00);
    assert_eq!(f32_to_f16(f32::INFINITY), 0x7c00);
    assert_eq!(f32_to_f16(f32::from_bits(1)), 0);
}

#[test]
fn slices_agree_with_scalar_on_every_bit_pattern() {
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    let mut state = 1u32;
    let mut floats: Vec<f32> = (0..200_000)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Half of them near the range of f16.
            f32::from_bits(if state & 64 == 0 { state } else { state % (1 << 28) + (100 << 23) })
        })
        .collect();
    floats.extend([f32::NAN, -f32::NAN, f32::INFINITY, 65519.99, 65520.0, 2.98e-8, -2.99e-8]);
    for isa in Isa::available() {
        for skip in [0, 1, 5, 14, 17] {
            let from = &halves[skip * 3000..];
            let mut to = vec![0.0; from.len()];
            widen_f16(isa, from, &mut to);
            for (&x, y) in from.iter().zip(&to) {
                assert_eq!(f16_to_f32(x).to_bits(), y.to_bits(), "{isa} {x:04x}");
            }
            widen_bf16(from, &mut to);
            assert_eq!(to[3].to_bits(), (from[3] as u32) << 16);
            let from = &floats[skip..];
            let mut to = vec![0; from.len()];
            narrow_f16(isa, from, &mut to);
            for (&x, &y) in from.iter().zip(&to) {
                assert_eq!(f32_to_f16(x), y, "{isa} {x:e} {:08x}", x.to_bits());
            }
        }
    }
}

#[test]
fn bf16_rounds_to_nearest_even() {
    for bits in 0..=u16::MAX {
        let wide = bf16_to_f32(bits);
        if wide.is_nan() {
            assert_eq!(f32_to_bf16(wide), bits | 0x40);
            continue;
        }
        assert_eq!(f32_to_bf16(wide), bits);
        if bits & 0x7fff < 0x7f80 {
            let middle = wide.to_bits() | 0x8000;
            assert_eq!(f32_to_bf16(f32::from_bits(middle - 1)), bits);
            assert_eq!(f32_to_bf16(f32::from_bits(middle + 1)), bits + 1);
            assert_eq!(f32_to_bf16(f32::from_bits(middle)), bits + (bits & 1));
        }
    }
}
