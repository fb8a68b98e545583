//! The threads of the server, all started before it listens: tokio panics where the system refuses one later.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::shared::APART;

/// Threads that serve connections.
const CONNECTED: usize = 2;
/// Threads of requests that do long work, and of those that wait for a grammar to be compiled.
const BLOCKING: usize = APART + alight_chat::grammar::MAX_COMPILED;
/// Idle threads are kept, since a new one may be refused.
const KEEP_ALIVE: Duration = Duration::from_secs(u32::MAX as u64);
/// The longest time in which a further thread begins, on a machine that is busy.
const START_TIME: Duration = Duration::from_secs(10);
/// Further threads that are started on demand: for masks, for compilations, for the end.
const ON_DEMAND: usize = 4;

/// Returns the runtime, whose threads serve the connections.
///
/// # Errors
/// The system refuses threads, or what the runtime needs besides.
pub(crate) fn runtime() -> Result<Runtime, String> {
    check(CONNECTED + BLOCKING + ON_DEMAND)?;
    let failed = |why: &str| format!("the threads of the server cannot be started: {why}");
    let started = catch_unwind(AssertUnwindSafe(|| {
        let mut runtime = Builder::new_multi_thread();
        runtime.worker_threads(CONNECTED).max_blocking_threads(BLOCKING).thread_name("alight-http");
        runtime.thread_keep_alive(KEEP_ALIVE);
        let runtime = runtime.enable_io().enable_time().build()?;
        let all = start_blocking(&runtime);
        Ok::<_, std::io::Error>((runtime, all))
    }));
    match started {
        Ok(Ok((runtime, true))) => Ok(runtime),
        Ok(Err(error)) => Err(failed(&error.to_string())),
        Ok(Ok((_, false))) | Err(_) => Err(failed(
            "the system refuses some of them (ulimit -u, ulimit -v), or another process has taken what it allows",
        )),
    }
}

/// Starts all blocking threads: each waits until the last has begun. Returns false if one does not begin. (Where the system refuses
/// a thread, tokio leaves its task to a thread that is free, and none is free here.)
fn start_blocking(runtime: &Runtime) -> bool {
    let gate = Arc::new(Gate::default());
    for _ in 0..BLOCKING {
        let gate = Arc::clone(&gate);
        runtime.spawn_blocking(move || gate.wait());
    }
    let mut begun = gate.begun();
    while *begun < BLOCKING {
        let before = *begun;
        let waited = gate.changed.wait_timeout(begun, START_TIME);
        let timed_out;
        (begun, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
        if timed_out.timed_out() && *begun == before {
            break;
        }
    }
    let all = *begun == BLOCKING;
    *begun = OPEN;
    drop(begun);
    gate.changed.notify_all();
    all
}

/// Threads that wait for one another.
#[derive(Default)]
struct Gate {
    /// The number of threads that wait; [`OPEN`] once none has to.
    begun: Mutex<usize>,
    changed: Condvar,
}

/// The gate is open.
const OPEN: usize = usize::MAX;

impl Gate {
    fn begun(&self) -> MutexGuard<'_, usize> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the gate is open.
    fn wait(&self) {
        let mut begun = self.begun();
        if *begun != OPEN {
            *begun += 1;
            self.changed.notify_all();
        }
        while *begun != OPEN {
            begun = self.changed.wait(begun).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Fails if the system starts fewer than `needed` threads.
fn check(needed: usize) -> Result<(), String> {
    let gate = Mutex::new(());
    let (started, error) = thread::scope(|scope| {
        // Until it is dropped, no thread ends.
        let _closed = gate.lock();
        for started in 0..needed {
            let wait = || drop(gate.lock());
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, wait) {
                return (started, Some(error));
            }
        }
        (needed, None)
    });
    let Some(error) = error else { return Ok(()) };
    Err(format!(
        "the server needs {needed} threads, and the system starts only {started} ({error}): raise the limit (ulimit -u, ulimit -v, TasksMax= of a \
         systemd unit, --pids-limit of a container)"
    ))
}
