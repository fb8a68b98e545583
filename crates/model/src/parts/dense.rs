//! The dense feed-forward part: `down(activation(gate(x) + bias) ⊙ (up(x) + bias))`, or without a gate
//! `down(activation(up(x) + bias))`.

use std::ops::Range;

use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::{Packing, Rows};
use alight_kernels::{Isa, gate, vec};

use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::parts::buffers::WorkSize;
use crate::parts::step::Step;
use crate::parts::{FeedForwardSpec, Part, PartSpec};
use crate::tensors::{LayerFinder, Linear, WeightError};

/// The function that is applied to the gate, or to the only projection if there is no gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x · sigmoid(x).
    Silu,
    /// GELU in its tanh form.
    GeluTanh,
    /// GELU by the error function.
    GeluErf,
    /// x, or 0 where x is negative.
    Relu,
    /// x · sigmoid(1.702 x) with x at most 7, times the other projection plus 1, which is first clamped to ±7.
    ClampedSilu,
    /// The square of x, or 0 where x is negative.
    ReluSquared,
}

/// The matrices that the input is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputMatrices {
    /// `ffn_gate` and `ffn_up`.
    GateAndUp,
    /// Both in one tensor, `ffn_up`, the gate's rows first.
    Fused,
    /// `ffn_up` only, without a gate.
    Up,
}

/// A dense feed-forward part.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseSpec {
    /// Width between the two projections.
    pub intermediate_size: usize,
    /// Applied to the gate, or to the only projection if there is no gate.
    pub activation: Activation,
    /// The matrices that the input is multiplied with.
    pub inputs: InputMatrices,
    /// Gates count only if they exceed the mean of a token's gates by more than this number of standard deviations; the excess is
    /// their value.
    pub deviations: Option<f32>,
}

impl Activation {
    /// `gate = activation(gate) ⊙ up`.
    pub(super) fn apply(self, isa: Isa, gate: &mut [f32], up: &[f32]) {
        match self {
            Activation::Silu => gate::silu_mul(isa, gate, up),
            Activation::GeluTanh => gate::gelu_tanh_mul(isa, gate, up),
            Activation::GeluErf => gate::gelu_erf_mul(isa, gate, up),
            Activation::ClampedSilu => gate::clamped_silu_mul(isa, gate, up),
            Activation::Relu | Activation::ReluSquared => {
                self.apply_alone(isa, gate);
                gate.iter_mut().zip(up).for_each(|(gate, up)| *gate *= up);
            }
        }
    }

    /// `x = activation(x)`, where there is no gate.
    pub(super) fn apply_alone(self, isa: Isa, x: &mut [f32]) {
        match self {
            Activation::Silu => gate::silu(isa, x),
            Activation::GeluTanh => gate::gelu_tanh(isa, x),
            Activation::GeluErf => gate::gelu_erf(isa, x),
            Activation::Relu => gate::relu(isa, x),
            Activation::ClampedSilu => unreachable!("it clamps what a gate is multiplied with"),
            Activation::ReluSquared => gate::relu_squared(isa, x),
        }
    }
}

impl DenseSpec {
    /// Reads its keys, with SiLU.
    ///
    /// # Errors
    /// A size that no model can have, or a mixture of experts.
    pub(crate) fn read(keys: &Keys<'_, '_>) -> Result<DenseSpec, SpecError> {
        DenseSpec::refuse_experts(keys)?;
        DenseSpec::read_beside_experts(keys)
    }

    /// As [`DenseSpec::read`], for a network in which other layers are mixtures of experts.
    ///
    /// # Errors
    /// A size that no model can have.
    pub(crate) fn read_beside_experts(keys: &Keys<'_, '_>) -> Result<DenseSpec, SpecError> {
        let intermediate_size = keys.dimension("feed_forward_length", MAX_WIDTH)?;
        Ok(DenseSpec {
            intermediate_size,
            activation: Activation::Silu,
            inputs: InputMatrices::GateAndUp,
            deviations: None,
        })
    }

    /// Checks that the network is not a mixture of experts.
    ///
    /// # Errors
    /// The network is one.
    pub(crate) fn refuse_experts(keys: &Keys<'_, '_>) -> Result<(), SpecError> {
        for key in ["expert_count", "expert_used_count"] {
            if let Some(found) = keys.get::<u64>(key)?.filter(|n| *n > 0) {
                return Err(keys.unsupported(key, found, "a mixture of experts"));
            }
        }
        Ok(())
    }
}

impl PartSpec for DenseSpec {
    fn find(
        &self,
        find: &LayerFinder<'_, '_, '_>,
        hidden: usize,
    ) -> Result<Box<dyn Part>, WeightError> {
        Ok(Box::new(Dense::find(find, self, hidden)?))
    }

    fn work(&self, _hidden: usize) -> WorkSize {
        let width = self.intermediate_size;
        let up = if self.deviations.is_some() { width } else { 0 };
        WorkSize { gate: width, up, activated: width, ..WorkSize::default() }
    }
}

impl FeedForwardSpec for DenseSpec {
    fn dense(&self) -> Option<&DenseSpec> {
        Some(self)
    }
}

/// Replaces each number by its excess over the mean plus `deviations` standard deviations, or by 0. (The standard deviation is
/// that of the whole population, as Gemma 3n's authors compute it.)
fn keep_above(x: &mut [f32], deviations: f32) {
    let n = x.len() as f32;
    let mean = x.iter().sum::<f32>() / n;
    let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / n;
    let least = mean + deviations * vec::root_of_squares(variance);
    // Not by `max`, which would turn NaN into 0.
    x.iter_mut().for_each(|x| *x = if *x < least { 0.0 } else { *x - least });
}

/// The tensors of a dense part.
#[derive(Debug)]
pub(crate) struct Dense {
    spec: DenseSpec,
    /// `[intermediate, hidden]`
    gate: Option<Linear>,
    /// `[intermediate, hidden]`
    up: Linear,
    /// `[hidden, intermediate]`
    down: Linear,
}

/// The file's names for its gate, up and down.
const NAMES: [&str; 3] = ["ffn_gate", "ffn_up", "ffn_down"];

/// The file's names for those of a mixture's shared network, which all tokens go through.
pub(super) const SHARED_NAMES: [&str; 3] = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];

impl Dense {
    pub(super) fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &DenseSpec,
        hidden: usize,
    ) -> Result<Dense, WeightError> {
        Dense::find_named(find, spec, hidden, NAMES)
    }

    /// Finds gate, up and down by these names.
    pub(super) fn find_named(
        find: &LayerFinder<'_, '_, '_>,
        spec: &DenseSpec,
        hidden: usize,
        [gate_name, up_name, down_name]: [&str; 3],
    ) -> Result<Dense, WeightError> {
        let width = spec.intermediate_size;
        let half = |rows| Ok(Linear::from(find.rows_of(up_name, [hidden, 2 * width], rows)?));
        let one = |name| find.linear(name, hidden, width);
        let (gate, up) = match spec.inputs {
            InputMatrices::GateAndUp => (Some(one(gate_name)?), one(up_name)?),
            InputMatrices::Fused => {
                let bias = |name| find.bias(name, width);
                let (gate, up): (Linear, Linear) = (half(0..width)?, half(width..2 * width)?);
                (Some(gate.with_bias(bias(gate_name)?)), up.with_bias(bias(up_name)?))
            }
            InputMatrices::Up => (None, one(up_name)?),
        };
        Ok(Dense { spec: spec.clone(), gate, up, down: find.linear(down_name, width, hidden)? })
    }

    /// Returns the matrices that the input is multiplied with.
    pub(super) fn inputs(&self) -> impl Iterator<Item = &Linear> {
        self.gate.iter().chain([&self.up])
    }
}

impl Part for Dense {
    fn linears(&self) -> Vec<&Linear> {
        self.inputs().chain([&self.down]).collect()
    }

    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        self.gate.iter_mut().chain([&mut self.up, &mut self.down]).collect()
    }

    fn input_formats(&self) -> ActivationFormats {
        ActivationFormats::of(self.inputs().flat_map(Linear::kinds))
    }

    fn forward(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let (isa, width, hidden) = (step.compute.isa, spec.intermediate_size, step.hidden);
        let store = step.store;
        let gate = self.gate.as_ref().map(|gate| gate.view(store));
        let (up, down) = (self.up.view(store), self.down.view(store));
        let b = &mut *step.buffers;
        let (compute, acts, threads) = (step.compute, &b.acts, &b.threads);
        let to = (&mut b.activated, ActivationFormats::of(self.down.kinds()));
        // The values of a token are packed together with their products, unless they depend on all products of the token.
        match (gate, spec.deviations) {
            (None, _) => {
                let activate = |_: Range<usize>, [up]: [&mut [f32]; 1]| {
                    spec.activation.apply_alone(isa, up);
                };
                let to = Packing::new(acts, width, to, &mut b.gate);
                compute.multiply_and_pack([&up], acts, threads, &activate, &to);
            }
            (Some(gate), None) => {
                let join = |_: Range<usize>, [gate, up]: [&mut [f32]; 2]| {
                    spec.activation.apply(isa, gate, up);
                };
                let to = Packing::new(acts, width, to, &mut b.gate);
                compute.multiply_and_pack([&gate, &up], acts, threads, &join, &to);
            }
            (Some(gate), Some(deviations)) => {
                let outputs = [Rows::new(&mut b.gate, width), Rows::new(&mut b.up, width)];
                compute.multiply([[&gate, &up]], [outputs], acts, threads, None);
                let rows = [Rows::new(&mut b.gate, width), Rows::new(&mut b.up, width)];
                let (acts, formats) = to;
                compute.pack(
                    b.batch.counts(),
                    width,
                    rows,
                    acts,
                    formats,
                    threads,
                    &|_, [gate, up], _, put| {
                        keep_above(gate, deviations);
                        spec.activation.apply(isa, gate, up);
                        put(gate);
                    },
                );
            }
        }
        step.compute.project(&down, Rows::new(&mut b.y, hidden), &b.activated, &b.threads);
    }
}
