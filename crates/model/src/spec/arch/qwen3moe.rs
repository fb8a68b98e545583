//! `qwen3moe`: like `qwen3`, with a mixture of experts in every layer, none of them shared (Qwen3-30B-A3B, 235B-A22B).

use super::{Architecture, qwen3};
use crate::parts::experts::ExpertsSpec;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen3moe",
    read: |keys| qwen3::read_with(keys, ExpertsSpec::read(keys, true)?),
};
