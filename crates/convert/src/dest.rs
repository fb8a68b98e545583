//! Where a new file may be made.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use alight_pages::Map;

use crate::{ConvertError, Options};

/// Checks that a file may be made at `dest` from `sources`. Returns where: if `dest` is a link to a
/// file, that file is what is replaced.
pub(crate) fn check(
    dest: &Path,
    options: Options,
    sources: &[Map],
) -> Result<PathBuf, ConvertError> {
    let problem = |problem| Err(ConvertError::Destination { path: dest.into(), problem });
    let found = match fs::metadata(dest) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = match dest.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder,
                _ => Path::new("."),
            };
            if dest.file_name().is_none() {
                return problem("is not the name of a file");
            }
            return match fs::metadata(folder) {
                Ok(folder) if folder.is_dir() => Ok(dest.into()),
                Ok(_) => problem("cannot be made: what should be its folder is a file"),
                Err(_) => problem("cannot be made: its folder does not exist"),
            };
        }
        Err(source) => return Err(ConvertError::Write { path: dest.into(), source }),
    };
    if found.is_dir() {
        return problem("is a folder; give the name of the new file");
    }
    if !found.is_file() {
        return problem("is not a regular file, and would be replaced by one");
    }
    for source in sources {
        let same = match source.file().metadata() {
            Ok(source) => same_file(&source, &found),
            Err(_) => false,
        };
        if same || fs::canonicalize(source.path()).ok() == fs::canonicalize(dest).ok() {
            return Err(ConvertError::SameFile { path: dest.into() });
        }
    }
    if !options.force {
        return Err(ConvertError::Exists { path: dest.into() });
    }
    fs::canonicalize(dest).map_err(|source| ConvertError::Write { path: dest.into(), source })
}

fn same_file(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}
