//! Encoders that are decoders in all but their mask, and have no output matrix: `eurobert` (NeoX rotary pairs; Boizard et al. 2025), `llama-embed`
//! (Llama), `neo-bert` (interleaved pairs, queries, keys and values in one matrix, gate and up in another; Le Breton et al. 2025), and `gemma-embedding`
//! (Gemma 3, with a window around a token in five of six layers, and two projections of the mean). `gemma-embedding2` is Gemma 4, whose layers get
//! inputs from a projection of the token's embedding alone. Its `output` projects every token's state, and so it may project their mean.

use alight_kernels::rope::RopePairing;

use super::Architecture;
use super::bert::encoder;
use super::{gemma3, gemma4, llama};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{InputMatrices, ModelSpec, Pooling};

pub(super) const EUROBERT: Architecture = Architecture { name: "eurobert", read: eurobert };

pub(super) const LLAMA_EMBED: Architecture =
    Architecture { name: "llama-embed", read: |keys| without_output(keys, llama::read(keys)?) };

pub(super) const NEO_BERT: Architecture = Architecture { name: "neo-bert", read: neo_bert };

pub(super) const GEMMA: Architecture = Architecture { name: "gemma-embedding", read: gemma };

pub(super) const GEMMA_2: Architecture = Architecture { name: "gemma-embedding2", read: gemma_2 };

/// Makes a decoder an encoder: in both directions, and without an output.
fn without_output(keys: &Keys<'_, '_>, mut spec: ModelSpec) -> Result<ModelSpec, SpecError> {
    for attention in spec.attention_layers_mut().filter(|a| !a.mask.is_bidirectional()) {
        let window = attention.mask.window();
        let both = encoder(keys, attention.clone())?;
        *attention = AttentionSpec { mask: both.mask.with_window(window), ..both };
    }
    spec.has_output = false;
    Ok(spec)
}

fn eurobert(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec { pairing: RopePairing::NeoX, ..AttentionSpec::read(keys)? };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    without_output(keys, sizes.uniform(keys, attention, DenseSpec::read(keys)?, rope))
}

fn neo_bert(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec::read(keys)?;
    let dense = DenseSpec { inputs: InputMatrices::Fused, ..DenseSpec::read(keys)? };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let spec = sizes.uniform(keys, attention, dense, rope);
    let mut spec = without_output(keys, spec)?;
    spec.output_norm = Some("enc.output_norm");
    spec.pooling = Some(Pooling::Cls);
    Ok(spec)
}

fn gemma(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = without_output(keys, gemma3::GEMMA3.read(keys)?)?;
    spec.pooling = Some(Pooling::Mean);
    Ok(spec)
}

fn gemma_2(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = without_output(keys, (gemma4::ARCHITECTURE.read)(keys)?)?;
    spec.pooling = Some(Pooling::Mean);
    (spec.projections, spec.token_table) = (&["output"], false);
    Ok(spec)
}
