//! Permits of threads that do what may take long: only so many do so at a time.

use std::cell::RefCell;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

thread_local! {
    /// The permit of what is done apart on this thread.
    static PERMIT: RefCell<Option<OwnedSemaphorePermit>> = const { RefCell::new(None) };
}

/// Gives this thread a permit until it is dropped.
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

/// Does something that waits, for nobody else: meanwhile, somebody else has the permit of this thread, if it has one.
pub(crate) fn step_aside(wait: &mut dyn FnMut()) {
    let Some(permit) = PERMIT.take() else { return wait() };
    let permits = Arc::clone(permit.semaphore());
    drop(permit);
    wait();
    PERMIT.set(Handle::current().block_on(permits.acquire_owned()).ok());
}
