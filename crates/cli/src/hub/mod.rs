//! Models of the Hugging Face hub: `alight pull`, `list` and `rm`, and `hf.co/USER/REPO:Q4_K_M` wherever a model is expected.

pub mod coming;
mod header;
pub mod list;
mod offers;
pub mod pull;
pub mod rm;
mod short;
pub mod suggested;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use alight_hub::{Event, Hub, HubError, Located, Name, OnEvent, Pulled, SAFETENSORS, Settings};
use anyhow::anyhow;

use crate::bar::Bar;
use crate::interrupt::Interrupt;
use crate::outcome::{Outcome, Stop};
use crate::{needs, say, units};

pub use header::{Fetched, header};

/// Argument of every command that takes the name of a model.
#[derive(Clone, Debug, clap::Args)]
pub struct HubArgs {
    /// Fetch nothing from the hub: a model is in its cache, or is an error
    #[arg(long)]
    pub offline: bool,
}

/// Returns this user's hub and cache.
fn hub(offline: bool) -> Outcome<Hub> {
    let mut settings = Settings::of_environment().map_err(failed)?;
    settings.offline |= offline;
    Ok(Hub::new(settings))
}

fn failed(error: HubError) -> Stop {
    match error {
        HubError::Stopped => Stop::Interrupted,
        error @ HubError::Name { .. } => Stop::Usage(error.to_string()),
        error => Stop::Failed(anyhow!(error)),
    }
}

impl From<HubError> for Stop {
    fn from(error: HubError) -> Stop {
        failed(error)
    }
}

/// Replaces each model of the hub by its file, which is fetched if it is not in the cache.
pub fn resolve(models: Vec<&mut PathBuf>, offline: bool) -> Outcome {
    for path in models {
        if let Some(file) = file_of(path, offline)? {
            *path = file;
        }
    }
    Ok(())
}

/// Returns the file of a model of the hub; `None` if the argument is a path.
fn file_of(path: &Path, offline: bool) -> Outcome<Option<PathBuf>> {
    let Some(name) = name_of(path)? else { return Ok(None) };
    located(&hub(offline)?, &name).map(Some)
}

/// Returns the model of the hub that an argument names, in full or in short; `None` if it is a path.
fn name_of(path: &Path) -> Outcome<Option<Name>> {
    match Name::of_path(path).map_err(failed)? {
        Some(name) => Ok(Some(name)),
        None => short::name(path),
    }
}

fn located(hub: &Hub, name: &Name) -> Outcome<PathBuf> {
    let located = hub.locate(name, fetch).map_err(failed)?;
    say_instead(&located);
    Ok(located.path().to_owned())
}

/// Returns the folder of a model of the hub to be converted: that of its safetensors, unless the name has a tag. `None` if the
/// argument is a path.
pub fn source_of(path: &Path, offline: bool) -> Outcome<Option<PathBuf>> {
    let Some(mut name) = Name::of_path(path).map_err(failed)? else { return Ok(None) };
    name.tag.get_or_insert_with(|| SAFETENSORS.to_owned());
    located(&hub(offline)?, &name).map(Some)
}

/// Returns the name of a model, as all commands print it and take it.
fn full_name(repo: &str, tag: &str) -> String {
    format!("hf.co/{repo}:{tag}")
}

/// Returns a clause about weights of this size and the memory of this machine.
fn fits(bytes: u64) -> String {
    needs::fits(bytes, needs::available())
}

/// Notes why a model in the cache is used without a question to the hub, if that was not the plan.
fn say_instead<P>(located: &Located<P>) {
    if let Located::Instead(found, error) = located {
        say::note(&format!("{error}; {} is in the cache", full_name(&found.repo, &found.tag)));
    }
}

/// Pulls a model, and shows the progress.
fn fetch(hub: &Hub, name: &Name) -> Result<Pulled, HubError> {
    fetch_by(hub, name, Hub::pull)
}

/// Pulls a model by this function of the hub, and shows the progress.
fn fetch_by(
    hub: &Hub,
    name: &Name,
    pull: fn(&Hub, &Name, &mut OnEvent<'_>) -> Result<Pulled, HubError>,
) -> Result<Pulled, HubError> {
    let mut progress = PullProgress::of(name.clone());
    let result = Interrupt::during(|pressed| {
        pull(hub, name, &mut |event| {
            progress.show(&event);
            PullProgress::going_on(pressed())
        })
    });
    progress.end(&result);
    result
}

/// The progress of a pull, as it is shown.
struct PullProgress {
    name: Name,
    began: Instant,
    bar: Bar,
    /// True while something else is written.
    hidden: bool,
    received: u64,
    total: u64,
}

impl PullProgress {
    fn of(name: Name) -> PullProgress {
        let bar = Bar::new("pulling");
        PullProgress { name, began: Instant::now(), bar, hidden: false, received: 0, total: 0 }
    }

    /// Returns the answer to an event.
    fn going_on(stopped: bool) -> ControlFlow<()> {
        if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Shows no progress until [`unhide`](PullProgress::unhide).
    fn hide(&mut self) {
        self.bar.clear();
        self.hidden = true;
    }

    fn unhide(&mut self) {
        self.hidden = false;
    }

    fn show(&mut self, event: &Event<'_>) {
        match *event {
            Event::Chosen { model, bytes, there } if there < bytes => {
                let of = match there {
                    0 => units::bytes(bytes),
                    there => {
                        format!(
                            "{}, of which {} are in the cache",
                            units::bytes(bytes),
                            units::bytes(there)
                        )
                    }
                };
                let fits = match model.is_safetensors() {
                    // It is not run, but converted.
                    true => String::new(),
                    false => format!("; {}", fits(bytes)),
                };
                let name = full_name(&self.name.repo, model.tag());
                say::line(&format!("pulling {name} ({of}{fits})"));
            }
            Event::OnlyWhole => {
                self.bar.clear();
                say::note(
                    "the server sends files only whole: the answer begins when all of the model is here",
                );
            }
            Event::Waiting { file } => {
                self.bar.clear();
                say::note(&format!("waiting for another process that fetches {file}"));
            }
            Event::Refetched { file } => {
                self.bar.clear();
                say::note(&format!(
                    "the part of {file} that was fetched earlier does not match the hub's checksum; it is fetched again"
                ));
            }
            Event::Progress { received, total } => {
                (self.received, self.total) = (received, total);
                match received < total {
                    _ if total == 0 || self.hidden => {}
                    true => self.bar.show(received, total),
                    false => self.bar.show_text(Some((total, total)), || {
                        format!("{}, checking it", units::bytes(total))
                    }),
                }
            }
            _ => {}
        }
    }

    /// Shows how it has ended.
    fn end(&mut self, result: &Result<Pulled, HubError>) {
        self.bar.clear();
        let (received, total) = (self.received, self.total);
        // Of a model whose bytes are wrong, the other files are kept.
        if result.is_err() && received > 0 {
            say::note(&format!(
                "{} of {} are kept; the next pull continues from there",
                units::bytes(received),
                units::bytes(total)
            ));
        }
        if let Ok(pulled) = result
            && pulled.received > 0
        {
            let seconds = self.began.elapsed().as_secs_f64().max(1e-3);
            say::line(&format!(
                "pulled {}: {} in {}, {}/s",
                full_name(&self.name.repo, pulled.model.tag()),
                units::bytes(pulled.received),
                units::ms(seconds * 1000.0),
                units::bytes((pulled.received as f64 / seconds) as u64),
            ));
        }
    }
}
