//! The order in which a forward pass reads the tensors of a model, so that a file in that order is
//! read from front to back.

use std::ops::Range;

use alight_formats::gguf::TensorInfo;
use alight_formats::packed::side_by_side_len;

/// Names of the tensors of a layer, in the order of use. Names that are not listed come last, in
/// the order of the source.
const LAYER: &[&str] = &[
    "attn_norm",
    "attn_norm_2",
    "attn_qkv",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_q_a",
    "attn_kv_a_mqa",
    "attn_q_b",
    "attn_q_a_norm",
    "attn_kv_a_norm",
    "attn_q_norm",
    "attn_k_norm",
    "attn_sinks",
    "attn_kv_b",
    "attn_k_b",
    "attn_v_b",
    "attn_output",
    "attn_output_norm",
    "post_attention_norm",
    "ffn_norm",
    "ffn_gate_inp",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn_gate_up_exps",
    "ffn_gate_exps",
    "ffn_up_exps",
    "ffn_down_exps",
    "ffn_gate_shexp",
    "ffn_up_shexp",
    "ffn_down_shexp",
    "post_ffw_norm",
    "layer_output_norm",
];

/// Returns the positions of `names` in the order of use.
pub(crate) fn execution_order(names: &[&str]) -> Vec<usize> {
    // A matrix that is both embedding and output is read as a whole at the end; only a row of it is
    // read at the beginning.
    let tied = !names.contains(&"output.weight");
    let mut order: Vec<usize> = (0..names.len()).collect();
    order.sort_by_key(|index| (place(names[*index], tied), *index));
    order
}

/// Sort key: tensors before the layers, the layers, tensors after them.
fn place(name: &str, tied: bool) -> (u8, u64, usize, bool) {
    if let Some((layer, part)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'))
        && let Ok(layer) = layer.parse::<u64>()
    {
        let stem = part.rsplit_once('.').map_or(part, |(stem, _)| stem);
        let bias = part.ends_with(".bias");
        // A bias is added to the output of its matrix. Those of experts follow all their matrices, which are stored side
        // by side.
        let stem = if bias && is_of_experts(stem) { "ffn_down_exps" } else { stem };
        let rank = LAYER.iter().position(|known| *known == stem).unwrap_or(LAYER.len());
        return (2, layer, rank, bias);
    }
    match name {
        "token_embd.weight" if !tied => (0, 0, 0, false),
        "token_embd.weight" => (5, 0, 0, false),
        _ if name.starts_with("output_norm") => (3, 0, 0, false),
        _ if name.starts_with("output.") => (4, 0, 0, name.ends_with(".bias")),
        _ => (1, 0, 0, false),
    }
}

/// True if the tensor of this name within a layer belongs to experts.
fn is_of_experts(stem: &str) -> bool {
    stem.ends_with("_exps")
}

/// Limit for padding of small experts stored side by side beyond half of their data, in bytes, for all layers
/// together.
pub(crate) const SPARE: u64 = 64 << 20;

/// Runs of `tensors` whose experts are to be stored side by side: two or more consecutive matrices of the same experts. Experts that
/// are small compared with a page stay separate if there are many of them.
pub(crate) fn experts_side_by_side(tensors: &[&TensorInfo<'_>]) -> Vec<Range<usize>> {
    let layer = |tensor: &TensorInfo<'_>| -> Option<(u64, u64)> {
        let (layer, part) = tensor.name.strip_prefix("blk.")?.split_once('.')?;
        let matrices = is_of_experts(part.strip_suffix(".weight")?) && tensor.shape().len() == 3;
        (matrices && tensor.ne[2] > 1).then_some((layer.parse().ok()?, tensor.ne[2]))
    };
    let mut at = 0;
    let runs = tensors.chunk_by(|a, b| layer(a).is_some() && layer(a) == layer(b)).map(|run| {
        at += run.len();
        at - run.len()..at
    });
    let mut spare = SPARE;
    let fits = |run: &Range<usize>| {
        let some = &tensors[run.clone()];
        let data: u64 = some.iter().map(|tensor| tensor.nbytes).sum();
        let experts = some.first().map_or(0, |tensor| tensor.ne[2]);
        let parts = some.iter().map(|tensor| tensor.nbytes / experts.max(1));
        let Some(padding) = side_by_side_len(experts, parts).map(|len| len - data) else {
            return false;
        };
        if padding <= data / 2 {
            return true;
        }
        let left = spare.checked_sub(padding);
        spare = left.unwrap_or(spare);
        left.is_some()
    };
    runs.filter(|run| run.len() > 1).filter(fits).collect()
}

#[cfg(test)]
mod tests {
    use alight_formats::gguf::write::Builder;
    use alight_formats::{GgmlType, gguf};

    use super::*;

    fn ordered<'a>(names: &[&'a str]) -> Vec<&'a str> {
        execution_order(names).into_iter().map(|i| names[i]).collect()
    }

    #[test]
    fn a_layer_is_in_the_order_of_use_and_layers_are_counted_not_spelled() {
        let mut names = vec!["blk.10.attn_q.weight", "blk.9.ffn_down.weight", "rope_freqs.weight"];
        names.extend(["blk.2.attn_q.bias", "blk.2.ffn_up.weight", "blk.2.post_ffw_norm.weight"]);
        names.extend(["blk.2.attn_q.weight", "blk.2.ffn_gate.weight", "blk.2.ffn_norm.weight"]);
        names.extend([
            "blk.2.strange.weight",
            "blk.2.attn_output.weight",
            "blk.2.attn_norm.weight",
        ]);
        names.extend(["output_norm.weight", "token_embd.weight"]);
        let mut expected = vec!["rope_freqs.weight", "blk.2.attn_norm.weight"];
        expected.extend(["blk.2.attn_q.weight", "blk.2.attn_q.bias", "blk.2.attn_output.weight"]);
        expected.extend(["blk.2.ffn_norm.weight", "blk.2.ffn_gate.weight", "blk.2.ffn_up.weight"]);
        expected.extend(["blk.2.post_ffw_norm.weight", "blk.2.strange.weight"]);
        expected.extend(["blk.9.ffn_down.weight", "blk.10.attn_q.weight", "output_norm.weight"]);
        expected.push("token_embd.weight");
        assert_eq!(ordered(&names), expected, "tied: the embedding is read at the end");
        names.push("output.weight");
        expected.pop();
        expected.insert(0, "token_embd.weight");
        expected.push("output.weight");
        assert_eq!(ordered(&names), expected, "untied: a row of it at the beginning");
    }

    #[test]
    fn biases_of_experts_follow_their_matrices() {
        let names = [
            "blk.0.ffn_gate_exps.weight",
            "blk.0.ffn_gate_exps.bias",
            "blk.0.ffn_up_exps.bias",
            "blk.0.ffn_down_exps.bias",
            "blk.0.ffn_down_exps.weight",
            "blk.0.ffn_up_exps.weight",
            "blk.0.ffn_gate_inp.weight",
        ];
        let expected = [6, 0, 5, 4, 1, 2, 3].map(|i: usize| names[i]);
        assert_eq!(ordered(&names), expected);
    }

    #[test]
    fn strange_names_keep_their_order() {
        let names = ["b", "blk..x", "a", "blk.1", "blk.-1.attn_q.weight"];
        assert_eq!(ordered(&names), names);
    }

    #[test]
    fn small_experts_lie_side_by_side_only_where_that_is_little_in_all() {
        // With one number each, an expert needs a whole page.
        let experts = SPARE / 4096 / 3;
        let names: Vec<[String; 2]> = (0..4)
            .map(|layer| ["up", "down"].map(|part| format!("blk.{layer}.ffn_{part}_exps.weight")))
            .collect();
        let mut file = Builder::new();
        for name in names.as_flattened() {
            file.tensor(name, GgmlType::F32, &[1, 1, experts]).unwrap();
        }
        // The data is never read.
        file.tensor("blk.4.ffn_up_exps.weight", GgmlType::F32, &[1024, 1, 16]).unwrap();
        file.tensor("blk.4.ffn_down_exps.weight", GgmlType::F32, &[1, 1024, 16]).unwrap();
        let file = file.file(|_, _| ());
        let parsed = gguf::parse(&file).unwrap();
        let tensors: Vec<&TensorInfo<'_>> = parsed.tensors.iter().collect();
        assert_eq!(experts_side_by_side(&tensors), [0..2, 2..4, 4..6, 8..10]);
    }
}
