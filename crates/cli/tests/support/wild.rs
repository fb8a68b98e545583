//! A small model whose tokens would drive a terminal.

use std::path::Path;

use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;
use alight_testing::models::Random;
pub use alight_testing::models::{Moe, Spec, shards_of};

/// What its tokens are, except for the letter `a`.
pub const WILD: [&str; 9] = [
    "\u{1b}[2J",
    "\u{1b}]0;x\u{7}",
    "\u{9b}31m",
    "\u{7f}",
    "\u{202e}",
    "\u{2066}",
    "\u{8}",
    "\r",
    "\0",
];

/// Writes the model and returns its path. It has no chat template; with a high temperature each of its
/// tokens is as likely as the others.
pub fn model(folder: &Path) -> String {
    model_of(folder, Spec::llama())
}

/// The same of other extents.
pub fn model_of(folder: &Path, spec: Spec) -> String {
    let mut random = Random(7);
    let file = builder(spec).file(|_, out| {
        for weight in out.chunks_exact_mut(4) {
            weight.copy_from_slice(&(0.2 * random.signed()).to_le_bytes());
        }
    });
    super::write(folder, "wild.gguf", file)
}

/// Such a model of other extents.
pub fn builder(spec: Spec) -> Builder {
    let wild = WILD.map(|text| (text, 1));
    with_tokens(spec, &[&[("a", 1), ("\u{2581}", 1)][..], &wild].concat())
}

/// The tokens that all of these models have.
const FIRST: [(&str, i32); 3] = [("<unk>", 2), ("<s>", 3), ("</s>", 3)];

/// Puts the first tokens and these, each with its type, into a header.
pub fn put_tokens(builder: &mut Builder, more: &[(&str, i32)]) {
    let (tokens, types): (Vec<&str>, Vec<i32>) = [&FIRST, more].concat().into_iter().unzip();
    builder.str("tokenizer.ggml.model", "llama");
    builder.strs("tokenizer.ggml.tokens", &tokens);
    builder.f32s("tokenizer.ggml.scores", &vec![0.0; tokens.len()]);
    builder.i32s("tokenizer.ggml.token_type", &types);
    for (key, id) in [("bos", 1), ("eos", 2), ("unknown", 0)] {
        builder.u32(&format!("tokenizer.ggml.{key}_token_id"), id);
    }
    builder.bool("tokenizer.ggml.add_space_prefix", false);
}

/// A model whose tokens are `<unk>`, `<s>`, `</s>` and these, each with its type.
pub fn with_tokens(spec: Spec, more: &[(&str, i32)]) -> Builder {
    let spec = Spec { vocab: FIRST.len() + more.len(), ..spec };
    let mut builder = spec.metadata("tokenizer");
    put_tokens(&mut builder, more);
    for (name, shape) in spec.tensors() {
        let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
        let ty = if shape.len() > 1 { spec.ty } else { GgmlType::F32 };
        builder.tensor(&name, ty, &shape).unwrap();
    }
    builder
}
