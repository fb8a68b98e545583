//! The feed-forward part of RWKV: `value(relu(key(x))²)`, where `x` is a row mixed with the one before it; in RWKV-6 times the sigmoid of a projection of another
//! mixture. Its part of the layer's state is the end of the mixer's.

use std::ops::Range;

use alight_kernels::gate;
use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::{Packing, Rows};

use crate::norm::Norm;
use crate::parts::buffers::WorkSize;
use crate::parts::routing::sigmoid;
use crate::parts::step::Step;
use crate::parts::token_shift::{pack_shifted, shift};
use crate::parts::{FeedForwardSpec, Part, PartSpec};
use crate::tensors::{LayerFinder, Linear, WeightError};

/// The feed-forward part of RWKV.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelMixSpec {
    /// Width between the two projections.
    pub intermediate_size: usize,
    /// True if the output is multiplied by the sigmoid of a projection.
    pub receptance: bool,
    /// Where the layer's state has the row of the last token.
    pub place: Range<usize>,
}

impl PartSpec for ChannelMixSpec {
    fn find(
        &self,
        find: &LayerFinder<'_, '_, '_>,
        hidden: usize,
    ) -> Result<Box<dyn Part>, WeightError> {
        let width = self.intermediate_size;
        let shares = |name| find.numbers(name, hidden);
        let receptance = self.receptance.then(|| {
            let matrix = find.linear("channel_mix_receptance", hidden, hidden)?;
            Ok::<_, WeightError>((shares("channel_mix_lerp_r.weight")?, matrix))
        });
        Ok(Box::new(ChannelMix {
            spec: self.clone(),
            norm: find.norm("attn_norm_2", hidden)?,
            shares: shares("channel_mix_lerp_k.weight")?,
            key: find.linear("channel_mix_key", hidden, width)?,
            value: find.linear("channel_mix_value", width, hidden)?,
            receptance: receptance.transpose()?,
        }))
    }

    /// Returns the sizes of its buffers: normed rows in `up`, with the rows before them in `mixed`, the projection that the output is multiplied with in `q`.
    fn work(&self, hidden: usize) -> WorkSize {
        let width = self.intermediate_size;
        WorkSize {
            q: hidden,
            up: hidden,
            mixed: 2 * hidden,
            gate: width,
            activated: width,
            ..WorkSize::default()
        }
    }
}

impl FeedForwardSpec for ChannelMixSpec {}

/// Its tensors.
#[derive(Debug)]
struct ChannelMix {
    spec: ChannelMixSpec,
    /// `[hidden]`
    norm: Norm,
    /// `[hidden]`
    shares: Vec<f32>,
    /// `[intermediate, hidden]`
    key: Linear,
    /// `[hidden, intermediate]`
    value: Linear,
    /// `[hidden]` and `[hidden, hidden]`
    receptance: Option<(Vec<f32>, Linear)>,
}

impl Part for ChannelMix {
    fn linears(&self) -> Vec<&Linear> {
        let receptance = self.receptance.iter().map(|(_, matrix)| matrix);
        [&self.key, &self.value].into_iter().chain(receptance).collect()
    }

    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        let receptance = self.receptance.iter_mut().map(|(_, matrix)| matrix);
        [&mut self.key, &mut self.value].into_iter().chain(receptance).collect()
    }

    /// Returns none: it packs its inputs itself.
    fn input_formats(&self) -> ActivationFormats {
        ActivationFormats::of([])
    }

    fn forward(&self, step: &mut Step<'_>) {
        let (isa, hidden, width) = (step.compute.isa, step.hidden, self.spec.intermediate_size);
        shift(&self.norm, self.spec.place.clone(), step);
        let some = step.keep_wanted_rows(|b, from, to| {
            Rows::new(&mut b.mixed, 2 * hidden).copy(from, to);
        });
        if !some {
            return;
        }
        let [key, value] = [&self.key, &self.value].map(|linear| linear.view(step.store));
        if let Some((shares, matrix)) = &self.receptance {
            pack_shifted(shares, ActivationFormats::of(matrix.kinds()), step);
            let b = &mut *step.buffers;
            let out = Rows::new(&mut b.q, hidden);
            step.compute.project(&matrix.view(step.store), out, &b.acts, &b.threads);
        }
        pack_shifted(&self.shares, ActivationFormats::of(self.key.kinds()), step);
        let n = step.rows().all();
        let b = &mut *step.buffers;
        let formats = ActivationFormats::of(self.value.kinds());
        let to = (&mut b.activated, step.compute.adapters.formats(formats));
        let activate = |_: Range<usize>, [up]: [&mut [f32]; 1]| gate::relu_squared(isa, up);
        let to = Packing::new(&b.acts, width, to, &mut b.gate);
        step.compute.multiply_and_pack([&key], &b.acts, &b.threads, &activate, &to);
        step.compute.project(&value, Rows::new(&mut b.y, hidden), &b.activated, &b.threads);
        if self.receptance.is_some() {
            let rows = [Rows::new(&mut b.y, hidden), Rows::new(&mut b.q, hidden)];
            step.compute.each_row(n, rows, &b.threads, &|_, [y, q], _| {
                y.iter_mut().zip(q).for_each(|(y, q)| *y *= sigmoid(*q));
            });
        }
    }
}
