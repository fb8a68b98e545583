//! `--pack`: a packed file that is made once, kept, and used from then on.
//!
//! It has the modification time of the model that it was made of, and is used while that is so: a model that was replaced is packed
//! again. What stands in its place and has another time may be somebody's, and is left alone.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use alight_convert::Options;
use anyhow::{Context, anyhow};
use rustix::fs::{Access, access};

use super::{speed, with_progress};
use crate::outcome::{Outcome, Stop};
use crate::{folders, inspect, say, source};

/// Whether a packed file is kept.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct KeepArgs {
    /// Pack the model once, beside it or in alight/packed in $XDG_CACHE_HOME or ~/.cache, and use the packed file from then on: as
    /// large as the model, the same bits, faster
    #[arg(long)]
    pack: bool,
}

impl KeepArgs {
    /// The file to run: the model, or what is kept of it.
    pub fn file(self, model: &Path) -> Outcome<PathBuf> {
        if self.pack { kept(model) } else { Ok(model.to_owned()) }
    }
}

fn kept(model: &Path) -> Outcome<PathBuf> {
    let (shards, is_packed) = inspect::shards_and_layout(model)?;
    if is_packed {
        return Ok(model.to_owned());
    }
    let first = shards.first().map_or(model, |first| first.as_path());
    let made = newest(&shards).with_context(|| format!("'{}'", model.display()))?;
    let beside = first.with_file_name(name(first));
    let stored = in_cache(first).with_context(|| format!("'{}'", model.display()))?;
    // In the cache of a hub, the model is a link: what is written there is the hub's.
    let is_link = fs::symlink_metadata(first).is_ok_and(|found| found.is_symlink());
    for place in [Some(&beside), stored.as_ref()].into_iter().flatten() {
        if time(place).is_ok_and(|time| time == made) {
            return Ok(place.clone());
        }
    }
    let folder = beside.parent().filter(|folder| !folder.as_os_str().is_empty());
    let writable = access(folder.unwrap_or(Path::new(".")), Access::WRITE_OK).is_ok();
    let taken = beside.symlink_metadata().is_ok();
    let place = match stored {
        _ if writable && !taken && !is_link => beside.clone(),
        Some(stored) => stored,
        None => {
            let why = "there is no place for a packed file: the model's folder cannot be written to, and there is no cache folder \
                       (XDG_CACHE_HOME, HOME)";
            return Err(anyhow!(why).into());
        }
    };
    if taken {
        say::note(&format!(
            "'{}' was not made of the model as it is now, and is left alone",
            beside.display()
        ));
    }
    make(model, &place, made)?;
    Ok(place)
}

/// Packs the model.
fn make(model: &Path, place: &Path, made: SystemTime) -> Outcome {
    let why = || format!("'{}'", place.display());
    if let Some(folder) = place.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).with_context(why)?;
    }
    let packed = with_progress("packing", |on_progress| {
        alight_convert::pack(model, place, Options { force: true }, on_progress)
    });
    let packed = packed.map_err(|error| match error {
        Stop::Failed(error) => Stop::Failed(source::explain(model, error)),
        other => other,
    })?;
    let file = File::options().write(true).open(place).with_context(why)?;
    file.set_modified(made).with_context(why)?;
    say::note(&format!(
        "packed once into '{}': {}; it is used from now on, and may be removed",
        place.display(),
        speed(&packed.volume)
    ));
    Ok(())
}

/// What the packed file of a model is called.
fn name(first: &Path) -> String {
    let stem = first.file_stem().unwrap_or_default().to_string_lossy();
    let shard = stem.split_once("-00001-of-").map(|(stem, _)| stem);
    format!("{}.packed.gguf", shard.unwrap_or(&stem))
}

/// Where it is if it is not beside the model: the path is that of the model, in the cache folder.
fn in_cache(first: &Path) -> io::Result<Option<PathBuf>> {
    let Some(cache) = folders::of_user(folders::CACHE) else { return Ok(None) };
    let named = std::path::absolute(first)?;
    let inside = named.strip_prefix("/").unwrap_or(&named).with_file_name(name(first));
    Ok(Some(cache.join("packed").join(inside)))
}

fn time(path: &Path) -> io::Result<SystemTime> {
    fs::metadata(path)?.modified()
}

/// When the files of a model were last changed.
fn newest(shards: &[PathBuf]) -> io::Result<SystemTime> {
    let times = shards.iter().map(|shard| time(shard));
    let times = times.collect::<io::Result<Vec<_>>>()?;
    Ok(times.into_iter().max().unwrap_or(SystemTime::UNIX_EPOCH))
}
