//! `smallthinker`: like `llama`, with NeoX rotary pairs and a mixture of experts in every layer with a gate of ReLU, which are chosen by the layer's input before
//! attention. With a window, all but the first of four layers have it, and only those are rotated (SmallThinker 4B-A0.6B and 21B-A3B).

use super::{Architecture, qwen2};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::dense::Activation;
use crate::parts::experts::ExpertsSpec;
use crate::spec::ModelSpec;
use crate::spec::window::{window, windowed_after_first};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "smallthinker", read };

/// Positions of the window, whatever the file states.
const WINDOW: usize = 4096;

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut experts = ExpertsSpec::read(keys, true)?;
    experts.activation = Activation::Relu;
    (experts.routing.normalise, experts.routed_early) = (true, true);
    let mut spec = qwen2::read_with(keys, experts)?;
    if window(keys, 0)?.is_some() {
        let windowed = windowed_after_first(keys, spec.layers.len(), 4)?;
        for (attention, windowed) in spec.attention_layers_mut().zip(windowed) {
            attention.mask = attention.mask.with_window(windowed.then_some(WINDOW));
            attention.rope = attention.rope.filter(|_| windowed);
        }
    }
    Ok(spec)
}
