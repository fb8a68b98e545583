//! `qwen2vl`: the text part of Qwen 2 VL and Qwen 2.5 VL: as `qwen2`. The positions of text have one component, with which the
//! sections of its rotary embedding are all turned alike.

use super::{Architecture, qwen2};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen2vl", read: qwen2::read };
