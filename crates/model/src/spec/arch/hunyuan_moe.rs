//! `hunyuan-moe`: queries and keys are normed after they are rotated, in NeoX pairs; a mixture of experts with a shared one in every layer (Tencent's Hunyuan
//! A13B).

use super::{Architecture, qwen3};
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::parts::experts::{ExpertsSpec, SharedExpert};
use crate::parts::routing::{Gating, Routing};
use crate::spec::ModelSpec;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "hunyuan-moe", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let routing =
        Routing { gating: Gating::Softmax, normalise: true, ..Routing::read(keys, true)? };
    let width = keys.dimension("feed_forward_length", MAX_WIDTH)?;
    let shared = SharedExpert::read(keys)?;
    let experts = ExpertsSpec { shared, ..ExpertsSpec::new(keys, routing, width)? };
    let mut spec = qwen3::read_with(keys, experts)?;
    spec.attention_layers_mut().for_each(|attention| attention.norm_after_rope = true);
    Ok(spec)
}
