//! `xverse`: like `llama` (XVERSE 7B to 65B).

use super::{Architecture, llama};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "xverse", read: llama::read };
