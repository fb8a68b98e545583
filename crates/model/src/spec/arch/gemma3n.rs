//! `gemma3n`: a Gemma with four residual streams, a path around the mixer, feed-forward parts that use only the largest gates in
//! early layers, and an input from the token itself in every layer; values are normed, and the last layers attend to keys and
//! values of earlier ones (Gemma 3n E2B and E4B).

use alight_formats::gguf::Array;
use alight_kernels::rope::{RopeParams, RopeScaling};

use super::Architecture;
use super::gemma::Gemma;
use super::gemma4::{SharedLayers, token_input};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::spec::{FeedForward, ModelSpec, QkNorm};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "gemma3n", read };

const GEMMA3N: Gemma = Gemma {
    layers_of_27b: 0,
    window: 0,
    period: 5,
    attention_cap: 0.0,
    logit_cap: 30.0,
    qk_norm: QkNorm::Heads,
    window_rope: |others, base| RopeParams {
        dims: others.dims,
        base: base.unwrap_or(10_000.0),
        scaling: RopeScaling::None,
    },
};

// No key stores these; they are constants in llama.cpp too.
const LAUREL_RANK: usize = 64;
const STREAMS: u64 = 4;
/// Defaults if the file does not state them: width of the input from the token, layers with keys and values of their own, and
/// layers with sparse gates.
const TOKEN_INPUT: usize = 256;
const OWN_KV: usize = 20;
const SPARSE: usize = 10;
/// The number of standard deviations above which a twentieth of a normal distribution lies.
const DEVIATIONS: f32 = 1.644_853_6;

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    for (key, only) in [("altup.num_inputs", STREAMS), ("altup.active_idx", 0)] {
        if let Some(found) = keys.get::<u64>(key)?.filter(|found| *found != only) {
            return Err(keys.unsupported(key, found, "another number of residual streams"));
        }
    }
    let mut spec = GEMMA3N.read(keys)?;
    let layers = spec.layers.len();
    let windowed: Vec<bool> =
        spec.attention_layers().map(|spec| spec.mask.window().is_some()).collect();
    let shared = SharedLayers::read(keys, &windowed, layers.saturating_sub(OWN_KV))?;
    let from_token = token_input(keys, layers, TOKEN_INPUT)?;
    let deviations = deviations(keys, layers)?;
    for (layer, attention) in spec.attention_layers_mut().enumerate() {
        attention.scale = 1.0;
        attention.value_norm = true;
        let shared = shared.as_ref();
        attention.kv_layer = shared.and_then(|shared| shared.owner(layer, windowed[layer]));
    }
    for (layer, deviations) in spec.layers.iter_mut().zip(deviations) {
        (layer.token_input, layer.laurel) = (from_token, LAUREL_RANK);
        if let Some(FeedForward::Dense(dense)) = &mut layer.feed_forward {
            dense.deviations = deviations;
        }
    }
    Ok(ModelSpec { alt_up: true, ..spec })
}

/// For each layer, the number of standard deviations above the mean that its gates must exceed to count; `None`: all gates count.
fn deviations(keys: &Keys<'_, '_>, layers: usize) -> Result<Vec<Option<f32>>, SpecError> {
    let key = "activation_sparsity_scale";
    let Some(array) = keys.get::<Array<'_>>(key)? else {
        return Ok((0..layers).map(|layer| (layer < SPARSE).then_some(DEVIATIONS)).collect());
    };
    // Layers in which all gates count have a negative infinity, or 0 in other files.
    let found: Vec<f32> = array.iter_f32().into_iter().flatten().take(layers).collect();
    if found.len() < layers || found.iter().any(|scale| scale.is_nan()) {
        let count = format!("an array of {} numbers", found.len());
        return Err(keys.value(key, count, format!("{layers}, one per layer")));
    }
    Ok(found.into_iter().map(|scale| Some(scale).filter(|s| *s > 0.0 && s.is_finite())).collect())
}
