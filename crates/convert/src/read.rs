//! Reading from a place in a file, completely.

use std::io;
use std::os::unix::fs::FileExt;

use alight_pages::Map;

use crate::ConvertError;

/// Fills `out` from byte `at` of the mapped file, by reading: what is read once and from front to
/// back is cheaper to read than to fault in, and a failing disk is an error here and not a signal.
pub(crate) fn exact(map: &Map, at: u64, out: &mut [u8]) -> Result<(), ConvertError> {
    map.file().read_exact_at(out, at).map_err(|source| failed(map, at, source))
}

/// Why the mapped file could not be read at byte `at`: one that has become shorter has an error of its
/// own.
pub(crate) fn failed(map: &Map, at: u64, source: io::Error) -> ConvertError {
    match map.check() {
        Err(error) => ConvertError::Map(error),
        Ok(()) => ConvertError::Read { path: map.path().into(), at, source },
    }
}
