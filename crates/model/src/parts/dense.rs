//! The dense feed-forward part: `down(activation(gate(x) + bias) ⊙ (up(x) + bias))`, or without a gate
//! `down(activation(up(x) + bias))`.

use std::ops::Range;

use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::{Packing, Rows};
use alight_kernels::{Isa, gate, vec};

use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::norm::Norm;
use crate::parts::buffers::WorkSize;
use crate::parts::step::Step;
use crate::parts::{FeedForwardSpec, Part, PartSpec};
use crate::tensors::{LayerFinder, Linear, WeightError};

/// The function that is applied to the gate, or to the only projection if there is no gate.
#[derive(Clone, Copy, Debug, PartialEq)]
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
    /// x · sigmoid(x), at most this, times the other projection, which is first clamped to ± this.
    LimitedSilu(f32),
    /// The same with x itself at most this, and not x · sigmoid(x).
    SiluOfLimited(f32),
    /// xIELU, without a gate.
    Xielu(Xielu),
}

/// xIELU (Huang et al. 2024): `positive · x² + slope · x` where x is positive, `(e^min(x, limit) − 1 − x) · negative + slope · x`
/// elsewhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xielu {
    /// Factor where x is positive.
    pub positive: f32,
    /// Factor elsewhere.
    pub negative: f32,
    /// Factor on x itself.
    pub slope: f32,
    /// Maximum of the exponent; just below 0.
    pub limit: f32,
}

impl Xielu {
    fn apply(&self, x: f32) -> f32 {
        let curve = match x > 0.0 {
            true => self.positive * x * x,
            // Not by `min`, which would turn NaN into a number.
            false => {
                let exponent = if x > self.limit { self.limit } else { x };
                (libm::expm1f(exponent) - x) * self.negative
            }
        };
        curve + self.slope * x
    }
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
    /// The file's name for the norm of the input of the second projection.
    pub inner_norm: Option<&'static str>,
}

impl Activation {
    /// `gate = activation(gate) ⊙ up`.
    pub(super) fn apply(self, isa: Isa, gate: &mut [f32], up: &[f32]) {
        match self {
            Activation::Silu => gate::silu_mul(isa, gate, up),
            Activation::GeluTanh => gate::gelu_tanh_mul(isa, gate, up),
            Activation::GeluErf => gate::gelu_erf_mul(isa, gate, up),
            Activation::ClampedSilu => gate::clamped_silu_mul(isa, gate, up),
            Activation::Relu | Activation::ReluSquared | Activation::Xielu(_) => {
                self.apply_alone(isa, gate);
                gate.iter_mut().zip(up).for_each(|(gate, up)| *gate *= up);
            }
            Activation::LimitedSilu(most) => {
                gate::silu(isa, gate);
                multiply_limited(gate, up, most, most);
            }
            Activation::SiluOfLimited(most) => {
                gate.iter_mut().for_each(|x| *x = at_most(*x, most));
                gate::silu(isa, gate);
                multiply_limited(gate, up, f32::INFINITY, most);
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
            Activation::ClampedSilu | Activation::LimitedSilu(_) | Activation::SiluOfLimited(_) => {
                unreachable!("it limits what a gate is multiplied with")
            }
            Activation::Xielu(xielu) => x.iter_mut().for_each(|x| *x = xielu.apply(*x)),
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
        Ok(DenseSpec::new(keys.dimension("feed_forward_length", MAX_WIDTH)?))
    }

    /// As [`DenseSpec::read`], for each layer of a network whose layers may have different widths; 0: the layer has no dense part.
    ///
    /// # Errors
    /// A size that no model can have, or a mixture of experts.
    pub(crate) fn read_where_there(
        keys: &Keys<'_, '_>,
        layers: usize,
    ) -> Result<Vec<Option<DenseSpec>>, SpecError> {
        DenseSpec::refuse_experts(keys)?;
        let key = "feed_forward_length";
        let widths = keys.per_layer_in(key, layers, 0..=MAX_WIDTH)?;
        let widths = widths.ok_or_else(|| keys.missing(key))?.into_iter();
        Ok(widths.map(|width| (width > 0).then(|| DenseSpec::new(width))).collect())
    }

    /// Returns a gated part of this width, with SiLU.
    pub(crate) fn new(intermediate_size: usize) -> DenseSpec {
        DenseSpec {
            intermediate_size,
            activation: Activation::Silu,
            inputs: InputMatrices::GateAndUp,
            deviations: None,
            inner_norm: None,
        }
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
        let whole = self.deviations.is_some() || self.inner_norm.is_some();
        let up = if whole { width } else { 0 };
        WorkSize { gate: width, up, activated: width, ..WorkSize::default() }
    }
}

impl FeedForwardSpec for DenseSpec {
    fn dense(&self) -> Option<&DenseSpec> {
        Some(self)
    }
}

/// Returns `x`, or `most` if it is greater. NaN stays NaN.
fn at_most(x: f32, most: f32) -> f32 {
    if x > most { most } else { x }
}

/// `gate = min(gate, most) ⊙ clamp(up, ±limit)`.
fn multiply_limited(gate: &mut [f32], up: &[f32], most: f32, limit: f32) {
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = at_most(*gate, most) * up.clamp(-limit, limit);
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
    /// `[intermediate]`
    inner_norm: Option<Norm>,
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
        let inner_norm = spec.inner_norm.map(|name| find.norm(name, width)).transpose()?;
        let down = find.linear(down_name, width, hidden)?;
        Ok(Dense { spec: spec.clone(), gate, up, down, inner_norm })
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
        let formats = compute.adapters.formats(ActivationFormats::of(self.down.kinds()));
        let to = (&mut b.activated, formats);
        // The values of a token are packed together with their products, unless they depend on all products of the token.
        let whole = spec.deviations.is_some() || self.inner_norm.is_some();
        match (gate, whole) {
            (None, _) => {
                let activate = |_: Range<usize>, [up]: [&mut [f32]; 1]| {
                    spec.activation.apply_alone(isa, up);
                };
                let to = Packing::new(acts, width, to, &mut b.gate);
                compute.multiply_and_pack([&up], acts, threads, &activate, &to);
            }
            (Some(gate), false) => {
                let join = |_: Range<usize>, [gate, up]: [&mut [f32]; 2]| {
                    spec.activation.apply(isa, gate, up);
                };
                let to = Packing::new(acts, width, to, &mut b.gate);
                compute.multiply_and_pack([&gate, &up], acts, threads, &join, &to);
            }
            (Some(gate), true) => {
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
                        if let Some(deviations) = spec.deviations {
                            keep_above(gate, deviations);
                        }
                        spec.activation.apply(isa, gate, up);
                        if let Some(norm) = &self.inner_norm {
                            norm.apply(isa, gate);
                        }
                        put(gate);
                    },
                );
            }
        }
        step.compute.project(&down, Rows::new(&mut b.y, hidden), &b.activated, &b.threads);
    }
}
