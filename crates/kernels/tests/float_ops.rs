//! Norm, rope, gates, softmax and vector operations against float64, every tail; and the same bits at every SIMD level.

use alight_kernels::Isa;
use alight_kernels::gate::{
    clamped_silu_mul, gelu_tanh, gelu_tanh_mul, relu_squared, sigmoid_mul, silu, silu_mul,
};
use alight_kernels::norm::{center, rms_norm, rms_norm_in_place};
use alight_kernels::rope::{
    RopePairing, RopeParams, RopeScaling, RopeTable, rope_apply, yarn_magnitude,
};
use alight_kernels::softmax::softmax;
use alight_kernels::vec::{add_assign, add_times, argmax, dot, scale, softcap};

use crate::common::{Rng, at_all_levels, changed_at_all_levels};

/// The smallest normal number, rounded up: exp may be 0 where it is below.
const MIN_NORMAL: f64 = 1.18e-38;

/// Calls `test(rng, n)` with every length to 70 and some larger.
fn lengths(mut test: impl FnMut(&mut Rng, usize)) {
    let mut rng = Rng(7);
    for n in (1..70).chain([127, 576, 640, 1536, 2049, 6144]) {
        test(&mut rng, n);
    }
}

fn close(
    found: &[f32],
    exact: impl Iterator<Item = f64>,
    relative: f64,
    absolute: f64,
    what: &str,
) {
    for (i, (&f, e)) in found.iter().zip(exact).enumerate() {
        let error = (f as f64 - e).abs();
        assert!(error <= relative * e.abs() + absolute, "{what} [{i}]: {f} instead of {e}");
    }
}

#[test]
fn rms_norm_is_exact_to_1e_6() {
    lengths(|rng, n| {
        let size = rng.pick(&[1e-3, 1.0, 1e4]);
        let x: Vec<f32> = rng.normals(n).iter().map(|x| x * size).collect();
        let w = rng.normals(n);
        let eps = rng.pick(&[1e-6f32, 1e-5]);
        let mean = x.iter().map(|&x| x as f64 * x as f64).sum::<f64>() / n as f64;
        let r = 1.0 / (mean + eps as f64).sqrt();
        let exact = x.iter().zip(&w).map(|(&x, &w)| x as f64 * r * w as f64);
        let what = format!("norm of {n}");
        let out = at_all_levels(&what, |isa| {
            let mut out = vec![f32::NAN; n];
            rms_norm(isa, &x, &w, eps, &mut out);
            out
        });
        close(&out, exact, 1e-6, 0.0, &what);
        let y = changed_at_all_levels(&what, &x, |isa, y| rms_norm_in_place(isa, y, &w, eps));
        assert_eq!(y, out);
    });
}

#[test]
fn center_takes_the_mean_away() {
    lengths(|rng, n| {
        let size = rng.pick(&[1e-3, 1.0, 1e4]);
        let x: Vec<f32> = rng.normals(n).iter().map(|x| (x + 3.0) * size).collect();
        let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / n as f64;
        let what = format!("center of {n}");
        let out = changed_at_all_levels(&what, &x, center);
        let exact = x.iter().map(|&x| f64::from(x) - mean);
        close(&out, exact, 0.0, 3e-6 * f64::from(size), &what);
    });
}

#[test]
fn activations_without_a_gate_are_gates_of_ones() {
    lengths(|rng, n| {
        let x: Vec<f32> = rng.normals(n).iter().map(|x| x * 4.0).collect();
        let ones = vec![1.0; n];
        let of = |f: fn(Isa, &mut [f32])| changed_at_all_levels("without a gate", &x, f);
        let gated = |f: fn(Isa, &mut [f32], &[f32])| {
            changed_at_all_levels("with a gate", &x, |isa, x| f(isa, x, &ones))
        };
        assert_eq!(of(silu), gated(silu_mul), "silu of {n}");
        assert_eq!(of(gelu_tanh), gated(gelu_tanh_mul), "gelu of {n}");
        let exact: Vec<f32> = x.iter().map(|x| x.max(0.0) * x.max(0.0)).collect();
        assert_eq!(of(relu_squared), exact, "relu² of {n}");
    });
    let x = changed_at_all_levels("relu² of NaN", &[f32::NAN; 20], relu_squared);
    assert!(x.iter().all(|x| x.is_nan()), "{x:?}");
}

#[test]
fn vector_operations_match_float64() {
    lengths(|rng, n| {
        let (x, y) = (rng.normals(n), rng.normals(n));
        let exact = x.iter().zip(&y).map(|(&x, &y)| x as f64 + 0.3f32 as f64 * y as f64);
        let w = changed_at_all_levels("add_times", &x, |isa, x| add_times(isa, x, &y, 0.3));
        close(&w, exact, 1e-6, 1e-6, "add_times");
        let z = changed_at_all_levels("sum", &x, |isa, x| add_assign(isa, x, &y));
        let exact: Vec<f32> = x.iter().zip(&y).map(|(a, b)| a + b).collect();
        assert_eq!(z, exact, "sum of {n}");
        let z = changed_at_all_levels("scale", &x, |isa, x| scale(isa, x, 3.7));
        assert_eq!(z, x.iter().map(|x| x * 3.7).collect::<Vec<_>>());
        let products = || x.iter().zip(&y).map(|(&a, &b)| a as f64 * b as f64);
        let size: f64 = products().map(f64::abs).sum();
        let found = at_all_levels(&format!("dot of {n}"), |isa| vec![dot(isa, &x, &y)])[0] as f64;
        let error = (found - products().sum::<f64>()).abs();
        assert!(error <= (n as f64 / 64.0 + 11.0) * 6e-8 * size, "dot of {n}: {error}");
        let cap = rng.pick(&[0.5f32, 30.0]);
        let z: Vec<f32> = x.iter().map(|x| x * 20.0).collect();
        let exact: Vec<f64> =
            z.iter().map(|&z| cap as f64 * (z as f64 / cap as f64).tanh()).collect();
        let z = changed_at_all_levels("softcap", &z, |isa, z| softcap(isa, z, cap));
        close(&z, exact.into_iter(), 5e-7, 0.0, "softcap");
    });
}

/// The order in which 64 lanes are joined is a part of what these kernels compute.
#[test]
fn sums_are_joined_by_halves() {
    lengths(|rng, n| {
        let (x, y) = (rng.normals(n), rng.normals(n));
        let mut lanes = [0f32; 64];
        for (i, (x, y)) in x.iter().zip(&y).enumerate() {
            let (in_64, in_16) = (n / 64 * 64, n / 16 * 16);
            let lane = match i {
                _ if i < in_64 => i % 64,
                _ if i < in_16 => i % 16,
                _ => 16 + i % 16,
            };
            lanes[lane] = x.mul_add(*y, lanes[lane]);
        }
        let four = |i: usize| (lanes[i] + lanes[16 + i]) + (lanes[32 + i] + lanes[48 + i]);
        let mut joined: Vec<f32> = (0..16).map(four).collect();
        while joined.len() > 1 {
            let upper = joined.split_off(joined.len() / 2);
            joined.iter_mut().zip(upper).for_each(|(sum, other)| *sum += other);
        }
        let found = at_all_levels(&format!("dot of {n}"), |isa| vec![dot(isa, &x, &y)]);
        assert_eq!(found[0].to_bits(), joined[0].to_bits(), "dot of {n}");
    });
}

#[test]
fn argmax_is_the_first_of_the_largest_and_never_nan() {
    lengths(|rng, n| {
        // Few different values, so that there are equals.
        let mut x: Vec<f32> = (0..n).map(|_| rng.range(0, 5) as f32).collect();
        if n > 3 {
            let at = rng.range(0, n);
            x[at] = f32::NAN;
        }
        let mut best = None;
        for (i, &v) in x.iter().enumerate() {
            if !v.is_nan() && best.is_none_or(|b: usize| v > x[b]) {
                best = Some(i);
            }
        }
        for isa in Isa::available() {
            assert_eq!(argmax(isa, &x), best.unwrap_or(0), "{isa} {x:?}");
        }
    });
    for isa in Isa::available() {
        assert_eq!(argmax(isa, &[]), 0);
        assert_eq!(argmax(isa, &[f32::NAN; 40]), 0);
        assert_eq!(argmax(isa, &[f32::NEG_INFINITY, -3.0]), 1);
    }
}

#[test]
fn gates_match_float64() {
    lengths(|rng, n| {
        let gate: Vec<f32> = rng.normals(n).iter().map(|x| x * 4.0).collect();
        let up = rng.normals(n);
        let wide: Vec<f32> = up.iter().map(|x| x * 4.0).collect();
        let gated = |what: &str, f: fn(Isa, &mut [f32], &[f32]), up: &[f32]| {
            changed_at_all_levels(what, &gate, |isa, z| f(isa, z, up))
        };
        let exact = gate.iter().zip(&up).map(|(&g, &u)| {
            let g = g as f64;
            g / (1.0 + (-g).exp()) * u as f64
        });
        close(&gated("silu", silu_mul, &up), exact, 6e-7, 0.0, "silu");
        let exact = gate.iter().zip(&up).map(|(&g, &u)| u as f64 / (1.0 + (-g as f64).exp()));
        close(&gated("sigmoid", sigmoid_mul, &up), exact, 6e-7, 0.0, "sigmoid");
        let exact = gate.iter().zip(&wide).map(|(&g, &u)| {
            let (g, u) = ((g as f64).min(7.0), (u as f64).clamp(-7.0, 7.0));
            g / (1.0 + (-1.702 * g).exp()) * (u + 1.0)
        });
        let z = gated("clamped silu", clamped_silu_mul, &wide);
        close(&z, exact, 2e-6, 1e-6, "clamped silu");
        let z = gated("gelu", gelu_tanh_mul, &up);
        for ((&z, &g), &u) in z.iter().zip(&gate).zip(&up) {
            let g = g as f64;
            let v = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g * g * g);
            // The textbook form cancels below -5; the same without cancelling:
            let exact = g / (1.0 + (-2.0 * v).exp()) * u as f64;
            let relative = 2f64.powi(-21) * (1.0 + 2.0 * v.abs());
            let error = (z as f64 - exact).abs();
            let least = MIN_NORMAL * (g * u as f64).abs();
            assert!(error <= relative * exact.abs() + least, "gelu({g}): {z}, not {exact}");
            assert!((exact - 0.5 * g * (1.0 + v.tanh()) * u as f64).abs() < 1e-13);
        }
    });
    let z = [f32::NEG_INFINITY, -3e38, 0.0, f32::INFINITY, f32::NAN, 1.0];
    let up = [2.0, 2.0, 2.0, f32::INFINITY, 2.0, f32::NAN];
    let z = changed_at_all_levels("clamped", &z, |isa, z| clamped_silu_mul(isa, z, &up));
    assert_eq!(z[..3], [0.0; 3]);
    assert!((z[3] - 56.0).abs() < 1e-3, "{}", z[3]);
    assert!(z[4].is_nan() && z[5].is_nan(), "{z:?}");
    for gate in [silu_mul, gelu_tanh_mul] {
        let z = [f32::NEG_INFINITY, -3e38, 0.0, f32::INFINITY, f32::NAN];
        let z = changed_at_all_levels("gate", &z, |isa, z| gate(isa, z, &[2.0; 5]));
        assert_eq!(z[..4], [0.0, 0.0, 0.0, f32::INFINITY]);
        assert!(z[4].is_nan());
    }
}

#[test]
fn softmax_matches_float64() {
    lengths(|rng, n| {
        let spread = rng.pick(&[1.0, 30.0]);
        let mut x: Vec<f32> = rng.normals(n).iter().map(|x| x * spread + 1000.0).collect();
        if n > 5 {
            x[3] = f32::NEG_INFINITY;
        }
        let max = x.iter().fold(f64::NEG_INFINITY, |m, &x| m.max(x as f64));
        let exps: Vec<f64> = x.iter().map(|&x| (x as f64 - max).exp()).collect();
        let sum: f64 = exps.iter().sum();
        let what = format!("softmax of {n}");
        let z = changed_at_all_levels(&what, &x, softmax);
        close(&z, exps.iter().map(|e| e / sum), 2e-6, MIN_NORMAL, &what);
        if n > 5 {
            assert_eq!(z[3], 0.0);
        }
        x[n - 1] = f32::NAN;
        let z = changed_at_all_levels(&what, &x, softmax);
        assert!(z.iter().all(|x| x.is_nan()), "NaN must not be hidden");
    });
    changed_at_all_levels("softmax of nothing", &[], softmax);
}

#[test]
fn rope_rotates_as_defined() {
    let mut rng = Rng(3);
    for dims in (2..70).step_by(2).chain([80, 96, 128, 256]) {
        let params = RopeParams { dims, base: 10000.0, scaling: RopeScaling::None };
        let table = RopeTable::new(&params);
        let pairs = dims / 2;
        let (mut cos, mut sin) = (vec![0.0; pairs], vec![0.0; pairs]);
        let pos = rng.pick(&[0, 1, 4095, 131_071, 1_000_000]);
        table.fill(pos, &mut cos, &mut sin);
        for pairing in [RopePairing::Interleaved, RopePairing::NeoX] {
            let x = rng.normals(dims + 5);
            let what = format!("{pairing:?} {dims} at {pos}");
            let y = changed_at_all_levels(&what, &x, |isa, y| {
                rope_apply(isa, y, &cos, &sin, pairing);
            });
            let mut exact: Vec<f64> = x.iter().map(|&x| x as f64).collect();
            for i in 0..pairs {
                let (a, b) = match pairing {
                    RopePairing::Interleaved => (2 * i, 2 * i + 1),
                    RopePairing::NeoX => (i, i + pairs),
                };
                let angle = pos as f64 * 10000f64.powf(-2.0 * i as f64 / dims as f64);
                let (s, c) = angle.sin_cos();
                (exact[a], exact[b]) =
                    (x[a] as f64 * c - x[b] as f64 * s, x[a] as f64 * s + x[b] as f64 * c);
            }
            close(&y, exact.into_iter(), 0.0, 1e-6, &what);
            assert_eq!(y[dims..], x[dims..], "{what}: beyond the rotated elements");
        }
    }
}

/// The angles as ggml computes them, in f32: the angle multiplied once per pair, YaRN's ramp between
/// two "correction dims".
fn ggml_angles(pos: usize, dims: usize, base: f32, scaling: &RopeScaling) -> Vec<(f32, f32)> {
    let (mut freq_scale, mut magnitude, mut yarn) = (1.0f32, 1.0f32, None);
    match scaling {
        RopeScaling::Factors { magnitude: of_factors, .. } => magnitude = *of_factors,
        RopeScaling::Linear { factor } => freq_scale = 1.0 / factor,
        &RopeScaling::Yarn { factor, orig_ctx, ext_factor, attn_factor, beta_fast, beta_slow } => {
            freq_scale = 1.0 / factor;
            magnitude = attn_factor;
            let corr = |turns: f32| {
                dims as f32 * (orig_ctx as f32 / (turns * 2.0 * std::f32::consts::PI)).ln()
                    / (2.0 * base.ln())
            };
            let low = corr(beta_fast).floor().max(0.0);
            let high = corr(beta_slow).ceil().min(dims as f32 - 1.0);
            yarn = Some((low, high, ext_factor));
            if ext_factor != 0.0 {
                magnitude *= 1.0 + 0.1 * (1.0 / freq_scale).ln();
            }
        }
        _ => {}
    }
    let step = base.powf(-2.0 / dims as f32);
    let mut angle = pos as f32;
    let mut out = Vec::new();
    for i in 0..dims / 2 {
        let slow = match scaling {
            RopeScaling::Factors { factors, .. } => factors[i],
            _ => 1.0,
        };
        let whole = angle / slow;
        let mut theta = freq_scale * whole;
        if let Some((low, high, ext)) = yarn.filter(|y| y.2 != 0.0) {
            let ramp = 1.0 - ((i as f32 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            theta = theta * (1.0 - ramp * ext) + whole * ramp * ext;
        }
        out.push((theta.cos() * magnitude, theta.sin() * magnitude));
        angle *= step;
    }
    out
}

#[test]
fn rope_scalings_agree_with_ggml() {
    let factors: Vec<f32> =
        (0..32).map(|i| if i < 12 { 1.0 } else { 1.0 + (i - 12) as f32 * 0.4 }).collect();
    let yarn = |factor, orig_ctx, ext_factor, attn_factor| RopeScaling::Yarn {
        factor,
        orig_ctx,
        ext_factor,
        attn_factor,
        beta_fast: 32.0,
        beta_slow: 1.0,
    };
    let scalings = [
        RopeScaling::None,
        RopeScaling::Linear { factor: 8.0 },
        RopeScaling::Factors { factors: factors.clone(), magnitude: 1.0 },
        RopeScaling::Factors { factors, magnitude: 1.19 },
        yarn(4.0, 4096, 1.0, 1.0),
        yarn(16.0, 8192, 0.7, 0.9),
        yarn(4.0, 4096, 0.0, 1.0),
    ];
    for scaling in scalings {
        for base in [10000.0, 500000.0, 1e6] {
            let table = RopeTable::new(&RopeParams { dims: 64, base, scaling: scaling.clone() });
            let (mut cos, mut sin) = (vec![0.0; 32], vec![0.0; 32]);
            for pos in [0, 1, 7, 100, 5000, 100_000] {
                table.fill(pos, &mut cos, &mut sin);
                for (i, (c, s)) in ggml_angles(pos, 64, base, &scaling).into_iter().enumerate() {
                    // ggml's own rounding: of the angle, once per pair.
                    let angle = pos as f64 * (base as f64).powf(-2.0 * i as f64 / 64.0);
                    let tolerance = 1e-6 + angle * (i as f64 + 4.0) * 2e-7;
                    let error = (c - cos[i]).abs().max((s - sin[i]).abs()) as f64;
                    let what = format!("{scaling:?} base {base} at {pos}, pair {i}");
                    assert!(error <= tolerance, "{what}: {error} > {tolerance}");
                }
            }
        }
    }
}

#[test]
fn yarn_keeps_fast_pairs_and_slows_slow_ones() {
    // Far apart, as they should be whatever the tolerance above: pair 0 turns as if unscaled, the
    // last one 4 times slower, both longer by 1 + 0.1 ln 4.
    let scaling = RopeScaling::Yarn {
        factor: 4.0,
        orig_ctx: 4096,
        ext_factor: 1.0,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
    };
    let table = RopeTable::new(&RopeParams { dims: 64, base: 10000.0, scaling });
    let (mut cos, mut sin) = (vec![0.0; 32], vec![0.0; 32]);
    table.fill(3000, &mut cos, &mut sin);
    let size = 1.0 + 0.1 * 4f64.ln();
    let last = 3000.0 * 10000f64.powf(-62.0 / 64.0) / 4.0;
    for (found, exact) in [
        (cos[0], 3000f64.cos() * size),
        (sin[0], 3000f64.sin() * size),
        (cos[31], last.cos() * size),
        (sin[31], last.sin() * size),
    ] {
        assert!((found as f64 - exact).abs() < 1e-6, "{found} {exact}");
    }
}

#[test]
fn yarn_lengthens_only_for_longer_contexts() {
    for (factor, size) in [(0.5, 1.0), (1.0, 1.0), (1f64.exp(), 1.1), (1e-6, 1.0)] {
        assert!((yarn_magnitude(factor) - size).abs() < 1e-12, "{factor}");
    }
}
