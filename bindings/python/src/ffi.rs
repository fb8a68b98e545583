//! The custom calls of `alight-xla` in the form that `jax.ffi` registers: pointers in capsules.

use std::ffi::c_void;
use std::ptr::NonNull;

use alight_xla::Target;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

/// A custom call: its name, its platform, its stages, and the name and description of its state's type.
type Described<'py> = (&'static str, &'static str, Bound<'py, PyDict>, Option<Named<'py>>);
type Named<'py> = (&'static str, Bound<'py, PyDict>);

/// The custom calls of this library, for `jax.ffi.register_ffi_target` and `register_ffi_type`: for each its name, its
/// platform, {stage: capsule}, and (name, {"type_id": capsule, "type_info": capsule}) of its state if it has one.
#[pyfunction]
pub fn ffi_targets(py: Python<'_>) -> PyResult<Vec<Described<'_>>> {
    alight_xla::targets().iter().map(|target| describe(py, target)).collect()
}

/// A struct of the interface: its name in the header, its size, and its fields' names and offsets.
type Layout = (&'static str, usize, Vec<(&'static str, usize)>);

/// XLA's interface as this library knows it, to be compared with an installed header: the structs, and the constants with
/// their numbers.
#[pyfunction]
pub fn ffi_interface() -> (Vec<Layout>, Vec<(&'static str, i32)>) {
    (alight_xla::api::layouts(), alight_xla::api::constants())
}

/// Shares memory with other processes of this host, once, under a name that begins with a slash and that nobody can guess:
/// makes it, or opens what another process has made.
#[pyfunction]
pub fn share_memory(py: Python<'_>, name: &str, process: i64, create: bool) -> PyResult<()> {
    Ok(py.detach(|| alight_xla::shared::connect(name, process, create))?)
}

/// Takes the name of shared memory away, if there is one; a process that has opened it keeps the memory.
#[pyfunction]
pub fn unlink_memory(name: &str) -> PyResult<()> {
    Ok(alight_xla::shared::unlink(name)?)
}

fn describe<'py>(py: Python<'py>, target: &Target) -> PyResult<Described<'py>> {
    let stages = PyDict::new(py);
    for (stage, handler) in target.stages {
        stages.set_item(stage.name(), capsule(py, *handler as *mut c_void)?)?;
    }
    let state = match &target.state {
        None => None,
        Some(state) => {
            let kind = PyDict::new(py);
            kind.set_item("type_id", capsule(py, (state.type_id)().cast_mut().cast())?)?;
            kind.set_item("type_info", capsule(py, (state.type_info)().cast_mut().cast())?)?;
            Some((state.name, kind))
        }
    };
    Ok((target.name, target.platform, stages, state))
}

fn capsule(py: Python<'_>, pointer: *mut c_void) -> PyResult<Bound<'_, PyCapsule>> {
    let pointer = NonNull::new(pointer).ok_or_else(|| {
        pyo3::exceptions::PySystemError::new_err("a custom call without an address")
    })?;
    // SAFETY: functions and statics of this library, which is never unloaded, outlive the capsule.
    unsafe { PyCapsule::new_with_pointer(py, pointer, c"xla._CUSTOM_CALL_TARGET") }
}
