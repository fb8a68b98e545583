//! `internlm2`: InternLM 2 and 2.5, like `llama`.

use super::{Architecture, llama};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "internlm2", read: llama::read };
