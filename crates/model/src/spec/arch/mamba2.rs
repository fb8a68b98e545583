//! `mamba2`: layers that are Mamba-2 mixers alone, without feed-forward parts (Mamba 2, Codestral Mamba).

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::mamba2::Mamba2Spec;
use crate::spec::sizes::Sizes;
use crate::spec::{LayerSpec, Mixer, ModelSpec, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "mamba2", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let mixer = Some(Mixer::Mamba2(Mamba2Spec::read(keys)?));
    let norms = Norms { feed_forward: None, ..Norms::INPUTS };
    let layer = LayerSpec::new(mixer, None, norms);
    let layers = vec![layer; sizes.layers];
    Ok(sizes.network(keys, layers, Vec::new()))
}
