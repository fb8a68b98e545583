//! Symbolic links, and further names (hard links) of files that have been copied.

use std::collections::HashMap;
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};

use alight_pages::{Destination, Held, Identity};
use rustix::fs::{AtFlags, CWD};

use crate::file::Entry;
use crate::{CopyError, NotKept, keep};

/// Copies a symbolic link, as a link.
pub(crate) fn symbolic(
    entry: &Entry<'_>,
    found: &Metadata,
    dest: &Destination,
    replace: bool,
) -> Result<Vec<NotKept>, CopyError> {
    let target = entry.target()?;
    dest.put(replace, &[], |folder, name| {
        Ok(rustix::fs::symlinkat(target.as_c_str(), folder, name)?)
    })?;
    Ok(keep::keep_of_link(found, dest))
}

/// Files with several names: the path of the first copy, and its identity.
#[derive(Default)]
pub(crate) struct Linked(HashMap<Identity, (PathBuf, Identity)>);

impl Linked {
    /// Remembers the copy of a file with several names.
    pub fn add(&mut self, source: &Metadata, dest: &Destination) {
        if let Ok(Some(made)) = dest.look() {
            self.0.insert(source.into(), (dest.path().into(), Identity::from(&made)));
        }
    }

    /// Makes another name of the copy of `source`, if there is one and if that is possible; returns true if it did.
    pub fn link(&self, source: &Metadata, dest: &Destination, replace: bool) -> bool {
        let Some((path, identity)) = self.0.get(&Identity::from(source)) else { return false };
        let made = || -> io::Result<()> {
            let first = first(path, *identity)?;
            let put = dest.put(replace, &[], |folder, name| {
                let (at, follow) = (first.path(), AtFlags::SYMLINK_FOLLOW);
                Ok(rustix::fs::linkat(CWD, at, folder, name, follow)?)
            });
            put.map_err(io::Error::other)
        };
        made().is_ok()
    }
}

/// Opens the file that was created, and not another that has taken its name. Where files cannot be held open, every name gets its
/// own file.
fn first(path: &Path, identity: Identity) -> io::Result<Held> {
    let held = Held::open(CWD, path.as_os_str(), false)?.ok_or(io::ErrorKind::Unsupported)?;
    match Identity::from(&held.metadata()?) == identity {
        true => Ok(held),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}
