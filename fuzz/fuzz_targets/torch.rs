//! Any bytes as a file of torch's, and as the pickle of one that is otherwise in order.
#![no_main]

use std::collections::HashSet;

use alight_formats::torch::parse;
use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../crates/formats/tests/support/torch_files.rs"]
mod support;

fn check(bytes: &[u8]) {
    let file = match parse(bytes) {
        Ok(file) => file,
        Err(error) => {
            // Messages are bounded and printable, whatever the file says.
            let text = error.to_string();
            assert!(text.len() < 2500 && !text.chars().any(char::is_control), "{text:?}");
            return;
        }
    };
    let mut names = HashSet::new();
    for tensor in &file.tensors {
        assert!(!tensor.name.is_empty() && names.insert(&*tensor.name));
        assert_eq!(file.tensor(&tensor.name), Some(tensor));
        let data = tensor.data(bytes).expect("the data lies in the file");
        assert_eq!(data.len() as u64, tensor.nbytes);
        assert_eq!(tensor.elements() * tensor.dtype.bytes(), tensor.nbytes);
        assert!((tensor.storage as usize) < file.storages);
    }
}

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    if !bytes.starts_with(b"PK") {
        check(&support::file(bytes));
    }
});
