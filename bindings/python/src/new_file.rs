//! Files that a command of the Python package writes in addition to its answer: whole or not at all, and without replacing a file
//! unless requested, as with the command `alight`.

use std::io::Write;
use std::path::PathBuf;

use alight_pages::{New, ReplaceError, Replacement};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

/// Refuses a file that may not be written, before anything is computed for it.
#[pyfunction]
#[pyo3(signature = (path, *, force))]
pub fn check_new_file(path: PathBuf, force: bool) -> PyResult<()> {
    Replacement::check(&path, new(0, force)).map_err(error)
}

/// Writes a file. It has its name when it is complete and on the disk; a file that was there before stays until
/// then, and with `force` is replaced.
#[pyfunction]
#[pyo3(signature = (path, bytes, *, force))]
pub fn write_new_file(py: Python<'_>, path: PathBuf, bytes: &[u8], force: bool) -> PyResult<()> {
    py.detach(|| {
        let new = Replacement::create(&path, new(bytes.len() as u64, force)).map_err(error)?;
        let written = new.file().write_all(bytes);
        written.map_err(|source| error(ReplaceError::Create { path, source }))?;
        new.commit().map_err(error)
    })
}

fn new(len: u64, replace: bool) -> New<'static> {
    New { len, replace, inputs: &[] }
}

fn error(error: ReplaceError) -> PyErr {
    PyOSError::new_err(error.to_string())
}
