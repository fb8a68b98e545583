//! `gemma2`: a Gemma with soft caps on attention scores and logits. Every second layer, starting with the first, has a sliding
//! window and the same rotary embedding as the others. Early files leave these keys out.

use alight_kernels::rope::RopeParams;

use super::Architecture;
use super::gemma::Gemma;
use crate::spec::QkNorm;

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "gemma2", read: |keys| GEMMA2.read(keys) };

const GEMMA2: Gemma = Gemma {
    layers_of_27b: 46,
    window: 4096,
    period: 2,
    attention_cap: 50.0,
    logit_cap: 30.0,
    qk_norm: QkNorm::None,
    window_rope: |others, base| RopeParams { base: base.unwrap_or(others.base), ..others.clone() },
};
