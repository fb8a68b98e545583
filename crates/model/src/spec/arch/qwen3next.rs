//! `qwen3next`: like `qwen35moe`, but adjacent value heads of the delta nets share a key head (Qwen3-Next, Qwen3-Coder-Next).
//! Files from before December 2025 have one tensor, `ssm_in`, in place of `attn_qkv` and `attn_gate`.

use super::{Architecture, qwen35moe};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::spec::{Mixer, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen3next", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = qwen35moe::read(keys)?;
    for layer in &mut spec.layers {
        if let Some(Mixer::DeltaNet(delta_net)) = &mut layer.mixer {
            delta_net.neighbours = true;
        }
    }
    Ok(spec)
}
