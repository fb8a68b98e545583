//! The parts that layers are made of. One file holds all of a part: what describes it and how that is read from the
//! metadata, which tensors it has, what it writes to, and how it computes.
//!
//! A part computes from the packed input that the layer's norm has made, and leaves its output in the buffer `y`,
//! unapplied: bias, norm, scale and the addition to the residual stream are a [`Contribution`], which is carried out
//! together with the next norm.

pub(crate) mod alt_up;
pub(crate) mod attention;
pub(crate) mod batch;
pub(crate) mod buffers;
pub(crate) mod compute;
mod convolution;
pub(crate) mod delta_net;
pub(crate) mod dense;
pub(crate) mod dense_and_experts;
pub(crate) mod experts;
pub(crate) mod latent_attention;
pub(crate) mod latent_experts;
pub(crate) mod laurel;
pub(crate) mod mamba2;
pub(crate) mod routing;
pub(crate) mod short_conv;
pub(crate) mod step;
pub(crate) mod token_input;

use alight_kernels::attention::KvShape;
use alight_kernels::matmul::ActivationFormats;
use alight_kernels::{Isa, vec};

use self::attention::{AttentionSpec, AttentionWeights};
use self::buffers::WorkSize;
use self::delta_net::{DeltaNetSpec, DeltaNetWeights};
use self::dense::{DenseSpec, DenseWeights};
use self::dense_and_experts::{DenseAndExpertsSpec, DenseAndExpertsWeights};
use self::experts::{ExpertsSpec, ExpertsWeights};
use self::latent_attention::{LatentAttentionSpec, LatentAttentionWeights};
use self::latent_experts::{LatentExpertsSpec, LatentExpertsWeights};
use self::mamba2::{Mamba2Spec, Mamba2Weights};
use self::short_conv::{ShortConvSpec, ShortConvWeights};
use self::step::Step;
use crate::norm::Norm;
use crate::tensors::{LayerFinder, MatrixRef, WeightError};

/// The part of a layer that looks at other positions.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Softmax attention over keys and values in the cache.
    Attention(AttentionSpec),
    /// A gated delta net, which carries a state from token to token.
    DeltaNet(DeltaNetSpec),
    /// Softmax attention over one short row in the cache, of which all heads make keys and values.
    LatentAttention(LatentAttentionSpec),
    /// A short convolution, which carries its last inputs from token to token.
    ShortConv(ShortConvSpec),
    /// Mamba-2, which carries a state from token to token.
    Mamba2(Mamba2Spec),
}

/// What a token and one position that it attends to cost in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attended {
    /// A token sees itself and the `window − 1` positions before it.
    pub window: Option<usize>,
    /// Bytes of the position in the cache.
    pub bytes: usize,
    /// Multiply-accumulates of all heads.
    pub macs: usize,
}

/// The part of a layer that works on each position alone.
#[derive(Clone, Debug, PartialEq)]
pub enum FeedForward {
    /// One gated network for all tokens.
    Dense(DenseSpec),
    /// A few of many networks for each token.
    Experts(ExpertsSpec),
    /// A few of many networks for each token, which work on a shorter row than the residual stream.
    LatentExperts(LatentExpertsSpec),
    /// A dense part and experts, beside each other.
    Both(DenseAndExpertsSpec),
}

impl From<DenseSpec> for FeedForward {
    fn from(spec: DenseSpec) -> FeedForward {
        FeedForward::Dense(spec)
    }
}

impl From<ExpertsSpec> for FeedForward {
    fn from(spec: ExpertsSpec) -> FeedForward {
        FeedForward::Experts(spec)
    }
}

/// How the output of a part, in `y`, is added to the residual stream: `x = output_scale · (x + scale · norm(y + bias))`.
#[derive(Clone, Copy)]
pub(crate) struct Contribution<'m> {
    /// `[hidden]`
    pub(crate) bias: Option<&'m [f32]>,
    /// `[hidden]`
    pub(crate) norm: Option<&'m Norm>,
    pub(crate) scale: f32,
    /// Factor on the residual stream afterwards.
    pub(crate) output_scale: f32,
}

impl Contribution<'_> {
    /// Adds one row, `[hidden]` each. `y` is used up.
    pub(crate) fn add_to(&self, isa: Isa, x: &mut [f32], y: &mut [f32]) {
        if let Some(bias) = self.bias {
            vec::add_assign(isa, y, bias);
        }
        if let Some(norm) = self.norm {
            norm.apply(isa, y);
        }
        if self.scale != 1.0 {
            vec::scale(isa, y, self.scale);
        }
        vec::add_assign(isa, x, y);
        if self.output_scale != 1.0 {
            vec::scale(isa, x, self.output_scale);
        }
    }
}

/// The weights of a [`Mixer`].
#[derive(Debug)]
pub(crate) enum MixerWeights {
    Attention(AttentionWeights),
    DeltaNet(DeltaNetWeights),
    LatentAttention(Box<LatentAttentionWeights>),
    ShortConv(ShortConvWeights),
    Mamba2(Mamba2Weights),
}

impl MixerWeights {
    pub(crate) fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &Mixer,
        hidden: usize,
    ) -> Result<MixerWeights, WeightError> {
        match spec {
            Mixer::Attention(spec) => {
                AttentionWeights::find(find, spec, hidden).map(MixerWeights::Attention)
            }
            Mixer::DeltaNet(spec) => {
                DeltaNetWeights::find(find, spec, hidden).map(MixerWeights::DeltaNet)
            }
            Mixer::LatentAttention(spec) => {
                let part = LatentAttentionWeights::find(find, spec, hidden)?;
                Ok(MixerWeights::LatentAttention(Box::new(part)))
            }
            Mixer::ShortConv(spec) => {
                ShortConvWeights::find(find, spec, hidden).map(MixerWeights::ShortConv)
            }
            Mixer::Mamba2(spec) => {
                Mamba2Weights::find(find, spec, hidden).map(MixerWeights::Mamba2)
            }
        }
    }

    /// In the order of use.
    pub(crate) fn matrices(&self) -> Vec<&MatrixRef> {
        match self {
            MixerWeights::Attention(part) => part.matrices(),
            MixerWeights::DeltaNet(part) => part.matrices(),
            MixerWeights::LatentAttention(part) => part.matrices(),
            MixerWeights::ShortConv(part) => part.matrices(),
            MixerWeights::Mamba2(part) => part.matrices(),
        }
    }

    pub(crate) fn matrices_mut(&mut self) -> Vec<&mut MatrixRef> {
        match self {
            MixerWeights::Attention(part) => part.matrices_mut(),
            MixerWeights::DeltaNet(part) => part.matrices_mut(),
            MixerWeights::LatentAttention(part) => part.matrices_mut(),
            MixerWeights::ShortConv(part) => part.matrices_mut(),
            MixerWeights::Mamba2(part) => part.matrices_mut(),
        }
    }

    /// The formats of activations in which its input is packed.
    pub(crate) fn input_formats(&self) -> ActivationFormats {
        match self {
            MixerWeights::Attention(part) => part.input_formats(),
            MixerWeights::DeltaNet(part) => part.input_formats(),
            MixerWeights::LatentAttention(part) => part.input_formats(),
            MixerWeights::ShortConv(part) => part.input_formats(),
            MixerWeights::Mamba2(part) => part.input_formats(),
        }
    }

    /// The bias of its output, `[hidden]`.
    pub(crate) fn output_bias(&self) -> Option<&[f32]> {
        match self {
            MixerWeights::Attention(part) => part.o_bias.as_deref(),
            MixerWeights::DeltaNet(_)
            | MixerWeights::LatentAttention(_)
            | MixerWeights::ShortConv(_)
            | MixerWeights::Mamba2(_) => None,
        }
    }

    /// Computes it on the step's packed input, into `y`. In the last layer it leaves only the rows that are wanted; if
    /// there are none, it stops when the cache is filled.
    pub(crate) fn forward(&self, spec: &Mixer, step: &mut Step<'_>) {
        match (self, spec) {
            (MixerWeights::Attention(part), Mixer::Attention(spec)) => part.forward(spec, step),
            (MixerWeights::DeltaNet(part), Mixer::DeltaNet(spec)) => part.forward(spec, step),
            (MixerWeights::LatentAttention(part), Mixer::LatentAttention(spec)) => {
                part.forward(spec, step);
            }
            (MixerWeights::ShortConv(part), Mixer::ShortConv(spec)) => part.forward(spec, step),
            (MixerWeights::Mamba2(part), Mixer::Mamba2(spec)) => part.forward(spec, step),
            _ => unreachable!("weights are found by the layer's spec"),
        }
    }
}

/// The weights of a [`FeedForward`].
#[derive(Debug)]
pub(crate) enum FeedForwardWeights {
    Dense(Box<DenseWeights>),
    Experts(Box<ExpertsWeights>),
    LatentExperts(Box<LatentExpertsWeights>),
    Both(Box<DenseAndExpertsWeights>),
}

impl FeedForwardWeights {
    pub(crate) fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &FeedForward,
        hidden: usize,
    ) -> Result<FeedForwardWeights, WeightError> {
        match spec {
            FeedForward::Dense(spec) => {
                let part = DenseWeights::find(find, spec, hidden)?;
                Ok(FeedForwardWeights::Dense(Box::new(part)))
            }
            FeedForward::Experts(spec) => {
                let part = ExpertsWeights::find(find, spec, hidden)?;
                Ok(FeedForwardWeights::Experts(Box::new(part)))
            }
            FeedForward::LatentExperts(spec) => {
                let part = LatentExpertsWeights::find(find, spec, hidden)?;
                Ok(FeedForwardWeights::LatentExperts(Box::new(part)))
            }
            FeedForward::Both(spec) => {
                let part = DenseAndExpertsWeights::find(find, spec, hidden)?;
                Ok(FeedForwardWeights::Both(Box::new(part)))
            }
        }
    }

    /// In the order of use.
    pub(crate) fn matrices(&self) -> Vec<&MatrixRef> {
        match self {
            FeedForwardWeights::Dense(part) => part.matrices(),
            FeedForwardWeights::Experts(part) => part.matrices(),
            FeedForwardWeights::LatentExperts(part) => part.matrices(),
            FeedForwardWeights::Both(part) => part.matrices(),
        }
    }

    pub(crate) fn matrices_mut(&mut self) -> Vec<&mut MatrixRef> {
        match self {
            FeedForwardWeights::Dense(part) => part.matrices_mut(),
            FeedForwardWeights::Experts(part) => part.matrices_mut(),
            FeedForwardWeights::LatentExperts(part) => part.matrices_mut(),
            FeedForwardWeights::Both(part) => part.matrices_mut(),
        }
    }

    /// The formats of activations in which its input is packed.
    pub(crate) fn input_formats(&self) -> ActivationFormats {
        match self {
            FeedForwardWeights::Dense(part) => part.input_formats(),
            FeedForwardWeights::Experts(part) => part.input_formats(),
            FeedForwardWeights::LatentExperts(part) => part.input_formats(),
            FeedForwardWeights::Both(part) => part.input_formats(),
        }
    }

    /// The bias of its output, `[hidden]`.
    pub(crate) fn output_bias(&self) -> Option<&[f32]> {
        match self {
            FeedForwardWeights::Dense(part) => part.down_bias.as_deref(),
            FeedForwardWeights::Experts(_)
            | FeedForwardWeights::LatentExperts(_)
            | FeedForwardWeights::Both(_) => None,
        }
    }

    /// Computes it on the step's packed input, into `y`.
    pub(crate) fn forward(&self, spec: &FeedForward, step: &mut Step<'_>) {
        match (self, spec) {
            (FeedForwardWeights::Dense(part), FeedForward::Dense(spec)) => part.forward(spec, step),
            (FeedForwardWeights::Experts(part), FeedForward::Experts(spec)) => {
                part.forward(spec, step);
            }
            (FeedForwardWeights::LatentExperts(part), FeedForward::LatentExperts(spec)) => {
                part.forward(spec, step);
            }
            (FeedForwardWeights::Both(part), FeedForward::Both(spec)) => part.forward(spec, step),
            _ => unreachable!("weights are found by the layer's spec"),
        }
    }
}

impl Mixer {
    /// What it writes to.
    pub(crate) fn work(&self) -> WorkSize {
        match self {
            Mixer::Attention(spec) => spec.work(),
            Mixer::DeltaNet(spec) => spec.work(),
            Mixer::LatentAttention(spec) => spec.work(),
            Mixer::ShortConv(spec) => spec.work(),
            Mixer::Mamba2(spec) => spec.work(),
        }
    }

    /// The shape of a page of its keys and values, if it has any.
    pub(crate) fn kv_shape(&self) -> Option<KvShape> {
        match self {
            Mixer::Attention(spec) => spec.kv_layer.is_none().then(|| spec.kv_shape()),
            Mixer::DeltaNet(_) | Mixer::ShortConv(_) | Mixer::Mamba2(_) => None,
            Mixer::LatentAttention(spec) => Some(spec.kv_shape()),
        }
    }

    /// Whether it stores something that later tokens need.
    pub(crate) fn fills_cache(&self) -> bool {
        match self {
            Mixer::Attention(spec) => spec.kv_layer.is_none(),
            Mixer::DeltaNet(_)
            | Mixer::ShortConv(_)
            | Mixer::Mamba2(_)
            | Mixer::LatentAttention(_) => true,
        }
    }

    /// f32 elements that its partial results can take for a row that decodes, in a sequence of up to `context` tokens.
    pub(crate) fn most_partials(&self, context: usize) -> usize {
        match self {
            Mixer::Attention(spec) => spec.most_partials(context),
            Mixer::DeltaNet(_) | Mixer::ShortConv(_) | Mixer::Mamba2(_) => 0,
            Mixer::LatentAttention(spec) => spec.most_partials(context),
        }
    }

    /// f32 elements of its state; 0: it has none.
    pub(crate) fn state_len(&self) -> usize {
        match self {
            Mixer::Attention(_) | Mixer::LatentAttention(_) => 0,
            Mixer::DeltaNet(spec) => spec.state_len(),
            Mixer::ShortConv(spec) => spec.state_len(),
            Mixer::Mamba2(spec) => spec.state_len(),
        }
    }
}

impl FeedForward {
    /// What it writes to, beside a residual stream of `hidden` elements.
    pub(crate) fn work(&self, hidden: usize) -> WorkSize {
        match self {
            FeedForward::Dense(spec) => spec.work(),
            FeedForward::Experts(spec) => spec.work(),
            FeedForward::LatentExperts(spec) => spec.work(hidden),
            FeedForward::Both(spec) => spec.work(hidden),
        }
    }
}
