//! `gemma2`: a Gemma that caps attention scores and logits softly, whose every second layer, from
//! the first on, is local and rotates as the global ones do.

use alight_kernels::rope::RopeParams;

use super::gemma;
use crate::config::{Config, Keys, Local};
use crate::error::ConfigError;

/// What holds unless the file says otherwise: early files leave these keys out.
const PERIOD: usize = 2;
const WINDOW: usize = 4096;
const ATTENTION_CAP: f32 = 50.0;
const LOGIT_CAP: f32 = 30.0;
const LAYERS_OF_27B: usize = 46;

pub(super) fn configure(config: Config, keys: &Keys<'_, '_>) -> Result<Config, ConfigError> {
    let local = match gemma::window(keys, WINDOW)? {
        None => None,
        Some(window) => Some(Local {
            window,
            rope: RopeParams {
                base: gemma::local_base(keys, config.rope.base)?,
                ..config.rope.clone()
            },
            layers: gemma::pattern(keys, config.layers, PERIOD)?,
        }),
    };
    Ok(Config {
        local,
        attention_softcap: gemma::cap(keys, "attn_logit_softcapping", ATTENTION_CAP)?,
        logit_softcap: gemma::cap(keys, "final_logit_softcapping", LOGIT_CAP)?,
        ..gemma::common(config, LAYERS_OF_27B)
    })
}
