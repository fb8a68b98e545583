//! `gemma`: the first Gemma, with a scaled embedding, GELU, and NeoX rotary pairs. And the common parts of the later Gemmas: norms on both sides of attention and feed-forward, a scaled embedding, GELU, NeoX rotary
//! pairs, soft caps, and layers with a sliding window between layers without one.

use alight_kernels::rope::{RopePairing, RopeParams};

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::{Activation, DenseSpec};
use crate::spec::sizes::Sizes;
use crate::spec::window::{set_windows, window, windowed_layers};
use crate::spec::{ModelSpec, Norms, QkNorm};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "gemma", read: first };

fn first(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec { pairing: RopePairing::NeoX, ..AttentionSpec::read(keys)? };
    let dense = DenseSpec { activation: Activation::GeluTanh, ..DenseSpec::read(keys)? };
    let rope = crate::spec::rope::rope(keys, attention.key_dim, sizes.context)?;
    let mut spec = sizes.uniform(keys, attention, dense, rope);
    spec.embedding_scale = (spec.hidden_size as f32).sqrt();
    Ok(spec)
}

/// The differences between the later Gemmas.
pub(super) struct Gemma {
    /// The number of layers of the one size whose factor on q·k follows from the hidden size instead of the head's length. No key
    /// states this: llama.cpp uses the number of layers too.
    pub(super) layers_of_27b: usize,
    /// The window if the file does not state it; 0: none.
    pub(super) window: usize,
    /// The last layer of each period of this length has no window, if the file does not state it; 0: all layers have one.
    pub(super) period: usize,
    /// Soft caps of scores and logits if the file does not state them; 0: none.
    pub(super) attention_cap: f32,
    pub(super) logit_cap: f32,
    /// The elements of queries and keys that are normed together.
    pub(super) qk_norm: QkNorm,
    /// The rotary embedding of layers with a window, given that of the other layers and the file's base for it, if any.
    pub(super) window_rope: fn(&RopeParams, Option<f32>) -> RopeParams,
}

impl Gemma {
    /// The network that the keys describe.
    pub(super) fn read(&self, keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
        let sizes = Sizes::read(keys)?;
        let found = AttentionSpec::read(keys)?;
        let scale = if sizes.layers == self.layers_of_27b {
            1.0 / ((sizes.hidden_size / found.heads) as f32).sqrt()
        } else {
            found.scale
        };
        let attention = AttentionSpec {
            pairing: RopePairing::NeoX,
            scale,
            softcap: cap(keys, "attn_logit_softcapping", self.attention_cap)?,
            qk_norm: self.qk_norm,
            ..found
        };
        let dense = DenseSpec { activation: Activation::GeluTanh, ..DenseSpec::read(keys)? };
        let rope = crate::spec::rope::rope(keys, attention.key_dim, sizes.context)?;
        let mut spec = sizes.uniform(keys, attention, dense, rope);
        spec.embedding_scale = (spec.hidden_size as f32).sqrt();
        spec.logit_softcap = cap(keys, "final_logit_softcapping", self.logit_cap)?;
        spec.layers.iter_mut().for_each(|layer| layer.norms = Norms::BOTH);
        if let Some(window) = window(keys, self.window)? {
            let base = keys.float("rope.freq_base_swa", 1.0..1e30, "from 1 to 1e30")?;
            let rope = (self.window_rope)(&spec.ropes[0], base);
            let windowed = windowed_layers(keys, spec.layers.len(), self.period)?;
            set_windows(&mut spec, window, &windowed, rope);
        }
        Ok(spec)
    }
}

/// A soft cap; 0: none.
pub(super) fn cap(keys: &Keys<'_, '_>, key: &str, default: f32) -> Result<Option<f32>, SpecError> {
    let cap = keys.float(key, 0.0..1e9, "a number that is not negative")?.unwrap_or(default);
    Ok(Some(cap).filter(|cap| *cap > 0.0))
}
