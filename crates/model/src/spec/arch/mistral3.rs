//! `mistral3`: like `llama`, with queries that grow at positions beyond the original context (Ministral 3, Devstral Small 2).

use super::{Architecture, llama};
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_CONTEXT};
use crate::parts::attention::Temperature;
use crate::spec::ModelSpec;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "mistral3", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = llama::read(keys)?;
    let scale = keys.float("attention.temperature_scale", 0.0..1e6, "a number from 0 on")?;
    if let Some(scale) = scale.filter(|scale| *scale != 0.0) {
        let length = keys.dimension("rope.scaling.original_context_length", MAX_CONTEXT)?;
        for attention in spec.attention_layers_mut() {
            attention.temperature = Some(Temperature { scale, length, offset: 0 });
        }
    }
    Ok(spec)
}
