//! `qwen3vl` and `qwen3vlmoe`: the text parts of Qwen3-VL, like `qwen3` and `qwen3moe`. Text positions have one component, so all
//! sections of the rotary embedding are rotated by the same position.

use super::{Architecture, qwen3, qwen3moe};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen3vl", read: qwen3::read };
pub(super) const MIXTURE: Architecture =
    Architecture { name: "qwen3vlmoe", ..qwen3moe::ARCHITECTURE };
