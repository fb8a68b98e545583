//! `minimax-m2`: a mixture of experts in every layer, chosen by their sigmoids with a bias that affects only the choice; NeoX
//! rotary pairs on part of a head; queries and keys are normed over all heads together (MiniMax M2).

use super::{Architecture, olmoe};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::routing::Routing;
use crate::spec::{FeedForward, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "minimax-m2", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = olmoe::read(keys)?;
    for layer in &mut spec.layers {
        if let Some(FeedForward::Experts(experts)) = &mut layer.feed_forward {
            let routing = experts.routing.clone().sigmoid_unless_said(keys)?;
            experts.routing = Routing { normalise: true, ..routing };
        }
    }
    Ok(spec)
}
