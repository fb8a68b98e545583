//! Making a model cold or warm, and proving it.

use alight_pages::{evict, residency, warm as read_through};
use anyhow::Context;
use serde::Serialize;

use super::files::Files;

/// The state found right before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Proof {
    /// Pages of the model's files.
    pub pages: u64,
    /// How many of them were in the page cache.
    pub cached: u64,
    /// True if they were counted; otherwise they were sampled, which proves nothing.
    pub counted: bool,
}

/// Evicts the files from the page cache. The proof shows if that succeeded.
pub fn cold(files: &Files) -> anyhow::Result<Proof> {
    prove(files, |file, _| evict(file))
}

/// Reads the files, unless they are already in the page cache.
pub fn warm(files: &Files) -> anyhow::Result<Proof> {
    prove(files, |file, len| {
        let found = residency(file, 0..len)?;
        if found.cached == found.pages {
            return Ok(found);
        }
        read_through(file, 0..len)?;
        residency(file, 0..len)
    })
}

fn prove(
    files: &Files,
    act: impl Fn(&std::fs::File, u64) -> std::io::Result<alight_pages::Residency>,
) -> anyhow::Result<Proof> {
    let mut proof = Proof { pages: 0, cached: 0, counted: true };
    for (path, file) in files.iter() {
        let named = || format!("'{}'", path.display());
        let len = file.metadata().with_context(named)?.len();
        let found = act(file, len).with_context(named)?;
        proof.pages += found.pages;
        proof.cached += found.cached;
        proof.counted &= found.probe != alight_pages::CacheProbe::Sampled;
    }
    Ok(proof)
}
