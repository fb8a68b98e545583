//! `minimax-m2`: a mixture of experts in every layer, chosen by their sigmoids with a bias for the choice alone; NeoX rotary
//! pairs on part of a head; queries and keys are normed over all heads together (MiniMax M2).

use super::{Architecture, olmoe};
use crate::parts::routing::Gating;
use crate::spec::keys::Keys;
use crate::spec::{FeedForward, ModelSpec, SpecError};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "minimax-m2", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = olmoe::read(keys)?;
    let unsaid = keys.get::<u64>("expert_gating_func")?.unwrap_or(0) == 0;
    for layer in &mut spec.layers {
        if let FeedForward::Experts(experts) = &mut layer.feed_forward {
            experts.routing.normalise = true;
            if unsaid {
                experts.routing.gating = Gating::Sigmoid;
            }
        }
    }
    Ok(spec)
}
