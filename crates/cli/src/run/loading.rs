//! How far the weights have come that an answer waits for, on a terminal only.
//!
//! The answer itself waits, parked, so a thread of its own looks. After [`Ticker::end`] it writes nothing any more, so that whoever
//! writes next has the line.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use alight_model::{Loading, Model};

use crate::bar::Bar;
use crate::{say, units};

/// A load that is over by then needs no line.
const SOON: Duration = Duration::from_millis(500);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// A line about weights that are being loaded.
pub struct Ticker {
    /// The line, until it is of no use any more.
    bar: Mutex<Option<Bar>>,
    ended: Condvar,
}

impl Ticker {
    /// Does `work`, and says meanwhile how far the load of `model` has come. `work` calls [`end`](Ticker::end) before it writes.
    pub fn beside<T>(model: Option<&Model>, work: impl FnOnce(&Ticker) -> T) -> T {
        let model = model.filter(|_| say::is_terminal());
        let loading = model.and_then(Model::loading);
        let bar = loading.map(|loading| Bar::going_on("loading", loading.done));
        let ticker = Ticker { bar: Mutex::new(bar), ended: Condvar::new() };
        thread::scope(|scope| {
            if let (Some(model), Some(_)) = (model, loading) {
                let tick = || ticker.tick(model);
                // Without a thread for it there is no line.
                let _ = thread::Builder::new().name("loading".into()).spawn_scoped(scope, tick);
            }
            let done = work(&ticker);
            ticker.end();
            done
        })
    }

    /// Removes the line for good.
    pub fn end(&self) {
        if let Some(mut bar) = self.bar().take() {
            bar.clear();
            self.ended.notify_all();
        }
    }

    /// Shows the line until the load is over, or the waiting for it.
    fn tick(&self, model: &Model) {
        let mut pause = SOON;
        let mut held = self.bar();
        while held.is_some() {
            // (A wait may end early: that is one look more.)
            held = match self.ended.wait_timeout(held, pause) {
                Ok((held, _)) => held,
                Err(poisoned) => poisoned.into_inner().0,
            };
            let Some(bar) = &mut *held else { return };
            match model.loading() {
                None => return bar.clear(),
                Some(Loading { done, total }) if done < total => bar.show(done, total),
                // What is missing is no piece of a file: it is the memory being locked.
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
