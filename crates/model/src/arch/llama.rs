//! `llama`: RMSNorm before attention and feed-forward, SiLU gate, neighbouring elements of a head
//! rotate together (converters permute the rows of q and k to make it so). Biases and a separate
//! output matrix are used where the file has them.

use crate::config::{Config, Keys};
use crate::error::ConfigError;

pub(super) fn configure(config: Config, keys: &Keys<'_, '_>) -> Result<Config, ConfigError> {
    // Files of models with a sliding window (early Mistral) leave the key out or are run without
    // it by everyone; a scale other than 1/sqrt(head) belongs to Granite.
    let attention_scale = keys
        .float("attention.scale", 0.0..1e6, "a positive number")?
        .filter(|scale| *scale != 0.0)
        .unwrap_or(config.attention_scale);
    Ok(Config { attention_scale, ..config })
}
