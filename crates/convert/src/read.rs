//! Reading from a place in a file, completely.

use std::fs::File;
use std::io;

use alight_pages::Map;

use crate::ConvertError;

/// Fills `out` from byte `at` of the mapped file, by reading: what is read once and from front to
/// back is cheaper to read than to fault in, and a failing disk is an error here and not a signal.
pub(crate) fn exact(map: &Map, at: u64, out: &mut [u8]) -> Result<(), ConvertError> {
    read_exact_at(map.file(), out, at).map_err(|source| {
        // A file that has become shorter has an error of its own.
        match map.check() {
            Err(error) => ConvertError::Map(error),
            Ok(()) => ConvertError::Read { path: map.path().into(), at, source },
        }
    })
}

#[cfg(unix)]
fn read_exact_at(file: &File, out: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, at)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut out: &mut [u8], mut at: u64) -> io::Result<()> {
    while !out.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, out, at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                out = &mut out[n..];
                at += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
