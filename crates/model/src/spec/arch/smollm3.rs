//! `smollm3`: like `llama`, but the queries and keys of every fourth layer are not rotated (Hugging Face's SmolLM3).

use super::{Architecture, llama};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::spec::ModelSpec;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "smollm3", read };

/// No key states this.
const PERIOD: usize = 4;

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = llama::read(keys)?;
    let unrotated = spec.attention_layers_mut().skip(PERIOD - 1).step_by(PERIOD);
    unrotated.for_each(|attention| attention.rope = None);
    Ok(spec)
}
