//! What Python has to ask of GPUs: whether the collective works among some and how its calls went, and whether there can be products with
//! blocks of weights, of which types.

use pyo3::prelude::*;

/// Why the collective cannot be used among the GPUs with these numbers of CUDA's, found out by trying it; `None` if it can.
/// `folders` are where the run-time compiler may be; a rank waits `limit` seconds for another.
#[pyfunction]
pub fn cuda_probe(
    py: Python<'_>,
    ordinals: Vec<i64>,
    folders: Vec<std::path::PathBuf>,
    limit: f64,
) -> Option<String> {
    py.detach(|| system::probe(&ordinals, folders, limit))
}

/// Why kernels cannot be compiled for the GPUs with these numbers of CUDA's; `None` if they can.
#[pyfunction]
pub fn cuda_problem(
    py: Python<'_>,
    ordinals: Vec<i64>,
    folders: Vec<std::path::PathBuf>,
) -> Option<String> {
    py.detach(|| system::problem(&ordinals, folders))
}

/// The types of blocks that there are products with on GPUs.
pub fn block_types() -> Vec<&'static str> {
    system::block_types()
}

/// For each communicator that lives: launches by the host, launches that were captured into graphs, both of all ranks, and the
/// calls that the GPU of its first rank has ended, replays included.
#[pyfunction]
pub fn cuda_accounts(py: Python<'_>) -> PyResult<Vec<(u64, u64, u64)>> {
    py.detach(system::accounts).map_err(pyo3::exceptions::PyRuntimeError::new_err)
}

/// What went wrong in calls among GPUs so far: one for each communicator that failed. Waits for nothing.
#[pyfunction]
pub fn cuda_errors(py: Python<'_>) -> Vec<String> {
    py.detach(system::errors)
}

#[cfg(target_os = "linux")]
mod system {
    use std::path::PathBuf;
    use std::time::Duration;

    use alight_xla::cuda;

    pub fn probe(ordinals: &[i64], folders: Vec<PathBuf>, limit: f64) -> Option<String> {
        cuda::nvrtc::look_in(folders);
        let limit = Duration::try_from_secs_f64(limit).unwrap_or(Duration::MAX);
        cuda::probe(ordinals, limit).err().map(|error| error.to_string())
    }

    pub fn problem(ordinals: &[i64], folders: Vec<PathBuf>) -> Option<String> {
        cuda::nvrtc::look_in(folders);
        cuda::blocks::available(ordinals).err().map(|error| error.to_string())
    }

    pub fn block_types() -> Vec<&'static str> {
        cuda::blocks::TYPES.iter().map(|ty| ty.ggml().name()).collect()
    }

    pub fn accounts() -> Result<Vec<(u64, u64, u64)>, String> {
        let accounts = cuda::accounts().map_err(|error| error.to_string())?;
        Ok(accounts.iter().map(|one| (one.launched, one.captured, one.ended)).collect())
    }

    pub fn errors() -> Vec<String> {
        cuda::errors().iter().map(ToString::to_string).collect()
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::path::PathBuf;

    pub fn probe(_: &[i64], _: Vec<PathBuf>, _: f64) -> Option<String> {
        Some("the handler for GPUs is for Linux".into())
    }

    pub fn problem(_: &[i64], _: Vec<PathBuf>) -> Option<String> {
        Some("the kernels for GPUs are for Linux".into())
    }

    pub fn block_types() -> Vec<&'static str> {
        vec![]
    }

    pub fn accounts() -> Result<Vec<(u64, u64, u64)>, String> {
        Ok(vec![])
    }

    pub fn errors() -> Vec<String> {
        vec![]
    }
}
