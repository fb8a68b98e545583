//! `laguna`: queries and keys are normed per head; the outputs of heads have a gate, by the softplus of a projection, for each head or each element; three
//! out of four layers have a sliding window, their own number of heads, and a rotary embedding of their own; after leading dense layers a mixture of
//! experts with a shared one, chosen by their sigmoids with a bias that affects only the choice (Poolside's Laguna).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::{AttentionSpec, GateFunction, OutputGate, QkNorm};
use crate::parts::experts::{ExpertsSpec, SharedExpert};
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::window::{set_unscaled_windows, windowed_after_first};
use crate::spec::{Mixer, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "laguna", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec::read_each(keys, sizes.layers)?;
    let rope = rope(keys, AttentionSpec::key_dim(keys)?, sizes.context)?;
    let mut experts = ExpertsSpec::read(keys, false)?;
    experts.routing = experts.routing.sigmoid_unless_said(keys)?;
    experts.shared = SharedExpert::read(keys)?;
    let windowed = windowed_after_first(keys, sizes.layers, 4)?;
    let mixers = attention.into_iter().map(|attention| {
        Mixer::Attention(AttentionSpec {
            pairing: RopePairing::NeoX,
            qk_norm: QkNorm::Heads,
            output_gate: OutputGate::Own,
            gate_function: GateFunction::Softplus,
            ..attention
        })
    });
    let mut spec = sizes.of_mixers(keys, mixers, &experts.into(), rope);
    spec.put_dense_before_experts(keys)?;
    set_unscaled_windows(&mut spec, keys, &windowed)?;
    Ok(spec)
}
