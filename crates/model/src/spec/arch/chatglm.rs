//! `chatglm`: queries, keys and values in one matrix with biases, gate and up in another without; half of a head is rotated, in interleaved pairs
//! (Zhipu's ChatGLM 2 and 3, GLM-4 9B).

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{InputMatrices, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "chatglm", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec::read(keys)?;
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let dense = DenseSpec { inputs: InputMatrices::Fused, ..DenseSpec::read(keys)? };
    Ok(sizes.uniform(keys, attention, dense, rope))
}
