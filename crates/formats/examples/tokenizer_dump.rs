//! What the reader makes of the file of a tokenizer, as JSON, for comparing with other readers
//! (`python -m evidence agree tokenizers`): one object of the file, then `[id, text, score, type]` for each
//! token, then each merge. With a second argument also writes a GGUF file that has this vocabulary
//! and nothing else.
//!
//!     tokenizer_dump FILE [OUT.gguf]

use std::error::Error;
use std::io::Write;

use alight_formats::gguf::write::Builder;
use alight_formats::tokenizer::{Vocabulary, read};
use serde_json::json;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: tokenizer_dump FILE [OUT.gguf]")?;
    let bytes = std::fs::read(&path)?;
    let found = read(&bytes).map_err(|error| format!("{path}: {error}"))?;
    if let Some(path) = args.next() {
        std::fs::write(path, gguf(&found).file(|_, _| {}))?;
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let special = &found.special;
    let about = json!({
        "model": found.model.name(), "pre": found.pre, "bos": special.bos, "eos": special.eos,
        "eot": special.eot, "eom": special.eom, "unknown": special.unknown,
        "padding": special.padding, "add_bos": found.add_bos, "add_eos": found.add_eos,
        "add_space_prefix": found.add_space_prefix, "notes": found.notes,
        "tokens": found.tokens.len(), "merges": found.merges.len(),
    });
    writeln!(out, "{about}")?;
    for token in &found.tokens {
        writeln!(out, "{}", json!([token.id, token.text, token.score, token.ty as i32]))?;
    }
    for merge in &found.merges {
        writeln!(out, "{}", json!(merge))?;
    }
    Ok(())
}

fn gguf(found: &Vocabulary<'_>) -> Builder {
    let mut out = Builder::new();
    out.str("general.architecture", "llama");
    out.str("tokenizer.ggml.model", found.model.name()).str("tokenizer.ggml.pre", found.pre);
    // Holes are padded as in llama.cpp's converter.
    let rows = found.tokens.last().map_or(0, |token| token.id as usize + 1);
    let mut texts: Vec<String> = (0..rows).map(|id| format!("[PAD{id}]")).collect();
    let (mut scores, mut types) = (vec![-1000.0; rows], vec![5; rows]);
    for token in &found.tokens {
        let at = token.id as usize;
        (texts[at], scores[at], types[at]) = (token.text.to_string(), token.score, token.ty as i32);
    }
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    out.strs("tokenizer.ggml.tokens", &texts);
    out.f32s("tokenizer.ggml.scores", &scores).i32s("tokenizer.ggml.token_type", &types);
    if !found.merges.is_empty() {
        let merges: Vec<&str> = found.merges.iter().map(|merge| &**merge).collect();
        out.strs("tokenizer.ggml.merges", &merges);
    }
    let special = &found.special;
    let ids = [("bos", special.bos), ("eos", special.eos), ("unknown", special.unknown)];
    for (name, id) in ids {
        if let Some(id) = id {
            out.u32(&format!("tokenizer.ggml.{name}_token_id"), id);
        }
    }
    out.bool("tokenizer.ggml.add_space_prefix", found.add_space_prefix);
    out
}
