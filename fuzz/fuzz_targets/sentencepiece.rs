//! Any bytes as SentencePiece's `tokenizer.model`.
#![no_main]

use alight_formats::tokenizer::sentencepiece::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    alight_fuzz::tokenizer::check(parse(bytes).map(|file| file.vocabulary()));
});
