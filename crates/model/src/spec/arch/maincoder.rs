//! `maincoder`: like `llama`, but queries and keys are normed per head after they are rotated (Maincode's Maincoder 1B).

use super::{Architecture, llama};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::spec::{ModelSpec, QkNorm};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "maincoder", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = llama::read(keys)?;
    for attention in spec.attention_layers_mut() {
        (attention.qk_norm, attention.norm_after_rope) = (QkNorm::Heads, true);
    }
    Ok(spec)
}
