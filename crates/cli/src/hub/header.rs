//! The headers of a model of the hub, which describe it before it is fetched.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use tempfile::TempDir;

use super::{failed, hub, name_of};
use crate::interrupt::Interrupt;
use crate::outcome::Outcome;
use crate::{say, units};

/// A model that can be looked at.
#[derive(Debug)]
pub enum Fetched {
    /// It is on this machine.
    Path(PathBuf),
    /// Only its headers are, in files as long as the model's.
    Header {
        /// The folder of these files, which is removed when it is dropped.
        folder: TempDir,
        /// The first file.
        path: PathBuf,
        /// `USER/REPO`.
        repo: String,
    },
}

/// Returns what describes a model: its file if it is a path or in the cache, and its headers otherwise.
pub fn header(path: &Path, offline: bool) -> Outcome<Fetched> {
    let Some(name) = name_of(path)? else { return Ok(Fetched::Path(path.to_owned())) };
    let hub = hub(offline)?;
    if let Some(found) = hub.find_exactly(&name).ok().flatten() {
        return Ok(Fetched::Path(found.path().to_owned()));
    }
    if hub.settings().offline {
        let found = hub.find(&name).map_err(failed)?;
        let found = found.ok_or_else(|| failed(hub.not_there(&name)))?;
        return Ok(Fetched::Path(found.path().to_owned()));
    }
    let folder = tempfile::tempdir().context("a folder for headers").map_err(|e| anyhow!(e))?;
    let header = Interrupt::during(|pressed| hub.header(&name, folder.path(), &mut || pressed()));
    let header = header.map_err(failed)?;
    say::note(&format!(
        "hf.co/{}:{} is not in the cache: its header was fetched, {} of {}",
        name.repo,
        header.model.tag(),
        units::bytes(header.received),
        units::bytes(header.bytes)
    ));
    let path = header.paths.into_iter().next().unwrap_or_default();
    Ok(Fetched::Header { folder, path, repo: name.repo })
}
