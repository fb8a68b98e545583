//! Models of the hub, with the names, the cache and the settings of `alight pull`.

use std::ops::ControlFlow;
use std::path::PathBuf;

use alight_hub::{Event, Hub, HubError, Located, Name, OnEvent, Pulled, Settings};
use pyo3::prelude::*;

use crate::{error, pack};

/// The hub and the cache of this process.
fn hub(offline: bool) -> PyResult<Hub> {
    let mut settings = Settings::of_environment().map_err(error::hub)?;
    settings.offline |= offline;
    Ok(Hub::new(settings))
}

/// Pulls by `work` with the interpreter released. Signals are checked meanwhile: an exception of a signal handler or of `progress` ends
/// the pull, and the received bytes are kept.
fn observed<T>(
    progress: Option<&Py<PyAny>>,
    work: impl FnOnce(&mut OnEvent<'_>) -> Result<T, Failed>,
) -> Result<T, Failed> {
    let mut raised = None;
    let mut reported = None;
    let done = work(&mut |event| {
        let new = match event {
            Event::Progress { received, total } if total > 0 => Some((received, total)),
            _ => None,
        };
        let tell = |py: Python<'_>| {
            py.check_signals()?;
            match (progress, new) {
                (Some(progress), Some(new)) if reported.replace(new) != Some(new) => {
                    progress.call1(py, new).map(drop)
                }
                _ => Ok(()),
            }
        };
        match Python::attach(tell) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                raised.get_or_insert(error);
                ControlFlow::Break(())
            }
        }
    });
    match raised {
        Some(error) => Err(Failed::Raised(error)),
        None => done,
    }
}

fn fetch(hub: &Hub, name: &Name, progress: Option<&Py<PyAny>>) -> Result<Pulled, Failed> {
    observed(progress, |on_event| Ok(hub.pull(name, on_event)?))
}

/// The reason a pull has ended early.
enum Failed {
    Hub(HubError),
    Raised(PyErr),
}

impl From<HubError> for Failed {
    fn from(problem: HubError) -> Failed {
        Failed::Hub(problem)
    }
}

impl From<Failed> for PyErr {
    fn from(failed: Failed) -> PyErr {
        match failed {
            Failed::Hub(problem) => error::hub(problem),
            Failed::Raised(error) => error,
        }
    }
}

/// The file of a model of the hub, which is fetched if it is not in the cache; or the path itself.
pub fn file(py: Python<'_>, path: PathBuf, offline: bool) -> PyResult<PathBuf> {
    let Some(name) = Name::of_path(&path).map_err(error::hub)? else { return Ok(path) };
    let hub = hub(offline)?;
    let located = py.detach(|| {
        let mut raised = None;
        let located = hub.locate(&name, |hub, name| {
            fetch(hub, name, None).map_err(|failed| match failed {
                Failed::Hub(problem) => problem,
                Failed::Raised(error) => {
                    raised = Some(error);
                    HubError::Stopped
                }
            })
        });
        located.map_err(|problem| raised.unwrap_or_else(|| error::hub(problem)))
    })?;
    if let Located::Instead(found, problem) = &located {
        let text = format!("{problem}; {}:{} is in the cache", found.repo, found.tag);
        error::warn(py, &text)?;
    }
    Ok(located.path().to_owned())
}

/// Fetches a model of the hub as `alight pull` does, and returns the path of its file, or of the first of several. With `pack`, its
/// packed file is kept alone, as `alight pull --pack` does.
#[pyfunction]
#[pyo3(signature = (name, *, revision=None, offline=false, pack=false, progress=None))]
pub fn pull(
    py: Python<'_>,
    name: &str,
    revision: Option<&str>,
    offline: bool,
    pack: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<PathBuf> {
    let mut name = Name::parse(name).map_err(error::hub)?;
    if let Some(revision) = revision {
        name = name.at(revision).map_err(error::hub)?;
    }
    let hub = hub(offline)?;
    py.detach(|| {
        let found = match hub.settings().offline {
            true => hub.find(&name).map_err(error::hub)?,
            false => None,
        };
        let (path, files) = match found {
            Some(found) => (found.path().to_owned(), found.paths),
            None => {
                let pulled = observed(progress.as_ref(), |on_event| match pack {
                    true => Ok(hub.pull_to_pack(&name, on_event)?),
                    false => Ok(hub.pull(&name, on_event)?),
                })?;
                (pulled.path().to_owned(), pulled.paths)
            }
        };
        if !pack {
            return Ok(path);
        }
        let kept = observed(None, |on_event| {
            hub.keep_packed(&name.repo, &files, on_event, |from, to| {
                pack::of_hub(from, to).map_err(Failed::Raised)
            })
        });
        Ok(kept?)
    })
}
