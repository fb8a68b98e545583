//! Permits for threads that do work that may take long: they limit the number of such threads at a time.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

use crate::ending::Ending;
use crate::request_log::Record;

thread_local! {
    /// The permit for the work on this thread.
    static PERMIT: RefCell<Option<OwnedSemaphorePermit>> = const { RefCell::new(None) };
    /// The request that the work on this thread is for.
    static CLIENT: RefCell<Option<Client>> = const { RefCell::new(None) };
}

/// The client of a request whose work is done on another thread.
#[derive(Clone)]
pub(crate) struct Client {
    left: Arc<AtomicBool>,
    record: Arc<Record>,
    ending: Ending,
}

impl Client {
    pub(crate) fn new(ending: &Ending, record: &Arc<Record>) -> Client {
        let (ending, record) = (ending.clone(), Arc::clone(record));
        Client { left: Arc::default(), record, ending }
    }

    /// Returns a guard that, when dropped, reports that the client has left.
    pub(crate) fn presence(&self) -> Presence {
        Presence(Arc::clone(&self.left))
    }
}

/// hyper drops it with the handler's future when the client has left.
pub(crate) struct Presence(Arc<AtomicBool>);

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns true once the work on this thread is no longer needed: its client has left, or the server ends.
pub(crate) fn is_cancelled() -> bool {
    CLIENT.with_borrow(|client| {
        client
            .as_ref()
            .is_some_and(|client| client.left.load(Ordering::Relaxed) || client.ending.has_begun())
    })
}

/// Notes for the log what is changed of the request that the work on this thread is for.
pub(crate) fn note(text: &str) {
    CLIENT.with_borrow(|client| client.iter().for_each(|client| client.record.note(text)));
}

/// The same for a wish that is not met, which the response reports, too.
pub(crate) fn warn(text: &str) {
    CLIENT.with_borrow(|client| client.iter().for_each(|client| client.record.warn(text)));
}

/// Warns that this many tools, which only the maker of an interface runs, are left out.
pub(crate) fn left_out_tools(count: usize) {
    if count > 0 {
        warn(&format!("tools that only run at their maker's are left out: {count}"));
    }
}

/// The permit of this thread; dropping it releases the permit.
pub(crate) struct ThreadPermit;

impl ThreadPermit {
    pub(crate) fn new(permit: OwnedSemaphorePermit, client: Client) -> ThreadPermit {
        PERMIT.set(Some(permit));
        CLIENT.set(Some(client));
        ThreadPermit
    }
}

impl Drop for ThreadPermit {
    fn drop(&mut self) {
        PERMIT.take();
        CLIENT.take();
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
