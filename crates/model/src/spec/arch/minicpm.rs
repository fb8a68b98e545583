//! `minicpm`: like `granite`, with factors that follow from the sizes if the file does not state them (OpenBMB's MiniCPM 1 and 2).

use super::{Architecture, granite};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::spec::ModelSpec;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "minicpm", read };

/// MiniCPM 1's factor on the embedding, and the numerator of its factor on the output of parts, which is divided by `√layers`.
const EMBEDDING_SCALE: f32 = 12.0;
const RESIDUAL_SCALE: f32 = 1.4;
/// The hidden size of the model whose logits need no factor.
const BASE: f32 = 256.0;

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = granite::read(keys)?;
    if keys.get::<f32>("embedding_scale")?.is_none() {
        spec.embedding_scale = EMBEDDING_SCALE;
    }
    if keys.get::<f32>("residual_scale")?.is_none() {
        let scale = RESIDUAL_SCALE / (spec.layers.len() as f32).sqrt();
        spec.layers.iter_mut().for_each(|layer| layer.residual_scale = scale);
    }
    if keys.get::<f32>("logit_scale")?.is_none() {
        spec.logit_scale = BASE / spec.hidden_size as f32;
    }
    Ok(spec)
}
