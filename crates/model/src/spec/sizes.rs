//! The sizes of every architecture, and layers that are uniform until the architecture changes them.

use alight_formats::gguf::Array;
use alight_kernels::rope::{RopeParams, RopeScaling};

use super::rope::long_context;
use super::{
    AttentionSpec, EmbeddingNorm, FeedForward, LayerSpec, LongContext, Mixer, ModelSpec, NormKind,
    NormSpec, Norms, SpecError,
};
use crate::keys::{Keys, MAX_CONTEXT, MAX_LAYERS, MAX_WIDTH};

/// The sizes that every architecture has.
pub(crate) struct Sizes {
    /// Layers of the network, without those that predict further tokens.
    pub(crate) layers: usize,
    /// Layers that predict further tokens.
    pub(crate) draft_layers: usize,
    pub(crate) hidden_size: usize,
    pub(crate) vocab: usize,
    pub(crate) context: usize,
    pub(crate) norm: NormSpec,
    pub(crate) long_context: LongContext,
}

impl Sizes {
    /// Reads the sizes, for a network whose norms are RMSNorm.
    ///
    /// # Errors
    /// A size that is missing, or that no model can have.
    pub(crate) fn read(keys: &Keys<'_, '_>) -> Result<Sizes, SpecError> {
        Sizes::read_with(keys, NormKind::Rms)
    }

    /// Reads the sizes, for a network with norms of kind `norm`.
    ///
    /// # Errors
    /// A size that is missing, or that no model can have.
    pub(crate) fn read_with(keys: &Keys<'_, '_>, norm: NormKind) -> Result<Sizes, SpecError> {
        let tokens = "tokenizer.ggml.tokens";
        let vocab = keys.gguf.require::<Array<'_>>(tokens)?.len();
        if vocab == 0 || vocab > i32::MAX as usize {
            return Err(SpecError::Value {
                key: tokens.into(),
                found: format!("an array of {vocab}"),
                expected: "1 to 2147483647 tokens".into(),
            });
        }
        let blocks = keys.dimension("block_count", MAX_LAYERS)?;
        let key = "nextn_predict_layers";
        let drafts = keys.get::<u64>(key)?.unwrap_or(0);
        if drafts >= blocks as u64 {
            return Err(keys.value(key, drafts, format!("fewer than the {blocks} blocks")));
        }
        let draft_layers = drafts as usize;
        let context = keys.dimension("context_length", MAX_CONTEXT)?;
        Ok(Sizes {
            layers: blocks - draft_layers,
            draft_layers,
            hidden_size: keys.dimension("embedding_length", MAX_WIDTH)?,
            vocab,
            context,
            norm: NormSpec::read(keys, norm)?,
            long_context: long_context(keys, context)?,
        })
    }

    /// A network whose layers all have the same attention, with the rotary embedding `rope`, and the same feed-forward part. An
    /// architecture then changes the parts that differ.
    pub(crate) fn uniform(
        self,
        keys: &Keys<'_, '_>,
        attention: AttentionSpec,
        feed_forward: impl Into<FeedForward>,
        rope: RopeParams,
    ) -> ModelSpec {
        self.of_layers(keys, Mixer::Attention(attention), feed_forward, rope)
    }

    /// The same with attention that does not rotate queries and keys.
    pub(crate) fn unrotated(
        self,
        keys: &Keys<'_, '_>,
        attention: AttentionSpec,
        feed_forward: impl Into<FeedForward>,
    ) -> ModelSpec {
        let rope = RopeParams { dims: 0, base: 1.0, scaling: RopeScaling::None };
        let attention = AttentionSpec { rope: None, ..attention };
        let mut spec = self.uniform(keys, attention, feed_forward, rope);
        spec.ropes.clear();
        spec
    }

    /// The same with `mixer` in all layers.
    pub(crate) fn of_layers(
        self,
        keys: &Keys<'_, '_>,
        mixer: Mixer,
        feed_forward: impl Into<FeedForward>,
        rope: RopeParams,
    ) -> ModelSpec {
        let mixers = std::iter::repeat_n(mixer, self.layers);
        self.of_mixers(keys, mixers, &feed_forward.into(), rope)
    }

    /// A network of layers with these mixers, whose attention has the rotary embedding `rope`, and the same feed-forward part.
    pub(crate) fn of_mixers(
        self,
        keys: &Keys<'_, '_>,
        mixers: impl Iterator<Item = Mixer>,
        feed_forward: &FeedForward,
        rope: RopeParams,
    ) -> ModelSpec {
        let layers = mixers
            .map(|mixer| LayerSpec::new(Some(mixer), Some(feed_forward.clone()), Norms::INPUTS));
        self.network(keys, layers.collect(), vec![rope])
    }

    /// A network of these layers and rotary embeddings.
    pub(crate) fn network(
        self,
        keys: &Keys<'_, '_>,
        layers: Vec<LayerSpec>,
        ropes: Vec<RopeParams>,
    ) -> ModelSpec {
        ModelSpec {
            architecture: keys.prefix,
            hidden_size: self.hidden_size,
            vocab: self.vocab,
            context: self.context,
            norm: self.norm,
            output_norm: Some(Norms::OF_NETWORK),
            has_output: true,
            pooling: None,
            classifier: None,
            projections: &["dense_2", "dense_3"],
            embedding_size: self.hidden_size,
            token_table: true,
            embedding_scale: 1.0,
            positions: None,
            segments: 0,
            embedding_norm: EmbeddingNorm::None,
            layer_prefix: "blk",
            layers,
            passes: 1,
            alt_up: false,
            ropes,
            long_context: self.long_context,
            draft_layers: self.draft_layers,
            mtp_layer: None,
            logit_scale: 1.0,
            logit_softcap: None,
            unread_keys: Vec::new(),
        }
    }
}
