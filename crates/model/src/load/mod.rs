//! Bringing the weights to where the kernels read them, while the forward pass follows.
//!
//! A [`Plan`] says which pieces of the files are brought in which order; a thread of its own (and
//! its helpers) carries it out; [`Arrival`] is the gate at which the forward pass waits for what is
//! not there yet. Weights that lie in a warm map are not waited for: they come by the page tables
//! being filled ahead, or by faults.

pub(crate) mod arrival;
mod error;
mod plan;
mod store;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use alight_pages::Map;

pub(crate) use arrival::Arrival;
pub use error::LoadError;
use plan::Plan;
pub(crate) use store::{Place, Store};

use crate::error::ModelError;
use crate::weights::Weights;

/// A load that goes on in the background, and ends with this.
pub(crate) struct Loader {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    store: Arc<Store>,
    stop: AtomicBool,
    took: Mutex<Option<Duration>>,
}

impl Loader {
    /// Decides where the weights go, says so in `weights`, and starts to bring them.
    pub(crate) fn start(maps: Vec<Arc<Map>>, weights: &Weights) -> (Arc<Store>, Loader) {
        let plan = Plan::new(weights);
        let arrival = Arrival::new(&plan.missing);
        let store = Arc::new(Store::new(maps, arrival));
        let shared = Arc::new(Shared {
            store: Arc::clone(&store),
            stop: AtomicBool::new(false),
            took: Mutex::new(None),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("alight-load".into());
        let thread = thread.spawn(move || theirs.bring(&plan));
        if thread.is_err() {
            // The system gives no more threads: pages come when touched.
            store.arrival().end();
        }
        (store, Loader { shared, thread: thread.ok() })
    }

    /// Returns when everything is where it is going to stay.
    pub(crate) fn wait(&self) -> Result<(), ModelError> {
        self.shared.store.arrival().wait_over()
    }

    /// How long it took, if it is over.
    pub(crate) fn took(&self) -> Option<Duration> {
        *self.shared.took.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// The thread's life.
    fn bring(&self, plan: &Plan) {
        let began = Instant::now();
        for job in &plan.jobs {
            // A file that has shrunk is noticed by the next check of the map.
            let map = &self.store.maps()[job.shard];
            if self.stop.load(Ordering::Relaxed) || map.populate(job.source.clone()).is_err() {
                break;
            }
            if let Some(section) = job.section {
                self.store.arrival().arrived(section);
            }
        }
        *self.took.lock().unwrap_or_else(PoisonError::into_inner) = Some(began.elapsed());
        self.store.arrival().end();
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
