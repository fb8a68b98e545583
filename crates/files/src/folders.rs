//! This user's folders, as the XDG base directory specification defines them.

use std::path::PathBuf;

/// A kind of folder: the variable that names it, and its default within the home folder.
#[derive(Clone, Copy, Debug)]
pub struct FolderKind(&'static str, &'static str);

/// Data that can be created again.
pub const CACHE: FolderKind = FolderKind("XDG_CACHE_HOME", ".cache");
/// Records that this program keeps for itself.
pub const STATE: FolderKind = FolderKind("XDG_STATE_HOME", ".local/state");

/// The user's settings.
pub const CONFIG: FolderKind = FolderKind("XDG_CONFIG_HOME", ".config");

/// Returns this program's part of a folder; `None` if neither the variable nor `HOME` is set.
pub fn of_user(kind: FolderKind) -> Option<PathBuf> {
    // The specification requires that relative paths are ignored.
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute(kind.0).or_else(|| Some(absolute("HOME")?.join(kind.1)));
    folder.map(|folder| folder.join("alight"))
}

/// Returns the folder of packed files that are not next to their models.
pub fn packed() -> Option<PathBuf> {
    of_user(CACHE).map(|cache| cache.join("packed"))
}
