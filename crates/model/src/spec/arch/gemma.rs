//! What the Gemmas have in common: norms on both sides of attention and feed-forward, a scaled embedding, GELU, NeoX
//! rotary pairs, soft caps, and layers with a sliding window between layers without one.

use alight_formats::gguf::Value;
use alight_kernels::rope::{RopePairing, RopeParams};

use crate::parts::attention::AttentionSpec;
use crate::parts::dense::{Activation, DenseSpec};
use crate::spec::keys::Keys;
use crate::spec::sizes::Sizes;
use crate::spec::{Mixer, ModelSpec, SpecError};

/// What one Gemma has that another has not.
pub(super) struct Gemma {
    /// The number of layers of the one size whose factor on q·k follows from the hidden size and not from the head's
    /// length. No key says so: llama.cpp goes by the number of layers too.
    pub(super) layers_of_27b: usize,
    /// The window where the file does not say; 0 is none.
    pub(super) window: usize,
    /// The last layer of every so many has no window where the file does not say; 0: all have one.
    pub(super) period: usize,
    /// Soft caps of scores and logits where the file does not say; 0 is none.
    pub(super) attention_cap: f32,
    pub(super) logit_cap: f32,
    /// Whether queries and keys are normed per head.
    pub(super) head_norms: bool,
    /// The rotary embedding of layers with a window, given that of the others and the file's base for it, if any.
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
            head_norms: self.head_norms,
            ..found
        };
        let dense = DenseSpec { activation: Activation::GeluTanh, ..DenseSpec::read(keys)? };
        let rope = crate::spec::rope::rope(keys, attention.key_dim, sizes.context)?;
        let mut spec = sizes.uniform(keys, attention, dense, rope);
        spec.embedding_scale = (spec.hidden_size as f32).sqrt();
        spec.logit_softcap = cap(keys, "final_logit_softcapping", self.logit_cap)?;
        spec.layers.iter_mut().for_each(|layer| layer.post_norms = true);
        if let Some(window) = window(keys, self.window)? {
            let base = keys.float("rope.freq_base_swa", 1.0..1e30, "from 1 to 1e30")?;
            spec.ropes.push((self.window_rope)(&spec.ropes[0], base));
            let windowed = pattern(keys, spec.layers.len(), self.period)?;
            for (layer, _) in spec.layers.iter_mut().zip(windowed).filter(|(_, has)| *has) {
                let Mixer::Attention(attention) = &mut layer.mixer;
                attention.window = Some(window);
                attention.rope = Some(1);
            }
        }
        Ok(spec)
    }
}

/// A soft cap; 0 is none.
fn cap(keys: &Keys<'_, '_>, key: &str, default: f32) -> Result<Option<f32>, SpecError> {
    let cap = keys.float(key, 0.0..1e9, "a number that is not negative")?.unwrap_or(default);
    Ok(Some(cap).filter(|cap| *cap > 0.0))
}

/// The sliding window; 0 is none.
fn window(keys: &Keys<'_, '_>, default: usize) -> Result<Option<usize>, SpecError> {
    let window = match keys.get::<u64>("attention.sliding_window")? {
        None => default,
        // A window beyond any context is no window, but keeps the layers' rotary embedding.
        Some(window) => usize::try_from(window).unwrap_or(usize::MAX).min(1 << 30),
    };
    Ok(Some(window).filter(|window| *window > 0))
}

/// Which layers have a sliding window: the file's list of flags, or all but the last of its period (0: all layers).
fn pattern(keys: &Keys<'_, '_>, layers: usize, default: usize) -> Result<Vec<bool>, SpecError> {
    let key = "attention.sliding_window_pattern";
    let period = match keys.gguf.get(&keys.name(key)) {
        Some(Value::Array(array)) => {
            let flags: Vec<bool> = match (array.iter_bool(), array.iter_int()) {
                (Some(flags), _) => flags.collect(),
                (_, Some(numbers)) => numbers.map(|number| number != 0).collect(),
                _ => Vec::new(),
            };
            if flags.len() < layers {
                let found = format!("an array of {} flags", flags.len());
                return Err(keys.value(key, found, format!("{layers}, one per layer")));
            }
            return Ok(flags[..layers].to_vec());
        }
        Some(_) => keys.get::<u32>(key)?.map_or(default, |period| period as usize),
        None => default,
    };
    Ok((0..layers).map(|layer| period == 0 || layer % period < period - 1).collect())
}
