//! Destinations, and the checks that a source may be copied there.

use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use alight_pages::{Destination, Identity};
use rustix::fs::FileType;

use crate::CopyError;

/// Returns true if both are the same file or folder, under whatever names.
pub(crate) fn same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Returns the folder that a path is in.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Returns the name that `source` gets in a folder; `None` for a path without a name of its own
/// (`.`, `..`, `a/.`), whose contents go into the folder itself.
pub(crate) fn name_in_folder(source: &Path) -> Option<&std::ffi::OsStr> {
    let bytes = source.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    let last = bytes[..end].rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if matches!(last, b"." | b".." | b"") { None } else { source.file_name() }
}

/// Refuses, with a clear reason, a destination where the file or link `source` cannot be created.
/// Links are not followed here: one that was `named` as the destination has already been resolved.
pub(crate) fn check(
    dest: &Destination,
    (from, source): (&Path, &Metadata),
    named: bool,
) -> Result<(), CopyError> {
    let to = dest.path();
    let problem = |problem| Err(CopyError::Destination { path: to.into(), problem });
    let Some(found) = dest.look()? else { return Ok(()) };
    let same_file = || Err(CopyError::SameFile { from: from.into(), to: to.into() });
    if Identity::from(&found) == Identity::from(source) {
        return same_file();
    }
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => problem("is a folder, and cannot be replaced by a file"),
        // Links are replaced by links, as a name.
        FileType::Symlink if source.is_symlink() => Ok(()),
        FileType::Symlink if named => problem("is a link that leads nowhere; remove it first"),
        FileType::Symlink if fs::metadata(to).is_ok_and(|found| same(source, &found)) => {
            same_file()
        }
        FileType::Symlink => problem(
            "is a link, and links in a folder that is copied to are not followed; remove it, or give \
             its own name as the destination",
        ),
        _ => problem("is not a regular file, and would be replaced by one; give another name"),
    }
}

/// Refuses a folder that would be copied into itself.
pub(crate) fn not_into_itself(from: &Path, source: &Metadata, to: &Path) -> Result<(), CopyError> {
    // The existing part of the destination, by its real name.
    let mut there: PathBuf = to.into();
    let real = loop {
        match fs::canonicalize(&there) {
            Ok(real) => break real,
            Err(_) if there.parent().is_some_and(|p| !p.as_os_str().is_empty()) => {
                there.pop();
            }
            Err(_) => match fs::canonicalize(".") {
                Ok(real) => break real,
                Err(source) => return Err(CopyError::Write { path: to.into(), source }),
            },
        }
    };
    for folder in real.ancestors() {
        let is_source = fs::metadata(folder).is_ok_and(|found| same(source, &found));
        if is_source {
            return Err(match folder == real && there == to {
                true => CopyError::SameFile { from: from.into(), to: to.into() },
                false => CopyError::IntoItself { from: from.into(), to: to.into() },
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_a_folder() {
        for (path, name) in [
            ("a", Some("a")),
            ("a/b", Some("b")),
            ("a/b//", Some("b")),
            ("a/.", None),
            ("a/./", None),
            (".", None),
            ("..", None),
            ("a/..", None),
            ("/", None),
            ("...", Some("...")),
        ] {
            assert_eq!(name_in_folder(Path::new(path)), name.map(std::ffi::OsStr::new), "{path}");
        }
    }
}
