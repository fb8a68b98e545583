//! `qwen3`: the two halves of a head rotate together, queries and keys are normed per head instead
//! of having biases, and a head's length is a key of its own, not a share of the width.

use alight_kernels::rope::RopePairing;

use crate::config::Config;

pub(super) fn configure(config: Config) -> Config {
    Config { rope_pairing: RopePairing::Halves, qk_norm: true, ..config }
}
