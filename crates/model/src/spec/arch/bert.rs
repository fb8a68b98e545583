//! `bert`: the encoder of BERT, RoBERTa, XLM-R and the many models of texts that are made of them (MiniLM, BGE, E5, GTE, Arctic Embed, MXBAI): learned
//! positions and segments, norms of sums (post-norm), biases, GELU (Devlin et al. 2018).
//!
//! `nomic-bert` and `jina-bert-v3` rotate queries and keys instead of adding positions; Nomic's feed-forward part has a gate with SiLU, and no biases
//! (Nusbaum et al. 2024; Sturua et al. 2024). In `nomic-bert-moe` every second layer has experts, which have no gate.

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::parts::experts::ExpertsSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{Activation, FeedForward, InputMatrices, Mask, ModelSpec, NormKind, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "bert", read };

pub(super) const JINA_V3: Architecture =
    Architecture { name: "jina-bert-v3", read: |keys| rotated(keys, dense(keys)?) };

pub(super) const NOMIC: Architecture =
    Architecture { name: "nomic-bert", read: |keys| rotated(keys, DenseSpec::read(keys)?) };

pub(super) const NOMIC_MOE: Architecture = Architecture { name: "nomic-bert-moe", read: mixture };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read_with(keys, NormKind::Layer)?;
    let positions = sizes.context;
    let mut spec = sizes.unrotated(keys, attention(keys)?, dense(keys)?);
    spec.positions = Some(positions);
    finish(keys, spec)
}

/// Reads a network with rotated queries and keys, and this feed-forward part.
fn rotated(keys: &Keys<'_, '_>, dense: DenseSpec) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read_with(keys, NormKind::Layer)?;
    let attention = attention(keys)?;
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    finish(keys, sizes.uniform(keys, attention, dense, rope))
}

fn mixture(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let experts = ExpertsSpec {
        activation: Activation::GeluErf,
        gated: false,
        ..ExpertsSpec::read(keys, false)?
    };
    let dense = ungated(DenseSpec::read_beside_experts(keys)?);
    let mut spec = rotated(keys, dense)?;
    let key = "moe_every_n_layers";
    let every = keys.get::<u32>(key)?.ok_or_else(|| keys.missing(key))? as usize;
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        if every > 0 && index % every == 1 % every {
            layer.feed_forward = Some(FeedForward::Experts(experts.clone()));
        }
    }
    Ok(spec)
}

fn attention(keys: &Keys<'_, '_>) -> Result<AttentionSpec, SpecError> {
    encoder(keys, AttentionSpec { pairing: RopePairing::NeoX, ..AttentionSpec::read(keys)? })
}

/// The attention of an encoder: in both directions, whether or not the file says so.
///
/// # Errors
/// The file says that it is not.
pub(super) fn encoder(
    keys: &Keys<'_, '_>,
    attention: AttentionSpec,
) -> Result<AttentionSpec, SpecError> {
    match keys.get::<bool>(AttentionSpec::CAUSAL)? {
        Some(true) => {
            let what = "an encoder whose tokens see none after them";
            Err(keys.unsupported(AttentionSpec::CAUSAL, true, what))
        }
        _ => Ok(AttentionSpec { mask: Mask::Bidirectional, ..attention }),
    }
}

fn dense(keys: &Keys<'_, '_>) -> Result<DenseSpec, SpecError> {
    Ok(ungated(DenseSpec::read(keys)?))
}

fn ungated(dense: DenseSpec) -> DenseSpec {
    DenseSpec { inputs: InputMatrices::Up, activation: Activation::GeluErf, ..dense }
}

/// Adds what all of them have.
fn finish(keys: &Keys<'_, '_>, mut spec: ModelSpec) -> Result<ModelSpec, SpecError> {
    spec.layers.iter_mut().for_each(|layer| layer.norms = Norms::SUMS);
    spec.has_output = false;
    spec.output_norm = None;
    spec.embedding_norm = Some("token_embd_norm");
    let types = keys.gguf.tensor("token_types.weight");
    spec.segments = types.map_or(0, |types| usize::try_from(types.ne[1]).unwrap_or(usize::MAX));
    Ok(spec)
}
