//! Memory of GPUs of several processes: an arena on each, which the others access through CUDA's handles for other processes of the
//! host or, with `fabric`, of hosts that NVLink connects. A process may have one GPU or several.
//!
//! It is made once, in steps that all processes take together, exchanging the result of each step before the next: [`offer`],
//! [`open`], [`trial`]; or [`close`] and [`free`]. Afterwards they need not synchronise: call sites take places in the arena in the
//! order of their first use, which is the same in all processes, as the programs are.
//!
//! **Invariant:** a place has the same offset in all arenas of its ranks, and belongs to one key for ever. It is zero at first, and
//! never reset, since no process knows when all others have ended their calls. A process that takes a place writes its key into a
//! table of its own arena, and compares the entries of its peers: of two that differ, the later one detects it.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::communicator::Communicator;
use super::driver::{Driver, Shareable, SharedMemory};
use super::error::CudaError;
use super::probe;

/// Maximum number of places of an arena.
const PLACES: usize = 4096;
/// Bytes of the table before them: a word for each.
const TABLE: usize = 8 * PLACES;
/// The granularity in which the driver shares memory with other processes.
const PIECE: usize = 2 << 20;
/// The alignment of places.
const UNIT: usize = 256;

/// An arena as offered to the other processes.
#[derive(Clone, Debug)]
pub struct Offer {
    /// JAX's number of the GPU, unique in the run.
    pub device: i64,
    /// The number of its process.
    pub process: i64,
    /// The handle that opens it.
    pub handle: Shareable,
}

/// The arenas that this process can access.
pub(super) struct Arenas {
    driver: &'static Driver,
    fabric: bool,
    bytes: usize,
    /// The GPUs of this process: JAX's number, once it is known, and CUDA's.
    own: Vec<(i64, i64)>,
    /// The address of the arena of a GPU (JAX's number) on one of this process (CUDA's number).
    seen: HashMap<(i64, i64), u64>,
    places: Mutex<Places>,
    // In this order: opened memory is dropped before offered memory.
    opened: Vec<SharedMemory>,
    offered: Vec<SharedMemory>,
}

#[derive(Default)]
struct Places {
    /// The number and the offset of each place.
    by_key: HashMap<u64, (usize, usize)>,
    used: usize,
    /// The number of call sites so far, by kind.
    sites: HashMap<u64, u64>,
}

static ARENAS: Mutex<Option<Arc<Arenas>>> = Mutex::new(None);

fn state() -> std::sync::MutexGuard<'static, Option<Arc<Arenas>>> {
    ARENAS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the arenas of this process, of `bytes` zeros each, on the GPUs `ordinals`. Returns the handles that open them.
pub fn offer(ordinals: &[i64], bytes: usize, fabric: bool) -> Result<Vec<Shareable>, CudaError> {
    let mut state = state();
    if state.is_some() {
        let again = "this process shares memory of its GPUs already";
        return Err(CudaError::Unsupported(again.into()));
    }
    let driver = Driver::get()?;
    let bytes = bytes.max(TABLE).next_multiple_of(PIECE);
    let (mut offered, mut handles) = (vec![], vec![]);
    for ordinal in ordinals {
        for other in ordinals.iter().filter(|other| *other != ordinal) {
            driver.enable_peer(*ordinal, *other)?;
        }
        let (memory, handle) = driver.share(*ordinal, bytes, fabric, ordinals)?;
        memory.clear()?;
        offered.push(memory);
        handles.push(handle);
    }
    *state = Some(Arc::new(Arenas {
        driver,
        fabric,
        bytes,
        own: ordinals.iter().map(|ordinal| (*ordinal, *ordinal)).collect(),
        seen: HashMap::new(),
        places: Mutex::default(),
        opened: vec![],
        offered,
    }));
    Ok(handles)
}

/// Opens the arenas of other processes, for each GPU of this one, `process`. `all` contains those of this process, in the order of
/// [`offer`], and the ones to open.
pub fn open(process: i64, all: &[Offer]) -> Result<(), CudaError> {
    let mut state = state();
    let arenas = state.as_mut().and_then(Arc::get_mut).ok_or(CudaError::NotConnected)?;
    let mine: Vec<_> = all.iter().filter(|one| one.process == process).collect();
    if mine.len() != arenas.own.len() {
        let (count, own) = (mine.len(), arenas.own.len());
        return Err(CudaError::Unsupported(format!("{count} arenas of ours, expected {own}")));
    }
    let ordinals: Vec<i64> = arenas.own.iter().map(|(_, ordinal)| *ordinal).collect();
    for ((ours, one), memory) in arenas.own.iter_mut().zip(&mine).zip(&arenas.offered) {
        ours.0 = one.device;
        arenas.seen.extend(ordinals.iter().map(|own| ((one.device, *own), memory.address())));
    }
    // If not all can be opened, those already opened are closed: their processes may then free them, since they are not in use.
    let (mut seen, mut opened) = (vec![], vec![]);
    for one in all.iter().filter(|one| one.process != process) {
        // A map of fabric memory is for all GPUs of the process; memory opened by IPC belongs to a context.
        let openers = if arenas.fabric { &ordinals[..1] } else { &ordinals[..] };
        for opener in openers {
            let (driver, fabric) = (arenas.driver, arenas.fabric);
            let memory =
                driver.open_shared(*opener, one.handle, arenas.bytes, fabric, &ordinals)?;
            let users = if fabric { &ordinals[..] } else { std::slice::from_ref(opener) };
            seen.extend(users.iter().map(|own| ((one.device, *own), memory.address())));
            opened.push(memory);
        }
    }
    arenas.seen.extend(seen);
    arenas.opened.extend(opened);
    Ok(())
}

/// Tries the collective among GPUs of several processes: all of them call this at the same time, with the same `devices`, JAX's
/// numbers.
pub fn trial(devices: &[i64], limit: Duration) -> Result<(), CudaError> {
    // Without a driver there are no arenas: then that is the error reported, with or without a compiler.
    let arenas = current()?;
    super::nvrtc::available()?;
    let communicator =
        Communicator::across(&arenas, hash(("trial", devices)), devices, probe::BYTES, limit)?;
    let places = devices.iter().enumerate();
    let ours: Vec<_> = places.filter_map(|(rank, id)| Some((rank, arenas.ordinal(*id)?))).collect();
    probe::run(&communicator, devices.len(), &ours)
        .map_err(|error| communicator.error().unwrap_or(error))
}

/// Closes the arenas of other processes. They may be freed once all processes have done so.
pub fn close() {
    if let Some(arenas) = state().as_mut().and_then(Arc::get_mut) {
        arenas.opened.clear();
        arenas.seen.clear();
    }
}

/// Frees the arenas of this process, which no other one may have open.
pub fn free() {
    *state() = None;
}

/// True if memory of all these GPUs can be opened in processes on other hosts.
pub fn has_fabric(ordinals: &[i64]) -> bool {
    Driver::get().is_ok_and(|driver| ordinals.iter().all(|ordinal| driver.has_fabric(*ordinal)))
}

/// The arenas of this process.
pub(super) fn current() -> Result<Arc<Arenas>, CudaError> {
    state().clone().ok_or(CudaError::NotConnected)
}

/// A number for a call site: the same in all processes of the same version.
pub(super) fn hash(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

impl Arenas {
    /// CUDA's number of a GPU, if it belongs to this process.
    pub(super) fn ordinal(&self, device: i64) -> Option<i64> {
        self.own.iter().find(|(id, _)| *id == device).map(|(_, ordinal)| *ordinal)
    }

    /// JAX's number of a GPU of this process.
    pub(super) fn device(&self, ordinal: i64) -> Option<i64> {
        self.own.iter().find(|(_, own)| *own == ordinal).map(|(device, _)| *device)
    }

    /// The address of the arena of a GPU, on one of this process.
    pub(super) fn address(&self, device: i64, ordinal: i64) -> Result<u64, CudaError> {
        self.seen.get(&(device, ordinal)).copied().ok_or(CudaError::NotConnected)
    }

    /// The key of the next call site of a kind.
    pub(super) fn next_site(&self, kind: u64) -> u64 {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let count = places.sites.entry(kind).or_default();
        *count += 1;
        hash((kind, *count))
    }

    /// The offset of the place of `key`, for ranks on the GPUs `devices`, some of which are in this process; the first request
    /// takes the place.
    pub(super) fn place(
        &self,
        key: u64,
        devices: &[i64],
        bytes: usize,
    ) -> Result<usize, CudaError> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, offset) = match places.by_key.get(&key) {
            Some(found) => *found,
            None => {
                let number = places.by_key.len();
                let (offset, wanted) = (TABLE + places.used, bytes.next_multiple_of(UNIT));
                let left = self.bytes - offset;
                if number == PLACES || wanted > left {
                    return Err(CudaError::Full { wanted, left });
                }
                places.used += wanted;
                places.by_key.insert(key, (number, offset));
                (number, offset)
            }
        };
        // 0 means that nothing has been written yet.
        let stamp = (key | 1).to_ne_bytes();
        let word = 8 * number as u64;
        let ours: Vec<_> =
            devices.iter().filter_map(|id| Some((*id, self.ordinal(*id)?))).collect();
        for (device, ordinal) in &ours {
            let at = self.address(*device, *ordinal)? + word;
            // SAFETY: a word of the table of an arena of this process.
            unsafe { self.driver.write(*ordinal, at, &stamp) }?;
        }
        let Some((_, ordinal)) = ours.first() else { return Err(CudaError::NotConnected) };
        for device in devices {
            let at = self.address(*device, *ordinal)? + word;
            let mut theirs = [0; 8];
            // SAFETY: a word of the table of an arena that this GPU can access.
            unsafe { self.driver.read(*ordinal, at, &mut theirs) }?;
            if theirs != stamp && theirs != [0; 8] {
                return Err(CudaError::Apart { device: *device });
            }
        }
        Ok(offset)
    }
}
