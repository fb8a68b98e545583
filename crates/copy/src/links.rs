//! Symbolic links, and further names of files that have been copied.

use std::collections::HashMap;
use std::fs::Metadata;
use std::io;
use std::path::PathBuf;

use alight_pages::{Destination, Identity};
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

/// Files with several names: where the first of them went, and which file that is.
#[derive(Default)]
pub(crate) struct Linked(HashMap<Identity, (PathBuf, Identity)>);

impl Linked {
    /// Remembers where a file with several names went.
    pub fn add(&mut self, source: &Metadata, dest: &Destination) {
        if let Ok(Some(made)) = dest.look() {
            self.0.insert(source.into(), (dest.path().into(), Identity::from(&made)));
        }
    }

    /// Makes another name of the copy of `source`, if there is one, and if that can be.
    pub fn link(&self, source: &Metadata, dest: &Destination, replace: bool) -> bool {
        let Some((path, identity)) = self.0.get(&Identity::from(source)) else { return false };
        let made = || -> io::Result<()> {
            let first = first(path, *identity)?;
            let put = dest.put(replace, &[], |folder, name| {
                let (at, follow) = (first.as_str(), AtFlags::SYMLINK_FOLLOW);
                Ok(rustix::fs::linkat(CWD, at, folder, name, follow)?)
            });
            put.map_err(io::Error::other)
        };
        made().is_ok()
    }
}

/// What leads to the file that was made, and to no other that has taken its name.
#[cfg(target_os = "linux")]
fn first(path: &std::path::Path, identity: Identity) -> io::Result<Held> {
    use rustix::fs::{Mode, OFlags};
    use std::os::fd::AsRawFd;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    if Identity::from(&rustix::fs::fstat(&file)?) != identity {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(Held { path: format!("/proc/self/fd/{}", file.as_raw_fd()), _file: file })
}

/// Without such descriptors every name gets a file of its own.
#[cfg(not(target_os = "linux"))]
fn first(_: &std::path::Path, _: Identity) -> io::Result<Held> {
    Err(io::ErrorKind::Unsupported.into())
}

/// A path that leads to an open file, as long as this lives.
struct Held {
    path: String,
    _file: std::os::fd::OwnedFd,
}

impl Held {
    fn as_str(&self) -> &str {
        &self.path
    }
}
