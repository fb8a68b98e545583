//! The memory that this process shares with others of its host, and the groups that its call sites join there.
//!
//! It is handed over once for a process, before programs are loaded that need it, and stays: it cannot be an attribute of
//! a program, which is the same in every run.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use alight_collective::{CollectiveError, Key, ProcessGroup, ProcessGroupOptions, SharedSegment};

struct Connection {
    segment: Arc<SharedSegment>,
    /// The number of this process.
    process: i64,
    /// How many sites of a kind there were.
    sites: Mutex<HashMap<u64, u64>>,
}

static CONNECTION: OnceLock<Connection> = OnceLock::new();

/// Shares memory with other processes of this host: makes it under a name that nobody can guess, or opens what another one
/// has made. `process` is the number of this one. Happens once.
///
/// # Errors
/// The memory cannot be made or opened, or this process has some already.
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

/// Takes the name of shared memory away; who has opened it keeps it. It is no error if there is none.
///
/// # Errors
/// The system refuses.
pub fn unlink(name: &str) -> io::Result<()> {
    SharedSegment::unlink(name)
}

/// What a call site is called in all processes: a number made of what it says, and how many such sites were made before it.
/// All processes load the same programs in the same order.
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
