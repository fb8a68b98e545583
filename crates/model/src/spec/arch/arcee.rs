//! `arcee`: like `llama`, but the feed-forward part has no gate, and its activation is the square of ReLU (Arcee's AFM).

use super::{Architecture, llama};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::spec::{Activation, FeedForward, InputMatrices, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "arcee", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = llama::read(keys)?;
    for layer in &mut spec.layers {
        if let Some(FeedForward::Dense(dense)) = &mut layer.feed_forward {
            (dense.inputs, dense.activation) = (InputMatrices::Up, Activation::ReluSquared);
        }
    }
    Ok(spec)
}
