//! A small BERT: an encoder, or one with a classifier.

use std::path::Path;

use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;
use alight_testing::models::Random;

/// Words, after the special tokens.
pub const WORDS: [&str; 12] =
    ["a", "cat", "dog", "kitten", "the", "is", "what", "query", ":", "##s", "##ing", "["];
const SPECIAL: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];

/// Width of the states.
pub const WIDTH: usize = 32;
const HIDDEN: u64 = WIDTH as u64;
const INTERMEDIATE: u64 = 64;
/// Positions of the table.
const CONTEXT: u64 = 24;
/// The longest text, as sentence-transformers has it.
pub const LONGEST: usize = 16;

/// Writes an encoder that pools by the mean; with `labels`, one that scores pairs.
pub fn model(folder: &Path, name: &str, labels: Option<u64>) -> String {
    let mut out = Builder::new();
    out.str("general.architecture", "bert");
    for (key, value) in [
        ("block_count", 2),
        ("context_length", CONTEXT as u32),
        ("embedding_length", HIDDEN as u32),
        ("feed_forward_length", INTERMEDIATE as u32),
        ("attention.head_count", 2),
        ("pooling_type", if labels.is_some() { 4 } else { 1 }),
    ] {
        out.u32(&format!("bert.{key}"), value);
    }
    out.f32("bert.attention.layer_norm_epsilon", 1e-12).bool("bert.attention.causal", false);
    let names: Vec<String> = (0..labels.unwrap_or(0)).map(|n| format!("LABEL_{n}")).collect();
    if labels.is_some() {
        out.strs("bert.classifier.output_labels", &names);
    }
    out.u32("sentence_transformers.max_seq_length", LONGEST as u32);
    out.strs("sentence_transformers.prompt_names", &["query", "document"]);
    out.strs("sentence_transformers.prompts", &["query: ", ""]);
    out.str("tokenizer.ggml.model", "bert").u32("tokenizer.ggml.token_type_count", 2);
    let word = |word: &&str| match word.strip_prefix("##") {
        Some(rest) => rest.to_owned(),
        None => format!("\u{2581}{word}"),
    };
    let words = WORDS.iter().map(word);
    let tokens: Vec<String> = SPECIAL.iter().map(ToString::to_string).chain(words).collect();
    let types: Vec<i32> =
        (0..tokens.len()).map(|n| if n < SPECIAL.len() { 3 } else { 1 }).collect();
    out.strs("tokenizer.ggml.tokens", &tokens).i32s("tokenizer.ggml.token_type", &types);
    for (key, id) in [("padding", 0), ("unknown", 1), ("cls", 2), ("seperator", 3), ("mask", 4)] {
        out.u32(&format!("tokenizer.ggml.{key}_token_id"), id);
    }
    let mut shapes: Vec<(String, Vec<u64>)> = vec![
        ("token_embd.weight".into(), vec![HIDDEN, tokens.len() as u64]),
        ("token_types.weight".into(), vec![HIDDEN, 2]),
        ("position_embd.weight".into(), vec![HIDDEN, CONTEXT]),
        ("token_embd_norm.weight".into(), vec![HIDDEN]),
        ("token_embd_norm.bias".into(), vec![HIDDEN]),
    ];
    for layer in 0..2 {
        for (part, rows, columns) in [
            ("attn_q", HIDDEN, HIDDEN),
            ("attn_k", HIDDEN, HIDDEN),
            ("attn_v", HIDDEN, HIDDEN),
            ("attn_output", HIDDEN, HIDDEN),
            ("ffn_up", INTERMEDIATE, HIDDEN),
            ("ffn_down", HIDDEN, INTERMEDIATE),
        ] {
            shapes.push((format!("blk.{layer}.{part}.weight"), vec![columns, rows]));
            shapes.push((format!("blk.{layer}.{part}.bias"), vec![rows]));
        }
        for norm in ["attn_output_norm", "layer_output_norm"] {
            shapes.push((format!("blk.{layer}.{norm}.weight"), vec![HIDDEN]));
            shapes.push((format!("blk.{layer}.{norm}.bias"), vec![HIDDEN]));
        }
    }
    if let Some(labels) = labels {
        shapes.push(("cls.weight".into(), vec![HIDDEN, HIDDEN]));
        shapes.push(("cls.bias".into(), vec![HIDDEN]));
        shapes.push(("cls.output.weight".into(), vec![HIDDEN, labels]));
        shapes.push(("cls.output.bias".into(), vec![labels]));
    }
    for (name, shape) in &shapes {
        out.tensor(name, GgmlType::F32, shape).unwrap();
    }
    let mut random = Random(11);
    let file = out.file(|index, bytes| {
        let is_norm = shapes[index].0.ends_with("norm.weight");
        for weight in bytes.chunks_exact_mut(4) {
            let value = if is_norm { 1.0 } else { 0.4 * random.signed() };
            weight.copy_from_slice(&value.to_le_bytes());
        }
    });
    super::write(folder, name, file)
}
