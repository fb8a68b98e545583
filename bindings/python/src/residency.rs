//! The share of a file that is in the page cache, for Python.

use alight_pages::{Map, residency};
use pyo3::prelude::*;

use crate::error;

/// How much of a file, or of a part of it, is in the page cache.
#[pyclass(frozen, get_all, module = "alight")]
#[derive(Clone, Debug)]
pub struct Residency {
    /// Bytes of it.
    pub(crate) nbytes: u64,
    /// Bytes of it that are in the page cache, by whole pages.
    pub(crate) cached: u64,
    /// How that is known: "cachestat", "mincore", or "sampled".
    pub(crate) source: &'static str,
}

#[pymethods]
impl Residency {
    /// The cached part, 0 to 1.
    #[getter]
    fn share(&self) -> f64 {
        if self.nbytes == 0 { 1.0 } else { self.cached as f64 / self.nbytes as f64 }
    }

    fn __repr__(&self) -> String {
        format!("<alight.Residency {} of {} bytes, {}>", self.cached, self.nbytes, self.source)
    }
}

impl Residency {
    pub fn of(map: &Map, start: u64, nbytes: u64) -> PyResult<Residency> {
        let found = residency(map.file(), start..start + nbytes);
        let found = found.map_err(|e| error::system(map.path(), &e))?;
        Ok(Residency { nbytes, cached: found.cached_bytes(nbytes), source: found.probe.name() })
    }
}
