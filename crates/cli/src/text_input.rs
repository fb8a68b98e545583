//! Texts that are read as a whole: prompts, and texts that are measured. Each has a limit, because a pipe or a device may never
//! end, and a text that is too long is rejected before it fills the memory.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, anyhow, ensure};
use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};

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
    String::from_utf8(read_bytes(from, what, limit)?).map_err(|error| {
        anyhow!("{what} on {from} is not UTF-8 text: see byte {}", error.utf8_error().valid_up_to())
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
            "{what} on {from} is longer than {} MiB, the most that alight reads: give a shorter one, \
             such as a part of it",
            limit >> 20
        )
    };
    let bytes = match from {
        From::Stdin => at_most(limit, &mut io::stdin().lock()),
        From::File(path) => {
            let mut file = File::open(path).map_err(|error| cannot_open(from, error))?;
            let known = file.metadata().with_context(|| from.to_string())?;
            ensure!(!known.is_dir(), "{from} is a folder: give the path of a text file");
            ensure!(!known.is_file() || known.len() <= limit, too_long());
            at_most(limit, &mut file)
        }
    };
    bytes.with_context(|| from.to_string())?.ok_or_else(too_long)
}

fn cannot_open(from: From<'_>, error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::NotFound => anyhow!("{from} does not exist: give the path of a text file"),
        io::ErrorKind::PermissionDenied => {
            anyhow!("{from}: permission denied: check that you may read it")
        }
        _ => anyhow!(error).context(from.to_string()),
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
