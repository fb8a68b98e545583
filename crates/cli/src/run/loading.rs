//! The progress of loading the weights that an answer waits for, only on a terminal.
//!
//! The answer itself is parked, so a separate thread checks the progress. After [`Ticker::end`] it writes nothing more, so that the
//! next writer has the line.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use alight_model::{Loading, Model};

use crate::bar::Bar;
use crate::{say, units};

/// A load that finishes within this time needs no line.
const SOON: Duration = Duration::from_millis(500);
/// The interval between two checks.
const PAUSE: Duration = Duration::from_millis(100);

/// A line about weights that are being loaded.
pub struct Ticker {
    /// The line, until it is no longer needed.
    bar: Mutex<Option<Bar>>,
    ended: Condvar,
}

impl Ticker {
    /// Runs `work`, and shows meanwhile the progress of the load of `model`. `work` calls [`end`](Ticker::end) before it writes.
    pub fn beside<T>(model: Option<&Model>, work: impl FnOnce(&Ticker) -> T) -> T {
        let model = model.filter(|_| say::is_terminal());
        let loading = model.and_then(Model::loading);
        let bar = loading.map(|loading| Bar::going_on("loading", loading.done));
        let ticker = Ticker { bar: Mutex::new(bar), ended: Condvar::new() };
        thread::scope(|scope| {
            if let (Some(model), Some(_)) = (model, loading) {
                let tick = || ticker.tick(model);
                // If no thread can be created, there is no line.
                let _ = thread::Builder::new().name("loading".into()).spawn_scoped(scope, tick);
            }
            let done = work(&ticker);
            ticker.end();
            done
        })
    }

    /// Removes the line permanently.
    pub fn end(&self) {
        if let Some(mut bar) = self.bar().take() {
            bar.clear();
            self.ended.notify_all();
        }
    }

    /// Shows the line until the load or the wait for it is over.
    fn tick(&self, model: &Model) {
        let mut pause = SOON;
        let mut held = self.bar();
        while held.is_some() {
            // (A wait may end early, which causes one more check.)
            held = match self.ended.wait_timeout(held, pause) {
                Ok((held, _)) => held,
                Err(poisoned) => poisoned.into_inner().0,
            };
            let Some(bar) = &mut *held else { return };
            match model.loading() {
                None => return bar.clear(),
                Some(Loading { done, total }) if done < total => bar.show(done, total),
                // All pieces of the files are loaded: the memory is being locked.
                Some(Loading { total, .. }) => {
                    bar.show_text(None, || format!("{}, locking it", units::bytes(total)));
                }
            }
            pause = PAUSE;
        }
    }

    fn bar(&self) -> MutexGuard<'_, Option<Bar>> {
        self.bar.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
