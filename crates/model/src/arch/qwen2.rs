//! `qwen2`: as `llama`, but the two halves of a head rotate together, and queries, keys and values
//! have biases, which are used where the file has them (Qwen 2 and 2.5, and what was distilled into
//! them).

use alight_kernels::rope::RopePairing;

use crate::config::Config;

pub(super) fn configure(config: Config) -> Config {
    Config { rope_pairing: RopePairing::Halves, ..config }
}
