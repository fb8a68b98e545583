//! Metadata as a dictionary.

use alight_formats::gguf::{Array, Gguf, Value, ValueType};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

/// Keys and values of a GGUF header, in the order of the file. Arrays become lists.
pub fn gguf<'py>(py: Python<'py>, gguf: &Gguf<'_>) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (key, value) in &gguf.metadata {
        dict.set_item(*key, object(py, value)?)?;
    }
    Ok(dict)
}

fn object<'py>(py: Python<'py>, value: &Value<'_>) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Bool(flag) => flag.into_bound_py_any(py),
        Value::Str(bytes) => text(py, bytes),
        Value::Array(values) => array(py, values),
        _ => match (value.as_int(), value.as_f64()) {
            (Some(int), _) => int.into_bound_py_any(py),
            (None, float) => float.into_bound_py_any(py),
        },
    }
}

/// Text, or bytes where it is not UTF-8, which GGUF does not guarantee.
fn text<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(PyString::new(py, text).into_any()),
        Err(_) => Ok(PyBytes::new(py, bytes).into_any()),
    }
}

fn array<'py>(py: Python<'py>, values: &Array<'_>) -> PyResult<Bound<'py, PyAny>> {
    if let Some(strings) = values.iter_str() {
        let list = PyList::empty(py);
        for bytes in strings {
            list.append(text(py, bytes)?)?;
        }
        return Ok(list.into_any());
    }
    let list = match values.elem_type() {
        ValueType::F32 => values.iter_f32().map(|floats| PyList::new(py, floats.map(f64::from))),
        ValueType::F64 => values.iter_f64().map(|floats| PyList::new(py, floats)),
        ValueType::Bool => values.iter_bool().map(|flags| PyList::new(py, flags)),
        ValueType::U64 => values.iter_int().map(|ints| PyList::new(py, ints)),
        // All other types fit in an i64, which is several times as fast.
        _ => values.iter_int().map(|ints| PyList::new(py, ints.map(|int| int as i64))),
    };
    Ok(list.transpose()?.unwrap_or_else(|| PyList::empty(py)).into_any())
}
