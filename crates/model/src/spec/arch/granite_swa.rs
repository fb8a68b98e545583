//! `granite_swa`: like `granite`, with a sink for each head; a list says which layers have a sliding window, and another which are rotated. Some models
//! have a mixture of experts with a shared one (IBM's Granite 4).

use alight_formats::gguf::Value;

use super::{Architecture, granite, granitemoe};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::dense::DenseSpec;
use crate::spec::window::{window, windowed_layers};
use crate::spec::{FeedForward, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "granite_swa", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let feed_forward: FeedForward = match keys.get::<u64>("expert_count")?.unwrap_or(0) {
        0 => DenseSpec::read(keys)?.into(),
        _ => granitemoe::experts(keys)?.into(),
    };
    let mut spec = granite::read_with(keys, feed_forward)?;
    let (key, layers) = ("attention.rope_pattern", spec.layers.len());
    let rotated = match keys.find(key) {
        Some(Value::Array(array)) => keys.flags(key, array, layers)?,
        _ => vec![true; layers],
    };
    let window = window(keys, 0)?.ok_or_else(|| keys.missing("attention.sliding_window"))?;
    let windowed = windowed_layers(keys, layers, 0)?;
    let of_layers = windowed.into_iter().zip(rotated);
    for (attention, (windowed, rotated)) in spec.attention_layers_mut().zip(of_layers) {
        attention.sinks = Some("attn_sinks.weight");
        attention.mask = attention.mask.with_window(windowed.then_some(window));
        attention.rope = attention.rope.filter(|_| rotated);
    }
    Ok(spec)
}
