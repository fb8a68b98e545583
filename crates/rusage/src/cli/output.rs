//! The target of the report.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Write, stderr, stdout};
use std::path::{Path, PathBuf};

/// Stderr or a file.
pub struct Output(Option<Target>);

/// A file, opened for writing before the first run. It is left as it was until there is a report.
struct Target {
    path: PathBuf,
    file: File,
    /// True if the report replaces the contents.
    replaces: bool,
    /// True if the file was created here; it is removed if there is no report.
    is_new: bool,
    /// True if the report is added after existing contents.
    continues: bool,
}

impl Output {
    /// Opens it before anything is run, so that a run is not lost for lack of a file. Opening loses nothing of an existing file.
    ///
    /// Like the shell's `>` and other programs of this kind, it writes into the existing file: its owner, permissions and other names
    /// stay, and it may be a terminal, a pipe or `/dev/null`. A file that is also the standard output or error is appended to. A disk
    /// is not written to.
    ///
    /// # Errors
    /// A message, if the file cannot be written.
    pub fn open(path: Option<&Path>, append: bool) -> Result<Output, String> {
        let Some(path) = path else { return Ok(Output(None)) };
        let target = Target::open(path, append);
        target.map(Some).map(Output).map_err(|why| cannot_write(path, why))
    }

    /// Returns the file, if the report is added after existing contents.
    pub fn continues(&self) -> Option<&Path> {
        self.0.as_ref().filter(|target| target.continues).map(|target| &*target.path)
    }

    /// True if both are one regular file, by whatever names.
    pub fn is_same(&self, other: &Output) -> bool {
        let identity = |output: &Output| output.0.as_ref().and_then(Target::identity);
        identity(self).is_some_and(|own| Some(own) == identity(other))
    }

    /// True if the lines' prefix may be bold: on a terminal, unless `NO_COLOR` forbids it.
    pub fn bold(&self) -> bool {
        self.0.is_none()
            && stderr().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
            && std::env::var_os("TERM").is_none_or(|v| v != "dumb")
    }

    /// Writes the report, in whole lines. Errors on stderr are ignored: there is nowhere to report them.
    ///
    /// # Errors
    /// A message, if the file cannot be written.
    pub fn write(&mut self, text: &str) -> Result<(), String> {
        match &mut self.0 {
            None => {
                // In one call, so that it is not interleaved with other output.
                let _ = stderr().write_all(text.as_bytes());
                Ok(())
            }
            Some(target) => {
                target.write(text.as_bytes()).map_err(|why| cannot_write(&target.path, why))
            }
        }
    }
}

fn cannot_write(path: &Path, why: impl std::fmt::Display) -> String {
    format!("{}: cannot write the report: {why}", path.display())
}

impl Target {
    fn open(path: &Path, append: bool) -> io::Result<Target> {
        let mut options = OpenOptions::new();
        options.write(true).append(append);
        // If a name cannot be created, the second attempt returns the error.
        let made = options.clone().create_new(true).open(path).ok();
        let is_new = made.is_some();
        let file = match made {
            Some(file) => file,
            None => options.create(true).open(path)?,
        };
        let mut target =
            Target { path: path.to_owned(), file, replaces: false, is_new, continues: false };
        let found = target.file.metadata()?;
        target.replaces = found.is_file() && !append;
        target.continues = append && found.is_file() && found.len() > 0;
        #[cfg(unix)]
        target.check(&found)?;
        Ok(target)
    }

    #[cfg(unix)]
    fn check(&mut self, found: &fs::Metadata) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::FileTypeExt;

        if found.file_type().is_block_device() {
            return Err(io::Error::other("it is a disk"));
        }
        if self.replaces && is_standard(found) {
            self.replaces = false;
            self.file = OpenOptions::new().append(true).open(&self.path)?;
        }
        if self.file.as_raw_fd() <= 2 {
            // This is the number of a standard stream that is closed: output meant for that would end up in the report. A copy has
            // another number.
            self.file = self.file.try_clone()?;
        }
        Ok(())
    }

    /// Writes the report in one call, so that no reader finds half of it. If the disk has no space for it, the old report stays.
    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        if !self.replaces {
            let written = self.file.write_all(text);
            self.is_new &= written.is_err();
            return written;
        }
        reserve(&self.file, text.len())?;
        let first = loop {
            match self.file.write(text) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                first => break first?,
            }
        };
        let written = self.file.write_all(&text[first..]);
        // Truncated to the report, or to nothing if that did not fit.
        self.file.set_len(if written.is_ok() { text.len() as u64 } else { 0 })?;
        self.is_new &= written.is_err();
        written
    }

    /// Identifies this file, if it is a regular one, which a report replaces or is added to.
    fn identity(&self) -> Option<(u64, u64)> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let found = self.file.metadata().ok().filter(fs::Metadata::is_file)?;
            Some((found.dev(), found.ino()))
        }
        #[cfg(not(unix))]
        None
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.is_new && fs::metadata(&self.path).is_ok_and(|f| f.is_file() && f.len() == 0) {
            // It may be gone already, or we may lack the permission.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Reserves space for `len` bytes from the beginning of a file, whatever its length, so that writing them cannot run out of space.
///
/// # Errors
/// There is no space. It is no error if the filesystem does not support this.
#[cfg(target_os = "linux")]
fn reserve(file: &File, len: usize) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let Ok(len) = libc::off_t::try_from(len) else { return Ok(()) };
    // SAFETY: takes numbers.
    let done = unsafe { libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, 0, len) };
    match io::Error::last_os_error() {
        error if done != 0 && matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) => {
            Err(error)
        }
        _ => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn reserve(_: &File, _: usize) -> io::Result<()> {
    Ok(())
}

/// True if this is the file that the standard output or error refers to.
#[cfg(unix)]
fn is_standard(found: &fs::Metadata) -> bool {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    let (out, error) = (stdout(), stderr());
    [out.as_fd(), error.as_fd()].into_iter().any(|stream| {
        let stream = stream.try_clone_to_owned().and_then(|stream| File::from(stream).metadata());
        stream.is_ok_and(|s| (s.dev(), s.ino()) == (found.dev(), found.ino()))
    })
}

/// Prints help and version.
///
/// # Errors
/// There is no reader.
pub fn to_stdout(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints an error.
pub fn complain(why: &str) {
    let _ = writeln!(stderr(), "rusage: {}", printable(why));
}

/// Returns text with its control characters escaped, so that a file's name cannot control the terminal.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}
