//! The causal depthwise convolution over the last few tokens.

use crate::Isa;
use crate::lanes::{self, Lanes, by_level};

/// `out[c] = silu(Σ_j taps[j, c] · rows[j][c])`: one token of a causal depthwise convolution. `rows` are the inputs of the last
/// tokens, the present one last, and `taps` is `[rows, channels]`.
///
/// # Panics
/// If a row, or the taps, are not of `out`'s length (times the number of rows).
pub fn conv_silu(isa: Isa, out: &mut [f32], rows: &[&[f32]], taps: &[f32]) {
    assert_eq!(taps.len(), rows.len() * out.len(), "taps");
    assert!(rows.iter().all(|row| row.len() == out.len()), "channels");
    by_level!(
        isa,
        (out: &mut [f32], rows: &[&[f32]], taps: &[f32]) -> (),
        conv_silu_scalar,
        conv_silu_lanes
    )
}

fn conv_silu_scalar(out: &mut [f32], rows: &[&[f32]], taps: &[f32]) {
    let channels = out.len();
    for (c, out) in out.iter_mut().enumerate() {
        let sum: f32 =
            rows.iter().enumerate().map(|(j, row)| row[c] * taps[j * channels + c]).sum();
        *out = sum / (1.0 + (-sum).exp());
    }
}

#[inline(always)]
unsafe fn conv_silu_lanes<S: Lanes>(out: &mut [f32], rows: &[&[f32]], taps: &[f32]) {
    let channels = out.len();
    let mut c = 0;
    while c < channels {
        let n = (channels - c).min(S::N);
        // SAFETY: n elements follow in `out`, in each row and in each tap's row, which are as long; the caller vouches for
        // the features.
        unsafe {
            let mut sum = S::splat(0.0);
            for (j, row) in rows.iter().enumerate() {
                let (x, tap) = (row.as_ptr().add(c), taps.as_ptr().add(j * channels + c));
                sum = match n == S::N {
                    true => S::fma(S::load(x), S::load(tap), sum),
                    false => S::fma(S::load_n(x, n), S::load_n(tap, n), sum),
                };
            }
            let value = lanes::silu::<S>(sum);
            match n == S::N {
                true => S::store(out.as_mut_ptr().add(c), value),
                false => S::store_n(out.as_mut_ptr().add(c), value, n),
            }
        }
        c += n;
    }
}
