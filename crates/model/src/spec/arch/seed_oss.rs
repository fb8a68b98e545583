//! `seed_oss`: like `qwen2`, but the norm before the feed-forward part is called `post_attention_norm` (ByteDance's Seed-OSS,
//! whose heads have a length of their own).

use super::{Architecture, qwen2};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::spec::{ModelSpec, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "seed_oss", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = qwen2::read(keys)?;
    let norms = Norms { feed_forward: Some("post_attention_norm"), ..Norms::INPUTS };
    spec.layers.iter_mut().for_each(|layer| layer.norms = norms);
    Ok(spec)
}
