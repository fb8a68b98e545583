//! Functions for GPUs: tests of the collective and counters of its calls; the availability and the types of products with blocks of
//! weights; and memory that GPUs of several processes share.

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

/// The types of blocks for which there are products on GPUs.
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

/// An arena that a process offers: JAX's number of its GPU, the number of the process, and the handle that opens it.
type Offer = (i64, i64, Vec<u8>);

/// True if memory of all GPUs with these numbers of CUDA's can be opened by processes of other hosts.
#[pyfunction]
pub fn cuda_has_fabric(py: Python<'_>, ordinals: Vec<i64>) -> bool {
    py.detach(|| system::has_fabric(&ordinals))
}

/// Makes arenas of so many bytes on GPUs of this process, and gives what other processes open each by; with `fabric` those of other hosts.
#[pyfunction]
pub fn cuda_offer(
    py: Python<'_>,
    ordinals: Vec<i64>,
    bytes: usize,
    fabric: bool,
) -> PyResult<Vec<Vec<u8>>> {
    py.detach(|| system::offer(&ordinals, bytes, fabric))
        .map_err(pyo3::exceptions::PyRuntimeError::new_err)
}

/// Opens the arenas of other processes; `offers` are those, and our own in the order in which they were made.
#[pyfunction]
pub fn cuda_open(py: Python<'_>, process: i64, offers: Vec<Offer>) -> PyResult<()> {
    py.detach(|| system::open(process, offers)).map_err(pyo3::exceptions::PyRuntimeError::new_err)
}

/// Why the collective does not work among these GPUs of several processes, by JAX's numbers; all of them try it at the same time. `folders`
/// and `limit` as for `cuda_probe`.
#[pyfunction]
pub fn cuda_trial(
    py: Python<'_>,
    devices: Vec<i64>,
    folders: Vec<std::path::PathBuf>,
    limit: f64,
) -> Option<String> {
    py.detach(|| system::trial(&devices, folders, limit))
}

/// Closes the arenas of other processes; afterwards, once all have done so, frees ours (`free`).
#[pyfunction]
pub fn cuda_close(py: Python<'_>, free: bool) {
    py.detach(|| system::close(free));
}

#[cfg(target_os = "linux")]
mod system {
    use std::path::PathBuf;
    use std::time::Duration;

    use alight_xla::cuda::{self, Shareable, arena};

    pub fn probe(ordinals: &[i64], folders: Vec<PathBuf>, limit: f64) -> Option<String> {
        cuda::nvrtc::look_in(folders);
        let limit = Duration::try_from_secs_f64(limit).unwrap_or(Duration::MAX);
        cuda::probe(ordinals, limit).err().map(|error| error.to_string())
    }

    pub fn has_fabric(ordinals: &[i64]) -> bool {
        arena::has_fabric(ordinals)
    }

    pub fn offer(ordinals: &[i64], bytes: usize, fabric: bool) -> Result<Vec<Vec<u8>>, String> {
        let handles = arena::offer(ordinals, bytes, fabric).map_err(|error| error.to_string())?;
        Ok(handles.iter().map(|handle| handle.0.to_vec()).collect())
    }

    pub fn open(process: i64, offers: Vec<super::Offer>) -> Result<(), String> {
        let offer = |(device, process, handle): super::Offer| {
            let handle = handle.try_into().map_err(|_| "a handle is not of 64 bytes".to_owned())?;
            Ok::<_, String>(arena::Offer { device, process, handle: Shareable(handle) })
        };
        let offers = offers.into_iter().map(offer).collect::<Result<Vec<_>, _>>()?;
        arena::open(process, &offers).map_err(|error| error.to_string())
    }

    pub fn trial(devices: &[i64], folders: Vec<PathBuf>, limit: f64) -> Option<String> {
        cuda::nvrtc::look_in(folders);
        let limit = Duration::try_from_secs_f64(limit).unwrap_or(Duration::MAX);
        arena::trial(devices, limit).err().map(|error| error.to_string())
    }

    pub fn close(free: bool) {
        if free { arena::free() } else { arena::close() }
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

    const REASON: &str = "the handlers for GPUs are for Linux";

    pub fn probe(_: &[i64], _: Vec<PathBuf>, _: f64) -> Option<String> {
        Some(REASON.into())
    }

    pub fn has_fabric(_: &[i64]) -> bool {
        false
    }

    pub fn offer(_: &[i64], _: usize, _: bool) -> Result<Vec<Vec<u8>>, String> {
        Err(REASON.into())
    }

    pub fn open(_: i64, _: Vec<super::Offer>) -> Result<(), String> {
        Err(REASON.into())
    }

    pub fn trial(_: &[i64], _: Vec<PathBuf>, _: f64) -> Option<String> {
        Some(REASON.into())
    }

    pub fn close(_: bool) {}

    pub fn problem(_: &[i64], _: Vec<PathBuf>) -> Option<String> {
        Some(REASON.into())
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
