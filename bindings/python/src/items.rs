//! Python sequences.

use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

/// The items of a sequence: a list, a tuple, a NumPy array, or an instance of a class of the caller.
///
/// Invariant: memory is allocated only for items that have been received. The length that a class reports is not trusted; pyo3's
/// own `Vec` allocates memory for it beforehand, and a length of 2^40 would end the process.
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
