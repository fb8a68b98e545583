//! Computed numbers for Python: logits, embeddings.

use std::os::raw::{c_char, c_int};
use std::sync::Arc;

use pyo3::exceptions::{PyBufferError, PyIndexError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::dlpack::{self, Shared};
use crate::numpy;

/// Numbers of type float32, row by row. NumPy, memoryview and whatever takes DLPack show them in place, read-only.
#[pyclass(frozen, module = "alight")]
pub struct Array {
    data: Arc<Vec<f32>>,
    /// The index of the first number in `data`.
    start: usize,
    shape: Vec<ffi::Py_ssize_t>,
    /// Strides in bytes.
    strides: Vec<ffi::Py_ssize_t>,
}

/// A number, or a row of them.
#[derive(IntoPyObject)]
pub enum Item {
    Number(f32),
    Row(Array),
}

impl Array {
    /// Creates an array of `data`, which must have as many numbers as `shape` requires.
    pub fn new(data: Vec<f32>, shape: &[usize]) -> Array {
        debug_assert_eq!(data.len(), shape.iter().product::<usize>());
        Array::part(Arc::new(data), 0, shape.iter().map(|&n| n as ffi::Py_ssize_t).collect())
    }

    fn part(data: Arc<Vec<f32>>, start: usize, shape: Vec<ffi::Py_ssize_t>) -> Array {
        let mut strides = vec![0; shape.len()];
        let mut bytes = size_of::<f32>() as ffi::Py_ssize_t;
        for (stride, extent) in strides.iter_mut().zip(&shape).rev() {
            *stride = bytes;
            bytes *= extent;
        }
        Array { data, start, shape, strides }
    }

    fn numbers(&self) -> &[f32] {
        let len = self.shape.iter().product::<ffi::Py_ssize_t>() as usize;
        self.data.get(self.start..self.start + len).unwrap_or_default()
    }
}

#[pymethods]
impl Array {
    /// Extents, outermost first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// The type of the numbers, as NumPy calls it.
    #[getter]
    fn dtype(&self) -> &'static str {
        "float32"
    }

    #[getter]
    fn nbytes(&self) -> usize {
        size_of_val(self.numbers())
    }

    /// As lists of Python's floats.
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        match &self.shape[..] {
            [_, width] => {
                let rows = self.numbers().chunks_exact((*width).max(1) as usize);
                let rows = rows.map(|row| PyList::new(py, row)).collect::<PyResult<Vec<_>>>()?;
                PyList::new(py, rows)
            }
            _ => PyList::new(py, self.numbers()),
        }
    }

    /// As a NumPy array, without a copy.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        numpy::of_array(slf.as_any())
    }

    /// As an array of JAX, which asks for it where it is given this object.
    fn __jax_array__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        numpy::jax_array(slf.as_any())
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let bytes = self.numbers();
        let shared = Shared {
            data: bytes.as_ptr().cast(),
            nbytes: size_of_val(bytes),
            dtype: dlpack::FLOAT32,
            shape: self.shape.iter().map(|&n| n as i64).collect(),
            owner: Box::new(Arc::clone(&self.data)),
        };
        dlpack::capsule(py, shared, stream, max_version, dl_device, copy)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    fn __len__(&self) -> usize {
        self.shape.first().map_or(0, |&n| n as usize)
    }

    /// A number of a row, or a row of several.
    fn __getitem__(&self, at: isize) -> PyResult<Item> {
        let Some((&len, inner)) = self.shape.split_first() else {
            return Err(PyIndexError::new_err("there is nothing in it"));
        };
        let place = if at < 0 { at + len } else { at };
        if !(0..len).contains(&place) {
            return Err(PyIndexError::new_err(format!("{at} is outside of {len}")));
        }
        let width = inner.iter().product::<isize>() as usize;
        let start = self.start + place as usize * width;
        Ok(match inner {
            [] => Item::Number(self.data[start]),
            _ => Item::Row(Array::part(Arc::clone(&self.data), start, inner.to_vec())),
        })
    }

    /// # Safety
    /// Called by the interpreter, with a view to fill in.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let has = |flag: c_int| flags & flag == flag;
        if view.is_null() || has(ffi::PyBUF_WRITABLE) {
            return Err(PyBufferError::new_err("it is read-only"));
        }
        if has(ffi::PyBUF_F_CONTIGUOUS) && !has(ffi::PyBUF_ANY_CONTIGUOUS) && this.shape.len() > 1 {
            return Err(PyBufferError::new_err("it is row by row"));
        }
        let null = std::ptr::null_mut::<std::ffi::c_void>();
        let numbers = this.numbers();
        // SAFETY: the interpreter's view. The object is frozen, and the view will hold a reference to it: its numbers, shape and
        // strides stay in place, and are not written to, since a request for a writable view is refused.
        unsafe {
            (*view).buf = numbers.as_ptr().cast_mut().cast();
            (*view).len = size_of_val(numbers) as ffi::Py_ssize_t;
            (*view).readonly = 1;
            (*view).itemsize = size_of::<f32>() as ffi::Py_ssize_t;
            (*view).format = if has(ffi::PyBUF_FORMAT) {
                c"f".as_ptr().cast_mut().cast::<c_char>()
            } else {
                null.cast()
            };
            (*view).ndim = this.shape.len() as c_int;
            let shape = this.shape.as_ptr().cast_mut();
            (*view).shape = if has(ffi::PyBUF_ND) { shape } else { null.cast() };
            let strides = this.strides.as_ptr().cast_mut();
            (*view).strides = if has(ffi::PyBUF_STRIDES) { strides } else { null.cast() };
            (*view).suboffsets = null.cast();
            (*view).internal = null;
            (*view).obj = slf.into_ptr();
        }
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("<alight.Array {:?} float32>", self.shape)
    }
}
