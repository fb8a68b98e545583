//! Bytes that are exposed through Python's buffer protocol.

use std::os::raw::c_int;
use std::sync::Arc;

use alight_pages::{Map, MapError};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::memory::Memory;

/// Bytes of a tensor, or of a part of it: read-only, contiguous, in the order of the elements.
///
/// They are shown by the buffer protocol as plain bytes. What shows them keeps this object alive, and
/// this object keeps the map of the file.
#[pyclass(frozen, module = "alight")]
#[derive(Debug)]
pub struct Block {
    held: Held,
    /// Length of each dimension of what was asked for, outermost first.
    #[pyo3(get)]
    shape: Vec<u64>,
}

#[derive(Debug)]
enum Held {
    Mapped { files: Arc<[Map]>, file: usize, start: usize, len: usize },
    Copied(Memory),
}

impl Block {
    /// `len` bytes of a file from `start` on, in place. `None` if the file is too short.
    pub fn mapped(
        files: Arc<[Map]>,
        file: usize,
        start: usize,
        len: usize,
        shape: Vec<u64>,
    ) -> Option<Block> {
        files.get(file)?.bytes().get(start..start.checked_add(len)?)?;
        Some(Block { held: Held::Mapped { files, file, start, len }, shape })
    }

    pub fn copied(memory: Memory, shape: Vec<u64>) -> Block {
        Block { held: Held::Copied(memory), shape }
    }

    fn bytes(&self) -> &[u8] {
        match &self.held {
            Held::Mapped { files, file, start, len } => {
                // Checked when the block was made; a map does not change its length.
                files[*file].bytes().get(*start..start + len).unwrap_or_default()
            }
            Held::Copied(memory) => memory.bytes(),
        }
    }

    /// As [`Map::check`]; copied bytes have been checked before.
    fn intact(&self) -> Result<(), MapError> {
        match &self.held {
            Held::Mapped { files, file, .. } => files[*file].check(),
            Held::Copied(_) => Ok(()),
        }
    }
}

#[pymethods]
impl Block {
    /// True if these are the bytes of the map in place, rather than a copy.
    #[getter]
    #[pyo3(name = "mapped")]
    fn is_mapped(&self) -> bool {
        matches!(self.held, Held::Mapped { .. })
    }

    /// Where the bytes are in memory.
    #[getter]
    fn address(&self) -> usize {
        self.bytes().as_ptr() as usize
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes().len()
    }

    /// Raises `FileChangedError` if the file has been cut short, or could not be read.
    fn check(&self) -> PyResult<()> {
        self.intact().map_err(crate::error::map)
    }

    fn __len__(&self) -> usize {
        self.bytes().len()
    }

    fn __repr__(&self) -> String {
        let how = if self.is_mapped() { "mapped" } else { "copied" };
        format!("<alight.Block of {} bytes, {how}>", self.bytes().len())
    }

    /// # Safety
    /// Called by the interpreter, with a view to fill in.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: the interpreter's view. The bytes stay in place for as long as the object lives, which is frozen and keeps its
        // map or memory.
        unsafe { fill(slf.as_any(), slf.get().bytes(), view, flags) }
    }
}

/// Answers the buffer protocol with `bytes`, read-only.
///
/// # Safety
/// `view` is null or a view to be filled in, and `bytes` stay in place for as long as `owner` lives.
pub unsafe fn fill(
    owner: &Bound<'_, PyAny>,
    bytes: &[u8],
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("no view"));
    }
    let (start, len) = (bytes.as_ptr().cast_mut().cast(), bytes.len() as ffi::Py_ssize_t);
    let read_only = 1;
    // SAFETY: by the contract; the view will hold a reference to `owner`. The bytes are not written to: a request for a writable
    // view is refused.
    match unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), start, len, read_only, flags) } {
        0 => Ok(()),
        _ => Err(PyErr::fetch(owner.py())),
    }
}
