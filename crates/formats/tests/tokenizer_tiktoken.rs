//! Files of ranks: what is in order is read, every lie has its error, and no bytes are too much.

use alight_formats::tokenizer::tiktoken::{LLAMA3, Ranks, parse};
use alight_formats::tokenizer::{self, Kind, TokenizerError as E};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;

use crate::support::memory;
use crate::support::refused::{refused, says, table};

fn measured(file: &[u8]) -> Result<Ranks, E> {
    memory::within(64 * 1024 + 32 * file.len(), || parse(file))
}

#[track_caller]
fn fails(what: &str, file: &impl AsRef<[u8]>, expected: impl Fn(&E) -> bool, words: &[&str]) {
    refused(what, measured(file.as_ref()), expected, words);
}

/// All bytes, and then these tokens.
fn file(tokens: &[&[u8]]) -> String {
    let bytes: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    let all = bytes.iter().map(Vec::as_slice).chain(tokens.iter().copied());
    (0..).zip(all).map(|(rank, token)| format!("{} {rank}\n", STANDARD.encode(token))).collect()
}

#[test]
fn what_is_in_order_is_read() {
    let text = file(&[b" t", b"he", b" the", b"the"]);
    assert_eq!(tokenizer::recognise(text.as_bytes()), Some(Kind::Tiktoken));
    for text in [text.clone(), text.replace('\n', "\r\n"), format!("\n{}\n\n", text.trim_end())] {
        let ranks = measured(text.as_bytes()).unwrap();
        assert_eq!((ranks.len(), ranks.tokens().nth(258)), (260, Some(&b" the"[..])));
        // Every way to cut a token into two, by the ranks of the two.
        assert_eq!(ranks.merges(), ["Ġ t", "h e", "Ġ the", "Ġt he", "t he"]);
    }
}

#[test]
fn the_ways_to_cut_a_token_are_in_order() {
    let text = file(&[b"bc", b"ab", b"abc"]);
    let ranks = measured(text.as_bytes()).unwrap();
    assert_eq!(ranks.merges(), ["b c", "a b", "a bc", "ab c"], "`a` has a lower rank than `ab`");
    let text = file(&[b"abc", b"ab", b"cd", b"abcd"]);
    let merges = measured(text.as_bytes()).unwrap().merges();
    assert_eq!(merges, ["ab c", "a b", "c d", "abc d", "ab cd"], "`abc` has a lower one still");
}

#[test]
fn llama3_has_its_special_tokens() {
    let tokens: Vec<Vec<u8>> =
        (256..LLAMA3 as u32).map(|rank| format!("{rank:06}").into_bytes()).collect();
    let tokens: Vec<&[u8]> = tokens.iter().map(Vec::as_slice).collect();
    let text = file(&tokens);
    let found = tokenizer::read(text.as_bytes()).unwrap();
    assert_eq!((found.tokens.len(), found.pre), (128_256, "llama-bpe"));
    let text = |id: u32| &*found.tokens[id as usize].text;
    assert_eq!(found.special.bos.map(text), Some("<|begin_of_text|>"));
    assert_eq!(found.special.eos.map(text), Some("<|end_of_text|>"));
    assert_eq!(found.special.eot.map(text), Some("<|eot_id|>"));
    assert_eq!(found.special.eom.map(text), Some("<|eom_id|>"));
    assert_eq!(found.special.padding.map(text), Some("<|finetune_right_pad_id|>"));
    assert_eq!(text(128_255), "<|reserved_special_token_245|>");
    assert_eq!(found.add_bos, Some(true));
}

#[test]
fn every_lie_has_its_error() {
    let good = file(&[]);
    let line = |line: &str| format!("{good}{line}\n");
    let without = file(&[]).lines().skip(1).enumerate().fold(String::new(), |all, (rank, line)| {
        let token = line.split(' ').next().unwrap_or_default();
        format!("{all}{token} {rank}\n")
    });
    table![
        "nothing", "", E::Empty, ["no tokens"];
        "empty lines", "\n \r\n", E::Empty, ["no tokens"];
        "no rank", line("YWI="), E::Line { line: 257, .. }, ["a space"];
        "no base64", line("Y!I= 256"), E::Line { line: 257, .. }, ["base64"];
        "base64 that is cut", line("YWI 256"), E::Line { .. }, ["base64"];
        "no token", line(" 256"), E::Line { .. }, ["a space"];
        "an empty token", line("\u{0} 256"), E::Line { .. }, ["base64"];
        "a negative rank", line("YWI= -1"), E::Line { .. }, ["whole number"];
        "a rank with a sign", line("YWI= +256"), E::Line { .. }, ["whole number"];
        "a rank and more", line("YWI= 256 1"), E::Line { .. }, ["whole number"];
        "a rank that is no number", line("YWI= x"), E::Line { .. }, ["whole number"];
        "a rank of 2^64", line("YWI= 18446744073709551616"), E::Line { .. }, ["whole number"];
        "a rank too high", line("YWI= 300"), E::Rank { line: 257, found: 300, expected: 256 }, ["300"];
        "a rank twice", line("YWI= 255"), E::Rank { .. }, ["count up"];
        "a token twice", line("YQ== 256"), E::DuplicateToken { first: 97, second: 256, .. }, ["\"a\""];
        "a long token", file(&[&[b'a'; 1 << 15]]), E::LongTokens { .. }, ["too long"];
        "a missing byte", without, E::MissingByte { byte: 0 }, ["0x00"];
    ];
    refused(
        "another model",
        parse(good.as_bytes()).unwrap().llama3(),
        |_| true,
        &["256", "128000"],
    );
}

#[test]
fn a_file_that_is_cut_is_an_error_or_a_smaller_one() {
    let text = file(&[b" t", b"he"]);
    for len in 0..text.len() {
        if let Err(error) = measured(&text.as_bytes()[..len]) {
            says(&len.to_string(), &error.to_string(), &[]);
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_give_a_result(file in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = measured(&file).map(|ranks| ranks.merges());
    }

    #[test]
    fn a_changed_byte_gives_a_result(at in 0_usize..4000, byte: u8) {
        let mut text = file(&[b" t", b"he", b" the"]).into_bytes();
        let at = at % text.len();
        text[at] = byte;
        if let Ok(ranks) = measured(&text) {
            prop_assert!(ranks.merges().len() < 600);
        }
    }
}
