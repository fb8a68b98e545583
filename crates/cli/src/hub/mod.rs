//! Models of the Hugging Face hub: `alight pull`, `list` and `rm`, and `hf.co/USER/REPO:Q4_K_M` wherever a model is expected.

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

use alight_hub::{Event, Hub, HubError, Located, Name, Pulled, SAFETENSORS, Settings};
use anyhow::anyhow;

use crate::bar::Bar;
use crate::interrupt::Interrupt;
use crate::outcome::{Outcome, Stop};
use crate::{say, units};

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
    if let Located::Instead(found, error) = &located {
        say::note(&format!("{error}; {}:{} is in the cache", found.repo, found.tag));
    }
    Ok(located.path().to_owned())
}

/// Returns the folder of a model of the hub to be converted: that of its safetensors, unless the name has a tag. `None` if the
/// argument is a path.
pub fn source_of(path: &Path, offline: bool) -> Outcome<Option<PathBuf>> {
    let Some(mut name) = Name::of_path(path).map_err(failed)? else { return Ok(None) };
    name.tag.get_or_insert_with(|| SAFETENSORS.to_owned());
    located(&hub(offline)?, &name).map(Some)
}

/// Returns a sentence about weights of this size and the memory of this machine.
fn fits(bytes: u64) -> String {
    match alight_pages::available_memory().0 {
        u64::MAX => "this system does not report its memory".to_owned(),
        available if bytes <= available => {
            format!("fits in memory: {} available", units::bytes(available))
        }
        available => format!("larger than the memory available, {}", units::bytes(available)),
    }
}

/// Pulls a model, and shows the progress.
fn fetch(hub: &Hub, name: &Name) -> Result<Pulled, HubError> {
    let began = Instant::now();
    let mut bar = Bar::new("pulling");
    let (mut received, mut total) = (0, 0);
    let result = Interrupt::during(|pressed| {
        hub.pull(name, &mut |event| {
            match event {
                Event::Chosen { model, bytes, there } if there < bytes => {
                    let of = match there {
                        0 => units::bytes(bytes),
                        there => {
                            format!("{}, of which {} are in the cache", units::bytes(bytes), units::bytes(there))
                        }
                    };
                    let fits = match model.is_safetensors() {
                        // It is not run, but converted.
                        true => String::new(),
                        false => format!("; {}", fits(bytes)),
                    };
                    say::line(&format!("pulling {}:{} ({of}{fits})", name.repo, model.tag()));
                }
                Event::Waiting { file } => {
                    bar.clear();
                    say::note(&format!("waiting for another process that fetches {file}"));
                }
                Event::Refetched { file } => {
                    bar.clear();
                    say::note(&format!(
                        "the part of {file} that was fetched earlier does not match the hub's checksum; it is fetched again"
                    ));
                }
                Event::Progress { received: now, total: all } => {
                    (received, total) = (now, all);
                    if total > 0 && received < total {
                        bar.show(received, total);
                    }
                }
                _ => {}
            }
            match pressed() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })
    });
    bar.clear();
    let kept = match &result {
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
    if let Ok(pulled) = &result
        && pulled.received > 0
    {
        let seconds = began.elapsed().as_secs_f64().max(1e-3);
        say::line(&format!(
            "pulled {}:{}: {} in {}, {}/s",
            name.repo,
            pulled.model.tag(),
            units::bytes(pulled.received),
            units::ms(seconds * 1000.0),
            units::bytes((pulled.received as f64 / seconds) as u64),
        ));
    }
    result
}
