//! `modern-bert`: an encoder with rotated queries and keys, norms without biases before its parts, and a gate with GELU. Two of three layers see a window around
//! a token, and have a rotary base of their own. The first layer has no norm before its attention (Warner et al. 2024). Granite's later encoders have
//! SiLU instead of GELU.

use alight_kernels::rope::{RopePairing, RopeParams};

use super::Architecture;
use super::bert::encoder;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::window::{set_windows, window, windowed_after_first};
use crate::spec::{
    Activation, ClassifierSpec, EmbeddingNorm, HeadActivation, InputMatrices, ModelSpec, NormKind,
    Pooling,
};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "modern-bert", read };

/// The rotary base of layers with a window, if the file does not state it.
const WINDOW_BASE: f32 = 10_000.0;

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let key = "decision.block_count";
    if let Some(found) = keys.get::<u64>(key)? {
        return Err(keys.unsupported(key, found, "a network that decides by further layers"));
    }
    let sizes = Sizes::read_with(keys, NormKind::Layer)?;
    let attention = AttentionSpec { pairing: RopePairing::NeoX, ..AttentionSpec::read(keys)? };
    let attention = encoder(keys, attention)?;
    let key = "hidden_activation";
    let activation = match keys.get::<&str>(key)? {
        None | Some("gelu") => Activation::GeluErf,
        Some("silu") => Activation::Silu,
        Some(other) => return Err(keys.unsupported(key, other, "this activation")),
    };
    let dense = DenseSpec { inputs: InputMatrices::Fused, activation, ..DenseSpec::read(keys)? };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let mut spec = sizes.uniform(keys, attention, dense, rope);
    if let Some(window) = window(keys, 0)? {
        let base = keys.float("rope.freq_base_swa", 1.0..1e30, "from 1 to 1e30")?;
        let rope = RopeParams { base: base.unwrap_or(WINDOW_BASE), ..spec.ropes[0].clone() };
        let windowed = windowed_after_first(keys, spec.layers.len(), 3)?;
        set_windows(&mut spec, window, &windowed, rope);
    }
    spec.layers[0].norms.mixer = None;
    spec.has_output = false;
    spec.embedding_norm = EmbeddingNorm::Named("token_embd_norm");
    let classifier = ClassifierSpec::read(keys, Pooling::Mean, HeadActivation::Gelu)?;
    spec.classifier = Some(classifier);
    Ok(spec)
}
