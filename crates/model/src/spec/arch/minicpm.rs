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
    let read = granite::read(keys)?;
    let mut spec = read.clone();
    set_factors(&mut spec);
    if keys.get::<f32>("embedding_scale")?.is_some() {
        spec.embedding_scale = read.embedding_scale;
    }
    if keys.get::<f32>("residual_scale")?.is_some() {
        spec.layers = read.layers;
    }
    if keys.get::<f32>("logit_scale")?.is_some() {
        spec.logit_scale = read.logit_scale;
    }
    Ok(spec)
}

/// Sets the factors that follow from the sizes.
pub(super) fn set_factors(spec: &mut ModelSpec) {
    spec.embedding_scale = EMBEDDING_SCALE;
    let scale = RESIDUAL_SCALE / (spec.layers.len() as f32).sqrt();
    spec.layers.iter_mut().for_each(|layer| layer.residual_scale = scale);
    spec.logit_scale = BASE / spec.hidden_size as f32;
}
