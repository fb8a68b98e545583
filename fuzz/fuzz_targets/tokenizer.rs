//! A tokenizer of made-up tokens, types, scores and merges, and texts that spell some of them: whatever they
//! are, encoding ends soon, what was encoded can be decoded, and control tokens come out where they may.
#![no_main]

use std::collections::HashSet;

use alight_formats::gguf::{self, write::Builder};
use alight_text::{EncodeOptions, StreamDecoder, Tokenizer};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    bpe: bool,
    /// In place of merging by scores: what normalises text, and whether spaces are merged.
    unigram: Option<(Map, bool)>,
    /// In place of all others: WordPiece, with these four rules.
    word_piece: Option<[bool; 4]>,
    pre: u8,
    name: u8,
    tokens: Vec<Token>,
    /// Pairs of tokens that merge.
    merges: Vec<(u16, u16)>,
    ids: [u16; 4],
    texts: Vec<Vec<Part>>,
}

/// What is to be a map of SentencePiece's.
#[derive(Arbitrary, Debug)]
enum Map {
    Bytes(Vec<u8>),
    /// With lengths that fit.
    Units(Vec<u32>, Vec<u8>),
}

impl Map {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Map::Bytes(bytes) => bytes.clone(),
            Map::Units(units, replacements) => {
                let mut out = (4 * units.len() as u32).to_le_bytes().to_vec();
                units.iter().for_each(|unit| out.extend(unit.to_le_bytes()));
                out.extend(replacements);
                out.push(0);
                out
            }
        }
    }
}

#[derive(Arbitrary, Debug)]
struct Token {
    text: Text,
    ty: u8,
    score: i8,
}

#[derive(Arbitrary, Debug)]
enum Text {
    Bytes(Vec<u8>),
    /// One letter many times: spellings that begin with each other.
    Same(u8, u16),
    Known(u8),
}

#[derive(Arbitrary, Debug)]
enum Part {
    Text(String),
    Token(u16),
    Same(u8, u16),
    Space,
}

/// Spellings with a meaning.
const KNOWN: [&str; 12] = [
    "<|im_end|>", "</s>", "<s>", "<unk>", "<|end|>", "<|call|>", "<|return|>", "<|message|>", "<mask>",
    "\u{2581}", "<0x41>", "<|endoftext|>",
];
const PRES: [&str; 10] = [
    "default", "gpt-2", "llama-bpe", "qwen2", "smollm", "tekken", "gpt-4o", "deepseek-v3", "gemma4",
    "deepseek-coder",
];

/// The rules of WordPiece.
const RULES: [&str; 4] = ["lowercase", "strip_accents", "clean_text", "handle_chinese_chars"];

/// The longest spelling of one letter, and the longest text of one.
const LONG: usize = 300;

fn letter(byte: u8) -> char {
    ['a', 'b', ' ', '<'][usize::from(byte % 4)]
}

impl Text {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Text::Bytes(bytes) => bytes.clone(),
            Text::Same(byte, n) => letter(*byte).to_string().repeat(1 + usize::from(*n) % LONG).into(),
            Text::Known(n) => KNOWN[usize::from(*n) % KNOWN.len()].into(),
        }
    }
}

/// The characters that stand for all bytes in vocabularies over bytes.
fn alphabet() -> impl Iterator<Item = char> {
    let itself = |byte: &u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut next = 255;
    (0..256u32).filter_map(move |byte| {
        char::from_u32(match itself(&byte) {
            true => byte,
            false => {
                next += 1;
                next
            }
        })
    })
}

/// The file, and whether it is over bytes.
fn file(input: &Input) -> Vec<u8> {
    let mut texts: Vec<Vec<u8>> = match input.bpe {
        true => alphabet().map(|c| c.to_string().into()).collect(),
        false => (0..256).map(|byte| format!("<0x{byte:02X}>").into()).collect(),
    };
    let mut types = vec![if input.bpe { 1 } else { 6 }; 256];
    let mut scores = vec![0.0; 256];
    let mut seen: HashSet<Vec<u8>> = texts.iter().cloned().collect();
    for token in &input.tokens {
        let text = token.text.bytes();
        if seen.insert(text.clone()) {
            texts.push(text);
            // Not a byte: there is one of each already.
            types.push(if token.ty % 8 == 6 { 1 } else { i32::from(token.ty % 8) });
            scores.push(f32::from(token.score));
        }
    }
    let mut out = Builder::new();
    // Names of models by which white space beside special tokens is theirs.
    out.str("general.name", ["a model", "phi-3", "modern-bert"][usize::from(input.name % 3)]);
    let merged = if input.unigram.is_some() { "t5" } else { "llama" };
    let model = if input.bpe { "gpt2" } else { merged };
    out.str("tokenizer.ggml.model", if input.word_piece.is_some() { "bert" } else { model });
    for (name, on) in RULES.into_iter().zip(input.word_piece.unwrap_or_default()) {
        out.bool(&format!("tokenizer.ggml.normalizer.{name}"), on);
    }
    if let Some((map, merge)) = &input.unigram {
        out.u8s("tokenizer.ggml.precompiled_charsmap", &map.bytes());
        out.bool("tokenizer.ggml.remove_extra_whitespaces", *merge);
    }
    out.str("tokenizer.ggml.pre", PRES[usize::from(input.pre) % PRES.len()]);
    out.strs("tokenizer.ggml.tokens", &texts);
    out.i32s("tokenizer.ggml.token_type", &types).f32s("tokenizer.ggml.scores", &scores);
    let at = |i: u16| &texts[usize::from(i) % texts.len()];
    let merge = |&(a, b): &(u16, u16)| [at(a), &b" "[..], at(b)].concat();
    let merges: HashSet<Vec<u8>> = input.merges.iter().map(merge).collect();
    let mut merges: Vec<Vec<u8>> = merges.into_iter().collect();
    merges.sort();
    out.strs("tokenizer.ggml.merges", &merges);
    for (name, id) in ["bos", "eos", "unknown", "eot"].into_iter().zip(input.ids) {
        if id % 3 == 0 {
            out.u32(&format!("tokenizer.ggml.{name}_token_id"), u32::from(id) % texts.len() as u32);
        }
    }
    out.bool("tokenizer.ggml.add_space_prefix", false);
    out.header()
}

fn text(parts: &[Part], tokenizer: &Tokenizer) -> String {
    let mut out = String::new();
    for part in parts {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Same(byte, n) => {
                out.extend(std::iter::repeat_n(letter(*byte), usize::from(*n) % (4 * LONG)));
            }
            Part::Space => out.push(' '),
            Part::Token(id) => {
                let id = u32::from(*id) % tokenizer.vocab_size() as u32;
                out.push_str(&String::from_utf8_lossy(tokenizer.token_text(id)));
            }
        }
    }
    out
}

/// The bytes of `ids`, control tokens included.
fn spelled(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<u8> {
    let mut out = Vec::new();
    ids.iter().for_each(|&id| tokenizer.decode_special(id, &mut out));
    out
}

fn check(tokenizer: &Tokenizer, text: &str, exact: bool) {
    let neither = |parse_special| EncodeOptions { add_bos: Some(false), parse_special };
    let plain = tokenizer.encode(text, neither(false)).expect("a short text");
    assert!(!plain.iter().any(|&id| tokenizer.is_control(id) && Some(id) != tokenizer.unknown()));
    let special = tokenizer.encode(text, neither(true)).expect("a short text");
    for ids in [&plain, &special] {
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
        let bytes = spelled(tokenizer, ids);
        if exact {
            assert_eq!(bytes, text.as_bytes(), "{ids:?}");
        }
        let mut decoder = StreamDecoder::new();
        let mut streamed = String::new();
        for &id in ids.iter() {
            let mut bytes = Vec::new();
            tokenizer.decode_bytes(id, &mut bytes);
            streamed.push_str(decoder.push(&bytes));
        }
        streamed.push_str(decoder.finish());
        let mut all = Vec::new();
        ids.iter().for_each(|&id| tokenizer.decode_bytes(id, &mut all));
        assert_eq!(streamed, String::from_utf8_lossy(&all), "{ids:?}");
    }
    // All of it written by somebody who is not trusted: as if nothing was special.
    let whole = [0..text.len()];
    let around = tokenizer.encode_around(text, &whole, Some(false)).expect("a short text");
    assert_eq!(around, plain);
    // What is hidden from a template is all that there is to hide.
    let (mut from, mut found) = (0, 0);
    let mut rest = Vec::new();
    for range in tokenizer.control_spellings(text) {
        assert!(range.start >= from && range.end > range.start);
        let spelling = text[range.clone()].as_bytes();
        let mut spelled = (0..).zip(tokenizer.token_texts()).filter(|(_, token)| *token == spelling);
        assert!(spelled.any(|(id, _)| tokenizer.is_control(id)));
        rest.push(&text[from..range.start]);
        (from, found) = (range.end, found + 1);
    }
    rest.push(&text[from..]);
    assert!(rest.iter().all(|part| tokenizer.control_spellings(part).next().is_none()));
    if special.iter().any(|&id| tokenizer.is_control(id) && !plain.contains(&id)) {
        assert!(found > 0);
    }
}

fuzz_target!(|input: Input| {
    let bytes = file(&input);
    let gguf = gguf::parse(&bytes).expect("what we wrote is in order");
    let tokenizer = match Tokenizer::from_gguf(&gguf) {
        Ok(tokenizer) => tokenizer,
        Err(error) => {
            assert!(error.to_string().len() < 2000);
            return;
        }
    };
    let complete = Tokenizer::from_gguf(&gguf).expect("as a moment ago");
    let long = EncodeOptions { add_bos: Some(false), parse_special: false };
    complete.encode(&" ".repeat(5000), long).expect("a short text");
    // An unused token, and one of a type that means nothing, has no text of its own.
    let empty = input.tokens.iter().any(|token| !matches!(token.ty % 8, 1..=4 | 6));
    let raw = input.bpe && PRES[usize::from(input.pre) % PRES.len()] == "gemma4";
    for parts in &input.texts {
        let text = text(parts, &tokenizer);
        if text.len() > 20_000 {
            return;
        }
        // Tables of what a text can need, which the first few texts have, do as well as the complete ones.
        for parse_special in [false, true] {
            let options = EncodeOptions { add_bos: Some(false), parse_special };
            assert_eq!(tokenizer.encode(&text, options), complete.encode(&text, options));
        }
        // White space that belongs to a token is not spelled; a mark for a space reads as a space; and where
        // a vocabulary of characters lacks one, there is nothing to spell it. SentencePiece takes a space for its
        // mark, whose bytes stay those of the mark if no token has it.
        let marked = |text: &str| text.contains(['\u{2581}', ' ']);
        let unigram = !input.bpe && input.unigram.is_some();
        let words = input.word_piece.is_some();
        let exact = input.name % 3 == 0 && !(empty || raw || words || unigram || !input.bpe && marked(&text));
        check(&tokenizer, &text, exact);
    }
});
