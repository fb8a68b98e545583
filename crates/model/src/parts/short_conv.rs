//! The short convolution of LFM2 (Liquid AI 2025): `out(C ⊙ conv(B ⊙ X))`, where B, C and X are projections of the input. The
//! convolution has neither bias nor activation. Its state, in f32, is B ⊙ X of the last tokens. In encoders it is centred: it
//! looks at as many tokens after the current one as before it, all of which are rows of the same step, and has no state.

use std::ops::Range;

use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::Rows;

use super::convolution::{Columns, Convolution, MAX_TAPS};
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::parts::attention::AttentionSpec;
use crate::parts::buffers::WorkSize;
use crate::parts::step::Step;
use crate::parts::{MixerSpec, Part, PartSpec};
use crate::tensors::{LayerFinder, Linear, WeightError};

/// A short convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConvSpec {
    /// Channels: the hidden size.
    pub channels: usize,
    /// Number of tokens that it looks at, including the current one.
    pub taps: usize,
    /// True if the current one is in the middle of them, and not the last.
    pub centred: bool,
}

impl ShortConvSpec {
    /// Reads its keys.
    ///
    /// # Errors
    /// A size that no model can have.
    pub(crate) fn read(keys: &Keys<'_, '_>) -> Result<ShortConvSpec, SpecError> {
        let key = "shortconv.l_cache";
        let taps = keys.dimension(key, MAX_TAPS)?;
        let centred = keys.get::<bool>(AttentionSpec::CAUSAL)? == Some(false);
        if centred && taps.is_multiple_of(2) {
            return Err(keys.value(key, taps, "an odd number, whose middle is the token".into()));
        }
        let channels = keys.dimension("embedding_length", MAX_WIDTH)?;
        Ok(ShortConvSpec { channels, taps, centred })
    }
}

impl PartSpec for ShortConvSpec {
    fn find(
        &self,
        find: &LayerFinder<'_, '_, '_>,
        hidden: usize,
    ) -> Result<Box<dyn Part>, WeightError> {
        Ok(Box::new(ShortConv::find(find, self, hidden)?))
    }

    /// Returns the sizes of its buffers: B and then B ⊙ X in `q`, C in `k`, X in `v`, the convolution in `mixed`.
    fn work(&self, _hidden: usize) -> WorkSize {
        let width = self.channels;
        WorkSize { q: width, k: width, v: width, mixed: width, ..WorkSize::default() }
    }
}

impl MixerSpec for ShortConvSpec {
    /// Returns the f32 elements of its state: `[taps − 1, channels]`.
    fn state_len(&self) -> usize {
        match self.centred {
            false => Convolution::state_len([self.taps, self.channels]),
            true => 0,
        }
    }

    /// Returns true: rows of other tokens are needed even if they are not kept.
    fn fills_cache(&self) -> bool {
        true
    }
}

/// The tensors of a short convolution.
#[derive(Debug)]
pub(crate) struct ShortConv {
    spec: ShortConvSpec,
    /// B, C and X, `[channels, hidden]` each: rows of one tensor, in this order.
    inputs: [Linear; 3],
    /// `[hidden, channels]`
    out: Linear,
    convolution: Convolution,
}

impl ShortConv {
    pub(super) fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &ShortConvSpec,
        hidden: usize,
    ) -> Result<ShortConv, WeightError> {
        let width = spec.channels;
        let third = |i: usize| {
            let rows = i * width..(i + 1) * width;
            find.rows_of("shortconv.in_proj", [hidden, 3 * width], rows).map(Linear::from)
        };
        let size = [spec.taps, width];
        Ok(ShortConv {
            spec: spec.clone(),
            inputs: [third(0)?, third(1)?, third(2)?],
            out: find.linear("shortconv.out_proj", width, hidden)?,
            convolution: Convolution::find(find, "shortconv.conv", size, false)?,
        })
    }
}

impl Part for ShortConv {
    fn linears(&self) -> Vec<&Linear> {
        self.inputs.iter().chain([&self.out]).collect()
    }

    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        self.inputs.iter_mut().chain([&mut self.out]).collect()
    }

    fn input_formats(&self) -> ActivationFormats {
        ActivationFormats::of(self.inputs.iter().flat_map(Linear::kinds))
    }

    fn forward(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let (isa, width) = (step.compute.isa, spec.channels);
        let inputs = self.inputs.each_ref().map(|matrix| matrix.view(step.store));
        let out = self.out.view(step.store);
        let b = &mut *step.buffers;
        let outputs = [&mut b.q, &mut b.k, &mut b.v].map(|rows| Rows::new(rows, width));
        let gate = |_: usize, _: Range<usize>, [b, _, x]: [&mut [f32]; 3]| {
            b.iter_mut().zip(x).for_each(|(b, x)| *b *= *x);
        };
        step.compute.multiply([inputs.each_ref()], [outputs], &b.acts, &b.threads, Some(&gate));
        for span in b.batch.all_spans() {
            let (first, n) = (span.rows.start, span.rows.len());
            let inputs = Columns { rows: &b.q[first * width..], stride: width, first: 0 };
            let rows = [Rows::starting_at(&mut b.mixed, width, first)];
            let gates = &b.k[first * width..];
            if spec.centred {
                step.compute.each_row(n, rows, &b.threads, &|i, [mixed], _| {
                    self.convolution.apply_centred(isa, inputs, [i, n], mixed);
                    mixed.iter_mut().zip(&gates[i * width..]).for_each(|(x, gate)| *x *= gate);
                });
                continue;
            }
            let state = step.cache.state(step.layer, span.sequence);
            let before = &*state;
            step.compute.each_row(n, rows, &b.threads, &|i, [mixed], _| {
                self.convolution.apply(isa, before, inputs, i, mixed);
                mixed.iter_mut().zip(&gates[i * width..]).for_each(|(x, gate)| *x *= gate);
            });
            self.convolution.keep(state, inputs, n);
            let (of, all) = ((span.sequence, span.draft_row), 0..spec.state_len());
            step.cache.keep_of_draft(step.layer, of, all);
        }
        if !step.keep_wanted_rows(|b, from, to| Rows::new(&mut b.mixed, width).copy(from, to)) {
            return;
        }
        let b = &mut *step.buffers;
        let input = Rows::new(&mut b.mixed, width);
        let formats = ActivationFormats::of(self.out.kinds());
        let n = b.batch.counts();
        step.compute.pack_rows(n, input, &mut b.acts, formats, &b.threads);
        step.compute.project(&out, Rows::new(&mut b.y, step.hidden), &b.acts, &b.threads);
    }
}
