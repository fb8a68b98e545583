//! `llama4`: three out of four layers see only the chunk of the context that the token is in; the fourth sees the whole context, is
//! not rotated, and has queries that grow at distant positions. In every layer, or every n-th, a mixture routes a token to one
//! expert, whose input is multiplied by the router's sigmoid, and to a shared expert (Meta's Llama 4).

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::{AttentionSpec, Mask, QkNorm, Temperature};
use crate::parts::experts::{ExpertsSpec, SharedExpert};
use crate::parts::routing::Gating;
use crate::spec::ModelSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::window::{window, windowed_layers};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "llama4", read };

/// The last layer of each period is not rotated; no key states this.
const PERIOD: usize = 4;

/// Positions of a chunk, if the file does not state it.
const CHUNK: usize = 8192;

/// The growth of queries in layers without rotation; no key states this.
const TEMPERATURE: Temperature = Temperature { scale: 0.1, length: 8192, offset: 1 };

/// The number of experts of Maverick, whose queries and keys are not normed.
const MAVERICK: usize = 128;

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec { norm_after_rope: true, ..AttentionSpec::read(keys)? };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let mut experts = ExpertsSpec::read(keys, false)?;
    experts.routing.gating = Gating::Sigmoid;
    experts.weighs_input = true;
    let intermediate_size = experts.intermediate_size;
    experts.shared = Some(SharedExpert::new(intermediate_size));
    let normed = experts.routing.experts != MAVERICK;
    let key = "attention.sliding_window";
    let Some(chunk) = window(keys, CHUNK)? else {
        return Err(keys.unsupported(key, 0, "Llama 4 without chunks"));
    };
    let chunked = windowed_layers(keys, sizes.layers, PERIOD)?;
    let mut spec = sizes.uniform(keys, attention, experts, rope);
    for (i, (attention, chunked)) in spec.attention_layers_mut().zip(chunked).enumerate() {
        attention.mask = if chunked { Mask::Chunk(chunk) } else { Mask::Causal };
        if (i + 1).is_multiple_of(PERIOD) {
            (attention.rope, attention.temperature) = (None, Some(TEMPERATURE));
        } else if normed {
            attention.qk_norm = QkNorm::Unweighted;
        }
    }
    spec.put_dense_between_experts(keys)?;
    Ok(spec)
}
