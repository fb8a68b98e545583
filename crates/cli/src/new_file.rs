//! Files that a command writes beside its answer: whole or not at all, and in the place of nothing
//! that it should not replace.

use std::path::Path;

use alight_pages::{Input, New, Replacement, open_file};
use anyhow::anyhow;

/// The files at `paths`, as what an output is made of.
pub fn inputs<'p>(paths: impl IntoIterator<Item = &'p Path>) -> anyhow::Result<Vec<Input>> {
    let input = |path: &Path| {
        let (file, _) = open_file(path).map_err(|e| anyhow!(e))?;
        Input::of(&file).map_err(|e| anyhow!(e).context(format!("'{}'", path.display())))
    };
    paths.into_iter().map(input).collect()
}

/// Refuses a file that may not be written, before anything is computed for it.
pub fn check(path: &Path, force: bool, inputs: &[Input]) -> anyhow::Result<()> {
    Replacement::check(path, New { len: 0, replace: force, inputs }).map_err(|e| anyhow!(e))
}

/// Begins a file of `len` bytes. It has its name when it is committed.
pub fn create(path: &Path, force: bool, inputs: &[Input], len: u64) -> anyhow::Result<Replacement> {
    Replacement::create(path, New { len, replace: force, inputs }).map_err(|e| anyhow!(e))
}
