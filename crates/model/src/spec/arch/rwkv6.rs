//! `rwkv6`: layers of RWKV-6's mixer and of its feed-forward part, as in `rwkv7` (RWKV-6 "Finch"). Some models halve the residual stream every few layers, so that
//! it stays within F16. `rwkv6qwen2`: the mixer in layers of Qwen 2 (QRWKV6).

use super::{Architecture, rwkv7};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::rwkv6::Rwkv6Spec;
use crate::spec::{Mixer, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "rwkv6", read };

pub(super) const IN_QWEN: Architecture = Architecture { name: "rwkv6qwen2", read: in_qwen };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut mixer = Rwkv6Spec::read(keys)?;
    mixer.state.before_channel_mix = true;
    let place = mixer.state.channel_mix();
    let mut spec = rwkv7::with_channel_mix(keys, Mixer::Rwkv6(mixer), place, true)?;
    let period = keys.get::<u32>("rescale_every_n_layers")?.unwrap_or(0) as usize;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        if period > 0 && (i + 1).is_multiple_of(period) {
            layer.output_scale = 0.5;
        }
    }
    Ok(spec)
}

fn in_qwen(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mixer = Rwkv6Spec { bonus: false, ..Rwkv6Spec::read(keys)? };
    rwkv7::with_dense(keys, Mixer::Rwkv6(mixer))
}
