//! `gptneox`: LayerNorm, biases everywhere, queries, keys and values in one matrix, NeoX rotary pairs on part of each head, and a feed-forward part without
//! a gate, with GELU. Where a key says so, it takes the same residual stream as attention, by a norm of its own (EleutherAI's Pythia and GPT-NeoX,
//! Dolly). GELU is by the error function, as its makers have it, and in its tanh form in the 20B alone; llama.cpp has the latter in all.
//!
//! `codeshell`: the same with grouped heads of keys and values, one part after the other (WisdomShell's CodeShell). `phi2`: both parts take what one norm
//! puts out (Microsoft's Phi 1 to 2). `falcon`: as that, without biases of matrices, and with GELU by the error function; in the 40B, attention has a norm
//! of its own (TII's Falcon 7B to 180B).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use super::gpt2::ungated;
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_LAYERS};
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{Activation, ModelSpec, NormKind, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "gptneox", read };

pub(super) const CODESHELL: Architecture = Architecture { name: "codeshell", read: rotated };

pub(super) const PHI2: Architecture = Architecture { name: "phi2", read: phi2 };

pub(super) const FALCON: Architecture = Architecture { name: "falcon", read: falcon };

/// The number of layers of GPT-NeoX 20B.
const LAYERS_OF_20B: usize = 44;

/// The key that is true if both parts of a layer take the same residual stream.
const PARALLEL: &str = "use_parallel_residual";

fn rotated(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    rotated_with(keys, ungated(keys)?)
}

/// Reads the network with this feed-forward part.
fn rotated_with(keys: &Keys<'_, '_>, dense: DenseSpec) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read_with(keys, NormKind::Layer)?;
    let attention = AttentionSpec { pairing: RopePairing::NeoX, ..AttentionSpec::read(keys)? };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    Ok(sizes.uniform(keys, attention, dense, rope))
}

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let layers = keys.dimension("block_count", MAX_LAYERS)?;
    let mut spec = match layers {
        LAYERS_OF_20B => rotated(keys)?,
        _ => rotated_with(keys, with_erf(keys)?)?,
    };
    let parallel = keys.get::<bool>(PARALLEL)?.ok_or_else(|| keys.missing(PARALLEL))?;
    spec.layers.iter_mut().for_each(|layer| layer.parallel = parallel);
    Ok(spec)
}

/// A feed-forward part without a gate, with GELU by the error function.
fn with_erf(keys: &Keys<'_, '_>) -> Result<DenseSpec, SpecError> {
    Ok(DenseSpec { activation: Activation::GeluErf, ..ungated(keys)? })
}

fn falcon(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = rotated_with(keys, with_erf(keys)?)?;
    let own = keys.gguf.tensor("blk.0.attn_norm_2.weight").is_some();
    let mixer = if own { Some("attn_norm_2") } else { Norms::SHARED.mixer };
    for layer in &mut spec.layers {
        (layer.norms, layer.parallel) = (Norms { mixer, ..Norms::SHARED }, true);
    }
    Ok(spec)
}

fn phi2(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = rotated(keys)?;
    for layer in &mut spec.layers {
        (layer.norms, layer.parallel) = (Norms::SHARED, true);
    }
    Ok(spec)
}
