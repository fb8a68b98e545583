//! `gemma4`: layers with and without a sliding window have different heads, values are normed, the last layers attend to keys and
//! values of earlier ones, and small models have an input from the token itself in every layer (Gemma 4 E2B, E4B and 31B; with
//! experts next to the dense network, 26B-A4B).

use alight_kernels::rope::{RopePairing, RopeParams, RopeScaling};

use super::Architecture;
use super::gemma::cap;
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_LAYERS, MAX_WIDTH};
use crate::parts::attention::{AttentionSpec, Mask, QkNorm};
use crate::parts::dense::{Activation, DenseSpec};
use crate::parts::dense_and_experts::DenseAndExpertsSpec;
use crate::parts::experts::ExpertsSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::window::{window, windowed_layers};
use crate::spec::{FeedForward, InputMatrices, LayerSpec, Mixer, ModelSpec, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "gemma4", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let layers = sizes.layers;
    let experts = match keys.get::<u64>("expert_count")?.unwrap_or(0) {
        0 => None,
        _ => {
            let activation = Activation::GeluTanh;
            Some(ExpertsSpec { activation, ..ExpertsSpec::read(keys, true)? })
        }
    };
    let widths = keys.per_layer("feed_forward_length", layers, MAX_WIDTH)?;
    let widths = widths.ok_or_else(|| keys.missing("feed_forward_length"))?;
    let windowed = windowed_layers(keys, layers, 6)?;
    let window = window(keys, 0)?;
    let attention = attention(keys, layers, &windowed, window)?;
    let shared = SharedLayers::read(keys, &windowed, 0)?;
    let token_input = token_input(keys, layers, 0)?;
    let context = sizes.context;
    let full = rope(keys, keys.dimension("attention.key_length", MAX_WIDTH)?, context)?;
    let local = local_rope(keys, &full)?;
    let parts = attention.into_iter().zip(widths).zip(&windowed).enumerate();
    let all = parts.map(|(layer, ((attention, intermediate_size), windowed))| {
        let kv_layer = shared.as_ref().and_then(|shared| shared.owner(layer, *windowed));
        let activation = Activation::GeluTanh;
        let inputs = InputMatrices::GateAndUp;
        let dense = DenseSpec { activation, inputs, ..DenseSpec::new(intermediate_size) };
        let mixer = Mixer::Attention(AttentionSpec { kv_layer, ..attention });
        let feed_forward = match experts.clone() {
            None => FeedForward::Dense(dense),
            Some(experts) => FeedForward::Both(DenseAndExpertsSpec { dense, experts }),
        };
        let layer = LayerSpec::new(Some(mixer), Some(feed_forward), Norms::BOTH);
        LayerSpec { token_input, ..layer }
    });
    let all = all.collect();
    let hidden_size = sizes.hidden_size;
    Ok(ModelSpec {
        embedding_scale: (hidden_size as f32).sqrt(),
        logit_softcap: cap(keys, "final_logit_softcapping", 0.0)?,
        ..sizes.network(keys, all, vec![full, local])
    })
}

/// The width of each layer's input from the token, `usual` if the file does not state it; 0: none.
pub(super) fn token_input(
    keys: &Keys<'_, '_>,
    layers: usize,
    usual: usize,
) -> Result<usize, SpecError> {
    let key = "embedding_length_per_layer_input";
    let width = match keys.get::<u64>(key)? {
        None => usual,
        Some(_) => keys.width_or_none(key)?.unwrap_or(0),
    };
    if layers.saturating_mul(width) > MAX_WIDTH {
        let expected = format!("at most {} for {layers} layers", MAX_WIDTH / layers);
        return Err(keys.value(key, width, expected));
    }
    Ok(width)
}

/// The attention of each layer.
fn attention(
    keys: &Keys<'_, '_>,
    layers: usize,
    windowed: &[bool],
    window: Option<usize>,
) -> Result<Vec<AttentionSpec>, SpecError> {
    let count = |key| keys.per_layer(key, layers, MAX_WIDTH);
    let heads = count("attention.head_count")?;
    let heads = heads.ok_or_else(|| keys.missing("attention.head_count"))?;
    let kv_heads = count("attention.head_count_kv")?.unwrap_or_else(|| heads.clone());
    let lengths = |plain, local| {
        let plain = keys.dimension(plain, MAX_WIDTH)?;
        Ok::<_, SpecError>([plain, keys.optional_dimension(local, MAX_WIDTH)?.unwrap_or(plain)])
    };
    let key_dims = lengths("attention.key_length", "attention.key_length_swa")?;
    let value_dims = lengths("attention.value_length", "attention.value_length_swa")?;
    let each = heads.into_iter().zip(kv_heads).zip(windowed).map(|((heads, kv_heads), local)| {
        let dims = [key_dims[usize::from(*local)], value_dims[usize::from(*local)]];
        if !heads.is_multiple_of(kv_heads) {
            let expected = format!("a divisor of the {heads} query heads");
            return Err(keys.value("attention.head_count_kv", kv_heads, expected));
        }
        if dims.iter().any(|dim| heads.saturating_mul(*dim) > MAX_WIDTH) {
            let expected = format!("at most {} for {heads} heads", MAX_WIDTH / heads);
            return Err(keys.value("attention.key_length", dims[0].max(dims[1]), expected));
        }
        Ok(AttentionSpec {
            scale: 1.0,
            mask: Mask::Causal.with_window(window.filter(|_| *local)),
            rope: Some(usize::from(*local)),
            pairing: RopePairing::NeoX,
            qk_norm: QkNorm::Heads,
            value_norm: true,
            keys_as_values: dims[0] == dims[1],
            ..AttentionSpec::new([heads, kv_heads], dims)
        })
    });
    each.collect()
}

/// The rotary embedding of layers with a window, given that of the other layers.
fn local_rope(keys: &Keys<'_, '_>, others: &RopeParams) -> Result<RopeParams, SpecError> {
    let key = "rope.dimension_count_swa";
    let length = keys.optional_dimension("attention.key_length_swa", MAX_WIDTH)?;
    let length = length.unwrap_or(others.dims);
    let dims = keys.optional_dimension(key, MAX_WIDTH)?.unwrap_or(length);
    if dims > length || !dims.is_multiple_of(2) {
        let expected = format!("an even number up to the head's {length}");
        return Err(keys.value(key, dims, expected));
    }
    let base = keys.float("rope.freq_base_swa", 1.0..1e30, "from 1 to 1e30")?.unwrap_or(10_000.0);
    Ok(RopeParams { dims, base, scaling: RopeScaling::None })
}

/// Layers without keys and values of their own.
pub(super) struct SharedLayers {
    /// The first of them. The layer right before it has no window, and the layer before that has one.
    first: usize,
}

impl SharedLayers {
    /// The layer whose keys and values `layer` attends to, if it has none of its own.
    pub(super) fn owner(&self, layer: usize, windowed: bool) -> Option<usize> {
        (layer >= self.first).then(|| self.first - if windowed { 2 } else { 1 })
    }

    /// Reads the number of these layers, `usual` if the file does not state it; they are the last ones. `windowed` has a flag for
    /// each layer.
    ///
    /// # Errors
    /// A number for which the two layers before them are not one with a window, then one without.
    pub(super) fn read(
        keys: &Keys<'_, '_>,
        windowed: &[bool],
        usual: usize,
    ) -> Result<Option<SharedLayers>, SpecError> {
        let (key, layers) = ("attention.shared_kv_layers", windowed.len());
        let shared = keys.get::<u64>(key)?.unwrap_or(usual as u64);
        if shared == 0 {
            return Ok(None);
        }
        let first = usize::try_from(shared).ok().and_then(|shared| layers.checked_sub(shared));
        let found =
            first.filter(|first| *first >= 2 && windowed[first - 2] && !windowed[first - 1]);
        let first = found.ok_or_else(|| {
            let expected =
                "so few that a layer with a sliding window and one without come right before them";
            keys.value(key, shared.min(MAX_LAYERS as u64), expected.into())
        })?;
        Ok(Some(SharedLayers { first }))
    }
}
