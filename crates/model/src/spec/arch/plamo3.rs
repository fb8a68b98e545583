//! `plamo3`: like `qwen3`, with norms of inputs and outputs, and gate and up in one matrix; all but the last of eight layers have a sliding window and an
//! unscaled rotary embedding of their own base (PLaMo 3).

use super::{Architecture, qwen3};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::dense::DenseSpec;
use crate::spec::window::{set_unscaled_windows, windowed_layers};
use crate::spec::{InputMatrices, ModelSpec, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "plamo3", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let dense = DenseSpec { inputs: InputMatrices::Fused, ..DenseSpec::read(keys)? };
    let mut spec = qwen3::read_with(keys, dense)?;
    spec.layers.iter_mut().for_each(|layer| layer.norms = Norms::BOTH);
    let windowed = windowed_layers(keys, spec.layers.len(), 8)?;
    set_unscaled_windows(&mut spec, keys, &windowed)?;
    Ok(spec)
}
