//! `Qwen3_5ForConditionalGeneration` and `Qwen3_5MoeForConditionalGeneration`, their text part: Qwen 3.5 and 3.6. As
//! Qwen3-Next, except that the inputs of a delta net are projected by four tensors. In the source, value heads are grouped by
//! the key head that they share; in GGUF value head `h` shares key head `h` modulo their number.

use super::config::Config;
use super::describe::{
    Architecture, Defaults, Dim, Dimensions, EITHER_EXPERTS, Group, HEAD_NORMS, MATRICES, Mixture,
    Own, Part, SHARED_EXPERT, TWO_NORMS_RENAMED, TensorKind, matrix, vector,
};
use super::qwen3_next::{
    self, CHANNELS, FULL, GATED_ATTENTION, HEADS, LINEAR, NORM, QWEN3_NEXT, VALUES, convolution,
    delta_net, rates, taken,
};
use super::tensors::PREDICTS_FURTHER;
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const QWEN3_5: Architecture = Architecture {
    gguf: "qwen35",
    classes: &["Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM", "Qwen3_5TextModel"],
    model_types: &["qwen3_5", "qwen3_5_text"],
    defaults: Defaults {
        hidden: 4096,
        feed_forward: 12288,
        layers: 32,
        heads: 16,
        kv_heads: Some(4),
        ..QWEN3_NEXT.defaults
    },
    layer: &[
        Group::always(TWO_NORMS_RENAMED),
        Group::of_layers(FULL, GATED_ATTENTION),
        Group::of_layers(FULL, HEAD_NORMS),
        Group::of_layers(LINEAR, DELTA_NET),
        Group::always(DENSE),
    ],
    experts: None,
    others: &[
        ("mtp.", PREDICTS_FURTHER),
        ("model.mtp.", PREDICTS_FURTHER),
        ("model.visual.", PICTURES),
        ("visual.", PICTURES),
    ],
    keys,
    ..QWEN3_NEXT
};

pub(super) const QWEN3_5_MOE: Architecture = Architecture {
    gguf: "qwen35moe",
    classes: &[
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeTextModel",
    ],
    model_types: &["qwen3_5_moe", "qwen3_5_moe_text"],
    defaults: Defaults { hidden: 2048, layers: 40, kv_heads: Some(2), ..QWEN3_5.defaults },
    layer: &[
        Group::always(TWO_NORMS_RENAMED),
        Group::of_layers(FULL, GATED_ATTENTION),
        Group::of_layers(FULL, HEAD_NORMS),
        Group::of_layers(LINEAR, DELTA_NET),
        EITHER_EXPERTS[0],
        EITHER_EXPERTS[1],
        Group::always(SHARED_EXPERT),
    ],
    experts: Some(Mixture { count: 256, used: ("num_experts_per_tok", 8), ..qwen3_next::MIXTURE }),
    ..QWEN3_5
};

const PICTURES: &str = "belongs to the part that sees pictures";

/// The three matrices of a dense layer.
const DENSE: &[Part] = MATRICES.split_at(4).1;

const DELTA_NET: &[Part] = &[
    taken("linear_attn.in_proj_qkv.weight", "attn_qkv.weight", CHANNELS, channels),
    taken("linear_attn.in_proj_z.weight", "attn_gate.weight", VALUES, whole_heads),
    taken("linear_attn.in_proj_a.weight", "ssm_alpha.weight", HEADS, heads),
    taken("linear_attn.in_proj_b.weight", "ssm_beta.weight", HEADS, heads),
    convolution(channels),
    rates(heads),
    Part { kind: TensorKind::Rows(heads), ..vector("linear_attn.dt_bias", "ssm_dt.bias", HEADS) },
    NORM,
    Part {
        kind: TensorKind::Columns(whole_heads),
        ..matrix("linear_attn.out_proj.weight", "ssm_out.weight", Dim::Hidden, VALUES)
    },
];

/// Returns the value heads, of `rows` rows each from row `before` on: the first of each key head, the second of each, and
/// so on.
fn spread(sizes: &Dimensions, before: u64, rows: u64) -> Vec<(u64, u64)> {
    let [keys, _, values, _] = delta_net(sizes);
    let each = values / keys.max(1);
    let head = move |n, key| (before + (key * each + n) * rows, rows);
    (0..each).flat_map(|n| (0..keys).map(move |key| head(n, key))).collect()
}

/// The order of tensors with one number for each value head.
fn heads(sizes: &Dimensions) -> Vec<(u64, u64)> {
    spread(sizes, 0, 1)
}

/// The order of tensors with a whole value for each value head.
fn whole_heads(sizes: &Dimensions) -> Vec<(u64, u64)> {
    spread(sizes, 0, delta_net(sizes)[3])
}

/// Queries and keys in their order, followed by the values.
fn channels(sizes: &Dimensions) -> Vec<(u64, u64)> {
    let [keys, key, _, value] = delta_net(sizes);
    let before = 2 * keys * key;
    [vec![(0, before)], spread(sizes, before, value)].concat()
}

/// Pairs that rotate by time, height and width, which are equal for text.
const SECTIONS: [i32; 3] = [11, 11, 10];

fn keys(config: &Config, dimensions: &Dimensions, own: &mut Own) -> Result<(), ConvertError> {
    qwen3_next::keys(config, dimensions, own)?;
    let key = "mrope_section";
    let mut sections = SECTIONS.to_vec();
    for name in ["rope_parameters", "rope_scaling"] {
        let parameters = config.object(name)?;
        let Some(value) = parameters.and_then(|parameters| parameters.get(key)) else { continue };
        let number = |n: &serde_json::Value| n.as_i64().and_then(|n| i32::try_from(n).ok());
        let numbers: Option<Vec<i32>> =
            value.as_array().and_then(|numbers| numbers.iter().map(number).collect());
        sections = match numbers {
            Some(numbers) if numbers.len() <= 4 && numbers.iter().all(|n| *n >= 0) => numbers,
            _ => {
                let name = format!("{name}.{key}");
                return Err(config.wrong(&name, value, "at most four numbers from 0 on"));
            }
        };
    }
    sections.resize(4, 0);
    own.add("rope.dimension_sections", Entry::I32s(sections));
    Ok(())
}
