//! Several GGUF files that say they belong together, under any name.
#![no_main]

use alight_formats::split::{self, Shard, ShardName};
use libfuzzer_sys::fuzz_target;

/// A part of the input: a length in two bytes, then that many bytes.
fn part<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, rest) = bytes.split_first_chunk::<2>()?;
    let len = usize::from(u16::from_le_bytes(*len)).min(rest.len());
    let (part, rest) = rest.split_at(len);
    *bytes = rest;
    Some(part)
}

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    let Some(name) = part(&mut rest) else { return };
    let name = String::from_utf8_lossy(name);
    if let Some(parsed) = ShardName::parse(&name) {
        assert_eq!(parsed.file_name(parsed.no), name);
    }
    let mut files = Vec::new();
    while let Some(bytes) = part(&mut rest) {
        let Some(file) = alight_fuzz::parse_and_check(bytes) else { return };
        files.push(file);
    }
    let Some(first) = files.first() else { return };
    if let Ok(names) = split::names(&name, first) {
        assert!(names.contains(&name.to_string()));
        assert!(names.len() == 1 || names.iter().all(|name| !name.contains(['/', '\\', '\0'])));
    }
    let names: Vec<String> = (0..files.len()).map(|i| format!("shard {i}")).collect();
    let shards: Vec<Shard> =
        names.iter().zip(&files).map(|(name, gguf)| Shard { name, gguf }).collect();
    if let Ok(catalog) = split::merge(&shards) {
        let total: usize = files.iter().map(|file| file.tensors.len()).sum();
        assert_eq!(catalog.tensors.len(), total);
        for placed in &catalog.tensors {
            assert_eq!(catalog.get(placed.info.name), Some(placed));
            assert_eq!(files[placed.shard].tensor(placed.info.name), Some(&placed.info));
        }
    }
});
