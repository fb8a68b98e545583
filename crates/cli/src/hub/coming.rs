//! A model that answers while it is still being fetched: the pull continues in a thread, and its progress is shown while nothing else
//! is.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use alight_hub::{Event, Hub, HubError, Located, Name, Pulled};
use alight_pages::Map;
use anyhow::anyhow;

use super::{PullProgress, failed, fetch, hub, name_of, say_instead};
use crate::interrupt::Interrupt;
use crate::outcome::{Outcome, Stop};

/// How often Ctrl-C is looked for while the pull continues.
const INTERVAL: Duration = Duration::from_millis(50);

/// A model that is being fetched, and can be opened.
pub struct Coming {
    maps: Vec<Arc<Map>>,
    pull: Pull,
}

/// The thread that fetches.
struct Pull {
    news: Receiver<News>,
    state: Arc<PullState>,
}

struct PullState {
    stop: AtomicBool,
    progress: Mutex<PullProgress>,
}

enum News {
    Readable(Vec<Arc<Map>>),
    Ended(Result<Pulled, HubError>),
}

/// A fetch that has begun: of a whole model, or of one that is coming.
enum Begun {
    Whole(Pulled),
    Coming(Coming),
}

/// Replaces a model of the hub by its first file. If that has to be fetched, it is fetched from now on, and `Some` is returned as soon as it
/// can be opened, if it can be before it is complete.
pub fn begin(path: &mut PathBuf, offline: bool) -> Outcome<Option<Coming>> {
    let Some(name) = name_of(path)? else { return Ok(None) };
    let located = hub(offline)?.locate(&name, begin_to_fetch).map_err(failed)?;
    say_instead(&located);
    *path = match located {
        Located::There(found) | Located::Instead(found, _) => found.path().to_owned(),
        Located::Pulled(Begun::Whole(pulled)) => pulled.path().to_owned(),
        Located::Pulled(Begun::Coming(coming)) => {
            if let Some(first) = coming.maps.first() {
                *path = first.path().to_owned();
            }
            return Ok(Some(coming));
        }
    };
    Ok(None)
}

fn begin_to_fetch(hub: &Hub, name: &Name) -> Result<Begun, HubError> {
    let (send, news) = channel();
    let state = PullState {
        stop: AtomicBool::new(false),
        progress: Mutex::new(PullProgress::of(name.clone())),
    };
    let pull = Pull { news, state: Arc::new(state) };
    let (theirs, state, name_of) = (hub.clone(), Arc::clone(&pull.state), name.clone());
    let work = move || state.pull(&theirs, &name_of, &send);
    if thread::Builder::new().name("pull".into()).spawn(work).is_err() {
        // Without another thread, nothing is computed meanwhile.
        return fetch(hub, name).map(Begun::Whole);
    }
    match pull.next() {
        News::Readable(maps) => Ok(Begun::Coming(Coming { maps, pull })),
        News::Ended(result) => {
            pull.state.progress().end(&result);
            result.map(Begun::Whole)
        }
    }
}

impl PullState {
    fn pull(&self, hub: &Hub, name: &Name, news: &Sender<News>) {
        let result = hub.pull_and_read(name, &mut |event| {
            if let Event::Readable { maps } = &event {
                // If it is not received, the files are not read.
                let _ = news.send(News::Readable(maps.to_vec()));
            }
            self.progress().show(&event);
            PullProgress::going_on(self.stop.load(Ordering::Relaxed))
        });
        let _ = news.send(News::Ended(result));
    }

    fn progress(&self) -> MutexGuard<'_, PullProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pull {
    /// Returns the next news. Ctrl-C ends the pull.
    fn next(&self) -> News {
        // (A panic of the thread has ended the process.)
        self.receive(&self.news).unwrap_or(News::Ended(Err(HubError::Stopped)))
    }

    /// Receives from a thread; `None` if it has ended. Ctrl-C ends the pull.
    fn receive<T>(&self, from: &Receiver<T>) -> Option<T> {
        Interrupt::during(|pressed| {
            loop {
                match from.recv_timeout(INTERVAL) {
                    Ok(received) => return Some(received),
                    Err(RecvTimeoutError::Timeout) if pressed() => {
                        self.stop();
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return None,
                }
            }
        })
    }

    /// Ends the pull soon. Returns true if it was to end already.
    fn stop(&self) -> bool {
        self.state.stop.swap(true, Ordering::Relaxed)
    }

    /// Waits for the end of the pull.
    fn ended(&self) -> Result<Pulled, HubError> {
        loop {
            if let News::Ended(result) = self.next() {
                return result;
            }
        }
    }
}

impl Coming {
    /// Opens the model, by `open`. Ctrl-C ends that, and the pull.
    pub fn open<T: Send>(&self, open: impl FnOnce(&[Arc<Map>]) -> Outcome<T> + Send) -> Outcome<T> {
        let opened = thread::scope(|scope| {
            let ((send, opened), maps) = (channel(), &self.maps);
            let work = move || {
                let _ = send.send(open(maps));
            };
            thread::Builder::new()
                .name("open".into())
                .spawn_scoped(scope, work)
                .map_err(|error| Stop::Failed(anyhow!(error)))?;
            self.pull.receive(&opened).unwrap_or(Err(Stop::Interrupted))
        });
        match opened {
            Ok(opened) => {
                // From now on an answer may be written.
                self.pull.state.progress().hide();
                Ok(opened)
            }
            Err(stop) => Err(self.end_with(stop)),
        }
    }

    /// After the answer, which has ended in this way: waits until the file is complete and checked. An answer of a file that is not
    /// what it should be is an error.
    pub fn end(&self, outcome: Outcome) -> Outcome {
        if let Err(stop) = outcome {
            return Err(self.end_with(stop));
        }
        self.maps.iter().filter_map(|map| map.incoming()).for_each(|incoming| incoming.take_rest());
        self.pull.state.progress().unhide();
        let result = self.pull.ended();
        self.pull.state.progress().end(&result);
        match result {
            Ok(_) => Ok(()),
            Err(HubError::Stopped) => Err(Stop::Interrupted),
            Err(error @ HubError::Hash { .. }) => Err(unreliable(&error)),
            Err(error) => {
                let error =
                    anyhow!("the model was not checked, and the answer may be wrong: {error}");
                Err(Stop::Failed(error))
            }
        }
    }

    /// Ends the pull, and returns the reason for `stop`: the pull's own error if that was first.
    fn end_with(&self, stop: Stop) -> Stop {
        let interrupted = self.pull.stop();
        let result = self.pull.ended();
        self.pull.state.progress().end(&result);
        match (result, stop) {
            // A reader that is gone needs no reason.
            (_, Stop::BrokenPipe) => Stop::BrokenPipe,
            _ if interrupted => Stop::Interrupted,
            (Err(HubError::Stopped) | Ok(_), stop) => stop,
            (Err(error @ HubError::Hash { .. }), _) => unreliable(&error),
            (Err(error), _) => failed(error),
        }
    }
}

/// The reason to fail after an answer that was computed with wrong bytes.
fn unreliable(error: &HubError) -> Stop {
    Stop::Failed(anyhow!("the answer is not reliable: {error}"))
}
