//! Memory through which a device is loaded: files are read into it, JAX uses its bytes, and it is reused.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use alight_pages::transfer::{Piece, TransferMethod, TransferOptions, transfer};
use alight_pages::{Facts, Load, LoadRequest, ReadMethod, Region, choose, page_size};
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyOSError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::catalog::Catalog;
use crate::error;

/// Bytes of a piece: several are read at a time.
const PIECE: u64 = 4 << 20;

/// Memory that ranges of files are read into, page-locked if it is for a GPU of CUDA's.
///
/// It is never written while anybody is shown its bytes: views are counted, and reading is refused while there is one.
#[pyclass(frozen, module = "alight._alight")]
pub struct Staging {
    /// Fields are dropped in their order: pages are unlocked before they go.
    locked: Result<Locked, String>,
    region: Region,
    /// The number of views in use, and whether it is being read into.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    views: usize,
    reading: bool,
}

#[pymethods]
impl Staging {
    /// Memory for any range of `nbytes` bytes. `gpu` is CUDA's number of one that it is for, in whose context the driver locks pages: every GPU may
    /// copy from it then.
    #[new]
    #[pyo3(signature = (nbytes, gpu=None))]
    fn new(py: Python<'_>, nbytes: usize, gpu: Option<i64>) -> PyResult<Staging> {
        let space = nbytes.max(1).checked_add(2 * page_size());
        let region = space.and_then(|space| Region::new(space).ok());
        let Some(region) = region else {
            return Err(PyMemoryError::new_err(format!("no memory for {nbytes} bytes")));
        };
        let locked = match gpu {
            // The driver may have to be started, or wait for kernels, which may in turn wait for a Python thread.
            Some(ordinal) => py.detach(|| lock(&region, ordinal)),
            None => Err("it is for no GPU".into()),
        };
        Ok(Staging { region, state: Mutex::new(State::default()), locked })
    }

    /// Why it is not page-locked; `None` if it is.
    #[getter]
    fn unlocked(&self) -> Option<&str> {
        self.locked.as_ref().err().map(String::as_str)
    }

    /// Reads bytes `start` to `stop` of a file of the catalog, around the page cache if `direct`; returns where they begin. Raises
    /// `BufferError` while somebody is shown bytes.
    fn read(
        &self,
        py: Python<'_>,
        catalog: &Catalog,
        file: usize,
        start: u64,
        stop: u64,
        direct: bool,
    ) -> PyResult<usize> {
        let map = catalog.file(file)?;
        let page = page_size() as u64;
        // The same offset in a page as in the file, so that direct reads need no copy.
        let at = (start % page) as usize;
        let space = self.region.len() - at;
        if stop < start || stop - start > space as u64 {
            return Err(PyValueError::new_err(format!(
                "bytes {start} to {stop}, and it has {space} bytes"
            )));
        }
        let _reading = Reading::begin(&self.state)?;
        // SAFETY: within the region.
        let target = unsafe { self.region.as_mut_ptr().add(at) };
        let pieces: Vec<Piece> = cut(start..stop)
            .map(|range| {
                let offset = (range.start - start) as usize;
                // SAFETY: within the region, of which there is no view, nor will be, until `_reading` is dropped; pieces do not
                // overlap.
                unsafe { Piece::at(range, target.add(offset)) }
            })
            .collect();
        let method = if direct { TransferMethod::Direct } else { TransferMethod::Read };
        let target = SendPointer(target);
        py.detach(move || {
            let _ = &target;
            let never = AtomicBool::new(false);
            transfer(
                map.file(),
                map.path(),
                &pieces,
                method,
                &TransferOptions::default(),
                &never,
                &|_, _| {},
            )
        })
        .map_err(|problem| match problem {
            alight_pages::transfer::TransferError::EndOfFile { .. } => {
                error::FILE_CHANGED.err(problem.to_string())
            }
            other => PyOSError::new_err(other.to_string()),
        })?;
        Ok(at)
    }

    /// # Safety
    /// Called by the interpreter, with a view to fill in.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let mut state = this.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if state.reading {
            return Err(PyBufferError::new_err("it is being read into"));
        }
        // SAFETY: the interpreter's view. The bytes stay in place for as long as the object lives, and are not written to while
        // there is a view, which is counted.
        unsafe { crate::block::fill(slf.as_any(), this.region.bytes(), view, flags)? };
        state.views += 1;
        Ok(())
    }

    /// # Safety
    /// Called by the interpreter, once for each view.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).views -= 1;
    }
}

/// A pointer that may be sent to another thread together with its target.
struct SendPointer(#[allow(dead_code)] *mut u8);
// SAFETY: the target belongs only to the reader while it is used.
unsafe impl Send for SendPointer {}

/// Marks the memory as being read into, until this is dropped.
struct Reading<'a>(&'a Mutex<State>);

impl<'a> Reading<'a> {
    fn begin(state: &'a Mutex<State>) -> PyResult<Reading<'a>> {
        let mut held = state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if held.views > 0 || held.reading {
            return Err(PyBufferError::new_err(format!(
                "{} views of its bytes are in use",
                held.views
            )));
        }
        held.reading = true;
        Ok(Reading(state))
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).reading = false;
    }
}

/// Pieces that begin at multiples of their size in the file, except for the first.
fn cut(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let piece = at..((at / PIECE + 1) * PIECE).min(range.end);
        at = piece.end;
        (piece.start < range.end).then_some(piece)
    })
}

/// How a file is best read into memory of our own now: "mmap" if it is cached, "direct" or "read"; and why.
#[pyfunction]
pub fn how_to_copy(
    py: Python<'_>,
    catalog: &Catalog,
    file: usize,
    weights: u64,
) -> PyResult<(&'static str, String)> {
    let map = catalog.file(file)?;
    py.detach(|| {
        let facts = Facts::of(map.file()).map_err(|problem| error::system(map.path(), &problem))?;
        let choice = choose(&facts, &LoadRequest { load: Load::Auto, copied: true, weights });
        let how = match choice.method {
            ReadMethod::Mmap => "mmap",
            ReadMethod::Direct => "direct",
            ReadMethod::Read => "read",
        };
        Ok((how, choice.reason))
    })
}

#[cfg(target_os = "linux")]
type Locked = alight_xla::cuda::LockedPages;
#[cfg(not(target_os = "linux"))]
type Locked = ();

#[cfg(target_os = "linux")]
fn lock(region: &Region, ordinal: i64) -> Result<Locked, String> {
    let driver = alight_xla::cuda::Driver::get().map_err(|problem| problem.to_string())?;
    // SAFETY: the region is mapped until after the lock was dropped.
    unsafe { driver.lock_pages(ordinal, region.as_mut_ptr(), region.len()) }
        .map_err(|problem| problem.to_string())
}

#[cfg(not(target_os = "linux"))]
fn lock(_: &Region, _: i64) -> Result<Locked, String> {
    Err("pages are locked on Linux only".into())
}
