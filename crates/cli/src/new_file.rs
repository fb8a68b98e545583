//! Files that a command writes in addition to its answer: complete or not at all, and never
//! replacing a file that it should not.

use std::path::Path;

use alight_pages::{Input, New, Replacement, open_file};
use anyhow::anyhow;

/// Returns the files at `paths`, as the inputs of an output.
pub fn inputs<'p>(paths: impl IntoIterator<Item = &'p Path>) -> anyhow::Result<Vec<Input>> {
    let input = |path: &Path| {
        let (file, _) = open_file(path).map_err(|e| anyhow!(e))?;
        Input::of(&file).map_err(|e| anyhow!(e).context(format!("'{}'", path.display())))
    };
    paths.into_iter().map(input).collect()
}

/// Refuses a file that must not be written, before anything is computed for it.
pub fn check(path: &Path, force: bool, inputs: &[Input]) -> anyhow::Result<()> {
    Replacement::check(path, New { len: 0, replace: force, inputs }).map_err(|e| anyhow!(e))
}

/// Creates a file of `len` bytes. It gets its name when it is committed.
pub fn create(path: &Path, force: bool, inputs: &[Input], len: u64) -> anyhow::Result<Replacement> {
    Replacement::create(path, New { len, replace: force, inputs }).map_err(|e| anyhow!(e))
}
