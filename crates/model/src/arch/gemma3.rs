//! `gemma3`: a Gemma with normed queries and keys, whose local layers (five of six) have a rotary
//! base of their own.

use alight_kernels::rope::{RopeParams, RopeScaling};

use super::gemma;
use crate::config::{Config, Keys, Local};
use crate::error::ConfigError;

/// Every sixth layer is global unless the file says otherwise.
const PERIOD: usize = 6;
/// Rotary base of the local layers unless the file says otherwise.
const LOCAL_BASE: f32 = 10_000.0;
const LAYERS_OF_27B: usize = 62;

pub(super) fn configure(config: Config, keys: &Keys<'_, '_>) -> Result<Config, ConfigError> {
    let local = match gemma::window(keys, 0)? {
        None => None,
        Some(window) => Some(Local {
            window,
            // What stretches the context is for the global layers alone.
            rope: RopeParams {
                dims: config.rope.dims,
                base: gemma::local_base(keys, LOCAL_BASE)?,
                scaling: RopeScaling::None,
            },
            layers: gemma::pattern(keys, config.layers, PERIOD)?,
        }),
    };
    Ok(Config {
        local,
        attention_softcap: gemma::cap(keys, "attn_logit_softcapping", 0.0)?,
        logit_softcap: gemma::cap(keys, "final_logit_softcapping", 0.0)?,
        qk_norm: true,
        ..gemma::common(config, LAYERS_OF_27B)
    })
}
