//! The parts that layers are made of. One file holds all of a part: what describes it and how that is read from the
//! metadata, which tensors it has, what it writes to, and how it computes.
//!
//! A part computes from the packed input that the layer's norm has made, and leaves its output in the buffer `y`,
//! unapplied: bias, norm, scale and the addition to the residual stream are a [`Contribution`], which is carried out
//! together with the next norm.

pub(crate) mod alt_up;
pub(crate) mod attention;
mod convolution;
pub(crate) mod delta_net;
pub(crate) mod dense;
pub(crate) mod dense_and_experts;
pub(crate) mod experts;
pub(crate) mod latent_attention;
pub(crate) mod latent_experts;
pub(crate) mod laurel;
pub(crate) mod mamba2;
pub(crate) mod norm;
pub(crate) mod routing;
pub(crate) mod short_conv;
pub(crate) mod token_input;

use alight_kernels::attention::KvShape;
use alight_kernels::matmul::ActivationFormats;
use alight_kernels::{Isa, vec};

use self::attention::AttentionWeights;
use self::delta_net::DeltaNetWeights;
use self::dense::DenseWeights;
use self::dense_and_experts::DenseAndExpertsWeights;
use self::experts::ExpertsWeights;
use self::latent_attention::LatentAttentionWeights;
use self::latent_experts::LatentExpertsWeights;
use self::mamba2::Mamba2Weights;
use self::norm::Norm;
use self::short_conv::ShortConvWeights;
use crate::engine::{Step, WorkSize};
use crate::spec::{FeedForward, LayerSpec, Mixer};
use crate::weights::{LayerFinder, MatrixRef, WeightError};

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

/// The shape of a page of a mixer's keys and values, if it has any.
pub(crate) fn kv_shape(mixer: &Mixer) -> Option<KvShape> {
    match mixer {
        Mixer::Attention(spec) => spec.kv_layer.is_none().then(|| spec.kv_shape()),
        Mixer::DeltaNet(_) | Mixer::ShortConv(_) | Mixer::Mamba2(_) => None,
        Mixer::LatentAttention(spec) => Some(spec.kv_shape()),
    }
}

/// Whether a mixer stores something that later tokens need.
pub(crate) fn fills_cache(mixer: &Mixer) -> bool {
    match mixer {
        Mixer::Attention(spec) => spec.kv_layer.is_none(),
        Mixer::DeltaNet(_) | Mixer::ShortConv(_) | Mixer::Mamba2(_) | Mixer::LatentAttention(_) => {
            true
        }
    }
}

/// f32 elements that a mixer's partial results can take for a row that decodes, in a sequence of up to `context` tokens.
pub(crate) fn most_partials(mixer: &Mixer, context: usize) -> usize {
    match mixer {
        Mixer::Attention(spec) => spec.most_partials(context),
        Mixer::DeltaNet(_) | Mixer::ShortConv(_) | Mixer::Mamba2(_) => 0,
        Mixer::LatentAttention(spec) => spec.most_partials(context),
    }
}

/// f32 elements of a mixer's state; 0: it has none.
pub(crate) fn state_len(mixer: &Mixer) -> usize {
    match mixer {
        Mixer::Attention(_) | Mixer::LatentAttention(_) => 0,
        Mixer::DeltaNet(spec) => spec.state_len(),
        Mixer::ShortConv(spec) => spec.state_len(),
        Mixer::Mamba2(spec) => spec.state_len(),
    }
}

/// What a layer's parts write to.
pub(crate) fn work(layer: &LayerSpec, hidden: usize) -> WorkSize {
    let mixer = layer.mixer.as_ref().map(|mixer| match mixer {
        Mixer::Attention(spec) => spec.work(),
        Mixer::DeltaNet(spec) => spec.work(),
        Mixer::LatentAttention(spec) => spec.work(),
        Mixer::ShortConv(spec) => spec.work(),
        Mixer::Mamba2(spec) => spec.work(),
    });
    let feed_forward = layer.feed_forward.as_ref().map(|feed_forward| match feed_forward {
        FeedForward::Dense(spec) => spec.work(),
        FeedForward::Experts(spec) => spec.work(),
        FeedForward::LatentExperts(spec) => spec.work(hidden),
        FeedForward::Both(spec) => spec.work(hidden),
    });
    let beside = [laurel::work(layer.laurel), token_input::work(layer.token_input)].map(Some);
    let parts = [mixer, feed_forward].into_iter().chain(beside);
    parts.flatten().fold(WorkSize::default(), WorkSize::max)
}
