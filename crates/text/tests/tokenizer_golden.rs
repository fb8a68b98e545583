//! Our token ids against llama.cpp's on the two real models, as recorded in `tests/data` by
//! `python -m evidence agree tokens --golden`. Without the model files the tests say so and pass.

use std::fs;
use std::path::{Path, PathBuf};

use alight_formats::gguf;
use alight_text::{EncodeOptions, StreamDecoder, Tokenizer};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn tokenizer(file: &str) -> Option<Tokenizer> {
    let folder =
        std::env::var_os("ALIGHT_MODELS").map_or_else(|| workspace().join("models"), PathBuf::from);
    let path = folder.join(file);
    if !path.is_file() {
        eprintln!(
            "skipped: {} is missing (python -m evidence fetch models gets it)",
            path.display()
        );
        return None;
    }
    let bytes = fs::read(path).unwrap();
    Some(Tokenizer::from_gguf(&gguf::parse(&bytes).unwrap()).unwrap())
}

fn texts() -> Vec<String> {
    let path = workspace().join("tests/data/tokenizer_strings.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

const PLAIN: EncodeOptions = EncodeOptions { add_bos: Some(false), parse_special: false };
const SPECIAL: EncodeOptions = EncodeOptions { add_bos: Some(false), parse_special: true };

fn agrees(tokenizer: &Tokenizer, name: &str) {
    let path = workspace().join(format!("tests/data/tokenizer_ids_{name}.json"));
    // One entry per text: [plain] or, where recognising specials changes them, [plain, special].
    let golden: Vec<Vec<Vec<u32>>> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let texts = texts();
    assert_eq!(texts.len(), golden.len());
    assert!(texts.len() >= 250);
    for (text, expected) in texts.iter().zip(&golden) {
        let plain = tokenizer.encode(text, PLAIN).unwrap();
        assert_eq!(Some(&plain), expected.first(), "{text:?}");
        let special = tokenizer.encode(text, SPECIAL).unwrap();
        assert_eq!(Some(&special), expected.last(), "{text:?} with specials");
        assert!(!plain.iter().any(|&id| tokenizer.is_control(id)), "{text:?}");
    }
}

/// Decoding gives the text back, at once and streamed token by token.
fn round_trips(tokenizer: &Tokenizer, lossy: impl Fn(&str) -> Option<String>) {
    for text in texts() {
        let Some(expected) = lossy(&text) else { continue };
        let ids = tokenizer.encode(&text, PLAIN).unwrap();
        assert_eq!(tokenizer.decode(&ids), expected, "{text:?}");
        let mut decoder = StreamDecoder::new();
        let mut streamed = String::new();
        for &id in &ids {
            tokenizer.decode_bytes(id, decoder.buffer());
            streamed.push_str(decoder.take());
        }
        streamed.push_str(decoder.finish());
        assert_eq!(streamed, expected, "{text:?} streamed");
    }
}

#[test]
fn smollm2_agrees_with_llama_cpp() {
    let Some(tokenizer) = tokenizer("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    assert_eq!(tokenizer.vocab_size(), 49152);
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
    assert!(!tokenizer.adds_bos() && !tokenizer.adds_eos());
    // <|endoftext|>, <|im_end|> and, as llama.cpp has it, <reponame>.
    assert_eq!(tokenizer.ends(), [0, 2, 4]);
    assert!(tokenizer.is_control(1) && !tokenizer.is_control(19556));
    assert_eq!(tokenizer.token_text(2), b"<|im_end|>");
    agrees(&tokenizer, "smollm2");
    // The vocabulary has no token for some control characters (and llama.cpp drops them too).
    let missing = |c: char| tokenizer.encode(&c.to_string(), PLAIN).unwrap().is_empty();
    round_trips(&tokenizer, |text| (!text.chars().any(missing)).then(|| text.to_owned()));
}

#[test]
fn gemma3_agrees_with_llama_cpp() {
    let Some(tokenizer) = tokenizer("gemma-3-270m-q4_k_m.gguf") else { return };
    assert_eq!(tokenizer.vocab_size(), 262_144);
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(2), Some(1)));
    assert!(tokenizer.adds_bos() && !tokenizer.adds_eos());
    // <eos>, <end_of_turn> and, as llama.cpp has it, </s>.
    assert_eq!(tokenizer.ends(), [1, 106, 212]);
    assert_eq!(tokenizer.encode("Hi", EncodeOptions::default()).unwrap()[0], 2);
    agrees(&tokenizer, "gemma3");
    // U+2581 stands for a space, so it comes back as one, except where the text spells a
    // user-defined token with it; such texts are left out.
    round_trips(&tokenizer, |text| (!text.contains('▁')).then(|| text.to_owned()));
}
