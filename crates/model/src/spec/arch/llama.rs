//! `llama`: Llama, Mistral, SmolLM and all other models to which converters give this name. RMSNorm before attention and
//! feed-forward, SiLU, interleaved rotary pairs (converters permute the rows of q and k for this). Biases and a separate output
//! matrix are used if the file has them. So are experts: Mixtral is one of these models.

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::parts::experts::ExpertsSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{FeedForward, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "llama", read };

pub(super) fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec::read(keys)?;
    // Files of models with a sliding window (early Mistral) leave the key out, or other programs run them without it; a scale
    // other than 1/sqrt(head) belongs to files of Granite that were converted as Llama.
    let scale = keys.float("attention.scale", 0.0..1e6, "a positive number")?;
    let scale = scale.filter(|scale| *scale != 0.0).unwrap_or(attention.scale);
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let attention = AttentionSpec { scale, ..attention };
    let feed_forward: FeedForward = match keys.get::<u64>("expert_count")?.unwrap_or(0) {
        0 => DenseSpec::read(keys)?.into(),
        _ => ExpertsSpec::read(keys, true)?.into(),
    };
    Ok(sizes.uniform(keys, attention, feed_forward, rope))
}
