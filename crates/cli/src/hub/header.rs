//! The headers of a model of the hub, which describe it before it is fetched.

use std::path::{Path, PathBuf};

use alight_hub::{Hub, Located, Name};
use anyhow::Context;
use tempfile::TempDir;

use super::{failed, full_name, hub, name_of, say_instead};
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
    let fetch = |hub: &Hub, name: &Name| {
        let folder = match tempfile::tempdir().context("a folder for headers") {
            Ok(folder) => folder,
            Err(error) => return Ok(Err(error)),
        };
        let header =
            Interrupt::during(|pressed| hub.header(name, folder.path(), &mut || pressed()));
        header.map(|header| Ok((folder, header)))
    };
    let located = hub(offline)?.locate(&name, fetch).map_err(failed)?;
    say_instead(&located);
    let (folder, header) = match located {
        Located::There(found) | Located::Instead(found, _) => {
            return Ok(Fetched::Path(found.path().to_owned()));
        }
        Located::Pulled(fetched) => fetched?,
    };
    say::note(&format!(
        "{} is not in the cache: its header was fetched, {} of {}",
        full_name(&name.repo, header.model.tag()),
        units::bytes(header.received),
        units::bytes(header.bytes)
    ));
    let path = header.paths.into_iter().next().unwrap_or_default();
    Ok(Fetched::Header { folder, path, repo: name.repo })
}
