//! `qwen2vl`: the text part of Qwen 2 VL and Qwen 2.5 VL, like `qwen2`. Text positions have one component, so all sections of the
//! rotary embedding are rotated by the same position.

use super::{Architecture, qwen2};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen2vl", read: qwen2::read };
