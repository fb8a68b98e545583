//! `mellum`: like `qwen3moe`; three out of four layers may have a sliding window, and RoPE scaling applies only to the fourth (JetBrains' Mellum 2).

use super::{Architecture, qwen3};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::experts::ExpertsSpec;
use crate::spec::ModelSpec;
use crate::spec::window::{set_unscaled_windows, windowed_layers};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "mellum", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = qwen3::read_with(keys, ExpertsSpec::read(keys, true)?)?;
    let windowed = windowed_layers(keys, spec.layers.len(), 4)?;
    set_unscaled_windows(&mut spec, keys, &windowed)?;
    Ok(spec)
}
