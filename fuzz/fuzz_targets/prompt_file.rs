//! Any bytes as a prompt file: a list or an error, never a panic, and no more memory than the header has. Every second input gets the right
//! checksum, so that what comes after it is reached.
#![no_main]

use std::cell::OnceCell;

use alight_model::PromptFolder;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static FOLDER: OnceCell<tempfile::TempDir> = const { OnceCell::new() };
}

fuzz_target!(|data: &[u8]| {
    let mut bytes = data.to_vec();
    if bytes.len() > 132 && bytes.len() % 2 == 0 {
        bytes[..8].copy_from_slice(b"ALIGHTPC");
        bytes[8..12].copy_from_slice(&2u32.to_le_bytes());
        let len = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
        let len = if (128..=bytes.len()).contains(&len) { len } else { bytes.len() };
        bytes[12..16].copy_from_slice(&(len as u32).to_le_bytes());
        let crc = crc32fast::hash(&bytes[..len - 4]);
        bytes[len - 4..len].copy_from_slice(&crc.to_le_bytes());
    }
    FOLDER.with(|folder| {
        let folder = folder.get_or_init(|| tempfile::tempdir_in("/dev/shm").unwrap());
        std::fs::write(folder.path().join("a.prompt"), &bytes).unwrap();
        let listed = PromptFolder::new(folder.path(), 1).list().unwrap();
        assert_eq!(listed.len(), 1);
        if let Ok((_, tokens)) = &listed[0].prompt {
            assert!(tokens.len() * 4 < bytes.len());
        }
    });
});
