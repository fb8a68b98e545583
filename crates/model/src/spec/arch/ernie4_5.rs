//! `ernie4_5`: Baidu's dense ERNIE 4.5, like `llama`. `paddleocr`: the text part of PaddleOCR-VL, with NeoX rotary pairs, whose positions have
//! one component in texts.

use super::{Architecture, exaone, llama};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "ernie4_5", read: llama::read };

pub(super) const PADDLE: Architecture = Architecture { name: "paddleocr", read: exaone::read };
