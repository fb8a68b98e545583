//! Any bytes as Hugging Face's `tokenizer.json`.
#![no_main]

use alight_formats::tokenizer::json::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    alight_fuzz::tokenizer::check(parse(bytes).and_then(|file| file.vocabulary()));
});
