//! `t5encoder`: the encoder of T5, by which sentences become vectors (Raffel et al. 2020; Ni et al. 2022). RMSNorm before its parts; scores are not scaled, and
//! have learned biases by buckets of distances; ReLU, or a gate with GELU. The names of its tensors begin with `enc.`.

use super::Architecture;
use super::bert::{biased, encoder};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::sizes::Sizes;
use crate::spec::{Activation, InputMatrices, ModelSpec, ScoreBias};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "t5encoder", read };

/// Maximum number of buckets.
const MAX_BUCKETS: usize = 1 << 12;

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let key = "attention.relative_buckets_count";
    let buckets = keys.dimension(key, MAX_BUCKETS)?;
    if buckets < 4 || !buckets.is_multiple_of(4) {
        return Err(keys.value(key, buckets, "a multiple of 4".into()));
    }
    let attention = encoder(keys, AttentionSpec::read(keys)?)?;
    let attention = AttentionSpec { scale: 1.0, output: "attn_o", ..attention };
    let attention = biased(keys, attention, ScoreBias::Buckets(buckets), sizes.context)?;
    let (inputs, activation) = match keys.gguf.tensor("enc.blk.0.ffn_gate.weight") {
        Some(_) => (InputMatrices::GateAndUp, Activation::GeluTanh),
        None => (InputMatrices::Up, Activation::Relu),
    };
    let dense = DenseSpec { inputs, activation, ..DenseSpec::read(keys)? };
    let mut spec = sizes.unrotated(keys, attention, dense);
    spec.layer_prefix = "enc.blk";
    spec.output_norm = Some("enc.output_norm");
    spec.has_output = false;
    Ok(spec)
}
