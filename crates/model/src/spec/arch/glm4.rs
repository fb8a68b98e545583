//! `glm4`: norms of inputs and outputs, half of each head rotated, biases of queries, keys and values, gate and up in one matrix
//! (GLM-4-0414 and related dense models).

use super::{Architecture, llama};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::spec::{FeedForward, InputMatrices, ModelSpec, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "glm4", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = llama::read(keys)?;
    for layer in &mut spec.layers {
        layer.norms = Norms::BOTH;
        if let Some(FeedForward::Dense(dense)) = &mut layer.feed_forward {
            dense.inputs = InputMatrices::Fused;
        }
    }
    Ok(spec)
}
