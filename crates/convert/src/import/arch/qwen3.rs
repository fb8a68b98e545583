//! `Qwen3ForCausalLM`: queries and keys are normed, and the head length is independent of the
//! hidden size.

use super::describe::{Architecture, Defaults, Group, HEAD_NORMS, MATRICES, TWO_NORMS};
use super::qwen2;

pub(super) const QWEN3: Architecture = Architecture {
    gguf: "qwen3",
    classes: &["Qwen3ForCausalLM", "Qwen3Model"],
    model_types: &["qwen3"],
    defaults: Defaults { head_length: Some(128), ..qwen2::QWEN2.defaults },
    layer: &[Group::always(TWO_NORMS), Group::always(MATRICES), Group::always(HEAD_NORMS)],
    own_head_length: true,
    never: &["attention_bias"],
    keys: |config, dimensions, own| qwen2::keys("qwen3", config, dimensions, own),
    ..qwen2::QWEN2
};
