//! Arrays of NumPy and of JAX, which `alight._numpy` makes: Rust knows nothing of either.

use pyo3::prelude::*;

fn module(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("alight._numpy")
}

/// An [`Array`](crate::array::Array) as a NumPy array.
pub fn of_array<'py>(array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    module(array.py())?.getattr("of_array")?.call1((array,))
}

/// A [`Tensor`](crate::tensor::Tensor) as a NumPy array.
pub fn of_tensor<'py>(
    tensor: &Bound<'py, PyAny>,
    dtype: Option<&str>,
) -> PyResult<Bound<'py, PyAny>> {
    module(tensor.py())?.getattr("of_tensor")?.call1((tensor, dtype))
}

/// Either of them as a JAX array, as requested by JAX itself.
pub fn jax_array<'py>(of: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    module(of.py())?.getattr("jax_array")?.call1((of,))
}

/// A tensor for NumPy itself, which requests a type, and a copy or none.
pub fn array<'py>(
    tensor: &Bound<'py, PyAny>,
    dtype: Option<Bound<'py, PyAny>>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    module(tensor.py())?.getattr("array")?.call1((tensor, dtype, copy))
}
