//! What the tests share.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use alight_convert::Progress;

/// Source, packed and unpacked file in a folder.
pub fn paths(dir: &Path) -> [PathBuf; 3] {
    ["source.gguf", "packed.gguf", "back.gguf"].map(|name| dir.join(name))
}

/// A callback that wants no pause.
pub fn go_on() -> impl FnMut(Progress) -> ControlFlow<()> {
    |_| ControlFlow::Continue(())
}

/// Files in a folder, hidden ones included.
pub fn files(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

/// A real model, or `None` (said on stderr) where it has not been fetched.
pub fn model(file: &str) -> Option<PathBuf> {
    let workspace = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let models = std::env::var_os("ALIGHT_MODELS").map_or(workspace.join("models"), PathBuf::from);
    let path = models.join(file);
    if path.is_file() {
        return Some(path);
    }
    eprintln!("skipped: {} is missing (python -m evidence fetch models gets it)", path.display());
    None
}

/// Numbers without a pattern (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[3]
    }

    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let bytes = self.next().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }

    fn next(&mut self) -> u64 {
        let mut x = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0 = x;
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
