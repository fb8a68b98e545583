//! The file of results: it grows by whole lines, and must still be the file at its path, with all that was written to it.

use std::fs::{self, File, Metadata};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use alight_pages::Identity;
use anyhow::{Context, anyhow};

/// A file that results are appended to.
pub struct Output {
    file: File,
    path: PathBuf,
    /// Its length in bytes after the last result.
    len: u64,
    /// False on a filesystem where a file does not have the same identity by its path and once it is open.
    has_identity: bool,
}

impl Output {
    /// Continues an open file at its end.
    ///
    /// # Errors
    /// The system's.
    pub fn new(file: File, path: &Path) -> anyhow::Result<Output> {
        let named = || format!("'{}'", path.display());
        let open = file.metadata().with_context(named)?;
        let by_path = fs::metadata(path).with_context(named)?;
        let has_identity = Identity::from(&open) == Identity::from(&by_path);
        Ok(Output { file, path: path.to_owned(), len: open.len(), has_identity })
    }

    /// Appends a result.
    ///
    /// # Errors
    /// As [`check`](Output::check); the system's.
    pub fn write(&mut self, text: &[u8]) -> anyhow::Result<()> {
        self.check()?;
        self.file.write_all(text).with_context(|| self.name())?;
        self.len += text.len() as u64;
        Ok(())
    }

    /// Flushes all results to the disk.
    ///
    /// # Errors
    /// As [`check`](Output::check); the system's.
    pub fn finish(&self) -> anyhow::Result<()> {
        self.file.sync_all().with_context(|| self.name())?;
        self.check()
    }

    /// Checks that the results are still in the file at the path. More of them would otherwise be computed for nothing.
    ///
    /// # Errors
    /// Another program has removed, moved, replaced or changed it; the system's.
    fn check(&self) -> anyhow::Result<()> {
        let open = self.file.metadata().with_context(|| self.name())?;
        let by_path = match fs::metadata(&self.path) {
            Err(error)
                if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) =>
            {
                None
            }
            by_path => Some(by_path.with_context(|| self.name())?),
        };
        let is_other =
            |other: &Metadata| self.has_identity && Identity::from(other) != Identity::from(&open);
        let what = match &by_path {
            None if open.nlink() == 0 => "removed",
            None => "moved",
            Some(other) if is_other(other) => "replaced by another file",
            Some(_) if open.len() != self.len => {
                return Err(anyhow!(
                    "{} was changed while results were written to it: it has {} bytes, expected {}; results that are still \
                     whole in it count, and the same command computes the others",
                    self.name(),
                    open.len(),
                    self.len
                ));
            }
            Some(_) => return Ok(()),
        };
        let rest = match open.nlink() {
            0 => "they are gone, and the same command computes them again",
            _ => "they are in it under its new name: move it back, and the same command continues",
        };
        Err(anyhow!("{} was {what} while results were written to it: {rest}", self.name()))
    }

    fn name(&self) -> String {
        format!("'{}'", self.path.display())
    }
}
