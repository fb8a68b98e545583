//! The fused multiply-add in portable code.

/// `a * b + c`, rounded once, on any CPU.
///
/// The C library's function for it is exact, too, but takes a call and, without hardware for it, some hundred cycles. Here the product is exact in
/// f64, and the sum rounded to f64 before it is rounded to f32. Rounding twice differs from rounding once only if the first result lies exactly
/// between two f32: then its last bit is made odd if it is not exact (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved
/// algorithms using rounding to odd", 2008).
#[inline(always)]
pub(crate) fn fma(a: f32, b: f32, c: f32) -> f32 {
    #[cfg(any(target_arch = "aarch64", target_feature = "fma"))]
    return a.mul_add(b, c);
    #[cfg(not(any(target_arch = "aarch64", target_feature = "fma")))]
    {
        let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
        let sum = product + c;
        if may_round_twice(sum) { to_odd(product, c, sum) as f32 } else { sum as f32 }
    }
}

/// True if rounding this sum to f32 may depend on digits that it has lost: it lies between two f32, or is a subnormal f32, whose last digit is elsewhere.
#[inline(always)]
#[cfg_attr(any(target_arch = "aarch64", target_feature = "fma"), allow(dead_code))]
fn may_round_twice(sum: f64) -> bool {
    const LOST: u64 = (1 << 29) - 1;
    const HALF: u64 = 1 << 28;
    let magnitude = sum.abs();
    sum.to_bits() & LOST == HALF || magnitude < f64::from(f32::MIN_POSITIVE) && magnitude != 0.0
}

/// `product + c`, of which `sum` is the nearest f64, with an odd last digit if it is not exact.
#[cold]
#[cfg_attr(any(target_arch = "aarch64", target_feature = "fma"), allow(dead_code))]
fn to_odd(product: f64, c: f64, sum: f64) -> f64 {
    // The error of a sum is an f64 (Knuth).
    let of_c = sum - product;
    let error = (product - (sum - of_c)) + (c - of_c);
    let bits = sum.to_bits();
    if error == 0.0 || bits % 2 == 1 {
        return sum;
    }
    let larger = (error > 0.0) == (sum > 0.0);
    f64::from_bits(if larger { bits + 1 } else { bits - 1 })
}
