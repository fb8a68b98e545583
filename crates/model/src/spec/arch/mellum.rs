//! `mellum`: like `qwen3moe`; three out of four layers may have a sliding window, and RoPE scaling applies only to the fourth (JetBrains' Mellum 2).

use alight_kernels::rope::{RopeParams, RopeScaling};

use super::{Architecture, qwen3};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::experts::ExpertsSpec;
use crate::spec::ModelSpec;
use crate::spec::window::{set_windows, window, windowed_layers};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "mellum", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = qwen3::read_with(keys, ExpertsSpec::read(keys, true)?)?;
    if let Some(window) = window(keys, 0)? {
        let base = keys.float("rope.freq_base_swa", 1.0..1e30, "from 1 to 1e30")?;
        let RopeParams { dims, base: others, .. } = spec.ropes[0];
        let base = base.unwrap_or(others);
        let rope = RopeParams { dims, base, scaling: RopeScaling::None };
        let windowed = windowed_layers(keys, spec.layers.len(), 4)?;
        set_windows(&mut spec, window, &windowed, rope);
    }
    Ok(spec)
}
