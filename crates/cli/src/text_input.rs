//! Texts that are read as a whole: prompts, and texts that are measured. Each has a limit, because a pipe or a device may never
//! end, and a text that is too long is rejected before it fills the memory.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, anyhow, ensure};

/// The source of a text.
#[derive(Clone, Copy, Debug)]
pub enum From<'a> {
    /// A file, which may be a pipe or a device.
    File(&'a Path),
    /// Standard input.
    Stdin,
}

impl std::fmt::Display for From<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            From::File(path) => write!(f, "'{}'", path.display()),
            From::Stdin => write!(f, "standard input"),
        }
    }
}

/// Reads the text, of at most `limit` bytes (some MiB); `what` is its name in errors. At most one byte beyond the limit is read.
pub fn read(from: From<'_>, what: &str, limit: u64) -> anyhow::Result<String> {
    let too_long = || {
        anyhow!(
            "{what} on {from} is longer than {} MiB, the most that alight reads: give a shorter one, \
             such as a part of it",
            limit >> 20
        )
    };
    let bytes = match from {
        From::Stdin => at_most(limit, &mut io::stdin().lock()),
        From::File(path) => {
            let mut file = File::open(path).with_context(|| from.to_string())?;
            let known = file.metadata().with_context(|| from.to_string())?;
            ensure!(!known.is_file() || known.len() <= limit, too_long());
            at_most(limit, &mut file)
        }
    };
    let bytes = bytes.with_context(|| from.to_string())?.ok_or_else(too_long)?;
    String::from_utf8(bytes).map_err(|error| {
        anyhow!("{what} on {from} is not UTF-8 text: see byte {}", error.utf8_error().valid_up_to())
    })
}

/// Reads all bytes, or returns `None` if there are more than `limit`.
fn at_most(limit: u64, reader: &mut dyn Read) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    reader.take(limit + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= limit))
}
