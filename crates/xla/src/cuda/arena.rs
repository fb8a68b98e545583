//! Memory of GPUs of several processes: an arena on each, which the others see, by CUDA's handles for other processes of the host or, with
//! `fabric`, of hosts that NVLink connects. One process may have one GPU, or several.
//!
//! It is made once, in steps that all processes take together, telling each other what came of one before the next: [`offer`], [`open`],
//! [`trial`]; or [`close`] and [`free`]. Afterwards nobody has to meet: call sites take places in the arena in the order in which they are first
//! used, which is the same in all processes, as the programs are.
//!
//! **Invariant:** a place has the same offset in all arenas of its ranks, and belongs to one key for ever. It is zero at first, and never set
//! back, since no process knows when all others have ended their calls. Who takes a place writes its key into a table of the own arena, and
//! looks what its peers have written there: whoever comes second sees a difference.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::communicator::Communicator;
use super::driver::{Driver, Shareable, SharedMemory};
use super::error::CudaError;
use super::probe;

/// Most places of an arena.
const PLACES: usize = 4096;
/// Bytes of the table in front of them: a word for each.
const TABLE: usize = 8 * PLACES;
/// The driver hands memory to other processes in pieces of this size.
const PIECE: usize = 2 << 20;
/// Where places begin.
const UNIT: usize = 256;

/// An arena as its process offers it to the others.
#[derive(Clone, Debug)]
pub struct Offer {
    /// JAX's number of the GPU, which is another for each in the run.
    pub device: i64,
    /// The number of its process.
    pub process: i64,
    /// What it is opened by.
    pub handle: Shareable,
}

/// The arenas that this process sees.
pub(super) struct Arenas {
    driver: &'static Driver,
    fabric: bool,
    bytes: usize,
    /// The GPUs of this process, by JAX's numbers once these are known, and CUDA's.
    own: Vec<(i64, i64)>,
    /// Where the arena of a GPU (JAX's number) begins for one of ours (CUDA's).
    seen: HashMap<(i64, i64), u64>,
    places: Mutex<Places>,
    // In this order: what is opened goes before what is offered.
    opened: Vec<SharedMemory>,
    offered: Vec<SharedMemory>,
}

#[derive(Default)]
struct Places {
    /// Number and offset.
    by_key: HashMap<u64, (usize, usize)>,
    used: usize,
    /// How many call sites of a kind there were.
    sites: HashMap<u64, u64>,
}

static ARENAS: Mutex<Option<Arc<Arenas>>> = Mutex::new(None);

fn state() -> std::sync::MutexGuard<'static, Option<Arc<Arenas>>> {
    ARENAS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the arenas of this process, of `bytes` bytes each, zeros, on the GPUs `ordinals`. Returns what each is opened by.
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

/// Opens the arenas of other processes, for each GPU of this one, `process`. `all` are those of this process, in the order of [`offer`], and the
/// ones to open.
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
    // What is opened of a process is closed if the rest of it cannot be: that process may free it then, as nobody works with it.
    let (mut seen, mut opened) = (vec![], vec![]);
    for one in all.iter().filter(|one| one.process != process) {
        // A map of fabric memory is for all GPUs of the process; what is opened by IPC belongs to a context.
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

/// Tries the collective among GPUs of several processes: all of them call this at the same time, with the same numbers of JAX's.
pub fn trial(devices: &[i64], limit: Duration) -> Result<(), CudaError> {
    // Without a driver there are no arenas: that is the reason then, with or without a compiler.
    let arenas = current()?;
    super::nvrtc::available()?;
    let communicator =
        Communicator::across(&arenas, hash(("trial", devices)), devices, probe::BYTES, limit)?;
    let places = devices.iter().enumerate();
    let ours: Vec<_> = places.filter_map(|(rank, id)| Some((rank, arenas.ordinal(*id)?))).collect();
    probe::run(&communicator, devices.len(), &ours)
        .map_err(|error| communicator.error().unwrap_or(error))
}

/// Takes back that the arenas of others were opened. They may be freed once all processes have done so.
pub fn close() {
    if let Some(arenas) = state().as_mut().and_then(Arc::get_mut) {
        arenas.opened.clear();
        arenas.seen.clear();
    }
}

/// Frees the arenas of this process, which no other one has open.
pub fn free() {
    *state() = None;
}

/// True if memory of all these GPUs can be opened in processes of other hosts.
pub fn has_fabric(ordinals: &[i64]) -> bool {
    Driver::get().is_ok_and(|driver| ordinals.iter().all(|ordinal| driver.has_fabric(*ordinal)))
}

/// Those of this process.
pub(super) fn current() -> Result<Arc<Arenas>, CudaError> {
    state().clone().ok_or(CudaError::NotConnected)
}

/// A number for a call site: the same in all processes that are of one version.
pub(super) fn hash(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

impl Arenas {
    /// CUDA's number of a GPU, if it is one of ours.
    pub(super) fn ordinal(&self, device: i64) -> Option<i64> {
        self.own.iter().find(|(id, _)| *id == device).map(|(_, ordinal)| *ordinal)
    }

    /// JAX's number of one of our GPUs.
    pub(super) fn device(&self, ordinal: i64) -> Option<i64> {
        self.own.iter().find(|(_, own)| *own == ordinal).map(|(device, _)| *device)
    }

    /// Where the arena of a GPU begins, for one of ours.
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

    /// The offset of the place of `key`, for ranks on the GPUs `devices` of which some are ours; the first time that it is asked for, it is taken.
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
        // 0 is nothing yet.
        let stamp = (key | 1).to_ne_bytes();
        let word = 8 * number as u64;
        let ours: Vec<_> =
            devices.iter().filter_map(|id| Some((*id, self.ordinal(*id)?))).collect();
        for (device, ordinal) in &ours {
            let at = self.address(*device, *ordinal)? + word;
            // SAFETY: a word of the table of our arena.
            unsafe { self.driver.write(*ordinal, at, &stamp) }?;
        }
        let Some((_, ordinal)) = ours.first() else { return Err(CudaError::NotConnected) };
        for device in devices {
            let at = self.address(*device, *ordinal)? + word;
            let mut theirs = [0; 8];
            // SAFETY: a word of the table of an arena that this GPU sees.
            unsafe { self.driver.read(*ordinal, at, &mut theirs) }?;
            if theirs != stamp && theirs != [0; 8] {
                return Err(CudaError::Apart { device: *device });
            }
        }
        Ok(offset)
    }
}
