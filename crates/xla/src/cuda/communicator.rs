//! The ranks of call sites: their workspaces, and their calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use alight_collective::Spec;

use super::arena::Arenas;
use super::driver::{Driver, Function, HostMemory, Memory, Stream};
use super::error::CudaError;
use super::kernel::{CALL, DONE, HEADER, Params, RANKS, Shape};

/// Errors of the kernel: the highest byte of a report.
const TIMED_OUT: u64 = 1;
const MISPLACED: u64 = 4;

/// The addresses of the arrays of a call, on the rank's GPU.
#[derive(Clone, Copy, Debug)]
pub struct Arrays {
    /// `[rows, hidden]`.
    pub partial: u64,
    /// `[rows, hidden]`.
    pub residual: u64,
    /// `[hidden]`.
    pub weight: u64,
    /// `[hidden]`; 0 without a post-norm.
    pub post_weight: u64,
    /// `[rows, hidden]`.
    pub normed: u64,
    /// `[rows, hidden]`.
    pub new_residual: u64,
    /// The address of an int32, the rank's position as the program has it, and the expected position; address 0 disables the check.
    pub index: (u64, u32),
}

/// Counters of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Launches by the host, of all ranks.
    pub launched: u64,
    /// Launches that were captured into a graph instead of being run.
    pub captured: u64,
    /// Calls that have ended on the GPU of the first rank of this process, by its own counter; includes replays of graphs.
    pub ended: u64,
}

/// Ranks that call together. A rank's calls follow one another on one stream.
///
/// It must only be dropped after its calls have ended, since the next communicator gets their memory. XLA ensures that: a run keeps
/// its program, and with it the state of its call sites, until everything on the device's stream has ended, on every device.
/// Waiting here could invalidate one of XLA's captures.
///
/// The ranks are GPUs of this process ([`Communicator::new`]), or of several, each of which has a communicator for its own ranks
/// ([`Communicator::across`]).
pub struct Communicator {
    driver: &'static Driver,
    /// The addresses of the workspaces of all ranks, for each rank's GPU; `None` for ranks of other processes.
    tables: Vec<Option<[u64; RANKS]>>,
    /// The GPU and the address of the workspace of the first rank of this process.
    first: (i64, u64),
    /// Workspaces that this communicator owns.
    workspaces: Vec<Memory>,
    /// The arenas that contain the workspaces.
    _arenas: Option<Arc<Arenas>>,
    /// Two words for each rank: its first error, and whether it found that calls are blocked for good.
    report: HostMemory,
    slot: u64,
    limit: Duration,
    launched: AtomicU64,
    captured: AtomicU64,
}

/// All live communicators, for [`accounts`] and [`errors`].
static ALL: Mutex<Vec<Weak<Communicator>>> = Mutex::new(vec![]);

/// The GPUs of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Members {
    /// All in this process: CUDA's numbers.
    Here(Vec<i64>),
    /// In several processes: JAX's numbers, and the key of their call site.
    Across(Vec<i64>, u64),
}

/// The common properties of call sites that share a communicator.
#[derive(Clone, PartialEq, Eq)]
struct Shared {
    channel: i64,
    members: Members,
    capacity: usize,
    limit: Duration,
}

/// The space for an operand of the calls of a channel: sites share a communicator if their operands are of similar size, up to the
/// same power of two.
pub(super) fn shared_capacity(channel: i64, capacity: usize) -> usize {
    match channel {
        0 => capacity,
        _ => capacity.checked_next_power_of_two().unwrap_or(capacity),
    }
}

/// A shared communicator, while it is in use. It is locked while the communicator is made: other sites that share it wait for that.
type Entry = Arc<Mutex<Weak<Communicator>>>;

/// The shared communicators. Making one may wait for kernels that wait for a rank, which may come here for another one: so this is
/// not locked meanwhile.
static SHARED: Mutex<Vec<(Shared, Entry)>> = Mutex::new(vec![]);

fn locked(entry: &Entry) -> MutexGuard<'_, Weak<Communicator>> {
    entry.lock().unwrap_or_else(PoisonError::into_inner)
}

fn all() -> Vec<Arc<Communicator>> {
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|one| one.strong_count() > 0);
    all.iter().filter_map(Weak::upgrade).collect()
}

/// The counters of each communicator of the process.
pub fn accounts() -> Result<Vec<Account>, CudaError> {
    all().iter().map(|one| one.account()).collect()
}

/// The first error of each communicator that has failed. It does not wait for running calls.
pub fn errors() -> Vec<CudaError> {
    all().iter().filter_map(|one| one.error()).collect()
}

impl Communicator {
    /// The communicator of a call site. Those of a channel other than 0 with the same GPUs, the same limit and [`shared_capacity`] share one.
    /// So a program has one workspace instead of one for each of its calls.
    ///
    /// The calls of a channel follow one another on each rank, in the same order on all of them: those of a program if each needs a
    /// result of the previous one, and those of several programs because XLA runs them on one stream of a device. The kernel
    /// detects a violation.
    pub(super) fn of_channel(
        channel: i64,
        members: Members,
        capacity: usize,
        limit: Duration,
    ) -> Result<Arc<Communicator>, CudaError> {
        let capacity = shared_capacity(channel, capacity);
        let make = |members: &Members| match members {
            Members::Here(ordinals) => Communicator::new(ordinals, capacity, limit),
            Members::Across(devices, key) => {
                Communicator::across(&super::arena::current()?, *key, devices, capacity, limit)
            }
        };
        if channel == 0 {
            return make(&members);
        }
        let wanted = Shared { channel, members, capacity, limit };
        let entry = {
            let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
            // An entry that only this list refers to is not locked, and cannot be locked now.
            shared.retain(|(_, one)| Arc::strong_count(one) > 1 || locked(one).strong_count() > 0);
            match shared.iter().find(|(of, _)| *of == wanted) {
                Some((_, entry)) => entry.clone(),
                None => {
                    let entry = Entry::default();
                    shared.push((wanted.clone(), entry.clone()));
                    entry
                }
            }
        };
        let mut held = locked(&entry);
        if let Some(communicator) = held.upgrade() {
            return Ok(communicator);
        }
        let made = make(&wanted.members)?;
        *held = Arc::downgrade(&made);
        Ok(made)
    }

    /// Creates a communicator of ranks on the GPUs `ordinals`, in this order, each with space for operands of `capacity` bytes: all
    /// memory is allocated, and every GPU is given access to the memory of the others. A GPU listed more than once plays several
    /// ranks.
    pub fn new(
        ordinals: &[i64],
        capacity: usize,
        limit: Duration,
    ) -> Result<Arc<Communicator>, CudaError> {
        let driver = Driver::get()?;
        let (slot, bytes) = sizes(ordinals.len(), capacity)?;
        let (workspaces, report) = driver.relaxed(|| {
            for from in ordinals {
                for to in ordinals {
                    if from != to {
                        driver.enable_peer(*from, *to)?;
                    }
                }
            }
            let all = ordinals.iter().map(|ordinal| driver.allocate(*ordinal, bytes));
            let workspaces = all.collect::<Result<Vec<_>, _>>()?;
            Ok((workspaces, driver.allocate_host(ordinals[0], 2 * ordinals.len())?))
        })?;
        let mut table = [0; RANKS];
        for (address, memory) in table.iter_mut().zip(&workspaces) {
            *address = memory.address();
        }
        let tables = vec![Some(table); ordinals.len()];
        let first = (ordinals[0], table[0]);
        Ok(Self::made(driver, tables, first, (workspaces, None), report, slot, limit))
    }

    /// The ranks of this process among those on the GPUs `devices` (JAX's numbers) of several processes, with workspaces in the
    /// place of `key` in their arenas. For a key, every process has one communicator, or several whose calls follow one another.
    pub(super) fn across(
        arenas: &Arc<Arenas>,
        key: u64,
        devices: &[i64],
        capacity: usize,
        limit: Duration,
    ) -> Result<Arc<Communicator>, CudaError> {
        let driver = Driver::get()?;
        let (slot, bytes) = sizes(devices.len(), capacity)?;
        let (offset, report, first) = driver.relaxed(|| {
            let offset = arenas.place(key, devices, bytes)? as u64;
            let ours = devices.iter().find_map(|id| Some((*id, arenas.ordinal(*id)?)));
            let (device, ordinal) = ours.ok_or(CudaError::NotConnected)?;
            let first = (ordinal, arenas.address(device, ordinal)? + offset);
            Ok((offset, driver.allocate_host(ordinal, 2 * devices.len())?, first))
        })?;
        let mut tables = vec![];
        for device in devices {
            let Some(ordinal) = arenas.ordinal(*device) else {
                tables.push(None);
                continue;
            };
            let mut table = [0; RANKS];
            for (address, other) in table.iter_mut().zip(devices) {
                *address = arenas.address(*other, ordinal)? + offset;
            }
            tables.push(Some(table));
        }
        let memory = (vec![], Some(arenas.clone()));
        Ok(Self::made(driver, tables, first, memory, report, slot, limit))
    }

    /// Creates a communicator that has not been called yet, and adds it to [`ALL`]. `memory`: workspaces of its own, or the arenas
    /// that contain them.
    fn made(
        driver: &'static Driver,
        tables: Vec<Option<[u64; RANKS]>>,
        first: (i64, u64),
        (workspaces, arenas): (Vec<Memory>, Option<Arc<Arenas>>),
        report: HostMemory,
        slot: usize,
        limit: Duration,
    ) -> Arc<Communicator> {
        let communicator = Arc::new(Communicator {
            driver,
            tables,
            first,
            workspaces,
            _arenas: arenas,
            report,
            slot: slot as u64,
            limit,
            launched: AtomicU64::new(0),
            captured: AtomicU64::new(0),
        });
        ALL.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&communicator));
        communicator
    }

    /// The workspace of a rank, if the communicator owns its workspaces: for tests.
    pub fn workspace(&self, rank: usize) -> &Memory {
        &self.workspaces[rank]
    }

    /// The first error of the first rank that failed. It does not wait for running calls.
    pub fn error(&self) -> Option<CudaError> {
        let ranks = self.tables.len();
        let own = (0..ranks).find_map(|rank| {
            let report = self.report.get(rank);
            let call = report & 0xffff_ffff;
            match report >> 56 {
                0 => None,
                TIMED_OUT => Some(CudaError::TimedOut {
                    rank,
                    missing: (report >> 48 & 0xff) as usize,
                    block: report >> 32 & 0xffff,
                    call,
                    limit: self.limit,
                }),
                MISPLACED => Some(CudaError::Misplaced { rank }),
                _ => Some(CudaError::InFlight { rank, call }),
            }
        });
        // An error in another process, which reports it there.
        let given_up = || (0..ranks).find(|rank| self.report.get(ranks + rank) != 0);
        own.or_else(|| Some(CudaError::GivenUp { rank: given_up()? }))
    }

    /// The counters so far. The number of ended calls is exact when nothing runs.
    pub fn account(&self) -> Result<Account, CudaError> {
        let mut done = [0; 8];
        let (ordinal, address) = self.first;
        // SAFETY: a word of the rank's workspace, which lives as long as this.
        unsafe { self.driver.read(ordinal, address + DONE as u64, &mut done) }?;
        Ok(Account {
            launched: self.launched.load(Ordering::Relaxed),
            captured: self.captured.load(Ordering::Relaxed),
            ended: u64::from_ne_bytes(done) / CALL,
        })
    }

    /// The argument of the kernel for a call of `rank`.
    pub fn params(&self, rank: usize, spec: &Spec, arrays: &Arrays) -> Result<Params, CudaError> {
        let bytes = spec.bytes().unwrap_or(usize::MAX);
        if bytes as u64 > self.slot {
            return Err(CudaError::Unsupported(format!(
                "an operand of {bytes} bytes, expected at most {}",
                self.slot
            )));
        }
        let everything = arrays.partial
            | arrays.residual
            | arrays.weight
            | arrays.post_weight
            | arrays.normed
            | arrays.new_residual;
        if Shape::of(spec)?.whole && !everything.is_multiple_of(16) {
            return Err(CudaError::Unsupported(
                "an array does not begin at a multiple of 16 bytes".into(),
            ));
        }
        let Some(workspace) = self.tables[rank] else {
            return Err(CudaError::Unsupported(format!("rank {rank} is of another process")));
        };
        Ok(Params {
            workspace,
            partial: arrays.partial,
            residual: arrays.residual,
            weight: arrays.weight,
            post_weight: arrays.post_weight,
            normed: arrays.normed,
            new_residual: arrays.new_residual,
            report: self.report.address(),
            index: arrays.index.0,
            slot: self.slot,
            limit: u64::try_from(self.limit.as_nanos()).unwrap_or(u64::MAX),
            stride: 0,
            delay: 0,
            inverse_hidden: 1.0 / spec.hidden as f64,
            rank: rank as u32,
            ranks: self.tables.len() as u32,
            rows: spec.rows as u32,
            hidden: spec.hidden as u32,
            delay_rank: 0,
            delay_phase: 0,
            bias: f32::from(u8::from(spec.bias)),
            epsilon: spec.epsilon,
            place: arrays.index.1,
            reserved: 0,
        })
    }

    /// Puts a call on a stream, for `virtual_ranks` ranks from `params.rank` on, usually one, without allocating memory or waiting.
    ///
    /// # Safety
    /// The communicator is not dropped before the call, or every replay of the graph that it is captured for, has ended. The
    /// context of the function and the stream is current; the arrays of `params` have the sizes given by `spec`, are valid until
    /// the call, or the graph that it is captured for, has ended, and are not used elsewhere until then.
    pub unsafe fn launch(
        &self,
        function: Function,
        shape: &Shape,
        params: &Params,
        virtual_ranks: u32,
        stream: Stream,
    ) -> Result<(), CudaError> {
        if let Some(error) = self.error() {
            return Err(error);
        }
        let count = match self.driver.is_capturing(stream)? {
            true => &self.captured,
            false => &self.launched,
        };
        count.fetch_add(u64::from(virtual_ranks), Ordering::Relaxed);
        // SAFETY: by the contract; workspaces and report live as long as the communicator, which outlives its calls.
        unsafe {
            self.driver.launch(
                function,
                (shape.blocks, virtual_ranks),
                shape.threads,
                0,
                stream,
                params,
            )
        }
    }
}

/// Bytes of a slot, and of a workspace.
fn sizes(ranks: usize, capacity: usize) -> Result<(usize, usize), CudaError> {
    if !(1..=RANKS).contains(&ranks) {
        return Err(CudaError::Unsupported(format!(
            "{ranks} ranks, the kernel takes 1 to {RANKS}"
        )));
    }
    let slot = capacity.next_multiple_of(16);
    Ok((slot, HEADER + 2 * ranks * slot))
}
