//! `cohere2`: like `command-r`, but three out of four layers have a sliding window, and only those are rotated (Cohere's Command R7B
//! and Command A).

use super::{Architecture, command_r};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::spec::ModelSpec;
use crate::spec::window::{window, windowed_layers};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "cohere2", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = command_r::read(keys)?;
    let window = window(keys, 0)?.ok_or_else(|| keys.missing("attention.sliding_window"))?;
    let windowed = windowed_layers(keys, spec.layers.len(), 4)?;
    for (attention, windowed) in spec.attention_layers_mut().zip(windowed) {
        attention.mask = attention.mask.with_window(windowed.then_some(window));
        attention.rope = attention.rope.filter(|_| windowed);
    }
    Ok(spec)
}
