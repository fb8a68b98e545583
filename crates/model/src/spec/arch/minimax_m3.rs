//! `minimax-m3`: queries and keys are normed per head, NeoX rotary pairs on part of a head; after leading dense layers a mixture of experts with a shared one,
//! chosen by their sigmoids with a bias that affects only the choice; activations are clamped as in gpt-oss. Its layers attend to a few blocks of positions
//! that a token chooses; here they attend to all, which is the same as long as a text has no more blocks than a token chooses, and longer texts are refused
//! (MiniMax M3).

use super::{Architecture, qwen3};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::dense::Activation;
use crate::parts::experts::{ExpertsSpec, SharedExpert};
use crate::spec::{FeedForward, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "minimax-m3", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut experts = ExpertsSpec::read(keys, false)?;
    experts.routing = experts.routing.sigmoid_unless_said(keys)?;
    experts.activation = Activation::ClampedSilu;
    experts.shared = SharedExpert::as_wide_as(keys, experts.intermediate_size)?;
    let mut spec = qwen3::read_with(keys, experts)?;
    spec.put_dense_before_experts(keys)?;
    // Of longer texts, which are refused.
    keys.do_not_apply_under("attention.indexer.");
    let size = chosen(keys, "attention.indexer.block_size")?;
    let reach = size
        .zip(chosen(keys, "attention.indexer.top_k")?)
        .map(|(size, count)| size.saturating_mul(count));
    spec.attention_layers_mut().for_each(|attention| attention.reach = reach);
    for layer in &mut spec.layers {
        if let Some(FeedForward::Dense(dense)) = &mut layer.feed_forward {
            dense.activation = Activation::ClampedSilu;
        }
    }
    Ok(spec)
}

/// A number of what a token chooses; 0 or no value: it chooses nothing.
///
/// # Errors
/// A value that is no number.
pub(super) fn chosen(keys: &Keys<'_, '_>, key: &str) -> Result<Option<usize>, SpecError> {
    let found = keys.get::<u64>(key)?.filter(|found| *found > 0);
    Ok(found.map(|found| usize::try_from(found).unwrap_or(usize::MAX)))
}
