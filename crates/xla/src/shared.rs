//! The memory that this process shares with others on its host, and the groups that its call sites join there.
//!
//! It is set once for a process, before programs that need it are loaded, and is kept: it cannot be an attribute of a program,
//! which is the same in every run.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use alight_collective::{CollectiveError, Key, ProcessGroup, ProcessGroupOptions, SharedSegment};

struct Connection {
    segment: Arc<SharedSegment>,
    /// The number of this process.
    process: i64,
    /// The number of call sites so far, by kind.
    sites: Mutex<HashMap<u64, u64>>,
}

static CONNECTION: OnceLock<Connection> = OnceLock::new();

/// Shares memory with other processes of this host: creates it under a name that cannot be guessed, or opens memory created by
/// another one. `process` is the number of this process. Called once.
///
/// # Errors
/// The memory cannot be created or opened, or this process already shares memory.
pub fn connect(name: &str, process: i64, create: bool) -> io::Result<()> {
    let again = || io::Error::other("this process shares memory already");
    if CONNECTION.get().is_some() {
        return Err(again());
    }
    let segment =
        Arc::new(if create { SharedSegment::create(name)? } else { SharedSegment::open(name)? });
    let connection = Connection { segment, process, sites: Mutex::default() };
    CONNECTION.set(connection).map_err(|_| again())
}

/// Removes the name of shared memory; processes that have opened it keep it. It is not an error if there is none.
///
/// # Errors
/// The system denies it.
pub fn unlink(name: &str) -> io::Result<()> {
    SharedSegment::unlink(name)
}

/// The key of a call site in all processes: a hash of its contents, and the number of such sites created before it. All processes
/// load the same programs in the same order.
#[derive(Clone, Copy)]
pub(crate) struct SiteKey {
    kind: u64,
    ordinal: u64,
}

impl SiteKey {
    /// The key of the next site of this kind.
    pub(crate) fn next(kind: impl Hash) -> Option<SiteKey> {
        let connection = CONNECTION.get()?;
        let mut hasher = DefaultHasher::new();
        kind.hash(&mut hasher);
        let kind = hasher.finish();
        let mut sites = connection.sites.lock().unwrap_or_else(PoisonError::into_inner);
        let next = sites.entry(kind).or_default();
        let ordinal = *next;
        *next += 1;
        Some(SiteKey { kind, ordinal })
    }

    /// Joins the `ProcessGroup` of a group of devices; `None` if this process is not one of `processes`.
    pub(crate) fn join(
        self,
        group: usize,
        processes: &[i64],
        mut options: ProcessGroupOptions,
    ) -> Result<Option<ProcessGroup>, CollectiveError> {
        let Some(connection) = CONNECTION.get() else { return Ok(None) };
        if !processes.contains(&connection.process) {
            return Ok(None);
        }
        options.key = Key([self.kind, self.ordinal << 16 | group as u64]);
        ProcessGroup::join(&connection.segment, options).map(Some)
    }
}
