//! What goes wrong, as Python's exceptions.

use std::io;
use std::path::Path;

use alight_files::FilesError;
use alight_model::ModelError;
use alight_pages::MapError;
use pyo3::PyErr;
use pyo3::exceptions::{PyOSError, PyValueError};

pyo3::create_exception!(
    alight,
    FormatError,
    PyValueError,
    "A file is not what it should be: damaged, of another format, or of another model."
);
pyo3::create_exception!(
    alight,
    FileChangedError,
    PyOSError,
    "A file was cut short, or could not be read, after it had been opened: what was read from it is \
     worthless."
);

/// A file that cannot be opened is Python's own error for that (`FileNotFoundError` and so on).
pub fn map(error: MapError) -> PyErr {
    match error {
        MapError::Open { path, source } => system(&path, &source),
        MapError::FileShrank { .. } | MapError::Unreadable { .. } => {
            FileChangedError::new_err(error.to_string())
        }
        MapError::Empty { .. } => FormatError::new_err(error.to_string()),
        _ => PyOSError::new_err(error.to_string()),
    }
}

/// Files that make no model.
pub fn files(error: FilesError) -> PyErr {
    match error {
        FilesError::Map(error) => map(error),
        error => FormatError::new_err(error.to_string()),
    }
}

/// A model that the engine refuses.
pub fn model(error: ModelError) -> PyErr {
    match error {
        ModelError::Map(error) => map(error),
        // The message names the file.
        other => FormatError::new_err(other.to_string()),
    }
}

/// An error of the system about `path`. Python chooses the class by the number.
pub fn system(path: &Path, error: &io::Error) -> PyErr {
    match error.raw_os_error() {
        Some(number) => {
            let text = error.to_string();
            // Rust's text ends in the number, which Python shows as well.
            let text = text.split(" (os error").next().unwrap_or_default().to_owned();
            PyOSError::new_err((number, text, path.to_path_buf()))
        }
        None => PyOSError::new_err(format!("{}: {error}", path.display())),
    }
}

/// A file with something wrong in it.
pub fn format(path: &Path, problem: impl std::fmt::Display) -> PyErr {
    FormatError::new_err(format!("{}: {problem}", path.display()))
}
