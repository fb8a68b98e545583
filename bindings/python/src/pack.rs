//! Packed files: kept as `alight run --pack` keeps them, and in the hub's cache.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use alight_convert::{ConvertError, OnProgress, Options, pack_once};
use alight_files::folders;
use pyo3::prelude::*;

use crate::error;

/// Does a job that packs, on a thread that has released the interpreter. An exception of a signal handler ends it.
fn unless_raised<T: Send>(
    job: impl FnOnce(&mut OnProgress<'_>) -> Result<T, ConvertError> + Send,
) -> PyResult<Result<T, ConvertError>> {
    let mut raised = None;
    let done = job(&mut |_| match Python::attach(|py| py.check_signals()) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            raised.get_or_insert(error);
            ControlFlow::Break(())
        }
    });
    raised.map_or(Ok(done), Err)
}

/// The packed file of the model in this file, which is made if there is none yet. If none can be kept, it is the model's own, and
/// there is a warning.
pub fn once(py: Python<'_>, model: &Path) -> PyResult<PathBuf> {
    // `Model` reports a file that cannot be read.
    let Ok((shards, false)) = py.detach(|| alight_files::shards_and_layout(model)) else {
        return Ok(model.to_owned());
    };
    let cache = folders::packed();
    let packed = py.detach(|| {
        unless_raised(|on_progress| pack_once(model, &shards, cache.as_deref(), on_progress))
    })?;
    match packed {
        Ok(packed) => Ok(packed.path),
        Err(problem) => {
            let text = format!("the model is used as it is: packing failed: {problem}");
            error::warn(py, &text)?;
            Ok(model.to_owned())
        }
    }
}

/// Packs a file of the hub's cache into another, and returns the SHA-256 of what was packed. The interpreter is released.
pub fn of_hub(from: &Path, to: &Path) -> PyResult<String> {
    let packed = unless_raised(|on_progress| {
        alight_convert::pack(from, to, Options::default(), on_progress)
    })?;
    packed.map(|packed| packed.sha256).map_err(error::convert)
}
