//! What a network is, as data: its layers, each with its parts, read from the metadata and checked.
//!
//! A [`ModelSpec`] that exists is one that the forward pass can run: every dimension is positive and bounded, heads
//! divide as they must, and every float is finite and of the right sign. An architecture (`arch`) is one file that
//! makes a `ModelSpec` of the metadata; the parts that it may use are in `parts`, each with the reading of its
//! own keys.

pub(crate) mod arch;
mod error;
pub(crate) mod keys;
pub(crate) mod rope;
pub(crate) mod sizes;

use alight_formats::gguf::Gguf;
use alight_kernels::rope::RopeParams;

pub use self::arch::{Architecture, architectures};
pub use self::error::SpecError;
use self::keys::Keys;
pub use crate::parts::attention::AttentionSpec;
pub use crate::parts::dense::{Activation, DenseSpec};

/// A network: sizes, layers, and what comes before and after them.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// What `general.architecture` calls it.
    pub architecture: &'static str,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Positions that the model was trained for.
    pub context: usize,
    /// Added to the mean square in every RMSNorm.
    pub norm_eps: f32,
    /// Factor on the rows of the embedding.
    pub embedding_scale: f32,
    /// The layers, in order.
    pub layers: Vec<LayerSpec>,
    /// The rotary embeddings that layers refer to by their index. If the file has a `rope_freqs` tensor, its factors
    /// are in the first.
    pub ropes: Vec<RopeParams>,
    /// Factor on the logits.
    pub logit_scale: f32,
    /// Soft cap of the logits.
    pub logit_softcap: Option<f32>,
}

/// A layer: `x += residual_scale · mixer(norm(x))`, then the same with the feed-forward part.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// What exchanges information between positions.
    pub mixer: Mixer,
    /// What computes on each position by itself.
    pub feed_forward: FeedForward,
    /// What the file calls the norm before the feed-forward part: `ffn_norm`, but some architectures have
    /// `post_attention_norm` there, which elsewhere is the norm of the mixer's output.
    pub feed_forward_norm: &'static str,
    /// Whether the outputs of both are normed before they are added.
    pub post_norms: bool,
    /// Factor on both outputs before they are added.
    pub residual_scale: f32,
}

/// The part of a layer that looks at other positions.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Softmax attention over keys and values in the cache.
    Attention(AttentionSpec),
}

/// The part of a layer that works on each position alone.
#[derive(Clone, Debug, PartialEq)]
pub enum FeedForward {
    /// One gated network for all tokens.
    Dense(DenseSpec),
}

impl ModelSpec {
    /// Reads and checks the metadata of a model.
    ///
    /// # Errors
    /// The first key that is missing, of the wrong type, or has a value that no model can have; an architecture or a
    /// feature that there is no code for.
    pub fn from_gguf(gguf: &Gguf<'_>) -> Result<ModelSpec, SpecError> {
        let architecture = arch::named(gguf.require("general.architecture")?)?;
        (architecture.read)(&Keys { gguf, prefix: architecture.name })
    }

    /// The attention parts of the layers that have one.
    pub fn attention_layers(&self) -> impl Iterator<Item = &AttentionSpec> {
        self.layers.iter().map(|layer| match &layer.mixer {
            Mixer::Attention(attention) => attention,
        })
    }

    /// The dense feed-forward parts of the layers that have one.
    pub fn dense_layers(&self) -> impl Iterator<Item = &DenseSpec> {
        self.layers.iter().map(|layer| match &layer.feed_forward {
            FeedForward::Dense(dense) => dense,
        })
    }
}
