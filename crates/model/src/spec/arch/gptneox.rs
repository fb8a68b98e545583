//! `gptneox`: LayerNorm, biases everywhere, queries, keys and values in one matrix, NeoX rotary pairs on part of each head, and a feed-forward part without
//! a gate, with GELU. Where a key says so, it takes the same residual stream as attention, by a norm of its own (EleutherAI's Pythia and GPT-NeoX,
//! Dolly). GELU is its tanh form, as in llama.cpp: the makers have the error function in Pythia and the tanh form in GPT-NeoX 20B, which no key tells
//! apart; they differ by 0.0005 at most.
//!
//! `codeshell`: the same with grouped heads of keys and values, one part after the other (WisdomShell's CodeShell). `phi2`: both parts take what one norm
//! puts out (Microsoft's Phi 1 to 2).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use super::gpt2::ungated;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{ModelSpec, NormKind, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "gptneox", read };

pub(super) const CODESHELL: Architecture = Architecture { name: "codeshell", read: rotated };

pub(super) const PHI2: Architecture = Architecture { name: "phi2", read: phi2 };

/// The key that is true if both parts of a layer take the same residual stream.
const PARALLEL: &str = "use_parallel_residual";

fn rotated(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read_with(keys, NormKind::Layer)?;
    let attention = AttentionSpec { pairing: RopePairing::NeoX, ..AttentionSpec::read(keys)? };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    Ok(sizes.uniform(keys, attention, ungated(keys)?, rope))
}

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = rotated(keys)?;
    let parallel = keys.get::<bool>(PARALLEL)?.ok_or_else(|| keys.missing(PARALLEL))?;
    spec.layers.iter_mut().for_each(|layer| layer.parallel = parallel);
    Ok(spec)
}

fn phi2(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = rotated(keys)?;
    for layer in &mut spec.layers {
        (layer.norms, layer.parallel) = (Norms::SHARED, true);
    }
    Ok(spec)
}
