//! Invalid vocabularies, and texts meant to be slow. Every case is a small GGUF header built
//! here: the tokenizer answers with a typed error or with what llama.cpp would make of it.

use std::time::{Duration, Instant};

use alight_formats::gguf::write::Builder;
use alight_formats::gguf::{self, GgufError};
use alight_text::tokenizer::{END_IDS, MAX_END_IDS};
use alight_text::{EncodeOptions, Tokenizer, TokenizerError};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// A vocabulary being made.
struct Made {
    model: &'static str,
    pre: &'static str,
    tokens: Vec<Vec<u8>>,
    types: Vec<i32>,
    scores: Vec<f32>,
    merges: Vec<String>,
    ids: Vec<(&'static str, i64)>,
    flags: Vec<(&'static str, bool)>,
}

impl Made {
    /// Byte-level BPE: `<end>`, the printable ASCII characters, then `more`.
    fn bpe(more: &[&str], merges: &[&str]) -> Made {
        let mut tokens: Vec<Vec<u8>> = vec![b"<end>".to_vec()];
        tokens.extend((b'!'..=b'~').map(|b| vec![b]));
        tokens.push("Ġ".into());
        tokens.extend(more.iter().map(|t| t.as_bytes().to_vec()));
        let mut types = vec![NORMAL; tokens.len()];
        types[0] = CONTROL;
        Made {
            model: "gpt2",
            pre: "gpt-2",
            tokens,
            types,
            scores: Vec::new(),
            merges: merges.iter().map(|m| (*m).to_owned()).collect(),
            ids: Vec::new(),
            flags: Vec::new(),
        }
    }

    /// SentencePiece: `<unk>`, `<s>`, `</s>`, 256 bytes, then `more` with their scores.
    fn spm(more: &[(&str, f32)]) -> Made {
        let mut tokens: Vec<Vec<u8>> = vec![b"<unk>".into(), b"<s>".into(), b"</s>".into()];
        let mut types = vec![UNKNOWN, CONTROL, CONTROL];
        tokens.extend((0..256).map(|b| format!("<0x{b:02X}>").into_bytes()));
        types.resize(tokens.len(), BYTE);
        let mut scores = vec![0.0; tokens.len()];
        for (text, score) in more {
            tokens.push(text.as_bytes().to_vec());
            types.push(NORMAL);
            scores.push(*score);
        }
        Made {
            model: "llama",
            pre: "default",
            tokens,
            types,
            scores,
            merges: Vec::new(),
            ids: Vec::new(),
            flags: Vec::new(),
        }
    }

    fn token(mut self, text: impl AsRef<[u8]>, kind: i32) -> Made {
        self.tokens.push(text.as_ref().to_vec());
        self.types.push(kind);
        if !self.scores.is_empty() {
            self.scores.push(-1.0);
        }
        self
    }

    fn id(mut self, key: &'static str, id: i64) -> Made {
        self.ids.push((key, id));
        self
    }

    fn flag(mut self, key: &'static str, value: bool) -> Made {
        self.flags.push((key, value));
        self
    }

    fn builder(&self) -> Builder {
        let mut b = Builder::new();
        b.str("tokenizer.ggml.model", self.model);
        b.str("tokenizer.ggml.pre", self.pre);
        b.strs("tokenizer.ggml.tokens", &self.tokens);
        b.i32s("tokenizer.ggml.token_type", &self.types);
        if !self.scores.is_empty() {
            b.f32s("tokenizer.ggml.scores", &self.scores);
        }
        if matches!(self.model, "gpt2" | "gemma4") {
            b.strs("tokenizer.ggml.merges", &self.merges);
        }
        for (key, id) in &self.ids {
            b.i64(&format!("tokenizer.ggml.{key}_token_id"), *id);
        }
        for (key, value) in &self.flags {
            b.bool(&format!("tokenizer.ggml.{key}"), *value);
        }
        b
    }

    fn build(&self) -> Result<Tokenizer, TokenizerError> {
        read(&self.builder())
    }

    fn id_of(&self, text: &str) -> u32 {
        self.tokens.iter().position(|t| t == text.as_bytes()).unwrap() as u32
    }
}

fn read(builder: &Builder) -> Result<Tokenizer, TokenizerError> {
    let bytes = builder.header();
    Tokenizer::from_gguf(&gguf::parse(&bytes).unwrap())
}

const PLAIN: EncodeOptions = EncodeOptions { add_bos: Some(false), parse_special: false };
const SPECIAL: EncodeOptions = EncodeOptions { add_bos: Some(false), parse_special: true };

/// The texts of the tokens of `text`.
fn pieces(tokenizer: &Tokenizer, text: &str, options: EncodeOptions) -> Vec<String> {
    let ids = tokenizer.encode(text, options).unwrap();
    ids.iter().map(|&id| String::from_utf8_lossy(tokenizer.token_text(id)).into_owned()).collect()
}

#[test]
fn lies_are_typed_errors() {
    use TokenizerError as E;
    let cut = |made: Made, f: fn(&mut Made)| {
        let mut made = made;
        f(&mut made);
        made
    };
    let short = |key, found, expected| E::ShortArray { key, found, expected };
    let byte = |id, text: &str| E::BadByteToken { id, text: text.into() };
    let cases: Vec<(&str, Made, E)> = vec![
        (
            "no tokens",
            cut(Made::bpe(&[], &[]), |m| (m.tokens, m.types) = (vec![], vec![])),
            E::EmptyVocabulary,
        ),
        (
            "fewer types",
            cut(Made::bpe(&[], &[]), |m| m.types.truncate(5)),
            short("tokenizer.ggml.token_type", 5, 96),
        ),
        (
            "fewer scores",
            cut(Made::spm(&[("a", 1.0)]), |m| m.scores.truncate(259)),
            short("tokenizer.ggml.scores", 259, 260),
        ),
        ("a byte below zero", Made::spm(&[]).token("<0x-1>", BYTE), byte(259, "<0x-1>")),
        ("a byte that is no number", Made::spm(&[]).token("<0xGG>", BYTE), byte(259, "<0xGG>")),
        ("a byte too long", Made::spm(&[]).token("<0x100>", BYTE), byte(259, "<0x100>")),
        ("a byte without a text", Made::spm(&[]).token("", BYTE), byte(259, "")),
        ("a byte in BPE", Made::bpe(&[], &[]).token("x!", BYTE), byte(96, "x!")),
        (
            "an unknown pre-tokeniser",
            cut(Made::bpe(&[], &[]), |m| m.pre = "nonesuch"),
            E::UnknownPreTokenizer { name: "nonesuch".into() },
        ),
        (
            "an unknown model",
            cut(Made::bpe(&[], &[]), |m| m.model = "plamo2"),
            E::UnknownModel { name: "plamo2".into(), known: "gpt2, llama, t5, bert, rwkv, gemma4" },
        ),
    ];
    for (what, made, expected) in cases {
        assert_eq!(made.build().err(), Some(expected), "{what}");
    }
}

#[test]
fn missing_and_mistyped_keys_are_named() {
    let key_of = |builder: &Builder| match read(builder).err() {
        Some(TokenizerError::Metadata(
            GgufError::MissingKey { key }
            | GgufError::WrongType { key, .. }
            | GgufError::WrongElementType { key, .. },
        )) => key.to_string(),
        other => panic!("{other:?}"),
    };
    let mut b = Builder::new();
    assert_eq!(key_of(&b), "tokenizer.ggml.model");
    b.str("tokenizer.ggml.model", "gpt2");
    assert_eq!(key_of(&b), "tokenizer.ggml.tokens");
    b.strs("tokenizer.ggml.tokens", &["a"]);
    assert_eq!(key_of(&b), "tokenizer.ggml.merges");
    b.strs("tokenizer.ggml.merges", &[""; 0]);
    assert!(read(&b).is_ok());
    for key in ["tokenizer.ggml.scores", "tokenizer.ggml.token_type"] {
        let mut b = b.clone();
        b.strs(key, &["1"]);
        assert_eq!(key_of(&b), key);
        let mut b = b.clone();
        b.str("tokenizer.ggml.bos_token_id", "1");
        assert_eq!(key_of(&b), key);
    }
    for key in ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.add_bos_token"] {
        let mut b = b.clone();
        b.str(key, "1");
        assert_eq!(key_of(&b), key);
    }
    let mut b = Builder::new();
    b.str("tokenizer.ggml.model", "llama");
    b.i32s("tokenizer.ggml.tokens", &[1, 2]);
    assert_eq!(key_of(&b), "tokenizer.ggml.tokens");
}

/// `made` with these tokens as the ends of an answer.
fn with_ends(made: &Made, ids: &[i64]) -> Result<Tokenizer, TokenizerError> {
    let mut builder = made.builder();
    builder.i64s(END_IDS, ids);
    read(&builder)
}

#[test]
fn all_tokens_that_the_file_lists_end_an_answer() {
    // Neither by a key of llama.cpp's nor by their spelling; `</s>` of this family would be no end by its spelling.
    let made = Made::spm(&[("x", -1.0), ("y", -2.0)]).token("<|tool_response>", CONTROL);
    let (x, y, response) = (made.id_of("x"), made.id_of("y"), made.id_of("<|tool_response>"));
    assert_eq!(made.build().unwrap().ends(), [response]);
    let tokenizer = with_ends(&made, &[y.into(), 2, x.into(), y.into()]).unwrap();
    assert_eq!(tokenizer.ends(), [2, x, y, response]);
    assert!(tokenizer.is_end(x) && tokenizer.is_end(y) && !tokenizer.is_end(x - 1));
    assert_eq!(tokenizer.eos(), Some(2), "the list does not change the token that ends a text");
    // Any width, and an empty list.
    let mut builder = made.builder();
    builder.u32s(END_IDS, &[x]);
    assert_eq!(read(&builder).unwrap().ends(), [x, response]);
    assert_eq!(with_ends(&made, &[]).unwrap().ends(), [response]);
}

#[test]
fn hostile_lists_of_ends_are_skipped_or_refused() {
    let made = Made::spm(&[]);
    let count = made.tokens.len() as i64;
    // No tokens: left out, as they are from single keys.
    let ids = [-1, i64::MIN, i64::MAX, count, 1 << 32, (1 << 32) + 5, 7];
    assert_eq!(with_ends(&made, &ids).unwrap().ends(), [2, 7]);
    let all: Vec<i64> = (0..MAX_END_IDS as i64 + 1).collect();
    assert_eq!(with_ends(&made, &all[..MAX_END_IDS]).unwrap().ends().len(), MAX_END_IDS);
    let found = MAX_END_IDS + 1;
    let error = TokenizerError::TooManyEnds { found, limit: MAX_END_IDS };
    assert_eq!(with_ends(&made, &all).err(), Some(error));
    // Neither a list nor ids.
    type Write = fn(&mut Builder);
    let wrong: [Write; 4] = [
        |b| _ = b.u32(END_IDS, 7),
        |b| _ = b.str(END_IDS, "7"),
        |b| _ = b.strs(END_IDS, &["7"]),
        |b| _ = b.f32s(END_IDS, &[7.0]),
    ];
    for write in wrong {
        let mut builder = made.builder();
        write(&mut builder);
        let error = read(&builder).err().unwrap();
        assert!(matches!(error, TokenizerError::Metadata(_)), "{error:?}");
        assert!(error.to_string().contains(END_IDS), "{error}");
    }
}

#[test]
fn special_ids_out_of_range_fall_back() {
    for id in [1_000_000, -1, i64::MAX] {
        let made = Made::spm(&[]).id("bos", id).id("eos", id).id("eot", id).id("fim_pad", id);
        let tokenizer = made.build().unwrap();
        assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
        assert_eq!(tokenizer.ends(), [2]);
    }
    // The defaults of byte-level BPE (11) are out of range as well in a vocabulary this small.
    let mut made = Made::bpe(&[], &[]).id("bos", 99_999);
    made.tokens.truncate(8);
    made.types.truncate(8);
    let tokenizer = made.build().unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (None, None));
    let with_bos = EncodeOptions { add_bos: Some(true), parse_special: false };
    assert_eq!(tokenizer.encode("a", with_bos), Err(TokenizerError::NoBos));
    assert_eq!(
        made.flag("add_bos_token", true).build().unwrap().encode("", EncodeOptions::default()),
        Err(TokenizerError::NoBos)
    );
}

#[test]
fn ids_that_are_no_tokens_decode_to_nothing() {
    let tokenizer = Made::spm(&[]).build().unwrap();
    for id in [259, 100_000, u32::MAX] {
        let mut out = Vec::new();
        tokenizer.decode_bytes(id, &mut out);
        assert!(out.is_empty() && tokenizer.token_text(id).is_empty());
        assert!(!tokenizer.is_end(id) && !tokenizer.is_control(id));
    }
}

#[test]
fn of_tokens_with_one_text_the_first_is_what_it_becomes() {
    let made = Made::bpe(&["a", "bc", "bc"], &["b c"]).token("<end>", CONTROL).token("<u>", USER);
    let made = made.token("<u>", USER);
    let long = "a".repeat(10_000);
    // With tables for one short text each, and with the complete ones.
    for before in ["", &long] {
        let tokenizer = made.build().unwrap();
        tokenizer.encode(before, PLAIN).unwrap();
        assert_eq!(tokenizer.encode("abc<end><u>", SPECIAL).unwrap(), [65, 97, 0, 100]);
        assert_eq!(tokenizer.token_id(b"bc"), Some(97));
        assert_eq!(
            (tokenizer.decode(&[96, 98, 101]), tokenizer.vocab_size()),
            ("abc<u>".into(), 102)
        );
    }
}

#[test]
fn merges_that_name_unknown_tokens_do_no_harm() {
    // `ab` and `cd` are no tokens; `de` is one; the others are no pairs, or pairs twice.
    let merges = ["a b", "c d", "d e", "d e", "x", "", " ", "a  b", "e ", " f", "ab c"];
    let tokenizer = Made::bpe(&["de"], &merges).build().unwrap();
    assert_eq!(pieces(&tokenizer, "abcde", PLAIN), ["a", "b", "c", "d", "e"]);
    assert_eq!(pieces(&tokenizer, "de", PLAIN), ["de"]);
    assert_eq!(pieces(&tokenizer, "e f", PLAIN), ["e", "Ġ", "f"]);
}

#[test]
fn the_first_of_equal_merges_counts() {
    let tokenizer = Made::bpe(&["ab", "bc"], &["b c", "a b", "b c"]).build().unwrap();
    assert_eq!(pieces(&tokenizer, "abc", PLAIN), ["a", "bc"]);
}

#[test]
fn text_without_a_token_is_left_out_in_bpe_and_unknown_in_spm() {
    let tokenizer = Made::bpe(&[], &[]).build().unwrap();
    assert_eq!(pieces(&tokenizer, "a\u{1}é", PLAIN), ["a"]);
    let mut made = Made::spm(&[]).flag("add_space_prefix", false);
    made.types[3 + usize::from(b'b')] = NORMAL;
    made.tokens[3 + usize::from(b'b')] = b"[x]".to_vec();
    let tokenizer = made.build().unwrap();
    assert_eq!(pieces(&tokenizer, "abc", PLAIN), ["<0x61>", "<unk>", "<0x63>"]);
}

#[test]
fn merging_by_score_takes_the_best_then_the_leftmost() {
    let made = Made::spm(&[("a", 0.0), ("b", 0.0), ("ab", -1.0), ("ba", -1.0), ("aba", -3.0)]);
    let tokenizer = made.flag("add_space_prefix", false).build().unwrap();
    assert_eq!(pieces(&tokenizer, "ab", PLAIN), ["ab"]);
    // ab and ba have one score: the leftmost goes first, then aba from ab and a.
    assert_eq!(pieces(&tokenizer, "aba", PLAIN), ["aba"]);
    assert_eq!(pieces(&tokenizer, "bab", PLAIN), ["ba", "b"]);
    let odd = [("a", 0.0), ("b", 0.0), ("ab", f32::NAN), ("ba", f32::NEG_INFINITY), ("bb", 1e38)];
    let tokenizer = Made::spm(&odd).flag("add_space_prefix", false).build().unwrap();
    assert_eq!(pieces(&tokenizer, "abba", PLAIN), ["a", "bb", "a"]);
    assert_eq!(pieces(&tokenizer, "aba", PLAIN), ["ab", "a"]);
}

#[test]
fn control_tokens_never_come_out_of_plain_text() {
    // The merges would make `<end>` of its letters; so would the scores; so would a whole word.
    let merges = ["< e", "n d", "<e nd", "<end >"];
    let made = Made::bpe(&["<e", "nd", "<end"], &merges);
    let tokenizer = made.build().unwrap();
    assert!(!tokenizer.encode("<end>", PLAIN).unwrap().contains(&0));
    assert_eq!(tokenizer.encode("<end>", SPECIAL).unwrap(), [0]);
    let mut made = Made::bpe(&["word"], &[]);
    made.pre = "llama-bpe";
    let id = made.id_of("word");
    made.types[id as usize] = CONTROL;
    let tokenizer = made.build().unwrap();
    assert_eq!(pieces(&tokenizer, "word", PLAIN), ["w", "o", "r", "d"]);
    assert_eq!(tokenizer.encode("word", SPECIAL).unwrap(), [id]);

    let parts = [("<", 0.0), ("s", 0.0), (">", 0.0), ("<s", 0.0), ("<0", 0.0), ("x41>", 0.0)];
    let tokenizer = Made::spm(&parts).flag("add_space_prefix", false).build().unwrap();
    assert_eq!(pieces(&tokenizer, "<s>", PLAIN), ["<s", ">"]);
    assert_eq!(tokenizer.encode("<s>", SPECIAL).unwrap(), [1]);
    assert!(!tokenizer.encode("<0x41>", PLAIN).unwrap().contains(&(3 + 0x41)));
    assert_eq!(tokenizer.decode(&tokenizer.encode("<0x41>", PLAIN).unwrap()), "<0x41>");
}

#[test]
fn spellings_in_the_plain_ranges_stay_text() {
    let tokenizer = Made::bpe(&[], &[]).token("<u>", USER).build().unwrap();
    let text = "<end>x<end>y<end><u>";
    let all = |plain: &[std::ops::Range<usize>]| {
        let ids = tokenizer.encode_around(text, plain, Some(false)).unwrap();
        let ends = ids.iter().filter(|&&id| id == 0).count();
        (ends, ids.last() == Some(&96))
    };
    assert_eq!(all(&[]), (3, true));
    assert_eq!(all(&[6..11, 12..12]), (2, true));
    assert_eq!(all(&[0..1, 10..13]), (0, true));
    assert_eq!(all(&[5..6, 11..12, 17..20]), (3, true)); // user-defined tokens always match
    assert_eq!(all(&[0..10, 10..text.len()]), (0, true));
}

#[test]
fn longer_spellings_are_found_first_and_user_defined_ones_always() {
    let made = Made::bpe(&[], &[])
        .token("<u>", USER)
        .token("<u><u>", USER)
        .token("bcd_", USER)
        .token("abc", USER)
        .token("<c>", CONTROL)
        .token("<?>", UNKNOWN)
        .token("gone", UNUSED);
    let tokenizer = made.build().unwrap();
    assert_eq!(pieces(&tokenizer, "<u><u><u>", PLAIN), ["<u><u>", "<u>"]);
    // The longer one wins wherever it stands, even where a shorter one begins further left.
    assert_eq!(pieces(&tokenizer, "abcd_abc", PLAIN), ["a", "bcd_", "abc"]);
    assert_eq!(pieces(&tokenizer, "<c><?>", SPECIAL), ["<c>", "<?>"]);
    assert_eq!(pieces(&tokenizer, "<c>", PLAIN), ["<", "c", ">"]);
    assert_eq!(pieces(&tokenizer, "<?>", PLAIN), ["<", "?", ">"]);
    assert_eq!(pieces(&tokenizer, "gone", SPECIAL), ["g", "o", "n", "e"]);
}

#[test]
fn white_space_beside_stripping_tokens_belongs_to_them() {
    let mut b = Made::spm(&[]).token("<|x|>", CONTROL).token("<u>", USER).builder();
    b.str("general.name", "Phi-3 mini");
    let tokenizer = read(&b).unwrap();
    let text = |text: &str| pieces(&tokenizer, text, SPECIAL);
    assert_eq!(text("<|x|> \n a"), ["<|x|>", "<0xE2>", "<0x96>", "<0x81>", "<0x61>"]);
    assert_eq!(text("<u>  "), ["<u>"]);
    assert_eq!(text("<s>  ").len(), 1 + 9);
    let mut b = Made::bpe(&["<mask>"], &[]).token("<mask2>", CONTROL).builder();
    b.str("general.architecture", "nomic-bert-moe");
    let tokenizer = read(&b).unwrap();
    assert_eq!(pieces(&tokenizer, "a <mask2>", SPECIAL), ["a", "Ġ", "<mask2>"]);
}

#[test]
fn spm_prefixes_a_space_after_every_special_token() {
    let tokenizer = Made::spm(&[("▁", 0.0), ("a", 0.0), ("▁a", 0.0)]).build().unwrap();
    assert_eq!(pieces(&tokenizer, "a", PLAIN), ["▁a"]);
    assert_eq!(pieces(&tokenizer, "a<s>a<s> a", SPECIAL), ["▁a", "<s>", "▁a", "<s>", "▁", "▁a"]);
    assert_eq!(pieces(&tokenizer, "", EncodeOptions::default()), ["<s>"]);
    assert_eq!(
        tokenizer.decode(&tokenizer.encode(" a a", EncodeOptions::default()).unwrap()),
        " a a"
    );
}

#[test]
fn end_tokens_follow_their_spelling() {
    let spelled = |texts: &[&str]| {
        let mut made = Made::bpe(&[], &[]).id("eos", 5);
        for text in texts {
            made = made.token(text, CONTROL);
        }
        made.build().unwrap().ends().to_vec()
    };
    assert_eq!(spelled(&[]), [5]);
    assert_eq!(spelled(&["<|im_end|>", "<|other|>", "<end_of_turn>"]), [5, 96, 98]);
    assert_eq!(spelled(&["<|end|>", "<|return|>"]), [5, 96, 97]);
    // gpt-oss: `<|end|>` ends a part of an answer only.
    assert_eq!(spelled(&["<|end|>", "<|return|>", "<|call|>"]), [5, 97, 98]);
    assert_eq!(spelled(&["</s>", "<|tool_response>"]), [5, 97]);
    assert_eq!(
        spelled(&["<|file_sep|>", "<|fim_pad|>", "<|repo_name|>", "<|fim_prefix|>"]),
        [5, 96, 97, 98]
    );
    // A spelling of that kind is a control token, whatever the file says.
    let tokenizer = Made::bpe(&["<|eot_id|>"], &[]).build().unwrap();
    assert!(tokenizer.is_control(96) && tokenizer.is_end(96));
}

/// What ends an answer in each family: its eos from the metadata, and tokens of known texts.
#[test]
fn each_family_stops_where_its_turns_end() {
    // (family, index of eos, its special tokens, those that stop)
    type Family = (&'static str, usize, &'static [&'static str], &'static [&'static str]);
    let families: &[Family] = &[
        (
            "llama 3",
            0,
            &["<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|start_header_id|>"],
            &["<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"],
        ),
        (
            "chatml",
            1,
            &["<|endoftext|>", "<|im_end|>", "<|im_start|>", "<think>", "</think>", "<tool_call>"],
            &["<|endoftext|>", "<|im_end|>"],
        ),
        (
            "harmony",
            0,
            &["<|return|>", "<|call|>", "<|end|>", "<|start|>", "<|channel|>", "<|message|>"],
            &["<|return|>", "<|call|>"],
        ),
        (
            "phi 3",
            0,
            &["<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>"],
            &["<|endoftext|>", "<|end|>"],
        ),
        ("gemma 3", 0, &["<eos>", "<end_of_turn>", "<start_of_turn>"], &["<eos>", "<end_of_turn>"]),
        (
            "gemma 4",
            0,
            &[
                "<eos>",
                "<turn|>",
                "<|tool_response>",
                "</s>",
                "<|turn>",
                "<|channel>",
                "<channel|>",
            ],
            &["<eos>", "<turn|>", "<|tool_response>"],
        ),
        (
            "deepseek",
            0,
            &["<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"],
            &["<｜end▁of▁sentence｜>"],
        ),
        ("mistral", 0, &["</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[THINK]"], &["</s>"]),
    ];
    for (family, eos, specials, stops) in families {
        let plain = Made::bpe(&[], &[]);
        let first = plain.tokens.len();
        let made = specials.iter().fold(plain, |made, text| made.token(text, CONTROL));
        let tokenizer = made.id("eos", (first + eos) as i64).build().unwrap();
        let found: Vec<&[u8]> =
            tokenizer.ends().iter().map(|&id| tokenizer.token_text(id)).collect();
        let mut expected: Vec<&[u8]> = stops.iter().map(|text| text.as_bytes()).collect();
        // In the order of the vocabulary.
        expected.sort_by_key(|text| specials.iter().position(|s| s.as_bytes() == *text));
        assert_eq!(found, expected, "{family}");
    }
}

#[test]
fn tokens_without_text_and_odd_types() {
    let tokenizer = Made::bpe(&[], &[])
        .token("", NORMAL)
        .token("", CONTROL)
        .token([0xff, b'<'], CONTROL)
        .token([0x80], USER)
        .token("odd", 99)
        .token("low", -5)
        .build()
        .unwrap();
    assert_eq!(tokenizer.vocab_size(), 102);
    assert_eq!(pieces(&tokenizer, "é<", SPECIAL), ["<"]);
    for id in 96..102 {
        let mut out = Vec::new();
        tokenizer.decode_special(id, &mut out);
        assert_eq!(out.is_empty(), ![98, 99].contains(&id), "{id}");
    }
}

/// The tables for one short text give what the complete ones give, whatever the vocabulary is.
#[test]
fn short_texts_are_cut_as_with_the_complete_tables() {
    let mut state = 7u64;
    let mut draw = move |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let letters = [
        "a", "b", "c", "ab", "é", " ", "  ", "\n", "<", ">", "▁", "日", "0x", "abcabcab", "🚀",
        "\0",
    ];
    let long = "abc ".repeat(2000);
    let mut tokens = 0;
    for round in 0..600 {
        let mut word = |most: usize| -> String {
            (0..1 + draw(most)).map(|_| letters[draw(letters.len())]).collect()
        };
        let mut made = match round % 3 {
            0 => Made::spm(&[]),
            1 => unigram(&[]),
            _ => Made::bpe(&[], &[]),
        };
        made.pre = ["gpt-2", "llama-bpe", "default"][round / 3 % 3];
        if round % 6 == 5 {
            made.model = "gemma4";
        }
        if round % 12 == 3 {
            made.model = "bert";
        }
        for n in 0..100 {
            let text = word(6);
            let spelled = match made.model {
                "gpt2" => text.replace(' ', "Ġ").replace('é', "Ã©").replace('\n', "Ċ"),
                _ => text.replace(' ', "▁"),
            };
            // Where it can be cut, and where it cannot.
            let cut = (1..spelled.len())
                .rev()
                .find(|&at| spelled.is_char_boundary(at) && at % 3 == n % 3);
            if let Some(cut) = cut {
                made.merges.push(format!("{} {}", &spelled[..cut], &spelled[cut..]));
            }
            made = made.token(spelled, [NORMAL, NORMAL, NORMAL, USER, CONTROL, UNUSED][n % 6]);
            if let Some(score) = made.scores.last_mut() {
                *score = -(word(9).len() as f32);
            }
        }
        let complete = made.build().unwrap();
        complete.encode(&long, PLAIN).unwrap();
        let new = made.build().unwrap();
        for _ in 0..4 {
            let text = word(60);
            for options in [PLAIN, SPECIAL] {
                let found = new.encode(&text, options).unwrap();
                assert_eq!(found, complete.encode(&text, options).unwrap(), "{round}: {text:?}");
                tokens += found.len();
            }
            let spellings: Vec<_> = new.control_spellings(&text).collect();
            assert!(complete.control_spellings(&text).eq(spellings), "{round}: {text:?}");
        }
    }
    assert!(tokens > 50_000, "{tokens}");
}

/// Generous: these take some ten milliseconds when linear, and minutes when not.
const LIMIT: Duration = Duration::from_secs(10);

#[test]
fn long_texts_of_one_kind_take_linear_time() {
    const SIZE: usize = 1 << 17;
    // Merges and tokens of a, aa, aaaa, … and of spaces, as real vocabularies have.
    let doubled = |s: &str, n: usize| s.repeat(1 << n);
    let mut more = Vec::new();
    let mut merges = Vec::new();
    for n in 0..6 {
        for letter in ["a", "Ġ"] {
            more.push(doubled(letter, n + 1));
            merges.push(format!("{0} {0}", doubled(letter, n)));
        }
    }
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let merges: Vec<&str> = merges.iter().map(String::as_str).collect();
    let runs: Vec<String> = (0..7).flat_map(|n| [doubled("▁", n), doubled("a", n)]).collect();
    let runs: Vec<(&str, f32)> = runs.iter().map(|t| (&**t, -(t.len() as f32))).collect();
    let mut tokenizers =
        vec![Made::spm(&runs).token("<<", USER).token("<<<<", CONTROL).build().unwrap()];
    for pre in [
        "gpt-2",
        "llama-bpe",
        "qwen2",
        "default",
        "smollm",
        "tekken",
        "gpt-4o",
        "deepseek-v3",
        "deepseek-coder",
        "falcon",
        "k2-horizon",
        "qwen35",
        "laguna",
    ] {
        let mut made = Made::bpe(&more, &merges).token("<<", USER).token("<<<<", CONTROL);
        made.pre = pre;
        tokenizers.push(made.build().unwrap());
    }
    let long = "x".repeat(400);
    let mut words = Made::spm(&[("\u{2581}a", 0.0), ("a", 0.0), (&long, 0.0)]);
    words.model = "bert";
    tokenizers.push(words.build().unwrap());
    // Of each word, every part is looked up, and none found but the shortest.
    let word = format!("{} ", "a".repeat(100));
    let unknown = format!("{}b ", "a".repeat(99));
    for unit in [
        word.as_str(),
        unknown.as_str(),
        "a",
        " ",
        "\n",
        " \n",
        "A",
        "é",
        "Aé",
        "éA",
        "'",
        "'s",
        "1",
        "1a",
        "<",
        "<<<",
        "\u{301}",
        "🚀",
        "\u{200d}",
        ".",
        "/",
        "日",
        "a ",
        "  a",
    ] {
        let text = unit.repeat(SIZE / unit.len());
        for tokenizer in &tokenizers {
            let start = Instant::now();
            let ids = tokenizer.encode(&text, SPECIAL).unwrap();
            assert!(ids.len() <= 3 * SIZE);
            assert!(start.elapsed() < LIMIT, "{unit:?} took {:?}", start.elapsed());
        }
    }
}

#[test]
fn a_mark_in_the_text_begins_no_word() {
    let tokens =
        [("\u{2581}ab", 0.0), ("\u{2581}a", 0.0), ("b", 0.0), ("c", 0.0), ("\u{2581}", 0.0)];
    let mut made = Made::spm(&tokens);
    made.model = "bert";
    let tokenizer = made.build().unwrap();
    let spelled = |text: &str| pieces(&tokenizer, text, PLAIN);
    assert_eq!(spelled("ab AB abc"), ["\u{2581}ab", "\u{2581}ab", "\u{2581}ab", "c"]);
    // `c` continues a word and begins none; `▁ab` is looked for as the beginning of a word, after a mark of its own.
    let unknown = tokenizer.unknown().map(|id| tokenizer.token_text(id).to_vec());
    let unknown = String::from_utf8(unknown.unwrap()).unwrap();
    for text in ["c", "\u{2581}ab", "a\u{2581}a", "abx"] {
        assert_eq!(spelled(text), [unknown.as_str()], "{text}");
    }
    assert_eq!(spelled("a\u{2581}b"), ["\u{2581}a", "\u{2581}", "b"]);
}

#[test]
fn equal_hashes_cannot_be_arranged() {
    // Were the hash not keyed, a file could be made whose strings fall into one chain. That
    // cannot be tested from outside, but many alike strings can.
    let texts: Vec<String> = (0..200_000).map(|i| format!("{i:024}")).collect();
    let more: Vec<&str> = texts.iter().map(String::as_str).collect();
    let start = Instant::now();
    let tokenizer = Made::bpe(&more, &[]).build().unwrap();
    assert!(start.elapsed() < LIMIT);
    assert_eq!(tokenizer.token_id(texts[123_456].as_bytes()), Some(96 + 123_456));
}

/// A unigram vocabulary: `<pad>`, `</s>`, `<unk>`, then `more` with their scores.
fn unigram(more: &[(&str, f32)]) -> Made {
    let mut made = Made::spm(more);
    made.model = "t5";
    made.tokens.splice(..259, [&b"<pad>"[..], b"</s>", b"<unk>"].map(<[u8]>::to_vec));
    made.types.splice(..259, [CONTROL, CONTROL, UNKNOWN]);
    made.scores.splice(..259, [0.0; 3]);
    made
}

#[test]
fn unigrams_are_cut_where_scores_say() {
    let made = unigram(&[("\u{2581}", -2.0), ("a", -3.0), ("b", -3.0), ("ab", -4.0), ("bb", -9.0)]);
    let tokenizer = made.build().unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.unknown()), (None, Some(1), Some(2)));
    assert!(!tokenizer.adds_bos() && tokenizer.adds_eos() && tokenizer.padding() == Some(0));
    let encode = |made: &Made, text: &str| {
        let tokenizer = made.build().unwrap();
        tokenizer.encode(text, EncodeOptions::default()).unwrap()
    };
    let [space, a, b, ab] = [3, 4, 5, 6];
    assert_eq!(encode(&made, "ab bb"), [ab, space, b, b, 1]);
    // Unknown characters in a row are one token; one that no token spells leaves the others.
    assert_eq!(encode(&made, "xyza ba"), [2, a, space, b, a, 1]);
    assert_eq!(encode(&made, ""), [1]);
    // Control tokens do not come out of text.
    assert_eq!(encode(&made, "</s>"), [2, 1]);
    let made = made.flag("add_space_prefix", true);
    assert_eq!(encode(&made, "a  b "), [space, a, space, space, b, space, 1]);
    let made = made.flag("remove_extra_whitespaces", true);
    assert_eq!(encode(&made, "  a   b "), [space, a, space, b, 1]);
    assert_eq!(encode(&made, "   "), [1]);
    // Scores that are no numbers are of tokens that are not there.
    let made = unigram(&[("a", f32::NAN), ("b", f32::INFINITY), ("c", -1.0)]);
    assert_eq!(encode(&made, "abc"), [2, 5, 1]);
    // All bytes, in place of the unknown token.
    let mut made = unigram(&[("a", -1.0)]);
    for byte in 0..256 {
        made = made.token(format!("<0x{byte:02X}>"), BYTE);
    }
    assert_eq!(encode(&made, "aé"), [3, 4 + 0xc3, 4 + 0xa9, 1]);
    // Longer than text is looked for.
    let long = unigram(&[("a", -1.0), (&"x".repeat(257), -1.0)]);
    let expected = TokenizerError::PieceTooLong { id: 4, len: 257, limit: 256 };
    assert_eq!(long.build().err(), Some(expected));
}

#[test]
fn maps_of_characters_may_say_anything() {
    let made = unigram(&[("\u{2581}", -2.0), ("a", -3.0), ("ab", -4.0)]);
    let build = |map: &[u8]| {
        let mut builder = made.builder();
        read(builder.u8s("tokenizer.ggml.precompiled_charsmap", map))
    };
    let signed = |map: &[i8]| {
        let mut builder = made.builder();
        read(builder.i8s("tokenizer.ggml.precompiled_charsmap", map))
    };
    assert!(build(&[]).is_ok() && signed(&[]).is_ok());
    assert!(matches!(build(&[1, 2]), Err(TokenizerError::CharsMap { .. })));
    assert!(matches!(signed(&[-1, -1, -1, -1, 0]), Err(TokenizerError::CharsMap { .. })));
    let mut wrong = made.builder();
    let wrong = read(wrong.u32s("tokenizer.ggml.precompiled_charsmap", &[1])).err().unwrap();
    assert!(wrong.to_string().contains("tokenizer.ggml.precompiled_charsmap"), "{wrong}");
    // Units drawn so that many of them lead to others, and replacements of any bytes.
    let mut state = 1u64;
    let mut draw = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let text = "ab a\u{2581}é日👩 ".repeat(50);
    let start = Instant::now();
    let (mut some, mut other) = (0, 0);
    for _ in 0..2000 {
        let count = 1 + draw(512);
        let mut map = (4 * count as u32).to_le_bytes().to_vec();
        let label = |draw: &mut dyn FnMut(u64) -> u64| text.as_bytes()[draw(20) as usize];
        for _ in 0..count {
            let value = draw(4) == 0;
            let base = (draw(512) as u32) << 10 | (draw(4) as u32 & 1) << 8;
            let unit =
                if value { 1 << 31 | draw(60) as u32 } else { base | u32::from(label(&mut draw)) };
            map.extend(unit.to_le_bytes());
        }
        map.extend((0..59).map(|_| draw(256) as u8 & 0xf7));
        map.push(0);
        let tokenizer = build(&map).unwrap();
        let options = EncodeOptions { add_bos: Some(false), parse_special: false };
        let ids = tokenizer.encode(&text, options).unwrap();
        assert!(ids.iter().all(|id| (*id as usize) < made.tokens.len()));
        some += usize::from(!ids.is_empty());
        other += usize::from(ids != made.build().unwrap().encode(&text, options).unwrap());
    }
    assert!(some > 1000 && other > 10, "{some} and {other}");
    assert!(start.elapsed() < Duration::from_secs(60));
}
