//! `bitnet`: like `llama`, with NeoX rotary pairs, and a norm before the second projection of each part (BitNet b1.58).

use super::{Architecture, exaone};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::spec::{FeedForward, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "bitnet", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = exaone::read(keys)?;
    for attention in spec.attention_layers_mut() {
        attention.output_norm = Some("attn_sub_norm");
    }
    for layer in &mut spec.layers {
        if let Some(FeedForward::Dense(dense)) = &mut layer.feed_forward {
            dense.inner_norm = Some("ffn_sub_norm");
        }
    }
    Ok(spec)
}
