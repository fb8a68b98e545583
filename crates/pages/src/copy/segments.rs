//! The segments of a file that hold data, between its holes.

use std::fs::File;
use std::io;
use std::ops::Range;

use super::report::Fallback;
use crate::sys;

/// The parts of a file of `len` bytes that are not holes, in order. If they cannot be determined, one
/// part and the reason.
pub(super) fn of(file: &File, len: u64) -> io::Result<(Vec<Range<u64>>, Option<Fallback>)> {
    let mut segments: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    while at < len {
        let start = match sys::next_data(file, at) {
            Ok(Some(start)) if start < len => start,
            // Only a hole up to the end (or the file has just become shorter, which the reading code
            // detects by itself).
            Ok(_) => break,
            Err(error) => match error.raw_os_error() {
                Some(errno @ (libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM)) => {
                    #[allow(clippy::single_range_in_vec_init)] // one part, not many numbers
                    return Ok((vec![0..len], Some(Fallback::HolesUnknown { errno })));
                }
                _ => return Err(error),
            },
        };
        let end = sys::next_hole(file, start)?.min(len);
        if end <= start {
            // The file changed between the two calls: treat the rest as data.
            segments.push(start..len);
            break;
        }
        segments.push(start..end);
        at = end;
    }
    Ok((segments, None))
}
