//! Texts that are read as a whole: prompts, and texts that are measured. Each has a limit, because a pipe or a device may never
//! end, and a text that is too long is rejected before it fills the memory.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, anyhow, ensure};
use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};

/// Advice about a text in another encoding.
pub const NOT_UTF8: &str = "`iconv -f WINDOWS-1252 -t UTF-8` converts a text that is in Latin-1";

/// The source of a text.
#[derive(Clone, Copy, Debug)]
pub enum From<'a> {
    /// A file, which may be a pipe or a device.
    File(&'a Path),
    /// Standard input.
    Stdin,
}

impl From<'_> {
    /// Returns where the text is, as a sentence has it after the text's name.
    pub fn place(self) -> String {
        match self {
            From::File(_) => format!("in {self}"),
            From::Stdin => format!("on {self}"),
        }
    }
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
    String::from_utf8(read_bytes(from, what, limit)?).map_err(|error| {
        let (place, at) = (from.place(), error.utf8_error().valid_up_to());
        anyhow!("{what} {place} is not UTF-8: see byte {at}; {NOT_UTF8}")
    })
}

/// As [`read`], for a text that may be in another encoding, which is then named.
pub fn read_any(
    from: From<'_>,
    what: &str,
    limit: u64,
) -> anyhow::Result<(String, Option<&'static str>)> {
    Ok(decoded(read_bytes(from, what, limit)?))
}

/// Decodes UTF-8, and what is not: UTF-16 that begins with a byte order mark (as Windows pipes it), UTF-8 in which some bytes are damaged, or else
/// Windows-1252, the superset of Latin-1. A byte order mark is no part of the text.
fn decoded(bytes: Vec<u8>) -> (String, Option<&'static str>) {
    if let Some((encoding, mark)) = Encoding::for_bom(&bytes) {
        let (text, _) = encoding.decode_without_bom_handling(&bytes[mark..]);
        return (text.into_owned(), (encoding != UTF_8).then(|| encoding.name()));
    }
    let bytes = match String::from_utf8(bytes) {
        Ok(text) => return (text, None),
        Err(error) => error.into_bytes(),
    };
    let has_utf8 = bytes.utf8_chunks().any(|chunk| !chunk.valid().is_ascii());
    match has_utf8 {
        true => (String::from_utf8_lossy(&bytes).into_owned(), Some("UTF-8 with damaged bytes")),
        false => {
            (WINDOWS_1252.decode_without_bom_handling(&bytes).0.into_owned(), Some("Windows-1252"))
        }
    }
}

fn read_bytes(from: From<'_>, what: &str, limit: u64) -> anyhow::Result<Vec<u8>> {
    let too_long = || {
        anyhow!(
            "{what} {} is longer than {} MiB, the most that alight reads: give a shorter one, \
             such as a part of it",
            from.place(),
            limit >> 20
        )
    };
    let bytes = match from {
        From::Stdin => at_most(limit, &mut io::stdin().lock()),
        From::File(path) => {
            let mut file = open(path, "a text file")?;
            let known = file.metadata().with_context(|| from.to_string())?;
            ensure!(!known.is_file() || known.len() <= limit, too_long());
            at_most(limit, &mut file)
        }
    };
    bytes.with_context(|| from.to_string())?.ok_or_else(too_long)
}

/// Opens a file or a pipe to be read as `expected`, such as "a text file".
///
/// # Errors
/// It cannot be opened, or is a folder. The error names it, and says what to give.
pub fn open(path: &Path, expected: &str) -> anyhow::Result<File> {
    let named = path.display();
    let file = File::open(path).map_err(|error| cannot_open(path, expected, error))?;
    let known = file.metadata().with_context(|| format!("'{named}'"))?;
    ensure!(!known.is_dir(), "'{named}' is a folder: give the path of {expected}");
    Ok(file)
}

/// Returns the error of a file that could not be opened to be read as `expected`.
pub fn cannot_open(path: &Path, expected: &str, error: io::Error) -> anyhow::Error {
    let named = path.display();
    match error.kind() {
        io::ErrorKind::NotFound => anyhow!("'{named}' does not exist: give the path of {expected}"),
        io::ErrorKind::PermissionDenied => {
            anyhow!("'{named}': permission denied: check that you may read it")
        }
        _ => anyhow!(error).context(format!("'{named}'")),
    }
}

/// Reads all bytes, or returns `None` if there are more than `limit`.
fn at_most(limit: u64, reader: &mut dyn Read) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    reader.take(limit + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_other_encodings_are_decoded_and_named() {
        for (bytes, text, encoding) in [
            (&b"caf\xc3\xa9"[..], "café", None),
            (b"\xef\xbb\xbfcaf\xc3\xa9", "café", None),
            (b"caf\xe9 \x80", "café €", Some("Windows-1252")),
            (b"caf\xc3\xa9 \xe9", "café \u{fffd}", Some("UTF-8 with damaged bytes")),
            (b"\xff\xfea\0\xe9\0", "aé", Some("UTF-16LE")),
            (b"\xfe\xff\0a", "a", Some("UTF-16BE")),
            (b"", "", None),
        ] {
            assert_eq!(decoded(bytes.to_vec()), (text.to_owned(), encoding), "{bytes:?}");
        }
    }
}
