//! The folders of this user, where the XDG base directory specification has them.

use std::path::PathBuf;

/// A kind of folder: the variable that names it, and where it is in the home folder otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Kind(&'static str, &'static str);

/// What can be made again.
pub const CACHE: Kind = Kind("XDG_CACHE_HOME", ".cache");
/// What this program writes down for itself.
pub const STATE: Kind = Kind("XDG_STATE_HOME", ".local/state");

/// What the user has set.
pub const CONFIG: Kind = Kind("XDG_CONFIG_HOME", ".config");

/// This program's part of a folder; none where neither the variable nor `HOME` says where it is.
pub fn of_user(kind: Kind) -> Option<PathBuf> {
    // Relative paths are to be ignored, says the specification.
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute(kind.0).or_else(|| Some(absolute("HOME")?.join(kind.1)));
    folder.map(|folder| folder.join("alight"))
}
