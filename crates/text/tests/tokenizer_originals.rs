//! The files of tokenizers, read into a vocabulary, give the ids of the libraries that they are made
//! for: `sentencepiece`, `tokenizers` and `tiktoken`, as recorded in `tests/data/tokenizers` by
//! `python -m evidence make tokenizer-vectors`. Real ones are compared by `python -m evidence agree tokenizers`.

use std::fs;
use std::path::{Path, PathBuf};

use alight_formats::gguf::{self, write::Builder};
use alight_formats::tokenizer::{self, TokenType, Vocabulary, alphabet, tiktoken};
use alight_text::{EncodeOptions, Tokenizer};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    fs::read(data(name)).unwrap()
}

fn builder(model: &str, pre: &str, tokens: &[(String, f32, i32)], merges: &[String]) -> Builder {
    let mut out = Builder::new();
    out.str("tokenizer.ggml.model", model).str("tokenizer.ggml.pre", pre);
    let texts: Vec<&str> = tokens.iter().map(|(text, ..)| text.as_str()).collect();
    let scores: Vec<f32> = tokens.iter().map(|(_, score, _)| *score).collect();
    let types: Vec<i32> = tokens.iter().map(|(.., ty)| *ty).collect();
    out.strs("tokenizer.ggml.tokens", &texts);
    out.f32s("tokenizer.ggml.scores", &scores).i32s("tokenizer.ggml.token_type", &types);
    let merges: Vec<&str> = merges.iter().map(String::as_str).collect();
    out.strs("tokenizer.ggml.merges", &merges);
    out
}

/// The tokenizer that runs such a vocabulary.
fn of(found: &Vocabulary<'_>) -> Tokenizer {
    assert!(found.notes.is_empty(), "{:?}", found.notes);
    assert!((0..).zip(&found.tokens).all(|(id, token)| token.id == id), "no holes");
    let tokens: Vec<_> = found
        .tokens
        .iter()
        .map(|token| (token.text.to_string(), token.score, token.ty as i32))
        .collect();
    let merges: Vec<String> = found.merges.iter().map(|merge| merge.to_string()).collect();
    let mut out = builder(found.model.name(), found.pre, &tokens, &merges);
    out.bool("tokenizer.ggml.add_space_prefix", found.add_space_prefix);
    out.bool("tokenizer.ggml.remove_extra_whitespaces", found.remove_extra_whitespaces);
    out.u8s("tokenizer.ggml.precompiled_charsmap", &found.charsmap);
    if let Some(rules) = found.word_piece {
        out.bool("tokenizer.ggml.normalizer.lowercase", rules.lowercase);
        out.bool("tokenizer.ggml.normalizer.strip_accents", rules.strip_accents);
    }
    for (name, id) in
        [("bos", found.special.bos), ("eos", found.special.eos), ("unknown", found.special.unknown)]
    {
        if let Some(id) = id.filter(|_| found.word_piece.is_some()) {
            out.u32(&format!("tokenizer.ggml.{name}_token_id"), id);
        }
    }
    let file = out.header();
    Tokenizer::from_gguf(&gguf::parse(&file).unwrap()).unwrap()
}

fn texts() -> Vec<String> {
    serde_json::from_slice(&bytes("tokenizer_strings.json")).unwrap()
}

fn recorded(name: &str) -> Vec<Vec<u32>> {
    serde_json::from_slice(&bytes(&format!("tokenizers/{name}.ids.json"))).unwrap()
}

/// Every text has the ids of the library.
fn agree(tokenizer: &Tokenizer, name: &str, parse_special: bool) {
    let (texts, ids) = (texts(), recorded(name));
    assert_eq!(texts.len(), ids.len());
    let options = EncodeOptions { add_bos: Some(false), parse_special };
    for (text, expected) in texts.iter().zip(&ids) {
        assert_eq!(tokenizer.encode(text, options).unwrap(), *expected, "{text:?}");
    }
}

#[test]
fn sentencepieces_own_model() {
    let file = bytes("tokenizers/sentencepiece.model");
    let tokenizer = of(&tokenizer::read(&file).unwrap());
    agree(&tokenizer, "sentencepiece", false);
}

#[test]
fn what_was_sentencepieces() {
    let (own, file) = (bytes("tokenizers/sentencepiece.model"), bytes("tokenizers/rewritten.json"));
    let (own, found) = (tokenizer::read(&own).unwrap(), tokenizer::read(&file).unwrap());
    agree(&of(&found), "rewritten", true);
    assert!(own.add_space_prefix && found.add_space_prefix);
    assert_eq!(own.special.unknown, found.special.unknown);
    // Tokens are the same, and so is the order in which they are merged.
    assert_eq!(own.tokens.len(), found.tokens.len());
    for (a, b) in own.tokens.iter().zip(&found.tokens) {
        assert_eq!((a.id, &a.text), (b.id, &b.text));
        assert!(a.ty == b.ty || a.ty == TokenType::Unknown, "{a:?} {b:?}");
        if a.ty == TokenType::Normal {
            assert_eq!(a.score, b.score, "{a:?}: the score that was lost");
        }
    }
}

/// The ids of `sentencepiece`; but where two ways to cut a text are equally good, it decides by how sums of f32 are rounded,
/// and we as `tokenizers` do, by sums of f64.
#[test]
fn sentencepieces_unigrams() {
    for (name, most_ties) in [("unigram", 5), ("unigram_bytes", 2)] {
        let file = bytes(&format!("tokenizers/{name}.model"));
        let found = tokenizer::read(&file).unwrap();
        assert_eq!(found.model.name(), "t5");
        assert_eq!(found.charsmap.is_empty(), name == "unigram_bytes");
        assert_eq!(found.remove_extra_whitespaces, name == "unigram");
        let tokenizer = of(&found);
        let score = |ids: &[u32]| -> f32 {
            let tokens = ids.iter().map(|id| &found.tokens[*id as usize]);
            tokens.inspect(|token| assert_eq!(token.ty, TokenType::Normal)).map(|t| t.score).sum()
        };
        let mut ties = 0;
        let others =
            if name == "unigram" { recorded("unigram.tokenizers") } else { recorded(name) };
        for ((text, expected), other) in texts().iter().zip(recorded(name)).zip(others) {
            let options = EncodeOptions { add_bos: Some(false), parse_special: false };
            let ids = tokenizer.encode(text, options).unwrap();
            if ids != expected {
                assert!((score(&ids) - score(&expected)).abs() < 1e-3, "{text:?}");
                assert!(name != "unigram" || ids == other, "{text:?}");
                ties += 1;
            }
        }
        assert!(ties <= most_ties, "{ties} ties");
    }
}

#[test]
fn word_pieces() {
    for (name, is_cased) in [("wordpiece", false), ("wordpiece_cased", true)] {
        let file = bytes(&format!("tokenizers/{name}.json"));
        let found = tokenizer::read(&file).unwrap();
        assert_eq!(found.model.name(), "bert");
        assert_eq!(found.word_piece.map(|rules| rules.lowercase), Some(!is_cased));
        let tokenizer = of(&found);
        agree(&tokenizer, name, true);
        // [CLS] and [SEP] around a text, and none made of its letters.
        let plain = tokenizer.encode("[SEP] a", EncodeOptions::default()).unwrap();
        assert_eq!((plain.first(), plain.last()), (Some(&2), Some(&3)));
        assert_eq!(plain.iter().filter(|id| **id == 3).count(), 1);
    }
}

#[test]
fn bpe_over_bytes() {
    let file = bytes("tokenizers/bytes.json");
    let found = tokenizer::read(&file).unwrap();
    assert_eq!((found.model.name(), found.pre), ("gpt2", "qwen2"));
    agree(&of(&found), "bytes", true);
}

#[test]
fn a_file_of_ranks() {
    let ranks = tiktoken::parse(&bytes("tokenizers/ranks.model")).unwrap();
    let tokens: Vec<_> = ranks.tokens().map(|token| (alphabet::spell(token), 0.0, 1)).collect();
    let mut file = builder("gpt2", "qwen2", &tokens, &ranks.merges());
    let file = file.bool("tokenizer.ggml.add_bos_token", false).header();
    let tokenizer = Tokenizer::from_gguf(&gguf::parse(&file).unwrap()).unwrap();
    agree(&tokenizer, "ranks", false);
}
