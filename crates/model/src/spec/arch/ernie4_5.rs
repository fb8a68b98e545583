//! `ernie4_5`: Baidu's dense ERNIE 4.5, like `llama`.

use super::{Architecture, llama};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "ernie4_5", read: llama::read };
