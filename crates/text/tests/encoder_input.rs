//! The input that an encoder reads for a text or a pair: the tokens around them, and where they are cut.

use alight_formats::gguf::{self, write::Builder};
use alight_text::{EncoderInput, Fit, InputEncoder, InputError, Vocabulary};

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

fn vocabulary(
    model: &str,
    tokens: &[(&str, i32)],
    ids: &[(&str, u32)],
    more: impl FnOnce(&mut Builder),
) -> Vocabulary {
    let mut out = Builder::new();
    out.str("tokenizer.ggml.model", model);
    let texts: Vec<&str> = tokens.iter().map(|(text, _)| *text).collect();
    let types: Vec<i32> = tokens.iter().map(|(_, ty)| *ty).collect();
    out.strs("tokenizer.ggml.tokens", &texts).i32s("tokenizer.ggml.token_type", &types);
    out.f32s("tokenizer.ggml.scores", &vec![-1.0; tokens.len()]);
    for (name, id) in ids {
        out.u32(&format!("tokenizer.ggml.{name}_token_id"), *id);
    }
    more(&mut out);
    let bytes = out.header();
    Vocabulary::from_gguf(&gguf::parse(&bytes).unwrap()).unwrap()
}

/// [UNK] 0, [CLS] 1, [SEP] 2, a 3, b 4, c 5.
fn bert() -> Vocabulary {
    let tokens = [
        ("[UNK]", CONTROL),
        ("[CLS]", CONTROL),
        ("[SEP]", CONTROL),
        ("\u{2581}a", NORMAL),
        ("\u{2581}b", NORMAL),
        ("\u{2581}c", NORMAL),
    ];
    // An old file, whose flags say something else.
    let flags = |out: &mut Builder| {
        out.bool("tokenizer.ggml.add_eos_token", false).bool("tokenizer.ggml.add_sep_token", true);
    };
    vocabulary("bert", &tokens, &[("unknown", 0), ("cls", 1), ("seperator", 2)], flags)
}

/// <s> 0, </s> 1, <unk> 2, a 3, b 4.
fn roberta() -> Vocabulary {
    let tokens = [
        ("<s>", CONTROL),
        ("</s>", CONTROL),
        ("<unk>", 2),
        ("\u{2581}a", NORMAL),
        ("\u{2581}b", NORMAL),
    ];
    let flags = |out: &mut Builder| {
        out.bool("tokenizer.ggml.add_bos_token", true).bool("tokenizer.ggml.add_eos_token", true);
        out.bool("tokenizer.ggml.add_space_prefix", true);
    };
    vocabulary("t5", &tokens, &[("bos", 0), ("eos", 1), ("unknown", 2)], flags)
}

fn encoder(vocabulary: &Vocabulary) -> InputEncoder<'_> {
    InputEncoder::new(vocabulary, false, || false)
}

const fn cut_to(limit: usize) -> Fit {
    Fit { limit, truncate: true }
}

#[test]
fn a_text_is_cut_before_its_closing_token() {
    let vocabulary = bert();
    let encoder = encoder(&vocabulary);
    let whole = [1, 3, 4, 5, 2];
    for limit in [5, 6, 100] {
        let input = encoder.text("a B c", cut_to(limit)).unwrap();
        assert_eq!(input, EncoderInput { tokens: whole.to_vec(), second: None, truncated: false });
    }
    for (limit, expected) in [(4, &[1, 3, 4, 2][..]), (3, &[1, 3, 2]), (2, &[1, 2])] {
        let input = encoder.text("a b c", cut_to(limit)).unwrap();
        assert_eq!((&input.tokens[..], input.truncated), (expected, true));
        // Tokens of the caller keep their closing token as well.
        let input = encoder.tokens(whole.to_vec(), cut_to(limit)).unwrap();
        assert_eq!(input.tokens[..limit - 1], whole[..limit - 1]);
        assert_eq!((input.tokens[limit - 1], input.truncated), (2, true));
        let refused = encoder.text("a b c", Fit { limit, truncate: false });
        assert_eq!(refused, Err(InputError::TooLong { tokens: 5, limit }));
    }
    assert_eq!(encoder.text("a", cut_to(1)), Err(InputError::TooLong { tokens: 3, limit: 1 }));
    assert_eq!(encoder.text("", cut_to(9)).unwrap().tokens, [1, 2]);
}

#[test]
fn a_pair_has_the_form_of_its_family() {
    let vocabulary = bert();
    let pair = encoder(&vocabulary).pair("a", "b [SEP] c", cut_to(100)).unwrap();
    // The name of a token in a document is text: three unknown words.
    assert_eq!(pair.tokens, [1, 3, 2, 4, 0, 0, 0, 5, 2]);
    assert_eq!((pair.second, pair.truncated), (Some(3), false));
    let vocabulary = roberta();
    let pair = encoder(&vocabulary).pair("a", "b a", cut_to(100)).unwrap();
    assert_eq!(pair.tokens, [0, 3, 1, 1, 4, 3, 1]);
    assert_eq!(pair.second, Some(4));
}

#[test]
fn of_a_pair_the_document_is_cut() {
    let vocabulary = bert();
    let encoder = encoder(&vocabulary);
    for (limit, expected) in [(7, &[1, 3, 3, 2, 4, 4, 2][..]), (6, &[1, 3, 3, 2, 4, 2])] {
        let pair = encoder.pair("a a", "b b b b", cut_to(limit)).unwrap();
        assert_eq!((&pair.tokens[..], pair.truncated), (expected, true));
    }
    let refused = encoder.pair("a a", "b", cut_to(5));
    assert_eq!(refused, Err(InputError::FirstTooLong { tokens: 5, limit: 5 }));
    // Without a document, nothing has to be left of it.
    assert_eq!(encoder.pair("a a", "", cut_to(5)).unwrap().tokens, [1, 3, 3, 2, 2]);
}

#[test]
fn a_template_is_filled_once_and_its_texts_are_no_tokens() {
    let letters =
        ["q", "d", "x", "{", "}", "u", "e", "r", "y", "o", "c", "m", "n", "t", "<", ">", "|"];
    let tokens: Vec<(&str, i32)> =
        [("<unk>", 2), ("<s>", CONTROL), ("</s>", CONTROL), ("<|end|>", CONTROL)]
            .into_iter()
            .chain(letters.map(|letter| (letter, NORMAL)))
            .collect();
    let template = |out: &mut Builder| {
        out.str("tokenizer.chat_template.rerank", "<|end|>{query}x{document}<|end|>x");
        out.bool("tokenizer.ggml.add_space_prefix", false);
    };
    let vocabulary = vocabulary("llama", &tokens, &[("bos", 1), ("eos", 2)], template);
    let encoder = encoder(&vocabulary);
    let spelled = |query: &str, document: &str, limit| {
        let input = encoder.pair(query, document, cut_to(limit)).unwrap();
        let texts = input.tokens.iter().map(|id| vocabulary.tokenizer.token_text(*id));
        let texts: Vec<u8> = texts.collect::<Vec<_>>().concat();
        (String::from_utf8(texts).unwrap(), input)
    };
    let (text, input) = spelled("{document}", "d<|end|>", 100);
    assert_eq!(text, "<|end|>{document}xd<|end|><|end|>x");
    let ends = input.tokens.iter().filter(|id| **id == 3).count();
    assert_eq!((ends, input.second, input.truncated), (2, None, false));
    let (text, input) = spelled("q", "ddddd", 8);
    assert_eq!((text.as_str(), input.truncated), ("<|end|>qxddd<|end|>x", true));
    let refused = encoder.pair("qqqqqqq", "d", cut_to(8));
    assert!(matches!(refused, Err(InputError::FirstTooLong { .. })), "{refused:?}");
}
