//! Where the report goes.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write, stderr, stdout};
use std::path::PathBuf;

use super::args::Args;

/// Stderr or a file.
pub struct Output(Option<(PathBuf, File)>);

impl Output {
    /// Opens it before anything is run, so that a run is not lost for want of a file.
    ///
    /// # Errors
    /// The file cannot be written; in words.
    pub fn open(args: &Args) -> Result<Output, String> {
        let Some(path) = &args.output else { return Ok(Output(None)) };
        let mut options = OpenOptions::new();
        if args.append {
            options.append(true);
        } else {
            options.write(true).truncate(true);
        }
        let file = options.create(true).open(path);
        let file = file.map_err(|e| format!("{}: cannot write the report: {e}", path.display()))?;
        Ok(Output(Some((path.clone(), file))))
    }

    /// Whether the lines' prefix may be bold: on a terminal, unless `NO_COLOR` says no.
    pub fn bold(&self) -> bool {
        self.0.is_none()
            && stderr().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
            && std::env::var_os("TERM").is_none_or(|v| v != "dumb")
    }

    /// Writes the report, whole lines. A stderr that is gone is nobody to tell.
    ///
    /// # Errors
    /// The file cannot be written; in words.
    pub fn write(&mut self, text: &str) -> Result<(), String> {
        match &mut self.0 {
            None => {
                // In one call, so that it is not mixed with what others write.
                let _ = stderr().write_all(text.as_bytes());
                Ok(())
            }
            Some((path, file)) => file
                .write_all(text.as_bytes())
                .map_err(|e| format!("{}: cannot write the report: {e}", path.display())),
        }
    }
}

/// Help and version.
///
/// # Errors
/// Nobody reads it.
pub fn to_stdout(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Says what is wrong.
pub fn complain(why: &str) {
    let _ = writeln!(stderr(), "rusage: {}", printable(why));
}

/// Text with its control characters shown, so that a file's name cannot drive the terminal.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}
