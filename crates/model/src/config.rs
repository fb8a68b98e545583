//! Hyper-parameters: what the metadata says about the network, checked.
//!
//! A [`Config`] that exists is one the forward pass can run on: every dimension is positive and
//! bounded, heads divide as they must, and every float is finite and of the right sign. What
//! differs between architectures is data here, filled in by [`crate::arch`].

use alight_formats::gguf::{FromValue, Gguf, Value};
use alight_kernels::rope::{RopePairing, RopeParams, RopeScaling, yarn_magnitude};

pub use crate::arch::Architecture;
use crate::error::ConfigError;

/// Limits far above any model, which keep products of two dimensions far below overflow.
const MAX_LAYERS: usize = 4096;
const MAX_WIDTH: usize = 1 << 20;
const MAX_CONTEXT: usize = 1 << 30;

/// The activation of the feed-forward gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// x · sigmoid(x).
    Silu,
    /// GELU in its tanh form.
    GeluTanh,
}

/// What the layers with a sliding window do differently.
#[derive(Clone, Debug, PartialEq)]
pub struct Local {
    /// A token sees itself and the `window − 1` positions before it.
    pub window: usize,
    /// Their rotary embedding.
    pub rope: RopeParams,
    /// Which layers they are, `[layers]`.
    pub layers: Vec<bool>,
}

/// The shape of a network and what its blocks do.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Whose rules apply.
    pub architecture: Architecture,
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub embedding: usize,
    /// Width of the feed-forward layer.
    pub feed_forward: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Length of a query or key.
    pub key_dim: usize,
    /// Length of a value.
    pub value_dim: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Positions that the model was trained for.
    pub context: usize,
    /// Added to the mean square in every RMSNorm.
    pub rms_eps: f32,
    /// Rotary embedding (of the global layers, where there are local ones). If the file has a
    /// `rope_freqs` tensor, its factors are in here.
    pub rope: RopeParams,
    /// Which elements of a head rotate together.
    pub rope_pairing: RopePairing,
    /// Layers with a sliding window, if there are any.
    pub local: Option<Local>,
    /// Factor on the embedding row.
    pub embedding_scale: f32,
    /// Factor on q·k.
    pub attention_scale: f32,
    /// Soft cap of attention scores.
    pub attention_softcap: Option<f32>,
    /// Soft cap of the logits.
    pub logit_softcap: Option<f32>,
    /// The gate's activation.
    pub gate: Gate,
    /// Whether queries and keys are normed per head.
    pub qk_norm: bool,
    /// Whether the outputs of attention and feed-forward are normed before they are added.
    pub post_norms: bool,
}

impl Config {
    /// Reads and checks the metadata of a model.
    ///
    /// # Errors
    /// The first key that is missing, of the wrong type, or has a value that no model can have;
    /// an architecture or a feature that there is no code for.
    pub fn from_gguf(gguf: &Gguf<'_>) -> Result<Config, ConfigError> {
        let name: &str = gguf.require("general.architecture")?;
        let architecture = Architecture::from_name(name)?;
        let keys = Keys { gguf, prefix: architecture.name() };

        let layers = keys.dimension("block_count", MAX_LAYERS)?;
        let embedding = keys.dimension("embedding_length", MAX_WIDTH)?;
        let feed_forward = keys.dimension("feed_forward_length", MAX_WIDTH)?;
        let context = keys.dimension("context_length", MAX_CONTEXT)?;
        let heads = keys.dimension("attention.head_count", MAX_WIDTH)?;
        let kv_heads =
            keys.optional_dimension("attention.head_count_kv", MAX_WIDTH)?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(keys.value(
                "attention.head_count_kv",
                kv_heads,
                format!("a divisor of the {heads} query heads"),
            ));
        }
        let head_dim = |key| match keys.optional_dimension(key, MAX_WIDTH)? {
            Some(dim) => Ok(dim),
            None if embedding.is_multiple_of(heads) => Ok(embedding / heads),
            None => Err(keys.value(
                "attention.head_count",
                heads,
                format!("a divisor of the embedding length {embedding}"),
            )),
        };
        let key_dim = head_dim("attention.key_length")?;
        let value_dim = head_dim("attention.value_length")?;
        for (key, dim) in [("attention.key_length", key_dim), ("attention.value_length", value_dim)]
        {
            if heads * dim > MAX_WIDTH {
                let most = MAX_WIDTH / heads;
                return Err(keys.value(key, dim, format!("at most {most} for {heads} heads")));
            }
        }
        for key in ["expert_count", "expert_used_count"] {
            if let Some(found) = keys.get::<u64>(key)?.filter(|n| *n > 0) {
                return Err(keys.unsupported(key, found, "a mixture of experts"));
            }
        }
        let vocab = gguf.require::<alight_formats::gguf::Array<'_>>("tokenizer.ggml.tokens")?.len();
        if vocab == 0 || vocab > i32::MAX as usize {
            return Err(ConfigError::Value {
                key: "tokenizer.ggml.tokens".into(),
                found: format!("an array of {vocab}"),
                expected: "1 to 2147483647 tokens".into(),
            });
        }
        let config = Config {
            architecture,
            layers,
            embedding,
            feed_forward,
            heads,
            kv_heads,
            key_dim,
            value_dim,
            vocab,
            context,
            rms_eps: keys
                .float("attention.layer_norm_rms_epsilon", 0.0..1.0, "from 0 to below 1")?
                .ok_or_else(|| keys.missing("attention.layer_norm_rms_epsilon"))?,
            rope: rope(&keys, key_dim, context)?,
            rope_pairing: RopePairing::Interleaved,
            local: None,
            embedding_scale: 1.0,
            attention_scale: 1.0 / (key_dim as f32).sqrt(),
            attention_softcap: None,
            logit_softcap: None,
            gate: Gate::Silu,
            qk_norm: false,
            post_norms: false,
        };
        architecture.configure(config, &keys)
    }

    /// Query heads per key/value head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Whether a layer has a sliding window.
    pub fn is_local(&self, layer: usize) -> bool {
        self.local.as_ref().is_some_and(|local| local.layers[layer])
    }
}

/// The rotary embedding that the keys describe.
fn rope(keys: &Keys<'_, '_>, key_dim: usize, context: usize) -> Result<RopeParams, ConfigError> {
    let key = "rope.dimension_count";
    let dims = keys.optional_dimension(key, MAX_WIDTH)?.unwrap_or(key_dim);
    if dims > key_dim || !dims.is_multiple_of(2) {
        let key = if keys.get::<u64>(key)?.is_some() { key } else { "attention.key_length" };
        return Err(keys.value(key, dims, format!("an even number up to the head's {key_dim}")));
    }
    let positive = |key, range| keys.float(key, range, "a positive number");
    let base = keys.float("rope.freq_base", 1.0..1e30, "from 1 to 1e30")?.unwrap_or(10_000.0);
    let factor = match positive("rope.scaling.factor", 1e-6..1e9)? {
        Some(factor) => Some(factor),
        None => positive("rope.scale_linear", 1e-6..1e9)?,
    }
    .unwrap_or(1.0);
    let key = "rope.scaling.type";
    let scaling = match keys.get::<&str>(key)?.unwrap_or("linear") {
        "none" => RopeScaling::None,
        "linear" if factor == 1.0 => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor },
        "yarn" => {
            let original = "rope.scaling.original_context_length";
            if base <= 1.0 {
                return Err(keys.value("rope.freq_base", base, "above 1 for YaRN".into()));
            }
            // Either a factor on YaRN's own magnitude, or (Hugging Face's `attention_factor`, which
            // llama.cpp writes and leaves unread) the magnitude itself.
            let attn_factor = match positive("rope.scaling.yarn_attn_factor", 1e-6..1e6)? {
                Some(magnitude) => magnitude / yarn_magnitude(f64::from(factor)) as f32,
                None => positive("rope.scaling.attn_factor", 1e-6..1e6)?.unwrap_or(1.0),
            };
            RopeScaling::Yarn {
                factor,
                orig_ctx: keys.optional_dimension(original, MAX_CONTEXT)?.unwrap_or(context),
                ext_factor: 1.0,
                attn_factor,
                beta_fast: positive("rope.scaling.yarn_beta_fast", 1e-6..1e6)?.unwrap_or(32.0),
                beta_slow: positive("rope.scaling.yarn_beta_slow", 1e-6..1e6)?.unwrap_or(1.0),
            }
        }
        other => return Err(keys.unsupported(key, other, "this RoPE scaling")),
    };
    Ok(RopeParams { dims, base, scaling })
}

/// The metadata under an architecture's prefix.
pub(crate) struct Keys<'g, 'a> {
    pub(crate) gguf: &'g Gguf<'a>,
    pub(crate) prefix: &'static str,
}

impl<'a> Keys<'_, 'a> {
    /// The full name of a key.
    pub(crate) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    /// The value of a key, if it is there.
    pub(crate) fn get<T: FromValue<'a>>(&self, key: &str) -> Result<Option<T>, ConfigError> {
        Ok(self.gguf.value(&self.name(key))?)
    }

    /// A whole number from 1 to `most` that has to be there.
    pub(crate) fn dimension(&self, key: &str, most: usize) -> Result<usize, ConfigError> {
        self.optional_dimension(key, most)?.ok_or_else(|| self.missing(key))
    }

    /// A whole number from 1 to `most`. Some writers give an array with one value per layer; it
    /// is taken if all are equal.
    pub(crate) fn optional_dimension(
        &self,
        key: &str,
        most: usize,
    ) -> Result<Option<usize>, ConfigError> {
        let found = match self.gguf.get(&self.name(key)) {
            None => return Ok(None),
            Some(Value::Array(array)) => {
                let mut values = array.iter_int().into_iter().flatten();
                let Some(first) = values.next() else {
                    return Err(self.value(key, "an array without integers", bounds(most)));
                };
                if values.any(|value| value != first) {
                    let what = "a value that differs between layers";
                    return Err(self.unsupported(key, "an array", what));
                }
                first
            }
            Some(_) => i128::from(self.get::<i64>(key)?.unwrap_or(0)),
        };
        match usize::try_from(found) {
            Ok(value) if (1..=most).contains(&value) => Ok(Some(value)),
            _ => Err(self.value(key, found, bounds(most))),
        }
    }

    /// A finite float in `range` (the start included), if the key is there.
    pub(crate) fn float(
        &self,
        key: &str,
        range: std::ops::Range<f32>,
        expected: &str,
    ) -> Result<Option<f32>, ConfigError> {
        match self.get::<f32>(key)? {
            Some(value) if !range.contains(&value) => Err(self.value(key, value, expected.into())),
            value => Ok(value),
        }
    }

    pub(crate) fn missing(&self, key: &str) -> ConfigError {
        let key = self.name(key).into();
        ConfigError::Header(alight_formats::gguf::GgufError::MissingKey { key })
    }

    pub(crate) fn value(&self, key: &str, found: impl ToString, expected: String) -> ConfigError {
        ConfigError::Value { key: self.name(key), found: found.to_string(), expected }
    }

    pub(crate) fn unsupported(
        &self,
        key: &str,
        found: impl ToString,
        what: &'static str,
    ) -> ConfigError {
        let found = found.to_string().escape_debug().to_string();
        ConfigError::Unsupported { key: self.name(key), found, what }
    }
}

fn bounds(most: usize) -> String {
    format!("1 to {most}")
}
