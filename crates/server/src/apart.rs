//! Permits for threads that do work that may take long: they limit the number of such threads at a time.

use std::cell::RefCell;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

thread_local! {
    /// The permit for the work on this thread.
    static PERMIT: RefCell<Option<OwnedSemaphorePermit>> = const { RefCell::new(None) };
}

/// The permit of this thread; dropping it releases the permit.
pub(crate) struct ThreadPermit;

impl ThreadPermit {
    pub(crate) fn new(permit: OwnedSemaphorePermit) -> ThreadPermit {
        PERMIT.set(Some(permit));
        ThreadPermit
    }
}

impl Drop for ThreadPermit {
    fn drop(&mut self) {
        PERMIT.take();
    }
}

/// Runs `wait`, which only waits. Meanwhile, the permit of this thread, if it has one, is free for other threads.
pub(crate) fn step_aside(wait: &mut dyn FnMut()) {
    let Some(permit) = PERMIT.take() else { return wait() };
    let permits = Arc::clone(permit.semaphore());
    drop(permit);
    wait();
    PERMIT.set(Handle::current().block_on(permits.acquire_owned()).ok());
}
