//! 16-bit floats.

/// `x` rounded to the nearest f16, ties to even; values that are too large become infinite.
pub(super) fn f16_of(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let size = bits & 0x7fff_ffff;
    let half = if size > 0x7f80_0000 {
        0x7e00 | (size >> 13) as u16 & 0x3ff
    } else if size >= 0x4780_0000 {
        0x7c00
    } else if size < 0x3880_0000 {
        // Below the smallest normal f16: from 0.5 on, f32 has the step size of the smallest f16.
        (f32::from_bits(size) + 0.5).to_bits().wrapping_sub(0x3f00_0000) as u16
    } else {
        // May carry into the exponent, up to infinity.
        ((size + 0xfff + (size >> 13 & 1) - 0x3800_0000) >> 13) as u16
    };
    sign | half
}

/// The value of an f16.
pub(super) fn f32_of(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let size = u32::from(half & 0x7fff) << 13;
    let size = match half & 0x7c00 {
        0x7c00 => size | 0x7f80_0000,
        0 => (f32::from(half & 0x3ff) * f32::from_bits(0x3380_0000)).to_bits(), // 2^-24
        _ => size + 0x3800_0000,
    };
    f32::from_bits(sign | size)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of a bit pattern, by the definition.
    fn meaning(half: u16) -> f64 {
        let fraction = f64::from(half & 0x3ff);
        let size = match half >> 10 & 0x1f {
            0 => fraction * 2_f64.powi(-24),
            exponent => (1024.0 + fraction) * 2_f64.powi(i32::from(exponent) - 25),
        };
        if half & 0x8000 == 0 { size } else { -size }
    }

    #[test]
    fn every_f16_there_and_back() {
        for half in 0..=u16::MAX {
            let wide = f32_of(half);
            if half & 0x7fff > 0x7c00 {
                assert!(wide.is_nan() && f32_of(f16_of(wide)).is_nan());
                continue;
            }
            assert_eq!(f16_of(wide), half);
            if half & 0x7c00 != 0x7c00 {
                assert_eq!(f64::from(wide), meaning(half));
            }
        }
    }

    #[test]
    fn between_two_the_nearer_is_taken_and_the_even_one_of_equals() {
        for half in 0..0x7bff_u16 {
            let (low, high) = (meaning(half), meaning(half + 1));
            let middle = ((low + high) / 2.0) as f32;
            let even = if half & 1 == 0 { half } else { half + 1 };
            assert_eq!(f16_of(middle), even);
            assert_eq!(f16_of(middle.next_down()), half);
            assert_eq!(f16_of(-middle.next_up()), (half + 1) | 0x8000);
        }
        assert_eq!((f16_of(65519.996), f16_of(65520.0), f16_of(-1e9)), (0x7bff, 0x7c00, 0xfc00));
        assert_eq!((f16_of(f32::INFINITY), f16_of(1e-30), f16_of(-0.0)), (0x7c00, 0, 0x8000));
    }
}
