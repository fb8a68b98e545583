//! Our token ids against llama.cpp's on the two real models, as recorded in `tests/data` by
//! `python -m evidence agree tokens --golden`. Without the model files the tests say so and pass.

use std::fs;
use std::path::{Path, PathBuf};

use alight_formats::gguf::{self, Gguf};
use alight_text::{EncodeOptions, StreamDecoder, Tokenizer};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The bytes of a model file, if it is there.
fn model(file: &str) -> Option<Vec<u8>> {
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
    Some(fs::read(path).unwrap())
}

fn texts() -> Vec<String> {
    let path = workspace().join("tests/data/tokenizer_strings.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

const PLAIN: EncodeOptions = EncodeOptions { add_bos: Some(false), parse_special: false };
const SPECIAL: EncodeOptions = EncodeOptions { add_bos: Some(false), parse_special: true };

/// The ids of llama.cpp, by `tokenizer` and by new ones of the same file for a few texts each: those have tables of what a text can
/// need, and `tokenizer` gets the complete ones.
fn agrees(tokenizer: &Tokenizer, file: &Gguf<'_>, name: &str) {
    const FEW: usize = 4;
    let path = workspace().join(format!("tests/data/tokenizer_ids_{name}.json"));
    // One entry per text: [plain] or, where recognising specials changes them, [plain, special].
    let golden: Vec<Vec<Vec<u32>>> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let texts = texts();
    assert_eq!(texts.len(), golden.len());
    assert!(texts.len() >= 250);
    tokenizer.encode(&"a long text ".repeat(1000), PLAIN).unwrap();
    for (texts, golden) in texts.chunks(FEW).zip(golden.chunks(FEW)) {
        let new = Tokenizer::from_gguf(file).unwrap();
        for (text, expected) in texts.iter().zip(golden) {
            for tokenizer in [tokenizer, &new] {
                let plain = tokenizer.encode(text, PLAIN).unwrap();
                assert_eq!(Some(&plain), expected.first(), "{text:?}");
                let special = tokenizer.encode(text, SPECIAL).unwrap();
                assert_eq!(Some(&special), expected.last(), "{text:?} with specials");
                assert!(!plain.iter().any(|&id| tokenizer.is_control(id)), "{text:?}");
            }
            assert!(new.control_spellings(text).eq(tokenizer.control_spellings(text)), "{text:?}");
        }
    }
}

/// Tokens are found by their texts, whether anybody was expected to ask for them or not.
fn finds(file: &Gguf<'_>) {
    let (new, complete) =
        (Tokenizer::from_gguf(file).unwrap(), Tokenizer::from_gguf(file).unwrap());
    complete.encode(&"a long text ".repeat(1000), PLAIN).unwrap();
    assert_eq!(new.token_texts().count(), new.vocab_size());
    let longest = new.token_texts().map(<[u8]>::len).max();
    assert_eq!(longest, Some(new.longest_token()));
    for (id, text) in (0..).zip(new.token_texts()).step_by(new.vocab_size() / 97) {
        assert_eq!(new.token_text(id), text);
        for tokenizer in [&new, &complete] {
            assert_eq!(tokenizer.token_id(text), Some(id), "{:?}", String::from_utf8_lossy(text));
        }
    }
    for text in ["<|im_end|>", "<end_of_turn>", "</s>", "no such token", ""] {
        assert_eq!(new.token_id(text.as_bytes()), complete.token_id(text.as_bytes()), "{text:?}");
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
    let Some(bytes) = model("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let file = gguf::parse(&bytes).unwrap();
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    assert_eq!(tokenizer.vocab_size(), 49152);
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
    assert!(!tokenizer.adds_bos() && !tokenizer.adds_eos());
    // <|endoftext|>, <|im_end|> and, as llama.cpp has it, <reponame>.
    assert_eq!(tokenizer.ends(), [0, 2, 4]);
    assert!(tokenizer.is_control(1) && !tokenizer.is_control(19556));
    assert_eq!(tokenizer.token_text(2), b"<|im_end|>");
    agrees(&tokenizer, &file, "smollm2");
    finds(&file);
    // The vocabulary has no token for some control characters (and llama.cpp drops them too).
    let missing = |c: char| tokenizer.encode(&c.to_string(), PLAIN).unwrap().is_empty();
    round_trips(&tokenizer, |text| (!text.chars().any(missing)).then(|| text.to_owned()));
}

#[test]
fn gemma3_agrees_with_llama_cpp() {
    let Some(bytes) = model("gemma-3-270m-q4_k_m.gguf") else { return };
    let file = gguf::parse(&bytes).unwrap();
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    assert_eq!(tokenizer.vocab_size(), 262_144);
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(2), Some(1)));
    assert!(tokenizer.adds_bos() && !tokenizer.adds_eos());
    // <eos>, <end_of_turn> and, as llama.cpp has it, </s>.
    assert_eq!(tokenizer.ends(), [1, 106, 212]);
    assert_eq!(tokenizer.encode("Hi", EncodeOptions::default()).unwrap()[0], 2);
    agrees(&tokenizer, &file, "gemma3");
    finds(&file);
    // U+2581 stands for a space, so it comes back as one, except where the text spells a
    // user-defined token with it; such texts are left out.
    round_trips(&tokenizer, |text| (!text.contains('▁')).then(|| text.to_owned()));
}
