//! The methods of copying a part of a file, and the fallback from one to the next.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use super::report::{Fallback, Method, Report};
use super::{CopyError, Options, Reflink};
use crate::sys;

/// Bytes of one read and write in user space: they stay in a core's cache between the two.
const BUFFER: usize = 256 << 10;

/// The two files and their names.
pub(super) struct Files<'a> {
    pub source: &'a File,
    pub from: &'a Path,
    pub dest: &'a File,
    pub to: &'a Path,
}

impl Files<'_> {
    pub fn read(&self, at: u64, source: io::Error) -> CopyError {
        CopyError::Read { path: self.from.into(), at, source }
    }

    pub fn write(&self, at: u64, source: io::Error) -> CopyError {
        CopyError::Write { path: self.to.into(), at, source }
    }

    pub fn differs(&self, at: u64) -> CopyError {
        let times_tell = crate::times_tell(self.source);
        CopyError::Differs { path: self.to.into(), from: self.from.into(), at, times_tell }
    }

    /// Reserves space for the copy, or at least checks that there is enough now.
    pub fn reserve(&self, segments: &[Range<u64>], needed: u64) -> Result<(), CopyError> {
        let free = sys::free_bytes(self.dest);
        let no_space = |free| CopyError::NoSpace { path: self.to.into(), needed, free };
        if free.is_some_and(|free| free < needed) {
            return Err(no_space(free));
        }
        for segment in segments {
            match sys::reserve(self.dest, segment) {
                Ok(()) => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENOSPC | libc::EDQUOT) => return Err(no_space(free)),
                    // Not supported here. If there is not enough space, writing will fail.
                    _ => return Ok(()),
                },
            }
        }
        Ok(())
    }
}

/// The result of a step.
pub(super) enum Ended {
    Whole,
    /// The source ends at this offset.
    Early(u64),
}

/// Shares the bytes, if requested and possible.
pub(super) fn reflink(
    files: &Files<'_>,
    wish: Reflink,
    report: &mut Report,
) -> Result<bool, CopyError> {
    if wish == Reflink::Never {
        return Ok(false);
    }
    match sys::clone(files.source, files.dest) {
        Ok(()) => Ok(true),
        Err(source) if wish == Reflink::Always => {
            Err(CopyError::NotShared { path: files.from.into(), dest: files.to.into(), source })
        }
        Err(error) => match refusal(&error).or(not_an_ioctl(&error)) {
            Some(errno) => {
                report.fallbacks.push(Fallback::Refused { method: Method::Reflink, errno });
                Ok(false)
            }
            None => Err(CopyError::Copy {
                path: files.from.into(),
                dest: files.to.into(),
                at: 0,
                source: error,
            }),
        },
    }
}

/// Returns the error number if it means that this method is refused (not that something is broken or
/// full).
pub(super) fn refusal(error: &io::Error) -> Option<i32> {
    error.raw_os_error().filter(|errno| {
        matches!(*errno, libc::EXDEV | libc::EOPNOTSUPP | libc::EINVAL | libc::EPERM | libc::ENOSYS)
    })
}

/// Errors of filesystems without ioctls of their own, and of swap files.
fn not_an_ioctl(error: &io::Error) -> Option<i32> {
    error.raw_os_error().filter(|errno| matches!(*errno, libc::ENOTTY | libc::ETXTBSY))
}

/// The method that copies the next part.
pub(super) enum Step {
    CopyFileRange,
    ReadWrite(Buffered),
}

/// Copying with read and write.
pub(super) struct Buffered {
    buffer: Vec<u8>,
    /// State of the flag that makes reads and writes leave nothing cached.
    reads: Dontcache,
    writes: Dontcache,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Dontcache {
    Untried,
    Works,
    Off,
}

impl Step {
    pub fn first(options: &Options, known: bool, report: &mut Report) -> Step {
        if options.method == Some(Method::ReadWrite) || options.reflink == Reflink::Never {
            return Step::read_write(report);
        }
        if !known {
            report.fallbacks.push(Fallback::CacheUnknown);
            return Step::read_write(report);
        }
        report.method = Method::CopyFileRange;
        Step::CopyFileRange
    }

    fn read_write(report: &mut Report) -> Step {
        report.method = Method::ReadWrite;
        let (reads, writes) = (Dontcache::Untried, Dontcache::Untried);
        Step::ReadWrite(Buffered { buffer: vec![0; BUFFER], reads, writes })
    }

    /// Copies `range`. If `begun`, bytes have been copied before, so no other method can be tried.
    pub fn copy(
        &mut self,
        files: &Files<'_>,
        range: Range<u64>,
        begun: bool,
        report: &mut Report,
    ) -> Result<Ended, CopyError> {
        if let Step::CopyFileRange = self {
            match copy_file_range(files, range.clone(), begun)? {
                Ok(ended) => return Ok(ended),
                Err(fallback) => {
                    report.fallbacks.push(fallback);
                    *self = Step::read_write(report);
                }
            }
        }
        match self {
            Step::ReadWrite(buffered) => buffered.copy(files, range, report),
            Step::CopyFileRange => Ok(Ended::Early(range.start)),
        }
    }
}

/// Copies within the kernel; returns the reason why it cannot, if nothing was copied.
fn copy_file_range(
    files: &Files<'_>,
    range: Range<u64>,
    mut begun: bool,
) -> Result<Result<Ended, Fallback>, CopyError> {
    let mut at = range.start;
    while at < range.end {
        let want = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(1 << 30);
        match sys::copy_range(files.source, files.dest, at, want) {
            Ok(0) if begun => return Ok(Ok(Ended::Early(at))),
            Ok(0) => return Ok(Err(Fallback::NothingCopied)),
            Ok(n) => {
                at += n as u64;
                begun = true;
            }
            Err(error) => {
                // CIFS returns ENOENT if the server does not support it.
                let unknown = error.raw_os_error().filter(|errno| *errno == libc::ENOENT);
                match refusal(&error).or(unknown) {
                    Some(errno) if !begun => {
                        let method = Method::CopyFileRange;
                        return Ok(Err(Fallback::Refused { method, errno }));
                    }
                    _ => return Err(one_side(files, at, error)),
                }
            }
        }
    }
    Ok(Ok(Ended::Whole))
}

/// Attributes a failure to the source or the destination, where the error reveals it.
fn one_side(files: &Files<'_>, at: u64, source: io::Error) -> CopyError {
    match source.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG | libc::EROFS) => files.write(at, source),
        _ => CopyError::Copy { path: files.from.into(), dest: files.to.into(), at, source },
    }
}

impl Buffered {
    fn copy(
        &mut self,
        files: &Files<'_>,
        range: Range<u64>,
        report: &mut Report,
    ) -> Result<Ended, CopyError> {
        let mut at = range.start;
        while at < range.end {
            let want = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(BUFFER);
            let buffer = &mut self.buffer[..want];
            let got = self
                .reads
                .attempt(|dontcache| sys::read(files.source, buffer, at, dontcache))
                .map_err(|error| files.read(at, error))?;
            let (got, errno) = got;
            report.fallbacks.extend(errno.map(|errno| Fallback::ReadsAreCached { errno }));
            if got == 0 {
                return Ok(Ended::Early(at));
            }
            let mut bytes = &self.buffer[..got];
            while !bytes.is_empty() {
                let (put, errno) = self
                    .writes
                    .attempt(|dontcache| sys::write(files.dest, bytes, at, dontcache))
                    .map_err(|error| files.write(at, error))?;
                report.fallbacks.extend(errno.map(|errno| Fallback::WritesAreCached { errno }));
                if put == 0 {
                    return Err(files.write(at, io::ErrorKind::WriteZero.into()));
                }
                bytes = &bytes[put..];
                at += put as u64;
            }
        }
        Ok(Ended::Whole)
    }
}

impl Dontcache {
    /// Calls with the flag, and once more without it if the system does not know it; then also returns
    /// the error number of the first call.
    fn attempt(
        &mut self,
        mut call: impl FnMut(bool) -> io::Result<usize>,
    ) -> io::Result<(usize, Option<i32>)> {
        if *self == Dontcache::Off {
            return Ok((call(false)?, None));
        }
        match call(true) {
            Ok(n) => {
                *self = Dontcache::Works;
                Ok((n, None))
            }
            Err(error) => match refusal(&error) {
                Some(errno) if *self == Dontcache::Untried => {
                    *self = Dontcache::Off;
                    Ok((call(false)?, Some(errno)))
                }
                _ => Err(error),
            },
        }
    }
}
