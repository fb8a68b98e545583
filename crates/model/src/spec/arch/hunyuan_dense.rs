//! `hunyuan-dense`: like `qwen3`, but queries and keys are normed after they are rotated (Tencent's Hunyuan 0.5B to 7B). `hunyuan_vl`:
//! the text part of Hunyuan OCR and VL, whose positions have one component in texts.

use super::{Architecture, qwen3};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::spec::ModelSpec;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "hunyuan-dense", read };

pub(super) const VL: Architecture = Architecture { name: "hunyuan_vl", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = qwen3::read(keys)?;
    spec.attention_layers_mut().for_each(|attention| attention.norm_after_rope = true);
    Ok(spec)
}
