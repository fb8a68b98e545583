//! A file's metadata: owner, attributes, ACLs, permissions, times.
//!
//! In this order, because a change of owner clears the setuid and setgid bits, and because
//! attributes can no longer be written once the permissions forbid it. At no moment does the copy
//! admit a user whom its source does not: the ACL that a folder passes on to new entries (its
//! default ACL) is removed first.

use std::ffi::{CStr, CString, OsStr};
use std::fmt;
use std::fs::{File, FileTimes, Metadata, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

use alight_pages::{Destination, Held};
use rustix::fs::{AtFlags, Gid, Uid};

/// Metadata that the copy does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotKept {
    /// The user: only root may give files away. A setuid program loses that bit.
    Owner {
        /// The system's error.
        errno: i32,
    },
    /// The group, likewise.
    Group {
        /// The system's error.
        errno: i32,
    },
    /// An extended attribute or ACL.
    Attribute {
        /// Its name.
        name: String,
        /// The system's error.
        errno: i32,
    },
    /// The extended attributes cannot be listed.
    Attributes {
        /// The system's error.
        errno: i32,
    },
    /// The permissions: the filesystem has none.
    Mode {
        /// The system's error.
        errno: i32,
    },
    /// The times.
    Times {
        /// The system's error.
        errno: i32,
    },
}

impl NotKept {
    /// Returns true for metadata that only root can keep: not reported if this user is not root.
    pub fn is_expected(&self) -> bool {
        match self {
            NotKept::Owner { errno } | NotKept::Group { errno } => {
                *errno == rustix::io::Errno::PERM.raw_os_error()
            }
            NotKept::Attribute { name, errno } => {
                *errno == rustix::io::Errno::PERM.raw_os_error()
                    && (name.starts_with("security.") || name.starts_with("trusted."))
            }
            _ => false,
        }
    }
}

impl fmt::Display for NotKept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, errno) = match self {
            NotKept::Owner { errno } => ("its owner", errno),
            NotKept::Group { errno } => ("its group", errno),
            NotKept::Attribute { name, errno } => (name.as_str(), errno),
            NotKept::Attributes { errno } => ("its extended attributes", errno),
            NotKept::Mode { errno } => ("its permissions", errno),
            NotKept::Times { errno } => ("its times", errno),
        };
        write!(f, "{what} could not be kept: {}", io::Error::from_raw_os_error(*errno))
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error())
}

/// The setuid and setgid bits.
const SET_ID: u32 = 0o6000;

/// The ACL of a file or folder, and the one that a folder passes on.
const ACCESS: &CStr = c"system.posix_acl_access";
const DEFAULT: &CStr = c"system.posix_acl_default";

/// Gives `dest` all metadata of `source` that it can have, and removes any that `source` does not have.
pub(crate) fn keep(source: &File, was: &Metadata, dest: &File) -> Vec<NotKept> {
    let mut lost = Vec::new();
    let mut mode = was.mode() & 0o7777;
    if let Ok(now) = dest.metadata() {
        // Separately: a member of the group may keep the group.
        if now.gid() != was.gid()
            && let Err(error) = fchown(dest, None, Some(was.gid()))
        {
            lost.push(NotKept::Group { errno: errno(&error) });
            mode &= !SET_ID;
        }
        if now.uid() != was.uid()
            && let Err(error) = fchown(dest, Some(was.uid()), None)
        {
            lost.push(NotKept::Owner { errno: errno(&error) });
            mode &= !SET_ID;
        }
    }
    attributes(source, dest, &mut lost);
    // Without its ACL, the group bits are the maximum that the ACL grants to any user it names.
    let acl = |lost: &NotKept| matches!(lost, NotKept::Attribute { name, .. } if *name == *ACCESS.to_string_lossy());
    if lost.iter().any(acl) {
        mode &= !0o070;
    }
    if let Err(error) = dest.set_permissions(Permissions::from_mode(mode)) {
        lost.push(NotKept::Mode { errno: errno(&error) });
    }
    lost.extend(times(was, dest).err());
    lost
}

/// Gives `dest` the times of the source, to the nanosecond.
fn times(was: &Metadata, dest: &File) -> Result<(), NotKept> {
    let set = || -> io::Result<()> {
        let times = FileTimes::new().set_accessed(was.accessed()?).set_modified(was.modified()?);
        dest.set_times(times)
    };
    set().map_err(|error| NotKept::Times { errno: errno(&error) })
}

/// Copies the extended attributes; ACLs are among them (`system.posix_acl_access`).
fn attributes(source: &File, dest: &File, lost: &mut Vec<NotKept>) {
    let names = match names(source) {
        Ok(names) => names,
        // A filesystem without attributes.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => return,
        Err(error) => {
            lost.push(NotKept::Attributes { errno: error.raw_os_error() });
            return;
        }
    };
    for acl in [ACCESS, DEFAULT] {
        if !names.iter().any(|name| **name == *acl)
            && let Err(error) = without_acl(dest, acl)
        {
            let name = acl.to_string_lossy().into_owned();
            lost.push(NotKept::Attribute { name, errno: errno(&error) });
        }
    }
    for name in names {
        let set = value(source, &name).and_then(|value| {
            rustix::fs::fsetxattr(dest, name.as_c_str(), &value, rustix::fs::XattrFlags::empty())
        });
        match set {
            Ok(()) => {}
            // Removed in the meantime.
            Err(rustix::io::Errno::NODATA) => {}
            Err(error) => lost.push(NotKept::Attribute {
                name: name.to_string_lossy().into_owned(),
                errno: error.raw_os_error(),
            }),
        }
    }
}

/// Removes an ACL that the source does not have.
fn without_acl(dest: &File, acl: &CStr) -> io::Result<()> {
    if rustix::fs::fgetxattr_query(dest, acl).is_err() {
        return Ok(());
    }
    if acl == ACCESS {
        // The limits of the group go with it: only the owner until the permissions are set.
        dest.set_permissions(Permissions::from_mode(dest.metadata()?.mode() & 0o7700))?;
    }
    Ok(rustix::fs::fremovexattr(dest, acl)?)
}

/// Lists the extended attributes, for the effect that this has on a file.
pub(crate) fn ask(file: &File) {
    let _ = names(file);
}

fn names(file: &File) -> rustix::io::Result<Vec<CString>> {
    let list = filled(
        || rustix::fs::flistxattr_query(file),
        |list| rustix::fs::flistxattr(file, &mut *list),
    )?;
    Ok(list
        .split_inclusive(|byte| *byte == 0)
        .filter_map(|name| CStr::from_bytes_with_nul(name).ok())
        .map(CStr::to_owned)
        .collect())
}

fn value(file: &File, name: &CStr) -> rustix::io::Result<Vec<u8>> {
    filled(
        || rustix::fs::fgetxattr_query(file, name),
        |value| rustix::fs::fgetxattr(file, name, &mut *value),
    )
}

/// Requests a length and then that many bytes, and repeats both if there are more by then.
fn filled(
    len: impl Fn() -> rustix::io::Result<usize>,
    fill: impl Fn(&mut Vec<u8>) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<u8>> {
    loop {
        let mut bytes = vec![0; len()?];
        if bytes.is_empty() {
            return Ok(bytes);
        }
        match fill(&mut bytes) {
            Ok(got) => {
                bytes.truncate(got);
                return Ok(bytes);
            }
            Err(rustix::io::Errno::RANGE) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Gives the symbolic link at a destination the owner and times of another. It is held open, so that a file that takes its name
/// does not get them.
pub(crate) fn keep_of_link(was: &Metadata, dest: &Destination) -> Vec<NotKept> {
    let mut lost = Vec::new();
    let link = match hold_link(dest) {
        Ok(link) => link,
        Err(error) => return vec![NotKept::Owner { errno: errno(&error) }],
    };
    let (uid, gid) = (Uid::from_raw(was.uid()), Gid::from_raw(was.gid()));
    let (at, name, flags) = match &link {
        Some(link) => (link.as_fd(), OsStr::new(""), Held::ITSELF),
        None => (dest.folder().as_fd(), dest.name(), AtFlags::SYMLINK_NOFOLLOW),
    };
    if let Err(error) = rustix::fs::chownat(at, name, Some(uid), Some(gid), flags) {
        lost.push(NotKept::Owner { errno: error.raw_os_error() });
    }
    let time = |tv_sec, tv_nsec| rustix::fs::Timespec { tv_sec, tv_nsec: tv_nsec as _ };
    let times = rustix::fs::Timestamps {
        last_access: time(was.atime(), was.atime_nsec()),
        last_modification: time(was.mtime(), was.mtime_nsec()),
    };
    // (Before Linux 5.8, only by name.)
    let by_name = || {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(dest.folder(), dest.name(), &times, flags)
    };
    let set = rustix::fs::utimensat(at, name, &times, flags);
    if let Err(error) = set.or_else(|_| by_name()) {
        lost.push(NotKept::Times { errno: error.raw_os_error() });
    }
    lost
}

/// Returns the link at a destination, where the system can hold a link.
fn hold_link(dest: &Destination) -> io::Result<Option<Held>> {
    let held = Held::open(dest.folder().as_fd(), dest.name(), false)?;
    match &held {
        Some(link) if !link.metadata()?.is_symlink() => Err(rustix::io::Errno::STALE.into()),
        _ => Ok(held),
    }
}
