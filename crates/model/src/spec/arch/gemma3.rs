//! `gemma3`: a Gemma with normed queries and keys. Five out of six layers have a sliding window and a rotary base of their own. RoPE
//! scaling applies only to the layers without a window.

use alight_kernels::rope::{RopeParams, RopeScaling};

use super::Architecture;
use super::gemma::Gemma;
use crate::spec::QkNorm;

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "gemma3", read: |keys| GEMMA3.read(keys) };

pub(super) const GEMMA3: Gemma = Gemma {
    layers_of_27b: 62,
    window: 0,
    period: 6,
    attention_cap: 0.0,
    logit_cap: 0.0,
    qk_norm: QkNorm::Heads,
    window_rope: |others, base| RopeParams {
        dims: others.dims,
        base: base.unwrap_or(10_000.0),
        scaling: RopeScaling::None,
    },
};
