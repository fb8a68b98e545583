//! Evicts files from the page cache before a run.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// A file that was evicted from the page cache, and its cached bytes before and after.
#[derive(Clone, Debug, Serialize)]
pub struct Evicted {
    file: String,
    cached_before_bytes: u64,
    cached_after_bytes: u64,
    /// How they were determined: `cachestat` or `mincore`.
    how: &'static str,
}

/// Returns all regular files at `paths`, including those inside folders.
///
/// # Errors
/// A message, if a path cannot be examined or has no files.
pub fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for path in paths {
        let before = found.len();
        add(path, true, &mut found).map_err(|e| format!("--cold {}: {e}", path.display()))?;
        if found.len() == before {
            return Err(format!("--cold {}: no file is there", path.display()));
        }
    }
    Ok(found)
}

/// Links are followed if they were named, but not inside folders, where they could lead
/// anywhere.
fn add(path: &Path, named: bool, found: &mut Vec<PathBuf>) -> io::Result<()> {
    let metadata = if named { fs::metadata(path)? } else { fs::symlink_metadata(path)? };
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            add(&entry?.path(), false, found)?;
        }
    } else if metadata.is_file() {
        found.push(path.to_owned());
    } else if named {
        return Err(io::Error::other("is neither a file nor a folder"));
    }
    Ok(())
}

/// Evicts the files from the page cache and proves it.
///
/// # Errors
/// A message, if a file cannot be opened or evicted, or a part of it stays cached.
#[cfg(unix)]
pub fn evict(files: &[PathBuf]) -> Result<Vec<Evicted>, String> {
    files
        .iter()
        .map(|path| {
            let say = |what: &str| format!("--cold {}: {what}; not run", path.display());
            let file = fs::File::open(path).map_err(|e| say(&e.to_string()))?;
            let len = file.metadata().map_err(|e| say(&e.to_string()))?.len();
            let ask = |e: io::Error| say(&format!("cannot be taken out of the page cache: {e}"));
            let before = alight_pages::residency(&file, 0..len).map_err(ask)?;
            let after = alight_pages::evict(&file).map_err(ask)?;
            if !after.is_proven_cold() && len > 0 {
                return Err(say(&match after.cached {
                    0 => "nobody can say whether it is out of the page cache: only its owner or root \
                          may ask"
                        .to_owned(),
                    n => format!(
                        "{n} of its {} pages stay in the page cache: another process has them \
                         mapped, or is reading it",
                        after.pages
                    ),
                }));
            }
            Ok(Evicted {
                file: path.to_string_lossy().into_owned(),
                cached_before_bytes: before.cached_bytes(len),
                cached_after_bytes: after.cached_bytes(len),
                how: after.probe.name(),
            })
        })
        .collect()
}

/// Windows: [`args`](super::args) has rejected the option before.
#[cfg(not(unix))]
pub fn evict(_: &[PathBuf]) -> Result<Vec<Evicted>, String> {
    Ok(Vec::new())
}

/// Drops the page cache of the machine, after writing changed pages.
///
/// # Errors
/// A message, if this is not Linux or the user is not root.
pub fn drop_caches() -> Result<(), String> {
    #[cfg(target_os = "linux")]
    // SAFETY: takes no arguments.
    unsafe {
        libc::sync();
    }
    fs::write("/proc/sys/vm/drop_caches", "3").map_err(|e| {
        format!("--drop-caches: {e}: it needs root, on Linux; --cold FILE needs neither; not run")
    })
}
