//! `granitehybrid`: like `granite`, with Mamba-2 in the layers without key heads; some models have a mixture of experts with a
//! shared expert; most have no rotary embedding (IBM's Granite 4, H).

use super::{Architecture, granite, granitemoe};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::parts::mamba2::Mamba2Spec;
use crate::spec::sizes::Sizes;
use crate::spec::{FeedForward, Mixer, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "granitehybrid", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let feed_forward: FeedForward = match keys.get::<u64>("expert_count")?.unwrap_or(0) {
        0 => DenseSpec::read(keys)?.into(),
        _ => granitemoe::experts(keys)?.into(),
    };
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec::read_where_there(keys, sizes.layers)?;
    let mamba = Mixer::Mamba2(Mamba2Spec::read(keys)?);
    let mixers = attention.into_iter().map(|attention| match attention {
        None => mamba.clone(),
        Some(attention) => Mixer::Attention(attention),
    });
    granite::of_mixers(keys, sizes, mixers, &feed_forward)
}
