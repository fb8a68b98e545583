//! Models of the Hugging Face hub: `alight pull`, `list` and `rm`, and `hf.co/USER/REPO:Q4_K_M` wherever a model is expected.

pub mod coming;
pub mod list;
pub mod pull;
pub mod rm;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use alight_hub::{Event, Hub, HubError, Located, Name, Pulled, Settings};
use anyhow::anyhow;

use crate::bar::Bar;
use crate::interrupt::Interrupt;
use crate::outcome::{Outcome, Stop};
use crate::{say, units};

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

/// Returns the name, without `hf.co/`, of a model in the cache whose name contains this word, in any case.
pub fn fetched(word: &str) -> Option<String> {
    let word = word.to_lowercase();
    let names = hub(true).ok()?.list().ok()?;
    let mut names = names.iter().map(|one| format!("{}:{}", one.repo, one.tag));
    names.find(|name| name.to_lowercase().contains(&word))
}

fn failed(error: HubError) -> Stop {
    match error {
        HubError::Stopped => Stop::Interrupted,
        error @ HubError::Name { .. } => Stop::Usage(error.to_string()),
        error => Stop::Failed(anyhow!(error)),
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
    let Some(name) = Name::of_path(path).map_err(failed)? else { return Ok(None) };
    let located = hub(offline)?.locate(&name, fetch).map_err(failed)?;
    say_instead(&located);
    Ok(Some(located.into_file()))
}

/// Notes why a model in the cache is used without a question to the hub, if that was not the plan.
fn say_instead<P>(located: &Located<P>) {
    if let Located::Instead(found, error) = located {
        say::note(&format!("{error}; {}:{} is in the cache", found.repo, found.tag));
    }
}

/// Pulls a model, and shows the progress.
fn fetch(hub: &Hub, name: &Name) -> Result<Pulled, HubError> {
    let mut progress = PullProgress::of(name.clone());
    let result = Interrupt::during(|pressed| {
        hub.pull(name, &mut |event| {
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
                            "{}, of which {} are there",
                            units::bytes(bytes),
                            units::bytes(there)
                        )
                    }
                };
                say::line(&format!("pulling {}:{} ({of})", self.name.repo, model.tag()));
            }
            Event::Waiting { file } => {
                self.bar.clear();
                say::note(&format!("another process fetches {file}, and is waited for"));
            }
            Event::Refetched { file } => {
                self.bar.clear();
                say::note(&format!(
                    "what was there of {file} is not what the hub has promised; it is fetched again"
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
        let kept = match result {
            Err(HubError::Hash { .. }) | Ok(_) => false,
            Err(_) => received > 0,
        };
        if kept {
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
                "pulled {}:{}: {} in {}, {}/s",
                self.name.repo,
                pulled.model.tag(),
                units::bytes(pulled.received),
                units::ms(seconds * 1000.0),
                units::bytes((pulled.received as f64 / seconds) as u64),
            ));
        }
    }
}
