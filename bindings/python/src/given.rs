//! The argument of functions that take a model.

use std::path::PathBuf;

use alight_formats::Format;
use alight_pages::Map;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::catalog::Catalog;
use crate::source::{open, other_format};

/// A model as passed to a function.
pub enum Given<'py> {
    Open(PyRef<'py, Catalog>),
    Path(PathBuf),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Given<'py> {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Given<'py>> {
        if let Ok(catalog) = given.extract::<PyRef<'py, Catalog>>() {
            return Ok(Given::Open(catalog));
        }
        if let Ok(path) = given.extract::<PathBuf>() {
            return Ok(Given::Path(path));
        }
        let found = given.get_type().name()?;
        Err(PyTypeError::new_err(format!(
            "expected the path of a model or an open catalog, found {found}"
        )))
    }
}

impl Given<'_> {
    /// Calls `read` with the files of the model, which must be GGUF, while the interpreter is released.
    pub fn with_gguf<T: Send>(
        self,
        py: Python<'_>,
        read: impl FnOnce(&[Map]) -> PyResult<T> + Send,
    ) -> PyResult<T> {
        match self {
            Given::Open(catalog) => {
                let files = catalog.gguf()?;
                py.detach(|| read(files))
            }
            Given::Path(path) => py.detach(|| {
                let source = open(&path)?;
                match source.format {
                    Format::Gguf => read(&source.files),
                    other => Err(other_format(&path, other)),
                }
            }),
        }
    }
}
