//! Any bytes as a file of ranks, and as what follows the ranks of all bytes in one.
#![no_main]

use std::collections::HashSet;

use alight_formats::tokenizer::tiktoken::parse;
use alight_formats::tokenizer::{alphabet, recognise};
use libfuzzer_sys::fuzz_target;

fn check(bytes: &[u8]) {
    let ranks = match parse(bytes) {
        Ok(ranks) => ranks,
        Err(error) => return alight_fuzz::tokenizer::check(Err(error)),
    };
    let tokens: HashSet<String> = ranks.tokens().map(alphabet::spell).collect();
    assert!(ranks.len() >= 256 && tokens.len() == ranks.len());
    for merge in ranks.merges() {
        let (left, right) = merge.split_once(' ').expect("two tokens");
        assert!(tokens.contains(left) && tokens.contains(right));
        assert!(tokens.contains(&[left, right].concat()));
    }
    alight_fuzz::tokenizer::check(ranks.llama3());
}

fuzz_target!(|bytes: &[u8]| {
    let _ = recognise(bytes);
    check(bytes);
    check(&[include_bytes!("../bytes.tiktoken"), bytes].concat());
});
