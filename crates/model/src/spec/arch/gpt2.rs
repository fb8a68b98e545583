//! `gpt2`: learned positions instead of rotation, LayerNorm, biases everywhere, queries, keys and values in one matrix, and a feed-forward part without a
//! gate, with GELU (OpenAI's GPT-2). `starcoder`: the same, with one head of keys and values (BigCode's StarCoder and SantaCoder).

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::sizes::Sizes;
use crate::spec::{Activation, InputMatrices, ModelSpec, NormKind};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "gpt2", read };

pub(super) const STARCODER: Architecture = Architecture { name: "starcoder", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read_with(keys, NormKind::Layer)?;
    let positions = sizes.context;
    let attention = AttentionSpec::read(keys)?;
    let mut spec = sizes.unrotated(keys, attention, ungated(keys)?);
    spec.positions = Some(positions);
    Ok(spec)
}

/// A feed-forward part without a gate, with GELU in its tanh form.
pub(super) fn ungated(keys: &Keys<'_, '_>) -> Result<DenseSpec, SpecError> {
    Ok(DenseSpec {
        inputs: InputMatrices::Up,
        activation: Activation::GeluTanh,
        ..DenseSpec::read(keys)?
    })
}
