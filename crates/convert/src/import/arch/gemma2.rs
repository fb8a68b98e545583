//! `Gemma2ForCausalLM`: norms before and after attention and feed-forward, soft caps, a sliding
//! window in every other layer. Norms multiply by their weight plus one; in GGUF the one is already
//! added.

use serde_json::Value;

use super::config::Config;
use super::describe::{
    Architecture, Defaults, Dimensions, FOUR_NORMS, Group, MATRICES, More, OUTPUT_NORM, Own, RMS,
    USUAL,
};
use super::window::{Local, write};
use crate::ConvertError;
use crate::import::tensor::Entry;

/// The size (27B) whose attention is scaled by hidden size / heads instead of the head's own
/// length. GGUF has no key for it: readers recognise it by the number of layers.
const LAYERS_OF_27B: u64 = 46;

pub(super) const GEMMA2: Architecture = Architecture {
    gguf: "gemma2",
    classes: &["Gemma2ForCausalLM", "Gemma2Model"],
    model_types: &["gemma2"],
    fits: |_| true,
    naming: USUAL,
    defaults: Defaults {
        hidden: 2304,
        feed_forward: 9216,
        layers: 26,
        heads: 8,
        kv_heads: Some(4),
        head_length: Some(256),
        context: 8192,
        eps: 1e-6,
        theta: 10_000.0,
        local_theta: None,
        tied: true,
        partial: None,
        scalings: &[],
    },
    activation: ("hidden_activation", "gelu_pytorch_tanh"),
    layer: &[Group::always(FOUR_NORMS), Group::always(MATRICES)],
    outside: &[OUTPUT_NORM],
    more: |_, _| Ok(More::default()),
    experts: None,
    quantised: None,
    permuted: false,
    norm_add: 1.0,
    own_head_length: true,
    latent: false,
    eps_key: "rms_norm_eps",
    norm: RMS,
    own_output: false,
    never: &["attention_bias", "use_bidirectional_attention"],
    others: &[],
    keys,
};

fn keys(config: &Config, dimensions: &Dimensions, own: &mut Own) -> Result<(), ConvertError> {
    scale(config, dimensions, LAYERS_OF_27B)?;
    let attention = cap(config, "attn_logit_softcapping", Some(50.0))?;
    let output = cap(config, "final_logit_softcapping", Some(30.0))?;
    for (key, found) in [("attn_logit_softcapping", attention), ("final_logit_softcapping", output)]
    {
        // Readers use the defaults if there is no key.
        let Some(cap) = found else {
            let expected = "a number above 0: gemma2 always has a soft cap in GGUF";
            return Err(config.wrong(key, config.raw(key).unwrap_or(&Value::Null), expected));
        };
        own.add(key, Entry::F32(cap));
    }
    let local = Local { default_window: 4096, period: 2, key_of_period: None };
    write(config, dimensions.layers, &local, own)
}

/// Returns a soft cap: a number above 0, or none (0 also means none).
pub(super) fn cap(
    config: &Config,
    key: &str,
    default: Option<f64>,
) -> Result<Option<f32>, ConvertError> {
    let cap = match config.raw(key) {
        None => default,
        Some(Value::Null) => None,
        Some(value) => Some(config.in_range(key, value, 0.0..1e9)?),
    };
    Ok(cap.map(|cap| cap as f32).filter(|cap| *cap > 0.0))
}

/// Checks that attention is scaled as in readers of GGUF, which decide by the number of layers.
pub(super) fn scale(
    config: &Config,
    dimensions: &Dimensions,
    layers_of_27b: u64,
) -> Result<(), ConvertError> {
    let key = "query_pre_attn_scalar";
    let found = config.number(key, 1.0..1e9)?.unwrap_or(256.0);
    let (expected, name) = if dimensions.layers == layers_of_27b {
        (dimensions.hidden / dimensions.heads, "hidden_size / num_attention_heads")
    } else {
        (dimensions.head, "head_dim")
    };
    if found == expected as f64 {
        return Ok(());
    }
    Err(config.error(format!(
        "{key} is {found}, expected {expected} ({name}): GGUF has no key for another scale of \
         attention, and every program would compute with {expected}"
    )))
}
