//! `falcon-h1`: every layer has attention and Mamba-2 next to each other, which take what one norm puts out, and whose outputs are added; NeoX rotary pairs.
//! Its makers' factors are in the weights (TII's Falcon-H1).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::parts::mamba2::Mamba2Spec;
use crate::parts::two_mixers::TwoMixersSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{Mixer, ModelSpec, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "falcon-h1", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec { pairing: RopePairing::NeoX, ..AttentionSpec::read(keys)? };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let mamba = Mamba2Spec { norm_optional: true, ..Mamba2Spec::read(keys)? };
    let norm = "attn_norm";
    let mixer = Mixer::Two(Box::new(TwoMixersSpec { attention, mamba, norm }));
    let mut spec = sizes.of_layers(keys, mixer, DenseSpec::read(keys)?, rope);
    // The two mixers have the norm of their input.
    let norms = Norms { mixer: None, ..Norms::INPUTS };
    spec.layers.iter_mut().for_each(|layer| layer.norms = norms);
    Ok(spec)
}
