//! Any bytes as a safetensors file, as the header of one that is long enough for its tensors, and as an
//! index.
#![no_main]

use std::collections::HashSet;

use alight_formats::safetensors::{SafeTensorsShard, merge, parse, parse_index};
use libfuzzer_sys::fuzz_target;

fn good_message(error: &dyn std::error::Error) {
    // Messages are bounded and printable, whatever the file says.
    let text = error.to_string();
    assert!(text.len() < 2000 && !text.chars().any(char::is_control), "{text:?}");
}

fn check(bytes: &[u8]) {
    let file = match parse(bytes) {
        Ok(file) => file,
        Err(error) => return good_message(&error),
    };
    let mut names = HashSet::new();
    let mut end = file.data_start;
    for tensor in &file.tensors {
        assert!(names.insert(tensor.name.as_ref()));
        assert_eq!(file.tensor(&tensor.name), Some(tensor));
        assert_eq!(tensor.range.start, end);
        assert_eq!(tensor.elements() * tensor.dtype.bytes(), tensor.bytes());
        assert_eq!(tensor.data(bytes).expect("it lies in the file").len() as u64, tensor.bytes());
        end = tensor.range.end;
    }
    assert_eq!((end, end), (file.data_end, bytes.len() as u64));
    let shard = SafeTensorsShard { name: "a.safetensors", file: &file };
    assert_eq!(merge(None, &[shard]).expect("one file").tensors.len(), file.tensors.len());
    // Two of the same cannot be one model, if they hold anything.
    assert_eq!(merge(None, &[shard, shard]).is_ok(), file.tensors.is_empty());
}

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    // The rest with a length before it that is true, and data that fits the first tensors.
    if let Some(header) = bytes.get(8..) {
        let (header, data) = match header.iter().rposition(|byte| *byte == b'}') {
            Some(last) => header.split_at(last + 1),
            None => (header, &[][..]),
        };
        let mut whole = (header.len() as u64).to_le_bytes().to_vec();
        whole.extend(header);
        whole.extend(data);
        check(&whole);
        match parse_index(header) {
            Ok(index) => {
                assert!(!index.files.is_empty());
                for file in &index.files {
                    assert!(file.ends_with(".safetensors") && !file.contains(['/', '\\', '\0']));
                }
                assert!(index.weight_map.windows(2).all(|pair| pair[0].0 < pair[1].0));
                assert!(index.weight_map.iter().all(|(_, file)| *file < index.files.len()));
                let _ = merge(Some(&index), &[]).map(|_| ()).map_err(|error| good_message(&error));
            }
            Err(error) => good_message(&error),
        }
    }
});
