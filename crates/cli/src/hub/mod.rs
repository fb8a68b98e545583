//! Models of the Hugging Face hub: `alight pull`, `list` and `rm`, and `hf.co/USER/REPO:Q4_K_M` wherever a model is expected.

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
    if let Located::Instead(found, error) = &located {
        say::note(&format!("{error}; {}:{} is in the cache", found.repo, found.tag));
    }
    Ok(Some(located.into_file()))
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
                            format!("{}, of which {} are there", units::bytes(bytes), units::bytes(there))
                        }
                    };
                    say::line(&format!("pulling {}:{} ({of})", name.repo, model.tag()));
                }
                Event::Waiting { file } => {
                    bar.clear();
                    say::note(&format!("another process fetches {file}, and is waited for"));
                }
                Event::Refetched { file } => {
                    bar.clear();
                    say::note(&format!(
                        "what was there of {file} is not what the hub has promised; it is fetched again"
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
