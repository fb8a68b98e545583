//! `qwen3vl`: the text part of Qwen3-VL: as `qwen3`. The positions of text have one component, with which the sections of its
//! rotary embedding are all turned alike.

use super::{Architecture, qwen3};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen3vl", read: qwen3::read };
