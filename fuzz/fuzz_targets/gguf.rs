//! Any bytes as a GGUF file.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|bytes: &[u8]| -> Corpus {
    alight_fuzz::parse_and_check(bytes);
    Corpus::Keep
});
