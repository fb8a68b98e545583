//! `bert`: the encoder of BERT, RoBERTa, XLM-R and the many models of texts that are made of them (MiniLM, BGE, E5, GTE, Arctic Embed, MXBAI): learned
//! positions and segments, norms of sums (post-norm), biases, GELU (Devlin et al. 2018).
//!
//! `nomic-bert` and `jina-bert-v3` rotate queries and keys instead of adding positions; Nomic's feed-forward part has a gate with SiLU, and no biases
//! (Nusbaum et al. 2024; Sturua et al. 2024). In `nomic-bert-moe` every second layer has experts, which have no gate. `jina-bert-v2` sees positions by
//! biases of scores alone (ALiBi); its feed-forward part has a gate with GELU (Günther et al. 2023).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::parts::experts::ExpertsSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{
    Activation, EmbeddingNorm, FeedForward, InputMatrices, Mask, ModelSpec, NormKind, Norms,
    QkNorm, ScoreBias,
};

/// Maximum number of positions between which there are biases of scores: tables of all distances are in memory. With few heads it is more, up to this number of
/// positions of all heads.
const MAX_REACH: usize = 8192;
const MAX_REACHES: usize = 1 << 22;

/// Maximum number of heads with such tables, of some 64 KB each.
const MAX_BIASED_HEADS: usize = 512;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "bert", read };

pub(super) const JINA_V2: Architecture = Architecture { name: "jina-bert-v2", read: jina_v2 };

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

fn jina_v2(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read_with(keys, NormKind::Layer)?;
    let attention = AttentionSpec { qk_norm: QkNorm::WholeIfThere, ..attention(keys)? };
    let attention = biased(keys, attention, ScoreBias::Slopes, sizes.context)?;
    let dense = DenseSpec { activation: Activation::GeluErf, ..DenseSpec::read(keys)? };
    let rows = keys.gguf.tensor("blk.0.ffn_up.weight").map_or(0, |up| up.ne[1]);
    let inputs = match keys.gguf.tensor("blk.0.ffn_gate.weight") {
        Some(_) => InputMatrices::GateAndUp,
        None if rows == 2 * dense.intermediate_size as u64 => InputMatrices::Fused,
        None => InputMatrices::Up,
    };
    let spec = sizes.unrotated(keys, attention, DenseSpec { inputs, ..dense });
    let mut spec = finish(keys, spec)?;
    if keys.gguf.tensor("blk.0.attn_norm_2.weight").is_some() {
        spec.layers.iter_mut().for_each(|layer| layer.norms.mixer_second = Some("attn_norm_2"));
    }
    Ok(spec)
}

/// Attention with biases of scores, in a network that was trained for `context` positions.
///
/// # Errors
/// More heads than any model has: there is a table for each.
pub(super) fn biased(
    keys: &Keys<'_, '_>,
    attention: AttentionSpec,
    bias: ScoreBias,
    context: usize,
) -> Result<AttentionSpec, SpecError> {
    if attention.heads > MAX_BIASED_HEADS {
        let expected = format!("at most {MAX_BIASED_HEADS} where scores have biases");
        return Err(keys.value("attention.head_count", attention.heads, expected));
    }
    let most = MAX_REACH.max(MAX_REACHES / attention.heads);
    Ok(AttentionSpec { bias: Some(bias), reach: Some(context.min(most)), ..attention })
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
    spec.embedding_norm = EmbeddingNorm::Named("token_embd_norm");
    let types = keys.gguf.tensor("token_types.weight");
    spec.segments = types.map_or(0, |types| usize::try_from(types.ne[1]).unwrap_or(usize::MAX));
    Ok(spec)
}
