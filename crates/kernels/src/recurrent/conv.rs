//! The causal depthwise convolution over the last few tokens.

use crate::Isa;
use crate::lanes::{self, Lanes, by_level};

/// The filter of a causal depthwise convolution, for each channel.
#[derive(Clone, Copy, Debug)]
pub struct Filter<'a> {
    /// Weights of the last tokens, the current one last: `[tokens, channels]`.
    pub taps: &'a [f32],
    /// `[channels]`
    pub bias: Option<&'a [f32]>,
    /// True if SiLU follows.
    pub silu: bool,
}

/// `out[c] = silu(bias[c] + Σ_j taps[j, c] · rows[j][c])`: one token of a causal depthwise convolution. `rows` are the inputs of
/// the last tokens, the current one last.
///
/// # Panics
/// If a row, the bias or the taps do not have `out`'s length (for the taps, times the number of rows).
pub fn convolve(isa: Isa, out: &mut [f32], rows: &[&[f32]], filter: Filter<'_>) {
    assert_eq!(filter.taps.len(), rows.len() * out.len(), "taps");
    assert!(filter.bias.is_none_or(|bias| bias.len() == out.len()), "biases");
    assert!(rows.iter().all(|row| row.len() == out.len()), "channels");
    by_level!(
        isa,
        (out: &mut [f32], rows: &[&[f32]], filter: Filter<'_>) -> (),
        convolve_lanes
    )
}

#[inline(always)]
unsafe fn convolve_lanes<S: Lanes>(out: &mut [f32], rows: &[&[f32]], filter: Filter<'_>) {
    let (channels, taps) = (out.len(), filter.taps);
    let mut c = 0;
    while c < channels {
        let n = (channels - c).min(S::N);
        // SAFETY: n elements follow in `out`, in each row, in the bias and in each tap's row, which have the same length; the
        // caller vouches for the features.
        unsafe {
            let load = |p: *const f32| lanes::load_up_to::<S>(p, n);
            let mut sum = match filter.bias {
                Some(bias) => load(bias.as_ptr().add(c)),
                None => S::splat(0.0),
            };
            for (j, row) in rows.iter().enumerate() {
                let (x, tap) = (row.as_ptr().add(c), taps.as_ptr().add(j * channels + c));
                sum = S::fma(load(x), load(tap), sum);
            }
            let value = if filter.silu { lanes::silu::<S>(sum) } else { sum };
            match n == S::N {
                true => S::store(out.as_mut_ptr().add(c), value),
                false => S::store_n(out.as_mut_ptr().add(c), value, n),
            }
        }
        c += n;
    }
}
