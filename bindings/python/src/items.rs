//! Sequences of Python's.

use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

/// The items of a sequence: a list, a tuple, an array of numpy, or a class of the caller's.
///
/// Invariant: memory is taken for items that have come. The length that a class claims is not believed; pyo3's own `Vec` takes memory for it
/// beforehand, and a length of 2^40 ends the process.
pub struct Items<T>(pub Vec<T>);

impl<'py, T: FromPyObjectOwned<'py>> FromPyObject<'_, 'py> for Items<T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Items<T>> {
        let is_other = object.is_instance_of::<PyString>() || object.is_instance_of::<PyDict>();
        if is_other || !object.hasattr("__getitem__")? {
            let found = object.get_type().name()?;
            return Err(PyTypeError::new_err(format!("expected a sequence, found {found}")));
        }
        let items = object.try_iter()?.map(|item| item?.extract().map_err(Into::into));
        items.collect::<PyResult<Vec<T>>>().map(Items)
    }
}
