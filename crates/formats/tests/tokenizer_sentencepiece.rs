//! SentencePiece's models: what is in order is read, every lie has its error, and no bytes are too much.

use alight_formats::tokenizer::sentencepiece::{ModelType, SentencePiece, parse};
use alight_formats::tokenizer::{self, Model, TokenType, TokenizerError as E};
use proptest::prelude::*;

use crate::support::memory;
use crate::support::refused::{refused, says, table};
use crate::support::sentencepiece::{
    bytes, double, float, least, normalizer, number, piece, small, trainer, varint,
};

/// Parses and checks that this took little memory for what was read.
fn measured(file: &[u8]) -> Result<SentencePiece<'_>, E> {
    memory::within(64 * 1024 + 64 * file.len(), || parse(file))
}

#[track_caller]
fn fails(what: &str, file: &[u8], expected: impl Fn(&E) -> bool, words: &[&str]) {
    refused(what, measured(file), expected, words);
}

#[test]
fn what_is_in_order_is_read() {
    let file = small();
    let found = measured(&file).unwrap();
    assert_eq!((found.pieces.len(), found.kind, found.byte_fallback), (267, ModelType::Bpe, true));
    assert_eq!((found.pieces[13].text, found.pieces[13].ty), ("<0x0A>", TokenType::Byte));
    assert_eq!((found.pieces[260].text, found.pieces[260].score), ("ab", -1.0));
    assert_eq!((found.special.unknown, found.special.bos), (Some(0), Some(1)));
    assert_eq!((found.special.eos, found.special.padding), (Some(2), None));
    assert_eq!((found.normalizer, found.charsmap), ("identity", &[][..]));
    let spaces = (found.add_dummy_prefix, found.remove_extra_whitespaces, found.escape_whitespaces);
    assert_eq!(spaces, (true, false, true));

    let vocabulary = tokenizer::read(&file).unwrap();
    assert_eq!((vocabulary.model, vocabulary.pre), (Model::SentencePiece, "default"));
    assert!(vocabulary.add_space_prefix && vocabulary.notes.is_empty());
    let user = &vocabulary.tokens[265];
    assert_eq!((&*user.text, user.ty), ("  ", TokenType::UserDefined), "as it is written");
    assert_eq!(vocabulary.tokens[266].ty, TokenType::Unused);
}

#[test]
fn defaults_are_those_of_the_format() {
    // No type, no score, and no specifications: a unigram model, which normalises spaces.
    let file = [piece("<unk>", 0.0, 2), bytes(1, bytes(1, "a"))].concat();
    let found = measured(&file).unwrap();
    assert_eq!(found.kind, ModelType::Unigram);
    assert_eq!((found.pieces[1].score, found.pieces[1].ty), (0.0, TokenType::Normal));
    assert!(found.add_dummy_prefix && found.remove_extra_whitespaces);
    let vocabulary = found.vocabulary();
    assert_eq!(vocabulary.model, Model::Unigram);
    assert!(vocabulary.remove_extra_whitespaces && vocabulary.charsmap.is_empty());
    assert!(vocabulary.notes.is_empty(), "{:?}", vocabulary.notes);
}

#[test]
fn gguf_has_the_normalisation_of_unigram_only() {
    let spec = || normalizer(&[bytes(1, "nmt_nfkc"), bytes(2, "xyz")]);
    let unigram = least(&[trainer(&[number(3, 1)]), spec()]);
    let found = measured(&unigram).unwrap().vocabulary();
    assert_eq!((&*found.charsmap, found.remove_extra_whitespaces), (&b"xyz"[..], true));
    assert!(found.notes.is_empty(), "{:?}", found.notes);
    let merged = least(&[spec()]);
    let found = measured(&merged).unwrap().vocabulary();
    assert_eq!((&*found.charsmap, found.remove_extra_whitespaces), (&[][..], false));
    assert_eq!(found.notes.len(), 2, "{:?}", found.notes);
}

#[test]
fn special_tokens_are_found_by_their_spelling_and_type() {
    let names = trainer(&[bytes(46, "[B]"), bytes(47, "a"), bytes(48, "[P]"), bytes(45, "?")]);
    let pieces =
        [piece("?", 0.0, 2), piece("a", 0.0, 1), piece("[B]", 0.0, 3), piece("[P]", 0.0, 3)];
    let file = [pieces.concat(), names].concat();
    let special = measured(&file).unwrap().special;
    assert_eq!((special.unknown, special.bos, special.padding), (Some(0), Some(2), Some(3)));
    assert_eq!(special.eos, None, "`a` is an ordinary token");
}

#[test]
fn what_gguf_cannot_say_is_noted() {
    let notes = |rest: &[Vec<u8>]| measured(&least(rest)).unwrap().vocabulary().notes;
    let plain = || number(4, 0);
    assert_eq!(notes(&[normalizer(&[plain()])]).len(), 0);
    let charsmap = [bytes(1, "nmt_nfkc"), bytes(2, "xyz"), plain()];
    let found = notes(&[normalizer(&charsmap)]);
    assert!(found.len() == 1 && found[0].contains("nmt_nfkc"), "{found:?}");
    let none = [normalizer(&[number(3, 0), plain()])];
    assert!(!measured(&least(&none)).unwrap().vocabulary().add_space_prefix);
}

#[test]
fn unknown_fields_are_passed_over() {
    let more = [number(9, 7), double(10, 1.0), float(11, 1.0), bytes(12, "x"), bytes(5, "yz")];
    let inside = bytes(1, [bytes(1, "b"), number(99, 1), float(77, 0.0)].concat());
    let deep = trainer(&[double(8, 0.0), bytes(30, "z"), number(200, u64::MAX)]);
    let file = least(&[more.concat(), inside, deep]);
    assert_eq!(measured(&file).unwrap().pieces.len(), 3);
}

#[test]
fn every_lie_has_its_error() {
    let with = |field: Vec<u8>| least(&[field]);
    let cut = |mut file: Vec<u8>, by: usize| {
        file.truncate(file.len() - by);
        file
    };
    let all_bytes: Vec<u8> =
        (0..=255).flat_map(|byte| piece(format!("<0x{byte:02X}>"), 0.0, 6)).collect();
    table![
        "nothing", Vec::new(), E::Empty, ["no tokens"];
        "no pieces", trainer(&[number(3, 2)]), E::Empty, ["no tokens"];
        "cut in a length", cut(with(bytes(1, bytes(1, "b"))), 2), E::Wire { .. }, ["longer than what is left"];
        "cut in a tag", with(vec![0x80]), E::Wire { .. }, ["cut short"];
        "cut in a float", with(vec![0x0d, 0, 0]), E::Wire { .. }, ["cut short"];
        "cut in a double", with(vec![0x09, 0, 0]), E::Wire { .. }, ["cut short"];
        "a length of 2^63", with([vec![0x0a], varint(1 << 63)].concat()), E::Wire { .. }, ["longer"];
        "a length of 2^64 - 1", with([vec![0x0a], varint(u64::MAX)].concat()), E::Wire { .. }, ["longer"];
        "a number of eleven bytes", with([vec![0x20], vec![0x80; 10], vec![1]].concat()), E::Wire { .. }, ["64 bits"];
        "a number beyond 64 bits", with([vec![0x20], vec![0xff; 9], vec![2]].concat()), E::Wire { .. }, ["64 bits"];
        "field 0", with(vec![0x00, 0x00]), E::Wire { .. }, ["2^29"];
        "field 2^29", with([varint(1 << 32), vec![0]].concat()), E::Wire { .. }, ["2^29"];
        "a group", with(vec![0x33]), E::Wire { .. }, ["group"];
        "wire type 7", with(vec![0x37]), E::Wire { .. }, ["wire type 6 or 7"];
        "a piece that is a number", with(number(1, 5)), E::WireType { field: 1, found: 0, expected: 2, .. }, ["ModelProto"];
        "a text that is a number", with(bytes(1, number(1, 5))), E::WireType { field: 1, .. }, ["SentencePiece", "byte"];
        "a score that is a double", with(bytes(1, [bytes(1, "b"), double(2, 0.0)].concat())), E::WireType { field: 2, found: 1, expected: 5, .. }, ["wire type 1"];
        "a type that is a float", with(bytes(1, [bytes(1, "b"), float(3, 0.0)].concat())), E::WireType { field: 3, .. }, ["expected 0"];
        "no text", with(bytes(1, float(2, 0.0))), E::EmptyText { token: 2 }, ["token 2"];
        "text that is not UTF-8", with(piece(b"\xff\xfe\x1b", 0.0, 1)), E::TokenText { token: 2, .. }, [r"\xff\xfe"];
        "a score of NaN", with(piece("b", f32::NAN, 1)), E::Score { token: 2, .. }, ["NaN"];
        "an infinite score", with(piece("b", f32::INFINITY, 1)), E::Score { token: 2, .. }, ["inf"];
        "type 0", with(piece("b", 0.0, 0)), E::Type { token: 2, found: 0 }, ["1 to 6"];
        "type 7", with(piece("b", 0.0, 7)), E::Type { token: 2, found: 7 }, ["1 to 6"];
        "type 2^64 - 1", with(piece("b", 0.0, u64::MAX)), E::Type { .. }, ["18446744073709551615"];
        "the same text twice", with(piece("a", 0.0, 4)), E::DuplicateToken { first: 1, second: 2, .. }, ["\"a\""];
        "two unknown tokens", with(piece("b", 0.0, 2)), E::Inconsistent { .. }, ["several unknown"];
        "no unknown token", piece("a", 0.0, 1), E::Inconsistent { .. }, ["no unknown token"];
        "a byte that is none", with(piece("<0xGG>", 0.0, 6)), E::NotAByte { token: 2, .. }, ["<0xGG>"];
        "a byte without fallback", with(piece("<0x00>", 0.0, 6)), E::Inconsistent { .. }, ["byte_fallback is not set"];
        "fallback without bytes", with(trainer(&[number(35, 1)])), E::Inconsistent { .. }, ["not every byte"];
        "fallback without one byte", least(&[all_bytes[..all_bytes.len() - 17].to_vec(), trainer(&[number(35, 1)])]), E::Inconsistent { .. }, ["not every byte"];
        "a model of words", with(trainer(&[number(3, 3)])), E::ModelType { found: 3, .. }, ["words or characters"];
        "a model of another kind", with(trainer(&[number(3, 9)])), E::ModelType { found: 9, .. }, ["unigram"];
        "a spelling that is not UTF-8", with(trainer(&[bytes(46, b"\xff")])), E::Inconsistent { .. }, ["UTF-8"];
        "a name that is not UTF-8", with(normalizer(&[bytes(1, b"\xff")])), E::Inconsistent { .. }, ["UTF-8"];
        "spaces that stay spaces", with(normalizer(&[number(5, 0)])), E::Inconsistent { .. }, ["escape_whitespaces"];
        "spaces after words", with(trainer(&[number(24, 1)])), E::Inconsistent { .. }, ["treat_whitespace_as_suffix"];
    ];
    // All bytes and the flag are in order.
    let whole = least(&[all_bytes, trainer(&[number(35, 1)])]);
    assert_eq!(measured(&whole).unwrap().pieces.len(), 258);
    let long = piece("x".repeat(70_000), f32::NAN, 1);
    fails("a long text", &with(long), |e| matches!(e, E::Score { .. }), &["token 2"]);
    let long = "y".repeat(70_000);
    let twice = with([piece(&long, 0.0, 1), piece(&long, 0.0, 1)].concat());
    fails("long texts", &twice, |e| matches!(e, E::DuplicateToken { .. }), &["70000 bytes"]);
}

#[test]
fn a_file_that_is_cut_is_an_error_or_a_smaller_model() {
    let file = small();
    for len in 0..file.len() {
        match measured(&file[..len]) {
            Ok(found) => assert!(found.pieces.len() <= 267, "{len}"),
            Err(error) => says(&len.to_string(), &error.to_string(), &[]),
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_give_a_result(file in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = measured(&file).map(|found| found.vocabulary().tokens.len());
    }

    #[test]
    fn a_changed_byte_gives_a_result(at in 0_usize..4000, byte: u8) {
        let mut file = small();
        let at = at % file.len();
        file[at] = byte;
        match measured(&file) {
            Ok(found) => prop_assert!(found.vocabulary().tokens.len() <= 267 * 2),
            Err(error) => says("changed", &error.to_string(), &[]),
        }
    }
}
