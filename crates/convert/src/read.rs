//! Reads a range of a file completely.

use std::io;
use std::os::unix::fs::FileExt;

use alight_pages::Map;

use crate::ConvertError;

/// Fills `out` from byte `at` of the mapped file, by reading: for bytes used once, from front to
/// back, reading is cheaper than page faults, and a failing disk is an error and not a signal.
pub(crate) fn exact(map: &Map, at: u64, out: &mut [u8]) -> Result<(), ConvertError> {
    map.file().read_exact_at(out, at).map_err(|source| failed(map, at, source))
}

/// The reason why the mapped file could not be read at byte `at`: a file that has become shorter has
/// its own error.
pub(crate) fn failed(map: &Map, at: u64, source: io::Error) -> ConvertError {
    match map.check() {
        Err(error) => ConvertError::Map(error),
        Ok(()) => ConvertError::Read { path: map.path().into(), at, source },
    }
}
