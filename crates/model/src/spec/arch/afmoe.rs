//! `afmoe`: norms of inputs and of outputs, a scaled embedding, queries and keys that are normed per head, and a gate of the outputs of heads; three out
//! of four layers have a sliding window and are rotated, in NeoX pairs, the fourth is neither; after leading dense layers a mixture of experts with shared
//! ones, chosen by their sigmoids with a bias that affects only the choice (Arcee's Trinity).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::{AttentionSpec, OutputGate, QkNorm};
use crate::parts::experts::{ExpertsSpec, SharedExpert};
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::window::{window, windowed_layers};
use crate::spec::{ModelSpec, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "afmoe", read };

/// The last layer of each period is not rotated; no key states this.
const PERIOD: usize = 4;

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec {
        pairing: RopePairing::NeoX,
        qk_norm: QkNorm::Heads,
        output_gate: OutputGate::Own,
        ..AttentionSpec::read(keys)?
    };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let mut experts = ExpertsSpec::read(keys, false)?;
    experts.routing = experts.routing.sigmoid_unless_said(keys)?;
    experts.shared = SharedExpert::as_wide_as(keys, experts.intermediate_size)?;
    let window = window(keys, 0)?;
    let windowed = windowed_layers(keys, sizes.layers, PERIOD)?;
    let mut spec = sizes.uniform(keys, attention, experts, rope);
    spec.embedding_scale = (spec.hidden_size as f32).sqrt();
    spec.layers.iter_mut().for_each(|layer| layer.norms = Norms::BOTH);
    spec.put_dense_before_experts(keys)?;
    for (i, (attention, windowed)) in spec.attention_layers_mut().zip(windowed).enumerate() {
        attention.mask = attention.mask.with_window(window.filter(|_| windowed));
        attention.rope = attention.rope.filter(|_| !(i + 1).is_multiple_of(PERIOD));
    }
    Ok(spec)
}
