//! The causal depthwise convolution with which recurrent mixers begin. Its part of a mixer's state is the inputs of the last
//! tokens before the current one.

use alight_kernels::Isa;
use alight_kernels::recurrent::{Filter, convolve};

use crate::tensors::{LayerFinder, WeightError};

/// Maximum number of tokens that a convolution looks at.
pub(super) const MAX_TAPS: usize = 8;

/// The weights of a convolution.
#[derive(Debug)]
pub(super) struct Convolution {
    /// `[tokens, channels]`; the current token is last.
    taps: Vec<f32>,
    /// `[channels]`
    bias: Option<Vec<f32>>,
    channels: usize,
    /// True if SiLU follows.
    silu: bool,
}

/// Some columns of rows of `stride` elements: the inputs of a call's tokens.
#[derive(Clone, Copy)]
pub(super) struct Columns<'a> {
    pub(super) rows: &'a [f32],
    pub(super) stride: usize,
    /// The first of the columns.
    pub(super) first: usize,
}

impl Convolution {
    /// Finds the convolution of the tensor `what.weight` `[taps, channels]` and its bias, if the file has one.
    pub(super) fn find(
        find: &LayerFinder<'_, '_, '_>,
        what: &str,
        [taps, channels]: [usize; 2],
        silu: bool,
    ) -> Result<Convolution, WeightError> {
        let name = format!("{what}.weight");
        // Some files have a third dimension, of one element, before the channels.
        let by_channel = match find.rows(&name) {
            Some(1) if channels > 1 => find.numbers(&name, taps * channels)?,
            _ => find.table(&name, [taps, channels])?,
        };
        let by_tap = (0..taps * channels).map(|i| by_channel[i % channels * taps + i / channels]);
        let bias = find.bias(what, channels)?;
        Ok(Convolution { taps: by_tap.collect(), bias, channels, silu })
    }

    /// Returns the f32 elements of its part of a state: `[taps − 1, channels]`.
    pub(super) fn state_len([taps, channels]: [usize; 2]) -> usize {
        (taps - 1) * channels
    }

    /// Computes token `i` of a call into `out` `[channels]`; `before` is the state.
    pub(super) fn apply(
        &self,
        isa: Isa,
        before: &[f32],
        inputs: Columns<'_>,
        i: usize,
        out: &mut [f32],
    ) {
        let (width, taps) = (self.channels, self.taps.len() / self.channels);
        // Row `j` of all inputs: those of the state come first.
        let row = |j: usize| match j.checked_sub(taps - 1) {
            Some(token) => inputs.of(token, width),
            None => &before[j * width..][..width],
        };
        let rows: [&[f32]; MAX_TAPS] = std::array::from_fn(|j| row(i + j.min(taps - 1)));
        let filter = Filter { taps: &self.taps, bias: self.bias.as_deref(), silu: self.silu };
        convolve(isa, out, &rows[..taps], filter);
    }

    /// Computes token `i` of a text of `n` tokens into `out` `[channels]`, with the token in the middle of those that it looks at. Tokens
    /// outside of the text add nothing.
    pub(super) fn apply_centred(
        &self,
        isa: Isa,
        inputs: Columns<'_>,
        [i, n]: [usize; 2],
        out: &mut [f32],
    ) {
        let (width, taps) = (self.channels, self.taps.len() / self.channels);
        let middle = taps / 2;
        let (first, end) = (middle.saturating_sub(i), taps.min(n - i + middle));
        let row = |j: usize| inputs.of(i + (first + j).min(end - 1) - middle, width);
        let rows: [&[f32]; MAX_TAPS] = std::array::from_fn(row);
        let taps = &self.taps[first * width..end * width];
        let filter = Filter { taps, bias: self.bias.as_deref(), silu: self.silu };
        convolve(isa, out, &rows[..end - first], filter);
    }

    /// Sets the state to the state after the last of a call's `n` tokens.
    pub(super) fn keep(&self, state: &mut [f32], inputs: Columns<'_>, n: usize) {
        let width = self.channels;
        let before = state.len() / width;
        for i in 0..before {
            // The row of all inputs that becomes row `i`. Of the state's rows only later ones are read, which are still
            // unchanged.
            match (n + i).checked_sub(before) {
                Some(token) => {
                    state[i * width..][..width].copy_from_slice(inputs.of(token, width));
                }
                None => state.copy_within((n + i) * width..(n + i + 1) * width, i * width),
            }
        }
    }
}

impl Columns<'_> {
    /// Returns the `width` columns of a token.
    fn of(&self, token: usize, width: usize) -> &[f32] {
        &self.rows[token * self.stride + self.first..][..width]
    }
}
