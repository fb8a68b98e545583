//! `seed_oss`: as `qwen2`, but the norm before the feed-forward part is called `post_attention_norm` (ByteDance's Seed-OSS,
//! whose heads have a length of their own).

use super::{Architecture, qwen2};
use crate::spec::keys::Keys;
use crate::spec::{ModelSpec, SpecError};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "seed_oss", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = qwen2::read(keys)?;
    spec.layers.iter_mut().for_each(|layer| layer.feed_forward_norm = "post_attention_norm");
    Ok(spec)
}
