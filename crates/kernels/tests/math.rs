//! The functions of vectors: within the units of the last place that they state, right where numbers end, and the same bits at every SIMD level.

use alight_kernels::gate::{gelu_erf, gelu_tanh, relu, silu};
use alight_kernels::vec::softcap;
use alight_kernels::{Isa, internals};

use crate::common::{Rng, at_all_levels, changed_at_all_levels, few};

/// `e^x` is 0 for smaller `x`, see `lanes/math.rs`.
const MIN_EXPONENT: f32 = -87.336_5;

/// A function of a slice, in place.
type Function = fn(Isa, &mut [f32]);

fn exp(isa: Isa, x: &mut [f32]) {
    internals::exp(isa, false, x);
}

/// For what is not positive.
fn exp_negative(isa: Isa, x: &mut [f32]) {
    internals::exp(isa, true, x);
}

fn tanh(isa: Isa, x: &mut [f32]) {
    softcap(isa, x, 1.0);
}

fn run(input: &[f32], f: Function) -> Vec<f32> {
    changed_at_all_levels("a function", input, f)
}

/// Every 9973rd pattern of both signs, and the numbers between -20 and 20 more densely.
fn inputs() -> Vec<f32> {
    let patterns = (0..u32::MAX).step_by(9973).map(f32::from_bits).filter(|x| !x.is_nan());
    let middle = (-200_000..200_000).map(|i| i as f32 * 1.000_37e-4);
    patterns.chain(middle).collect()
}

/// Distance in units of the last place of the exact value, no smaller than a subnormal's. Infinity counts as 2^128.
fn ulps(found: f32, exact: f64) -> f64 {
    let finite =
        if found.is_infinite() { 2f64.powi(128).copysign(found as f64) } else { found as f64 };
    if found.is_infinite() && exact.abs() > 2f64.powi(128) {
        return 0.0;
    }
    let exponent = exact.abs().log2().floor().clamp(-126.0, 127.0);
    (finite - exact).abs() / 2f64.powf(exponent - 23.0)
}

fn check(f: Function, inputs: &[f32], limit: impl Fn(f32) -> f64, exact: impl Fn(f64) -> f64) {
    for (&x, &y) in inputs.iter().zip(&run(inputs, f)) {
        let error = ulps(y, exact(x as f64));
        assert!(error <= limit(x), "f({x:e}) = {y:e}, {error} ulp off");
    }
}

/// e^x, where it is not subnormal.
fn exp_or_zero(x: f64) -> f64 {
    let e = x.exp();
    if e < f64::from(f32::MIN_POSITIVE) { 0.0 } else { e }
}

#[test]
fn exp_is_within_1_ulp_and_right_at_extremes() {
    check(exp, &inputs(), |_| 1.0, exp_or_zero);
    let negative: Vec<f32> = inputs().into_iter().filter(|x| *x <= 0.0).collect();
    check(exp_negative, &negative, |_| 1.0, exp_or_zero);
    // All numbers near the one below which it is 0.
    let near = (-400..400).map(|i| f32::from_bits(MIN_EXPONENT.to_bits().wrapping_add_signed(i)));
    let near: Vec<f32> = near.collect();
    for f in [exp as Function, exp_negative] {
        for (x, y) in near.iter().zip(run(&near, f)) {
            let least = f64::from(f32::MIN_POSITIVE);
            assert!(!y.is_subnormal(), "e^{x} = {y:e}");
            assert!(y != 0.0 || f64::from(*x).exp() <= 1.0001 * least, "e^{x} = 0");
        }
        let y = run(&[f32::NEG_INFINITY, -1e30, -0.0, 0.0, f32::NAN, -f32::NAN], f);
        assert_eq!(y[..4], [0.0, 0.0, 1.0, 1.0]);
        assert!(y[4].is_nan() && y[5].is_nan());
    }
    assert_eq!(run(&[f32::INFINITY, 88.8, 1e30], exp), [f32::INFINITY; 3]);
}

#[test]
fn tanh_is_within_1_5_ulp_and_right_at_extremes() {
    check(tanh, &inputs(), |_| 1.5, f64::tanh);
    let y = run(&[f32::NEG_INFINITY, f32::INFINITY, -0.0, f32::NAN], tanh);
    assert_eq!(y[..2], [-1.0, 1.0]);
    assert!(y[2] == 0.0 && y[2].is_sign_negative() && y[3].is_nan());
}

#[test]
fn gates_are_as_exact_as_stated_and_right_at_extremes() {
    // x / (1 + e^-v) for `v` of the sign of `x`.
    let times_sigmoid =
        |x: f64, v: f64| x * exp_or_zero(v.min(0.0)) / (1.0 + exp_or_zero(-v.abs()));
    check(silu, &inputs(), |_| 4.0, |x| times_sigmoid(x, x));
    let twice_u = |x: f64| 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    let limit =
        |x: f32| if x > -1.0 { 4.0 } else { 4.0 + 4.0 * twice_u(x as f64).abs().min(104.0) };
    check(gelu_tanh, &inputs(), limit, |x| times_sigmoid(x, twice_u(x)));
    // x Φ(x), and 0 where the exponential in it is.
    let normal = |x: f64| 0.5 * libm::erfc(-x / std::f64::consts::SQRT_2);
    let or_zero =
        |x: f64| if exp_or_zero(-x * x / 2.0) == 0.0 && x < 0.0 { 0.0 } else { x * normal(x) };
    check(gelu_erf, &inputs(), |_| 8.0, or_zero);
    check(relu, &inputs(), |_| 0.0, |x| x.max(0.0));
    for f in [silu as Function, gelu_tanh, gelu_erf] {
        let y = run(&[f32::NEG_INFINITY, -1e38, f32::INFINITY, 1e38, f32::NAN], f);
        assert!(y[0] == 0.0 && y[1] == 0.0, "{y:?}");
        assert!(y[2] == f32::INFINITY && y[3] == 1e38 && y[4].is_nan(), "{y:?}");
    }
}

/// Numbers of all sizes, small whole numbers and others with few digits, whose sums often lie between two f32, subnormal ones, infinities and NaN.
fn factors(rng: &mut Rng, kind: usize, n: usize) -> Vec<f32> {
    let number = |x: u64| match kind {
        0 => f32::from_bits(x as u32),
        1 => (x as i32 % 4096) as f32 * 0.25,
        // Products are subnormal.
        2 => f32::from_bits(x as u32 & 0x807f_ffff | ((x >> 40) as u32 % 40 + 1) << 23),
        3 => f32::from_bits(x as u32 & 0x80ff_f000 | 0x3f00_0000),
        _ => f32::from_bits(x as u32 & 0x8000_00ff),
    };
    (0..n).map(|_| number(rng.next())).collect()
}

#[test]
fn a_multiply_add_is_rounded_once_at_all_levels() {
    let (mut rng, n) = (Rng(17), if few() { 1 << 11 } else { 1 << 14 });
    for kinds in 0..125 {
        let [a, b, c] =
            [kinds % 5, kinds / 5 % 5, kinds / 25].map(|kind| factors(&mut rng, kind, n));
        let found = at_all_levels("a multiply-add", |isa| internals::fma(isa, &a, &b, &c));
        for (i, found) in found.into_iter().enumerate() {
            let exact = a[i].mul_add(b[i], c[i]);
            let same = found.to_bits() == exact.to_bits() || found.is_nan() && exact.is_nan();
            assert!(same, "{:e} · {:e} + {:e}: {found:e}, not {exact:e}", a[i], b[i], c[i]);
        }
    }
}
