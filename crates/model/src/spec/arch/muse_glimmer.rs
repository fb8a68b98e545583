//! `muse-glimmer`: norms of inputs and of outputs, the latter with an epsilon of their own, and of the embedding, without weights; queries and keys are normed per
//! head; the outputs of heads have a gate; three out of four layers have a sliding window, and only those are rotated; a factor on the logits, and a soft cap
//! (Muse Glimmer 30B).

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::{AttentionSpec, OutputGate, QkNorm};
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::window::{set_unscaled_windows, windowed_layers};
use crate::spec::{EmbeddingNorm, ModelSpec, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "muse-glimmer", read };

/// Added to the mean square in norms of outputs; no key states this.
const OUTPUT_EPS: f32 = 1e-8;

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec {
        qk_norm: QkNorm::Heads,
        output_gate: OutputGate::Own,
        ..AttentionSpec::read(keys)?
    };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let windowed = windowed_layers(keys, sizes.layers, 4)?;
    let mut spec = sizes.uniform(keys, attention, DenseSpec::read(keys)?, rope);
    set_unscaled_windows(&mut spec, keys, &windowed)?;
    for attention in spec.attention_layers_mut() {
        attention.rope = attention.rope.filter(|_| attention.mask.window().is_some());
    }
    for layer in &mut spec.layers {
        (layer.norms, layer.output_eps) = (Norms::BOTH, Some(OUTPUT_EPS));
    }
    spec.embedding_norm = EmbeddingNorm::Unweighted;
    spec.logit_scale = keys.factor("logit_scale")?;
    spec.logit_softcap = super::gemma::cap(keys, "final_logit_softcapping", 0.0)?;
    Ok(spec)
}
