//! `mamba`: layers that are Mamba mixers alone, without feed-forward parts (Mamba, Falcon-Mamba). `jamba`: Mamba mixers and, in layers with key heads, attention
//! without positions; dense layers and layers of experts, by what the file has, whose weights are not normalised (AI21's Jamba).

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::parts::experts::ExpertsSpec;
use crate::parts::mamba::{MambaNorms, MambaSpec};
use crate::parts::routing::Gating;
use crate::spec::sizes::Sizes;
use crate::spec::{FeedForward, LayerSpec, Mixer, ModelSpec, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "mamba", read };

pub(super) const JAMBA: Architecture = Architecture { name: "jamba", read: jamba };

/// A layer of this mixer and feed-forward part.
fn layer(mixer: Mixer, feed_forward: Option<FeedForward>) -> LayerSpec {
    let norm = Norms::INPUTS.feed_forward.filter(|_| feed_forward.is_some());
    LayerSpec::new(Some(mixer), feed_forward, Norms { feed_forward: norm, ..Norms::INPUTS })
}

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let layers = vec![layer(Mixer::Mamba(MambaSpec::read(keys)?), None); sizes.layers];
    Ok(sizes.network(keys, layers, Vec::new()))
}

fn jamba(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let mamba = MambaSpec { norms: MambaNorms::Weighted, ..MambaSpec::read(keys)? };
    let attention = AttentionSpec::read_where_there(keys, sizes.layers)?;
    let feed_forward: FeedForward = match keys.get::<u64>("expert_count")?.unwrap_or(0) {
        0 => DenseSpec::read(keys)?.into(),
        _ => {
            let mut experts = ExpertsSpec::read(keys, false)?;
            (experts.routing.gating, experts.routing.normalise) = (Gating::Softmax, false);
            experts.into()
        }
    };
    let layers = attention.into_iter().map(|attention| {
        let attention =
            attention.map(|spec| Mixer::Attention(AttentionSpec { rope: None, ..spec }));
        layer(attention.unwrap_or_else(|| Mixer::Mamba(mamba.clone())), Some(feed_forward.clone()))
    });
    let layers = layers.collect();
    let mut spec = sizes.network(keys, layers, Vec::new());
    if spec.expert_layers().next().is_some() {
        spec.put_dense_without_router(keys)?;
    }
    Ok(spec)
}
