//! The tensors of a LLaMA model: their names, how parts split them, and their shapes.

use crate::ggml::Hparams;

/// The embedding, whose width determines the number of parts.
pub(super) const EMBEDDING: &str = "tok_embeddings.weight";

/// How a tensor is distributed over parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// Every part has the whole tensor.
    Replicated,
    /// Every part has some of the elements of every row.
    Columns,
    /// Every part has some of the rows.
    Rows,
    /// Not needed: a table that follows from the header.
    Skipped,
}

/// In a layer, in the order of use: name, name in GGUF, split.
const LAYER: [(&str, &str, Split); 9] = [
    ("attention_norm", "attn_norm", Split::Replicated),
    ("attention.wq", "attn_q", Split::Rows),
    ("attention.wk", "attn_k", Split::Rows),
    ("attention.wv", "attn_v", Split::Rows),
    ("attention.wo", "attn_output", Split::Columns),
    ("ffn_norm", "ffn_norm", Split::Replicated),
    ("feed_forward.w1", "ffn_gate", Split::Rows),
    ("feed_forward.w3", "ffn_up", Split::Rows),
    ("feed_forward.w2", "ffn_down", Split::Columns),
];

/// Outside layers: name, name in GGUF, split.
const OUTSIDE: [(&str, &str, Split); 3] = [
    (EMBEDDING, "token_embd.weight", Split::Columns),
    ("norm.weight", "output_norm.weight", Split::Replicated),
    ("output.weight", "output.weight", Split::Rows),
];

/// Splits a name such as `layers.0.attention.wq.weight` into the layer's number and the rest.
fn in_layer(name: &str) -> Option<(u32, &str)> {
    let (number, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    let layer: u32 = number.parse().ok()?;
    // "+1" and "01" are numbers, too, but not valid in names.
    (layer.to_string() == number).then_some((layer, rest))
}

fn known(name: &str) -> Option<(Option<u32>, &'static str, Split)> {
    if let Some((_, gguf, split)) = OUTSIDE.iter().find(|(known, ..)| *known == name) {
        return Some((None, gguf, *split));
    }
    let (layer, rest) = in_layer(name)?;
    let what = rest.strip_suffix(".weight")?;
    let (_, gguf, split) = LAYER.iter().find(|(known, ..)| *known == what)?;
    Some((Some(layer), gguf, *split))
}

/// How parts split the tensor called `name`, or `None` if LLaMA models have no such tensor. Tensors of one
/// dimension are in every part.
pub fn split_of(name: &str, n_dims: u32) -> Option<Split> {
    if name == "rope.freqs" || name.ends_with(".inner_attention.rope.freqs") {
        return Some(Split::Skipped);
    }
    let (.., split) = known(name)?;
    Some(if n_dims == 1 { Split::Replicated } else { split })
}

/// The name in GGUF of the tensor called `name`; `None` if GGUF does not have it.
pub fn gguf_name(name: &str) -> Option<String> {
    let (layer, gguf, _) = known(name)?;
    Some(match layer {
        Some(layer) => format!("blk.{layer}.{gguf}.weight"),
        None => gguf.into(),
    })
}

/// The names in GGUF of the tensors of a layer, in the order of use.
pub fn layer_names(layer: u64) -> impl Iterator<Item = String> {
    LAYER.iter().map(move |(_, gguf, _)| format!("blk.{layer}.{gguf}.weight"))
}

/// All tensors of a model with their full shapes (innermost first) and number of dimensions, in the order of
/// use. Lazy, because a header can announce layers that are not present.
pub(super) fn expected(
    hparams: &Hparams,
    n_ff: u64,
    kv_rows: u64,
) -> impl Iterator<Item = (String, [u64; 2], u32)> + use<> {
    let (embd, vocab) = (u64::from(hparams.n_embd), u64::from(hparams.n_vocab));
    let shape = move |what: &str| match what {
        "tok_embeddings.weight" | "output.weight" => ([embd, vocab], 2),
        "attention.wq" | "attention.wo" => ([embd, embd], 2),
        "attention.wk" | "attention.wv" => ([embd, kv_rows], 2),
        "feed_forward.w1" | "feed_forward.w3" => ([embd, n_ff], 2),
        "feed_forward.w2" => ([n_ff, embd], 2),
        _ => ([embd, 1], 1),
    };
    let outside = move |index: usize| {
        let name = OUTSIDE[index].0;
        let (ne, n_dims) = shape(name);
        (name.to_string(), ne, n_dims)
    };
    let layers = (0..hparams.n_layer).flat_map(move |layer| {
        LAYER.iter().map(move |(what, ..)| {
            let (ne, n_dims) = shape(what);
            (format!("layers.{layer}.{what}.weight"), ne, n_dims)
        })
    });
    std::iter::once(outside(0)).chain(layers).chain([outside(1), outside(2)])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two documented tables.
    #[test]
    fn names_and_cuts_are_the_facts() {
        let is = |name: &str, n_dims, split, gguf: &str| {
            assert_eq!(split_of(name, n_dims), Some(split), "{name}");
            assert_eq!(gguf_name(name).as_deref(), Some(gguf), "{name}");
        };
        is("tok_embeddings.weight", 2, Split::Columns, "token_embd.weight");
        is("norm.weight", 1, Split::Replicated, "output_norm.weight");
        is("output.weight", 2, Split::Rows, "output.weight");
        for n in [0, 7, 79] {
            let is = |what: &str, n_dims, split, gguf: &str| {
                is(
                    &format!("layers.{n}.{what}.weight"),
                    n_dims,
                    split,
                    &format!("blk.{n}.{gguf}.weight"),
                );
            };
            is("attention_norm", 1, Split::Replicated, "attn_norm");
            is("attention.wq", 2, Split::Rows, "attn_q");
            is("attention.wk", 2, Split::Rows, "attn_k");
            is("attention.wv", 2, Split::Rows, "attn_v");
            is("attention.wo", 2, Split::Columns, "attn_output");
            is("ffn_norm", 1, Split::Replicated, "ffn_norm");
            is("feed_forward.w1", 2, Split::Rows, "ffn_gate");
            is("feed_forward.w3", 2, Split::Rows, "ffn_up");
            is("feed_forward.w2", 2, Split::Columns, "ffn_down");
        }
        for name in ["rope.freqs", "layers.3.attention.inner_attention.rope.freqs"] {
            assert_eq!((split_of(name, 1), gguf_name(name)), (Some(Split::Skipped), None));
        }
        let strangers = [
            "layers.01.attention.wq.weight",
            "layers.+1.attention.wq.weight",
            "layers.-1.ffn_norm.weight",
            "layers.0.attention.wq",
            "layers.0.attention.wq.bias",
            "layers..ffn_norm.weight",
            "weight",
            "",
            "layers.4294967296.ffn_norm.weight",
        ];
        for name in strangers {
            assert_eq!((split_of(name, 2), gguf_name(name)), (None, None), "{name}");
        }
    }
}
