//! Tiny models whose answers are fixed in advance: tests of the command know what is generated, token by token.

use std::path::Path;

use super::wild::{self, Spec};

/// Token types of files.
pub const TEXT: i32 = 1;
pub const CONTROL: i32 = 3;
pub const OWN: i32 = 4;

/// Thinking, an answer, and the call of a tool.
pub const SAID: [(&str, i32); 8] = [
    ("<think>", OWN),
    ("\nSo it is.\n", TEXT),
    ("</think>", OWN),
    ("\n\nYes", TEXT),
    (". No.", TEXT),
    ("<tool_call>", OWN),
    ("{\"name\": \"f\", \"arguments\": {\"b\": [1]}}", TEXT),
    ("</tool_call>", OWN),
];

/// Writes a model with a fixed answer. After a prompt that ends with `<go>` it generates all of `tokens`, which must differ from
/// each other; after one that ends with `<no>` it generates those from index `short` on. Its chat template ends the prompt with
/// `<no>` if `enable_thinking` is false, and with `<go>` otherwise.
pub fn model(folder: &Path, tokens: &[(&str, i32)], short: usize) -> String {
    let own = [("<go>", CONTROL), ("<no>", CONTROL), ("a", TEXT)];
    let all = [&own[..], tokens].concat();
    // After `<unk>`, `<s>` and `</s>`.
    let (end, go, no) = (2, 3, 4);
    let first = 3 + own.len();
    let spec = Spec { tied: false, vocab: 3 + all.len(), ..Spec::llama() };
    let width = spec.embd;
    let tensors = spec.tensors();
    let mut builder = wild::with_tokens(spec, &all);
    builder.str(
        "tokenizer.chat_template",
        "{# tools #}{{ messages[-1].content }}{% if enable_thinking is false %}<no>{% else %}<go>{% endif %}",
    );
    // What follows each token.
    let mut next = vec![end; first];
    (next[go], next[no]) = (first, first + short);
    next.extend(first + 1..first + tokens.len());
    next.push(end);
    assert!(next.len() <= width);
    // The layers add nothing: what is left of a token is its place in the row, which the output moves on.
    let file = builder.file(|tensor, out| {
        let rows = out.chunks_exact_mut(4 * width).enumerate();
        for (id, row) in rows {
            let mut set = |at: usize| row[4 * at..4 * at + 4].copy_from_slice(&9f32.to_le_bytes());
            match tensors[tensor].0.as_str() {
                "token_embd.weight" => set(id),
                "output.weight" => (0..next.len()).filter(|from| next[*from] == id).for_each(set),
                name if name.contains("norm") => (0..width).for_each(set),
                _ => {}
            }
        }
    });
    super::write(folder, "said.gguf", file)
}
