//! `qwen35`: three out of four layers are gated delta nets, and the fourth is attention with an output gate (Qwen 3.5, 3.6 and 3.8,
//! the dense models).

use alight_formats::gguf::Value;
use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::{AttentionSpec, OutputGate, QkNorm};
use crate::parts::delta_net::DeltaNetSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{FeedForward, Mixer, ModelSpec, Norms};

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "qwen35", read: |keys| read_with(keys, DenseSpec::read(keys)?) };

/// Reads the network with this feed-forward part.
pub(super) fn read_with(
    keys: &Keys<'_, '_>,
    feed_forward: impl Into<FeedForward>,
) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec {
        pairing: RopePairing::NeoX,
        qk_norm: QkNorm::Heads,
        output_gate: OutputGate::InQueries,
        ..AttentionSpec::read(keys)?
    };
    if attention.key_dim != attention.value_dim {
        let expected = format!("the length of keys, {}", attention.key_dim);
        return Err(keys.value("attention.value_length", attention.value_dim, expected));
    }
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let delta_net = DeltaNetSpec::read(keys)?;
    let recurrent = recurrent_layers(keys, sizes.layers)?;
    let mut spec = sizes.uniform(keys, attention, feed_forward, rope);
    let norms = Norms { feed_forward: Some("post_attention_norm"), ..Norms::INPUTS };
    for (layer, recurrent) in spec.layers.iter_mut().zip(recurrent) {
        layer.norms = norms;
        if recurrent {
            layer.mixer = Some(Mixer::DeltaNet(delta_net.clone()));
        }
    }
    Ok(spec.with_mtp())
}

/// Returns a flag for each layer, true if it is recurrent: the file's list of flags, or all layers but the last of each interval.
fn recurrent_layers(keys: &Keys<'_, '_>, layers: usize) -> Result<Vec<bool>, SpecError> {
    let key = "attention.recurrent_layers";
    if let Some(Value::Array(array)) = keys.find(key) {
        return keys.flags(key, array, layers);
    }
    let interval = keys.optional_dimension("full_attention_interval", layers.max(4))?.unwrap_or(4);
    Ok((0..layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect())
}
