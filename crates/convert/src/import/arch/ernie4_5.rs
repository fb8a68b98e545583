//! `Ernie4_5ForCausalLM` and `Ernie4_5_MoeForCausalLM`: Baidu's ERNIE 4.5 0.3B, and 21B-A3B and 300B-A47B, which have a mixture of experts with shared ones
//! in every layer after the leading dense ones. Queries and keys rotate in pairs of neighbours, as in GGUF.

use super::config::Config;
use super::deepseek::{
    DENSE, DENSE_PARTS, SHARED, SHARED_EXPERTS, SHARED_WIDTH, SPARSE, dense_then_sparse,
};
use super::describe::{
    ATTENTION, Architecture, Defaults, Dim, Dimensions, Group, MATRICES, Mixture, More, Own, Part,
    TWO_NORMS, TensorKind, either_experts_of, matrix,
};
use super::dimensions::MAX_WIDTH;
use super::llama;
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const ERNIE4_5: Architecture = Architecture {
    gguf: "ernie4_5",
    classes: &["Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM", "Ernie4_5Model"],
    model_types: &["ernie4_5"],
    defaults: Defaults {
        hidden: 1024,
        feed_forward: 3072,
        layers: 18,
        heads: 16,
        kv_heads: Some(2),
        head_length: Some(128),
        context: 131_072,
        eps: 1e-5,
        theta: 500_000.0,
        tied: true,
        ..llama::LLAMA.defaults
    },
    layer: &[Group::always(TWO_NORMS), Group::always(MATRICES)],
    permuted: false,
    never: &["use_bias"],
    keys: |_, _, _| Ok(()),
    ..llama::LLAMA
};

pub(super) const ERNIE4_5_MOE: Architecture = Architecture {
    gguf: "ernie4_5-moe",
    classes: &["Ernie4_5_MoeForCausalLM", "Ernie4_5_MoeModel"],
    model_types: &["ernie4_5_moe"],
    defaults: Defaults {
        hidden: 2560,
        feed_forward: 12288,
        layers: 28,
        heads: 20,
        kv_heads: Some(4),
        head_length: None,
        ..ERNIE4_5.defaults
    },
    layer: &[
        Group::always(TWO_NORMS),
        Group::always(ATTENTION),
        Group::of_layers(DENSE, DENSE_PARTS),
        either_experts_of(SPARSE)[0],
        either_experts_of(SPARSE)[1],
        Group::of_layers(SPARSE, &[CHOICE]),
        Group::of_layers(SHARED, SHARED_EXPERTS),
    ],
    more,
    experts: Some(Mixture {
        count: 64,
        used: ("moe_k", 6),
        width: Some(("moe_intermediate_size", 1536)),
        shared: None,
        normed: None,
    }),
    keys,
    ..ERNIE4_5
};

/// Bias added to the probabilities for the choice of experts, a matrix of one row.
const CHOICE: Part = Part {
    kind: TensorKind::Row,
    ..matrix("mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias", Dim::One, Dim::Experts)
};

/// The keys of the first layer with experts and of the number of shared ones, with the defaults of `transformers`.
const FIRST: (&str, u64) = ("moe_layer_start_index", 1);
const COUNT: (&str, u64) = ("moe_num_shared_experts", 2);

/// Returns the number of a key, or its default.
fn number(config: &Config, (key, default): (&str, u64)) -> Result<u64, ConvertError> {
    config.count_or(key, default, MAX_WIDTH)
}

fn more(config: &Config, dimensions: &Dimensions) -> Result<More, ConvertError> {
    let (first, shared) = (number(config, FIRST)?, number(config, COUNT)?);
    if let Some(step) = config.count("moe_layer_interval", u64::MAX)?.filter(|step| *step != 1) {
        return Err(config.wrong("moe_layer_interval", &step.into(), "1"));
    }
    let last = dimensions.layers - 1;
    match config.get("moe_layer_end_index") {
        None => {}
        Some(end) if *end == -1 || *end == last => {}
        Some(end) => {
            let expected = format!(
                "-1 or the last layer, {last}: GGUF has no key for dense layers after the others"
            );
            return Err(config.wrong("moe_layer_end_index", end, &expected));
        }
    }
    let layers = dense_then_sparse(dimensions, first, shared);
    let width = shared.saturating_mul(dimensions.of(Dim::ExpertWidth));
    if width > MAX_WIDTH {
        return Err(config.wrong(COUNT.0, &shared.into(), "fewer, for experts of this width"));
    }
    Ok(More { sizes: vec![(SHARED_WIDTH, width)], layers, ..More::default() })
}

fn keys(config: &Config, dimensions: &Dimensions, own: &mut Own) -> Result<(), ConvertError> {
    let shared = number(config, COUNT)?;
    for (key, value) in [
        ("interleave_moe_layer_step", 1),
        ("leading_dense_block_count", number(config, FIRST)?),
        ("expert_shared_count", shared),
        ("expert_shared_feed_forward_length", dimensions.of(SHARED_WIDTH)),
    ] {
        if shared > 0 || !key.contains("shared") {
            own.add(key, Entry::U32(value as u32));
        }
    }
    Ok(())
}
