//! The state of an engine for health checks: a file that its last step could not read, or a step that does not end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use alight_model::{Model, ModelError};

use crate::Log;

/// The state of an engine's thread, which writes it. Reading it never waits for that thread.
#[derive(Debug)]
pub struct Health {
    /// The name of the model.
    name: Box<str>,
    created: Instant,
    /// Milliseconds from the creation of this to the beginning of the work that the thread does now, plus 1; 0 while it does none.
    began: AtomicU64,
    /// See [`Model::progress`].
    progress: Arc<AtomicU64>,
    /// The last known progress, and when it was first seen.
    seen: Mutex<(u64, Instant)>,
    /// The reason why the last step could not read a file, without the folder of the file.
    unread: Mutex<Option<String>>,
}

/// Work that the thread does now. It ends when this is dropped.
pub(crate) struct Working<'h>(&'h Health);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.began.store(0, Ordering::Relaxed);
    }
}

impl Health {
    pub(crate) fn new(model: &Model) -> Health {
        let (created, progress) = (Instant::now(), model.progress());
        Health {
            name: model.name().into(),
            created,
            began: AtomicU64::new(0),
            seen: Mutex::new((progress.load(Ordering::Relaxed), created)),
            progress,
            unread: Mutex::default(),
        }
    }

    /// Begins a piece of work, such as a step, which others do not interrupt.
    pub(crate) fn begin(&self) -> Working<'_> {
        let now = self.created.elapsed().as_millis() as u64;
        self.began.store(now + 1, Ordering::Relaxed);
        Working(self)
    }

    /// The time for which the thread has done its current piece of work.
    pub(crate) fn working_for(&self) -> Option<Duration> {
        let began = self.began.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.created.elapsed().saturating_sub(Duration::from_millis(began)))
    }

    /// The time for which the thread has worked without any progress that is known of, or less: a step of many tokens on a slow machine may take long.
    pub(crate) fn stuck_for(&self) -> Option<Duration> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.progress.load(Ordering::Relaxed);
        if seen.0 != now {
            *seen = (now, Instant::now());
        }
        Some(self.working_for()?.min(seen.1.elapsed()))
    }

    /// Records the end of a step, or of an attempt to create the engine. Returns true if a file could not be read and that is news.
    pub(crate) fn tried(&self, error: Option<&ModelError>) -> bool {
        let mut unread = self.unread();
        match error.map(ModelError::unread) {
            // Nothing was read, or nothing about files was learnt.
            Some(None) => false,
            Some(found) => {
                let is_news = *unread != found;
                *unread = found;
                is_news
            }
            None => {
                *unread = None;
                false
            }
        }
    }

    /// The reason why the engine does not work at the moment, if it does not: it could not read a file when it last tried, or has done one step for more
    /// than `limit` without progress.
    pub(crate) fn trouble(&self, limit: Duration) -> Option<String> {
        self.stuck(limit).or_else(|| Some(format!("{}: {}", self.name, self.unread().as_ref()?)))
    }

    /// A message about the current step if it has taken more than `limit` without progress.
    fn stuck(&self, limit: Duration) -> Option<String> {
        let without = self.stuck_for().filter(|time| *time > limit)?.as_secs();
        let (name, time) = (&self.name, self.working_for()?.as_secs());
        Some(format!(
            "{name}: a step has been running for {time} s, without progress for {without} s"
        ))
    }

    /// Reports each step that takes more than `limit` without progress once, until the thread has `ended`.
    pub(crate) fn watch(&self, limit: Duration, ended: &Receiver<()>, log: &Log) {
        let mut reported = 0;
        while ended.recv_timeout(limit / 4) == Err(RecvTimeoutError::Timeout) {
            let began = self.began.load(Ordering::Relaxed);
            if began != reported
                && let Some(stuck) = self.stuck(limit)
            {
                reported = began;
                log(&format!("{stuck}: a disk may not answer; requests wait for it"));
            }
        }
    }

    fn unread(&self) -> MutexGuard<'_, Option<String>> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
