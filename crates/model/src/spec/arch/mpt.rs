//! `mpt`: LayerNorm, queries, keys and values in one matrix, which may be clamped, positions by biases of scores (ALiBi) or by embeddings, and a
//! feed-forward part without a gate, with GELU by the error function, as its makers have it; llama.cpp has the tanh form (MosaicML's MPT). `bloom`: the same
//! with GELU in its tanh form, biases everywhere, and a norm of the embedding (BigScience's BLOOM). `jais`: SiLU with a gate, and scores that are divided by
//! the length of a head (Inception's Jais).
//!
//! `refact`: RMSNorm, one head of keys and values, SiLU with a gate, and biases of scores (Refact 1.6B). `baichuan`: the same with as many heads, and in all
//! but the 13B, which a key does not say, interleaved rotary pairs in place of the biases (Baichuan 1 and 2).

use super::Architecture;
use super::bert::biased;
use super::gpt2::ungated;
use super::olmo::clamp;
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_LAYERS};
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::sizes::Sizes;
use crate::spec::{Activation, EmbeddingNorm, ModelSpec, NormKind, ScoreBias};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "mpt", read };

pub(super) const BLOOM: Architecture = Architecture { name: "bloom", read: bloom };

pub(super) const JAIS: Architecture = Architecture { name: "jais", read: jais };

pub(super) const REFACT: Architecture = Architecture { name: "refact", read: refact };

pub(super) const BAICHUAN: Architecture = Architecture { name: "baichuan", read: baichuan };

/// The number of layers of Baichuan 13B.
const LAYERS_OF_13B: usize = 40;

/// The largest exponent of the slopes' denominators, which is that of all models.
const STEEPEST: f32 = 8.0;

/// The key of that exponent; 0: scores have no biases.
const MAX_BIAS: &str = "attention.max_alibi_bias";

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read_with(keys, NormKind::Layer)?;
    let (clamp, positions) = (clamp(keys)?, sizes.context);
    let read = AttentionSpec { clamp, ..AttentionSpec::read(keys)? };
    let dense = DenseSpec { activation: Activation::GeluErf, ..ungated(keys)? };
    let steepest = keys.get::<f32>(MAX_BIAS)?.unwrap_or(0.0);
    if steepest == 0.0 {
        let mut spec = sizes.unrotated(keys, read, dense);
        let there = keys.gguf.tensor("position_embd.weight").is_some();
        spec.positions = there.then_some(positions);
        return Ok(spec);
    }
    let attention = with_slopes(keys, read, positions)?;
    Ok(sizes.unrotated(keys, attention, dense))
}

/// Attention whose scores have biases by the usual slopes.
fn with_slopes(
    keys: &Keys<'_, '_>,
    attention: AttentionSpec,
    positions: usize,
) -> Result<AttentionSpec, SpecError> {
    let steepest = keys.get::<f32>(MAX_BIAS)?.unwrap_or(STEEPEST);
    if steepest != STEEPEST {
        return Err(keys.unsupported(MAX_BIAS, steepest, "slopes other than those of 8"));
    }
    biased(keys, attention, ScoreBias::Slopes, positions)
}

/// A network of attention with biases of scores, with these norms and this feed-forward part.
fn sloping(keys: &Keys<'_, '_>, norms: NormKind, dense: DenseSpec) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read_with(keys, norms)?;
    let attention = with_slopes(keys, AttentionSpec::read(keys)?, sizes.context)?;
    Ok(sizes.unrotated(keys, attention, dense))
}

fn bloom(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = sloping(keys, NormKind::Layer, ungated(keys)?)?;
    spec.embedding_norm = EmbeddingNorm::Named("token_embd_norm");
    Ok(spec)
}

fn jais(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = sloping(keys, NormKind::Layer, DenseSpec::read(keys)?)?;
    for attention in spec.attention_layers_mut() {
        attention.scale = 1.0 / attention.key_dim as f32;
    }
    Ok(spec)
}

fn refact(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    sloping(keys, NormKind::Rms, DenseSpec::read(keys)?)
}

fn baichuan(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    match keys.dimension("block_count", MAX_LAYERS)? {
        LAYERS_OF_13B => refact(keys),
        _ => super::llama::read(keys),
    }
}
