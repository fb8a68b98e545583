//! Hugging Face's `tokenizer.json`: what is in order is read, every lie has its error, and no bytes
//! are too much.

use alight_formats::tokenizer::{
    self, Kind, Model, TokenType as T, TokenizerError as E, Vocabulary,
};
use proptest::prelude::*;

use crate::support::memory;
use crate::support::refused::{refused, says, table};
use crate::support::tokenizer_json::{OVER_BYTES, REWRITTEN, UNIGRAM};

/// Reads and checks that this took little memory for what was read.
fn measured(file: &[u8]) -> Result<Vocabulary<'_>, E> {
    memory::within(256 * 1024 + 128 * file.len(), || tokenizer::json::parse(file)?.vocabulary())
}

#[track_caller]
fn fails(what: &str, file: &impl AsRef<[u8]>, expected: impl Fn(&E) -> bool, words: &[&str]) {
    refused(what, measured(file.as_ref()), expected, words);
}

const BYTES: &str = r#"{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true}"#;

fn texts<'v>(found: &'v Vocabulary<'_>) -> Vec<(u32, &'v str, T)> {
    found.tokens.iter().map(|token| (token.id, &*token.text, token.ty)).collect()
}

#[test]
fn merges_are_kept_where_gguf_has_them_for_characters() {
    let file = |model: &str| {
        format!(
            r#"{{"added_tokens": [{{"id": 0, "content": "<bos>", "special": true}}],
            "normalizer": {{"type": "Replace", "pattern": {{"String": " "}}, "content": "▁"}},
            "pre_tokenizer": {{"type": "Split", "pattern": {{"String": " "}}, "behavior": "MergedWithPrevious"}},
            "model": {model}}}"#
        )
    };
    let model = r#"{"type": "BPE", "byte_fallback": true, "unk_token": null,
        "vocab": {"<bos>": 0, "<0x0A>": 1, "▁": 2, "a": 3, "▁a": 4, "aa": 5},
        "merges": [["a", "a"], ["▁", "a"]]}"#;
    let text = file(model);
    let json = tokenizer::json::parse(text.as_bytes()).unwrap();
    let found = json.over_characters().unwrap();
    assert_eq!((found.model.name(), found.pre, found.add_bos), ("gemma4", "gemma4", Some(true)));
    assert_eq!(found.merges, ["a a", "▁ a"]);
    assert!(!found.add_space_prefix && found.notes.is_empty());
    let types: Vec<i32> = found.tokens.iter().map(|token| token.ty as i32).collect();
    assert_eq!(types, [3, 6, 1, 1, 1, 1]);
    assert!(found.tokens.iter().all(|token| token.score == -1000.0));
    // One over bytes is another kind.
    let text = file(model).replace("MergedWithPrevious", "Isolated");
    let bytes = text.replace(r#"{"type": "Split""#, r#"{"type": "ByteLevel""#);
    let error = tokenizer::json::parse(bytes.as_bytes()).unwrap().over_characters().unwrap_err();
    assert!(!error.to_string().is_empty());
}

#[test]
fn bpe_over_bytes() {
    assert_eq!(tokenizer::recognise(OVER_BYTES.as_bytes()), Some(Kind::Json));
    let found = measured(OVER_BYTES.as_bytes()).unwrap();
    assert_eq!((found.model, found.pre), (Model::ByteLevel, "gpt-2"));
    let expected = [
        (0, "<|end|>", T::Control),
        (1, "a", T::Normal),
        (2, "b", T::Normal),
        (3, "Ġ", T::Normal),
        (4, "ab", T::Normal),
        (5, "Ġab", T::Normal),
        (6, "😀", T::Normal),
        (8, "<think>", T::UserDefined),
        (9, "<|odd|>", T::Control),
        (12, "a b", T::UserDefined),
    ];
    assert_eq!(texts(&found), expected, "7, 10 and 11 are holes");
    assert_eq!(found.merges, ["a b", "Ġ ab"]);
    assert!(found.notes.is_empty());
    // Both ways to write merges; spaces within are those of the alphabet.
    let pairs = OVER_BYTES.replace(r#""a b", "\u0120 ab""#, r#"["a", "b"], ["\u0120", "ab"]"#);
    assert_eq!(measured(pairs.as_bytes()).unwrap().merges, found.merges);
    let spaced = OVER_BYTES.replace(r#""\u0120 ab""#, r#"[" ", "ab"]"#).replace(r"\u0120", " ");
    let spaced = spaced.replace(r#""a b", "#, r#"["a", "b"], "#);
    assert_eq!(measured(spaced.as_bytes()).unwrap().merges, found.merges);
}

#[test]
fn bpe_that_was_sentencepieces() {
    let found = measured(REWRITTEN.as_bytes()).unwrap();
    assert_eq!((found.model, found.pre), (Model::SentencePiece, "default"));
    assert!(found.add_space_prefix && found.merges.is_empty() && found.notes.is_empty());
    let scores: Vec<(&str, f32)> =
        found.tokens.iter().map(|token| (&*token.text, token.score)).collect();
    // In the order in which merges make them, and then the others.
    let expected = [
        ("<unk>", -1000.0),
        ("<s>", -1000.0),
        ("<0x0A>", 0.0),
        ("a", -4.0),
        ("b", -5.0),
        ("c", -6.0),
        ("▁", -7.0),
        ("bc", -1.0),
        ("ab", 0.0),
        ("abc", -2.0),
        ("▁ab", -3.0),
        ("  ", -1000.0),
    ];
    assert_eq!(scores, expected);
    let types: Vec<T> = found.tokens.iter().map(|token| token.ty).collect();
    assert_eq!(types[..3], [T::Control, T::Control, T::Byte]);
    assert_eq!((types[3], types[11]), (T::Normal, T::UserDefined));
    assert_eq!(
        (found.special.bos, found.special.eos, found.special.unknown),
        (Some(1), None, Some(0))
    );
}

#[test]
fn tokens_that_are_too_long_to_try_every_cut_are_refused() {
    let of = |half: usize| {
        let half = "a".repeat(half);
        let tokens = format!("\"{half}\": 12, \"{half}{half}\": 13, \"bc\": 7");
        let merges = format!("[[\"{half}\", \"{half}\"], [\"a\", \"b\"]");
        REWRITTEN.replace("\"bc\": 7", &tokens).replace("[[\"a\", \"b\"]", &merges)
    };
    assert!(measured(of(1 << 8).as_bytes()).is_ok());
    fails(
        "long tokens",
        &of(1 << 14),
        |error| matches!(error, E::LongTokens { .. }),
        &["too long"],
    );
}

#[test]
fn merges_that_no_score_can_say_are_noted() {
    // `abc` is made of `ab c` only, or with another between its two ways.
    for file in [
        REWRITTEN.replace(r#"["a", "bc"], "#, ""),
        REWRITTEN.replace(r#"["ab", "c"], ["\u2581", "ab"]"#, r#"["\u2581", "ab"], ["ab", "c"]"#),
    ] {
        assert_ne!(file, REWRITTEN);
        let found = measured(file.as_bytes()).unwrap();
        let notes = &found.notes;
        assert!(notes.len() == 1 && notes[0].starts_with("1 tokens"), "{notes:?}");
        // The first merge that makes a token counts.
        assert_eq!((&*found.tokens[9].text, found.tokens[9].score), ("abc", -2.0));
    }
}

#[test]
fn spaces_are_marked_in_several_ways() {
    let prefix = |normalizer: &str, pre: &str| {
        let begin = REWRITTEN.find("\"normalizer\"").unwrap();
        let end = REWRITTEN.find("\"post_processor\"").unwrap();
        let parts = format!("\"normalizer\": {normalizer}, \"pre_tokenizer\": {pre}, ");
        let file = [&REWRITTEN[..begin], &parts, &REWRITTEN[end..]].concat();
        measured(file.as_bytes()).map(|found| found.add_space_prefix)
    };
    let replace = r#"{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}"#;
    let split = r#"{"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false}"#;
    let metaspace = |more: &str| format!(r#"{{"type": "Metaspace", "replacement": "▁"{more}}}"#);
    assert_eq!(prefix(replace, "null"), Ok(false));
    assert_eq!(prefix(replace, split), Ok(false));
    assert_eq!(prefix("null", &metaspace("")), Ok(true));
    assert_eq!(prefix("null", &metaspace(r#", "add_prefix_space": false"#)), Ok(false));
    assert_eq!(
        prefix("null", &metaspace(r#", "prepend_scheme": "first", "split": false"#)),
        Ok(true)
    );
    assert_eq!(prefix("null", &metaspace(r#", "prepend_scheme": "never""#)), Ok(false));
    assert!(matches!(prefix("null", "null"), Err(E::Unsupported { .. })));
    assert!(matches!(
        prefix(replace, r#"{"type": "WhitespaceSplit"}"#),
        Err(E::Unsupported { .. })
    ));
}

#[test]
fn unigram() {
    let found = measured(UNIGRAM.as_bytes()).unwrap();
    assert_eq!(
        (found.model, found.model.name(), found.add_space_prefix),
        (Model::Unigram, "t5", true)
    );
    let scores: Vec<f32> = found.tokens.iter().map(|token| token.score).collect();
    assert_eq!(scores, [0.0, 0.0, -1.5, -2.0]);
    assert_eq!(found.tokens[1].ty, T::Unknown);
    assert_eq!(found.special.unknown, Some(1));
    assert_eq!((&*found.charsmap, found.remove_extra_whitespaces), (&[0, 0, 0][..], false));
    assert!(found.notes.is_empty(), "{:?}", found.notes);
    let precompiled = r#"{"type": "Precompiled", "precompiled_charsmap": "AAAA"}"#;
    let spaces = r#"{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}"#;
    let both = format!(r#"{{"type": "Sequence", "normalizers": [{precompiled}, {spaces}]}}"#);
    let merging = UNIGRAM.replace(precompiled, &both);
    assert!(measured(merging.as_bytes()).unwrap().remove_extra_whitespaces);
    // As files of XLM-R have it: words first, then the mark.
    let space = r#"{"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": true}"#;
    let words = format!(
        r#"{{"type": "Sequence", "pretokenizers": [{{"type": "WhitespaceSplit"}}, {space}]}}"#
    );
    let older = UNIGRAM.replace(space, &words);
    assert_ne!(older, UNIGRAM);
    let found = measured(older.as_bytes()).unwrap();
    assert!(found.remove_extra_whitespaces && found.add_space_prefix);
    fails(
        "no base64",
        &UNIGRAM.replace("AAAA", "A"),
        |e| matches!(e, E::Inconsistent { .. }),
        &["base64"],
    );
    // Early files do not name the type.
    let early = UNIGRAM.replace(r#""type": "Unigram", "#, "");
    assert_eq!(measured(early.as_bytes()).unwrap().model, Model::Unigram);
    fails(
        "1e400",
        &UNIGRAM.replace("-1.5", "1e400"),
        |e| matches!(e, E::Json { .. }),
        &["out of range"],
    );
    fails(
        "1e300",
        &UNIGRAM.replace("-1.5", "1e300"),
        |e| matches!(e, E::Score { token: 2, .. }),
        &["finite"],
    );
}

#[test]
fn what_gguf_cannot_say_is_noted() {
    let notes = |from: &str, to: &str| {
        let file = OVER_BYTES.replacen(from, to, 1);
        assert_ne!(file, OVER_BYTES);
        let found = measured(file.as_bytes()).unwrap();
        found.notes.join("; ")
    };
    let none = r#""normalizer": null"#;
    assert!(notes(none, r#""normalizer": {"type": "NFC"}"#).contains("NFC"));
    assert_eq!(notes(none, r#""normalizer": {"type": "Sequence", "normalizers": []}"#), "");
    let prefix = notes(r#""add_prefix_space": false"#, r#""add_prefix_space": true"#);
    assert!(prefix.contains("space before every text"), "{prefix}");
    assert!(notes(r#""lstrip": false"#, r#""lstrip": true"#).contains("white space beside"));
}

#[test]
fn every_lie_has_its_error() {
    let with = |from: &str, to: &str| {
        let file = OVER_BYTES.replacen(from, to, 1);
        assert_ne!(file, OVER_BYTES, "{from}");
        file
    };
    let deep = |open: &str, close: &str, n| {
        let pre = format!("{}{BYTES}{}", open.repeat(n), close.repeat(n));
        let begin = OVER_BYTES.find("{\"type\": \"ByteLevel\"").unwrap();
        let end = OVER_BYTES.find(",\n    \"post_processor\"").unwrap();
        [&OVER_BYTES[..begin], &pre, &OVER_BYTES[end..]].concat()
    };
    let sequence = r#"{"type": "Sequence", "pretokenizers": ["#;
    table![
        "nothing", "", E::Json { .. }, ["EOF"];
        "a list", "[]", E::Json { .. }, ["line 1"];
        "another object", "{}", E::Json { .. }, ["`model`"];
        "not UTF-8", b"{\"model\": \"\xff\"}", E::NotUtf8 { at: 11 }, ["byte 11"];
        "more after", format!("{OVER_BYTES} x"), E::Json { .. }, ["trailing"];
        "a model twice", with("\"decoder\"", "\"model\": {\"vocab\": {}}, \"decoder\""), E::Json { .. }, ["duplicate field"];
        "another model", with("\"BPE\"", "\"WordLevel\""), E::Unsupported { part: "model", .. }, ["WordLevel"];
        "no type", r#"{"model": {"vocab": {}}}"#, E::Inconsistent { .. }, ["type is missing"];
        "a suffix", with("\"continuing_subword_prefix\": \"\"", "\"end_of_word_suffix\": \"</w>\""), E::Unsupported { .. }, ["</w>"];
        "scores in BPE", with(r#"{"<|end|>": 0, "a": 1, "b": 2, "\u0120": 3, "ab": 4, "\u0120ab": 5, "\ud83d\ude00": 6}"#, r#"[["a", 0]]"#), E::Inconsistent { .. }, ["expected ids"];
        "ids in Unigram", with("\"BPE\"", "\"Unigram\""), E::Inconsistent { .. }, ["expected scores"];
        "an id that is text", with("\"a\": 1", "\"a\": \"1\""), E::Json { .. }, ["u32"];
        "a negative id", with("\"a\": 1", "\"a\": -1"), E::Json { .. }, ["-1"];
        "an id of 2^32", with("\"a\": 1", "\"a\": 4294967296"), E::Json { .. }, ["4294967296"];
        "an id of 1e400", with("\"a\": 1", "\"a\": 1e400"), E::Json { .. }, ["out of range"];
        "a fraction", with("\"a\": 1", "\"a\": 1.5"), E::Json { .. }, ["1.5"];
        "a token twice", with("\"b\": 2", "\"a\": 2"), E::DuplicateToken { first: 1, second: 2, .. }, ["\"a\""];
        "an id twice", with("\"b\": 2", "\"b\": 1"), E::DuplicateId { id: 1, .. }, ["\"a\"", "\"b\""];
        "an added token with another's id", with("\"id\": 8", "\"id\": 4"), E::DuplicateId { id: 4, .. }, ["ab", "<think>"];
        "an added token with another id", with("\"content\": \"<think>\"", "\"content\": \"ab\""), E::DuplicateToken { .. }, ["\"ab\""];
        "an added token without text", with("\"content\": \"<think>\"", "\"x\": 1"), E::Json { .. }, ["content"];
        "a merge of three", with("\"a b\"", "\"a b a\""), E::MergeText { merge: 0, .. }, ["one space"];
        "a merge of one", with("\"a b\"", "\"ab\""), E::MergeText { .. }, ["one space"];
        "a merge of a list of three", with("\"a b\"", "[\"a\", \"b\", \"a\"]"), E::Json { .. }, ["two tokens"];
        "a merge of a list of one", with("\"a b\"", "[\"a\"]"), E::Json { .. }, ["two tokens"];
        "a merge that is a number", with("\"a b\"", "7"), E::Json { .. }, ["7", "a merge"];
        "a merge of an unknown token", with("\"a b\"", "\"a z\""), E::MergeOfUnknown { merge: 0, .. }, ["\"z\" is no token"];
        "a merge into an unknown token", with("\"a b\"", "\"b a\""), E::MergeOfUnknown { .. }, ["\"ba\" is no token"];
        "a merge twice", with("\"a b\"", "\"a b\", \"a b\""), E::DuplicateMerge { first: 0, second: 1, .. }, ["\"a\" and \"b\""];
        "unknown rules", with("\"type\": \"ByteLevel\", \"add_prefix_space\": false", "\"type\": \"Whitespace\""), E::UnknownPre { .. }, ["Whitespace"];
        "a string for a part", with("\"normalizer\": null", "\"normalizer\": \"NFC\""), E::Json { part: "normalizer", .. }, ["normalizer"];
        "a part without a type", with("\"normalizer\": null", "\"normalizer\": {}"), E::Json { part: "normalizer", .. }, ["type"];
        "a part that is too long", with("\"normalizer\": null", &format!("\"normalizer\": {{\"type\": \"{}\"}}", "x".repeat(1 << 20))), E::PartTooLong { part: "normalizer", .. }, ["1048576"];
        "a normalizer of another text", with("\"normalizer\": null", "\"normalizer\": {\"type\": \"Lowercase\"}"), E::Unsupported { part: "normalizer", .. }, ["Lowercase", "other tokens"];
        "parts nested 200 deep", deep(sequence, "]}", 200), E::Json { part: "pre_tokenizer", .. }, ["recursion limit"];
    ];
    assert_eq!(measured(deep(sequence, "]}", 20).as_bytes()).unwrap().pre, "gpt-2");
    // What is passed over takes no stack.
    let lists = format!("\"version\": {}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(measured(with("\"version\": \"1.0\"", &lists).as_bytes()).is_ok());
    let long = with("\"a b\"", &format!("\"a {}\"", "z".repeat(100_000)));
    fails("a long merge", &long, |e| matches!(e, E::MergeOfUnknown { .. }), &["100000 bytes"]);
    let long = with("\"a\": 1", &format!("\"a\": \"{}\\u001b[31m\"", "z".repeat(100_000)));
    fails("a long value", &long, |e| matches!(e, E::Json { .. }), &["line"]);
    let empty = r#"{"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "model": {"type": "BPE", "vocab": {}, "merges": []}}"#;
    fails("no tokens", &empty, |e| *e == E::Empty, &["no tokens"]);
    // Spaces that stay spaces, without an alphabet of bytes.
    let file = REWRITTEN.replace(r#""content": "\u2581"}"#, r#""content": "_"}"#);
    fails(
        "other marks",
        &file,
        |e| matches!(e, E::Unsupported { .. }),
        &["ByteLevel", "byte_fallback"],
    );
}

#[test]
fn a_file_that_is_cut_is_an_error() {
    for file in [OVER_BYTES, REWRITTEN] {
        for len in 0..file.len() {
            let error = measured(&file.as_bytes()[..len]).unwrap_err();
            says(&len.to_string(), &error.to_string(), &[]);
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_give_a_result(file in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(measured(&file).is_err());
    }

    #[test]
    fn a_changed_byte_gives_a_result(at in 0_usize..4000, byte: u8, other: bool) {
        let mut file = if other { OVER_BYTES } else { REWRITTEN }.as_bytes().to_vec();
        let at = at % file.len();
        file[at] = byte;
        match measured(&file) {
            Ok(found) => prop_assert!(found.tokens.windows(2).all(|pair| pair[0].id < pair[1].id)),
            Err(error) => says("changed", &error.to_string(), &[]),
        }
    }
}
