//! `qwen3vl` and `qwen3vlmoe`: the text parts of Qwen3-VL: as `qwen3` and `qwen3moe`. The positions of text have one component, with which
//! the sections of its rotary embedding are all turned alike.

use super::{Architecture, qwen3, qwen3moe};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen3vl", read: qwen3::read };
pub(super) const MIXTURE: Architecture =
    Architecture { name: "qwen3vlmoe", ..qwen3moe::ARCHITECTURE };
