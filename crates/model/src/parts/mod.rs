//! The parts of layers. Each part has one file, with its description and how that is read from the metadata, its tensors, its
//! buffers, and its computation.
//!
//! A part computes on the packed input from the layer's norm, and leaves its output in the buffer `y`, unapplied: bias, norm,
//! scale and the addition to the residual stream are a [`Contribution`], which is applied together with the next norm.

pub(crate) mod alt_up;
pub(crate) mod attention;
pub(crate) mod batch;
pub(crate) mod buffers;
pub(crate) mod channel_mix;
pub(crate) mod compute;
mod convolution;
pub(crate) mod delta_net;
pub(crate) mod dense;
pub(crate) mod dense_and_experts;
pub(crate) mod experts;
pub(crate) mod kda;
pub(crate) mod latent_attention;
pub(crate) mod latent_experts;
pub(crate) mod laurel;
pub(crate) mod mamba;
pub(crate) mod mamba2;
pub(crate) mod projection;
pub(crate) mod routing;
pub(crate) mod row_adapters;
pub(crate) mod rwkv;
pub(crate) mod rwkv6;
pub(crate) mod score_bias;
pub(crate) mod short_conv;
pub(crate) mod step;
pub(crate) mod token_input;
mod token_shift;
pub(crate) mod two_mixers;

use std::fmt::Debug;

use alight_kernels::attention::KvShape;
use alight_kernels::matmul::ActivationFormats;
use alight_kernels::{Isa, vec};

use self::attention::AttentionSpec;
use self::buffers::WorkSize;
use self::channel_mix::ChannelMixSpec;
use self::delta_net::DeltaNetSpec;
use self::dense::DenseSpec;
use self::dense_and_experts::DenseAndExpertsSpec;
use self::experts::{Experts, ExpertsSpec};
use self::kda::KdaSpec;
use self::latent_attention::LatentAttentionSpec;
use self::latent_experts::LatentExpertsSpec;
use self::mamba::MambaSpec;
use self::mamba2::Mamba2Spec;
use self::projection::ProjectionSpec;
use self::rwkv::Rwkv7Spec;
use self::rwkv6::Rwkv6Spec;
use self::short_conv::ShortConvSpec;
use self::step::Step;
use self::two_mixers::TwoMixersSpec;
use crate::norm::Norm;
use crate::tensors::{LayerFinder, Linear, MatrixRef, WeightError};

/// The part of a layer that looks at other positions.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Softmax attention over keys and values in the cache.
    Attention(AttentionSpec),
    /// A gated delta net, which carries a state from token to token.
    DeltaNet(DeltaNetSpec),
    /// Softmax attention over one short row in the cache, from which keys and values of all heads are derived.
    LatentAttention(LatentAttentionSpec),
    /// A short convolution, which carries its last inputs from token to token.
    ShortConv(ShortConvSpec),
    /// Mamba-2, which carries a state from token to token.
    Mamba2(Mamba2Spec),
    /// Mamba, which carries a state from token to token.
    Mamba(MambaSpec),
    /// Kimi delta attention, which carries a state from token to token.
    Kda(KdaSpec),
    /// The mixer of RWKV-7, which carries a state from token to token.
    Rwkv7(Rwkv7Spec),
    /// The mixer of RWKV-6, which carries a state from token to token.
    Rwkv6(Rwkv6Spec),
    /// Attention and Mamba-2 next to each other.
    Two(Box<TwoMixersSpec>),
    /// A projection, which looks at no other position.
    Projection(ProjectionSpec),
}

/// The cost in a layer of a token and one position that it attends to.
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
    /// A dense part and a mixture of experts, next to each other.
    Both(DenseAndExpertsSpec),
    /// RWKV's, which sees the token before.
    ChannelMix(ChannelMixSpec),
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

/// How the output of a part, in `y`, is added to the residual stream: `z = sum_norm(output_scale · (x + scale · norm(y)))`, and `x = z` or
/// `x = second_norm(x + z)`.
#[derive(Clone, Copy)]
pub(crate) struct Contribution<'m> {
    /// `[hidden]`
    pub(crate) norm: Option<&'m Norm>,
    pub(crate) scale: f32,
    /// Factor on the residual stream afterwards.
    pub(crate) output_scale: f32,
    /// `[hidden]`, of the residual stream after that.
    pub(crate) sum_norm: Option<&'m Norm>,
    /// `[hidden]`, of the sum of that and of the residual stream as it was.
    pub(crate) second_norm: Option<&'m Norm>,
}

impl Contribution<'_> {
    /// Adds one row, `[hidden]` each. `y` is overwritten.
    pub(crate) fn add_to(&self, isa: Isa, x: &mut [f32], y: &mut [f32]) {
        if let Some(norm) = self.norm {
            norm.apply(isa, y);
        }
        if self.scale != 1.0 {
            vec::scale(isa, y, self.scale);
        }
        if let Some(second) = self.second_norm {
            vec::add_assign(isa, y, x);
            if let Some(norm) = self.sum_norm {
                norm.apply(isa, y);
            }
            vec::add_assign(isa, x, y);
            second.apply(isa, x);
            return;
        }
        vec::add_assign(isa, x, y);
        if self.output_scale != 1.0 {
            vec::scale(isa, x, self.output_scale);
        }
        if let Some(norm) = self.sum_norm {
            norm.apply(isa, x);
        }
    }
}

/// A part of a layer, ready to compute: its description and its tensors.
pub(crate) trait Part: Debug + Send + Sync {
    /// Returns its projections, in the order of use: all that its products are computed with.
    fn linears(&self) -> Vec<&Linear>;

    /// Returns the same for modification.
    fn linears_mut(&mut self) -> Vec<&mut Linear>;

    /// Returns the matrices of its projections, in the order of use.
    fn matrices(&self) -> Vec<&MatrixRef> {
        self.linears().into_iter().flat_map(Linear::matrices).collect()
    }

    /// Returns the same for modification.
    fn matrices_mut(&mut self) -> Vec<&mut MatrixRef> {
        self.linears_mut().into_iter().flat_map(Linear::matrices_mut).collect()
    }

    /// Returns the formats of activations in which its input is packed.
    fn input_formats(&self) -> ActivationFormats;

    /// Returns its mixture of experts, if the choice can be guessed from the input of an earlier layer.
    fn experts(&self) -> Option<&Experts> {
        None
    }

    /// Chooses what it will compute by the residual stream before the layer's mixer, to which it first adds `pending`, if it does that then. Returns true if
    /// it does.
    fn route_early(&self, _pending: Option<Contribution<'_>>, _step: &mut Step<'_>) -> bool {
        false
    }

    /// Computes it on the step's packed input, into `y`. A mixer in the last layer keeps only the wanted rows; if there are none,
    /// it stops when the cache is filled.
    fn forward(&self, step: &mut Step<'_>);
}

/// The description of a part.
pub(crate) trait PartSpec {
    /// Finds the tensors of the part.
    ///
    /// # Errors
    /// A tensor is missing, or of the wrong shape or type.
    fn find(
        &self,
        find: &LayerFinder<'_, '_, '_>,
        hidden: usize,
    ) -> Result<Box<dyn Part>, WeightError>;

    /// Returns the sizes of its buffers, in addition to a residual stream of `hidden` elements.
    fn work(&self, hidden: usize) -> WorkSize;
}

/// The description of a part that looks at other positions.
pub(crate) trait MixerSpec: PartSpec {
    /// Returns the shape of a page of its keys and values, if it stores any.
    fn kv_shape(&self) -> Option<KvShape> {
        None
    }

    /// Returns the f32 elements of its state; 0 if it has none.
    fn state_len(&self) -> usize {
        0
    }

    /// Returns the maximum f32 elements of its partial results for a row that decodes, in a sequence of up to `context` tokens.
    fn most_partials(&self, _context: usize) -> usize {
        0
    }

    /// Returns the cost of a token and one position that it attends to, if it attends to any.
    fn attended(&self) -> Option<Attended> {
        None
    }

    /// Returns the elements of a row that it leaves in the buffer `streams` for the same part of later layers.
    fn carried(&self) -> usize {
        0
    }

    /// Returns true if it stores data that later tokens need.
    fn fills_cache(&self) -> bool {
        self.kv_shape().is_some() || self.state_len() > 0
    }
}

/// The description of a part that works on each position alone.
pub(crate) trait FeedForwardSpec: PartSpec {
    /// Returns the network that all tokens go through, if there is one (next to experts, or instead of them).
    fn dense(&self) -> Option<&DenseSpec> {
        None
    }

    /// Returns its mixture of experts, if there is one.
    fn experts(&self) -> Option<&ExpertsSpec> {
        None
    }
}

impl Mixer {
    /// Returns its description. Mixers are registered here.
    pub(crate) fn spec(&self) -> &dyn MixerSpec {
        match self {
            Mixer::Attention(spec) => spec,
            Mixer::DeltaNet(spec) => spec,
            Mixer::LatentAttention(spec) => spec,
            Mixer::ShortConv(spec) => spec,
            Mixer::Mamba2(spec) => spec,
            Mixer::Mamba(spec) => spec,
            Mixer::Kda(spec) => spec,
            Mixer::Rwkv7(spec) => spec,
            Mixer::Rwkv6(spec) => spec,
            Mixer::Two(spec) => &**spec,
            Mixer::Projection(spec) => spec,
        }
    }
}

impl FeedForward {
    /// Returns its description. Feed-forward parts are registered here.
    pub(crate) fn spec(&self) -> &dyn FeedForwardSpec {
        match self {
            FeedForward::Dense(spec) => spec,
            FeedForward::Experts(spec) => spec,
            FeedForward::LatentExperts(spec) => spec,
            FeedForward::Both(spec) => spec,
            FeedForward::ChannelMix(spec) => spec,
        }
    }
}
