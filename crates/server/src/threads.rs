//! The threads of the server, all started before it listens: tokio panics where the system refuses one later.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier, Mutex};
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
        start_blocking(&runtime);
        Ok::<_, std::io::Error>(runtime)
    }));
    match started {
        Ok(runtime) => runtime.map_err(|error| failed(&error.to_string())),
        Err(_) => Err(failed("another process has taken what the system allows")),
    }
}

/// Starts all blocking threads: each waits until the last has begun.
fn start_blocking(runtime: &Runtime) {
    let begun = Arc::new(Barrier::new(BLOCKING + 1));
    for _ in 0..BLOCKING {
        let begun = Arc::clone(&begun);
        runtime.spawn_blocking(move || {
            begun.wait();
        });
    }
    begun.wait();
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
