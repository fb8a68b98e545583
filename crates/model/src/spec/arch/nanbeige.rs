//! `nanbeige`: like `llama`, but a token passes the layers more than once, each time with keys and values of their own; between passes is the norm that is
//! also before the output (Nanbeige 4.2).

use super::Architecture;
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_LAYERS};
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{ModelSpec, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "nanbeige", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let layers = sizes.layers;
    let attention = AttentionSpec::read(keys)?;
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let mut spec = sizes.uniform(keys, attention, DenseSpec::read(keys)?, rope);
    let key = "num_loops";
    let passes = keys.get::<u64>(key)?.unwrap_or(1);
    let most = (MAX_LAYERS / layers) as u64;
    if !(1..=most).contains(&passes) {
        return Err(keys.value(key, passes, format!("1 to {most} passes of {layers} layers")));
    }
    if !keys.get::<bool>("skip_loop_final_norm")?.unwrap_or(false) {
        spec.layers[layers - 1].norms.feed_forward_sum = Some(Norms::OF_NETWORK);
    }
    spec.repeat_layers(passes as usize);
    if let Some(last) = spec.layers.last_mut() {
        last.norms.feed_forward_sum = None;
    }
    Ok(spec)
}
