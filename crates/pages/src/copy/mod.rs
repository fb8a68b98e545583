//! Copies the bytes of one open file into another and leaves the page cache as it was.
//!
//! The methods, in this order: sharing the bytes (reflink); around the page cache (large files on plain
//! disks); copy_file_range; reading and writing. A method is abandoned only if the system refuses it
//! before it has copied anything, and the [`Report`] gives the reason. All of them keep holes. Bytes that
//! cannot go around the page cache are copied in windows: this copy has at most a few windows in the page
//! cache at any moment, and none at the end. Cached pages of the source stay cached.
//!
//! Measured (`examples/copy_speed.rs`, 1.9 GB, ext4 on a virtio disk, 2 cores, fsync included, seconds;
//! 2026-11-22, with other work running on the machine, best of 4; CPU is the process's CPU time):
//!
//! | | cold | warm | CPU cold |
//! |---|---|---|---|
//! | direct | 1.43 | 0.63 | 0.05 |
//! | copy_file_range, windows of 16 MiB | 1.62 | 0.90 | 0.77 |
//! | copy_file_range, windows of 8 MiB | 1.80 | 0.67 | 0.71 |
//! | read/write, RWF_DONTCACHE, 256 KiB | 2.52 | 0.72 | 1.04 |
//!
//! When other programs compete for the cores, the last three take ten times as long; the first does not.
//!
//! Progress counts bytes that are on the disk, not bytes on their way to it.

mod cache_record;
mod direct;
mod error;
mod options;
mod report;
mod segments;
mod steps;
mod verify;
mod write_behind;

use std::fs::{File, Metadata};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

pub use error::CopyError;
pub use options::{OnProgress, Options, Progress, Reflink};
pub use report::{Fallback, Method, Report};
pub use verify::{Verified, verify};
pub use write_behind::WriteBehind;

use crate::Threads;
use cache_record::CacheRecord;
use steps::{Ended, Files, Step};

/// Minimum size of a file that is copied around the page cache: for less, the set-up is not worth it.
const DIRECT_FROM: u64 = 16 << 20;

/// Copies all bytes of `source` to `dest`, a new, empty file that is open for writing (each with its
/// path, for messages). `dest` then has the same length and holes, and its bytes are on the disk; syncing
/// the file is left to the caller.
///
/// See [`CopyError`]; `dest` is invalid then.
/// See [`CopyError`]; `dest` is of no use then.
pub fn copy(
    source: (&File, &Path),
    dest: (&File, &Path),
    options: &Options,
    on_progress: &mut OnProgress<'_>,
) -> Result<Report, CopyError> {
    let files = Files { source: source.0, from: source.1, dest: dest.0, to: dest.1 };
    let began = Instant::now();
    let metadata = source.0.metadata().map_err(|error| files.read(0, error))?;
    let len = metadata.len();
    let mut report = Report {
        method: Method::Reflink,
        fallbacks: Vec::new(),
        bytes: 0,
        holes: 0,
        source_dropped: 0,
        source_was_cached: 0,
        threads: Threads::ONE,
        took: began.elapsed(),
    };
    let (segments, holes_unknown) =
        segments::of(source.0, len).map_err(|error| files.read(0, error))?;
    report.fallbacks.extend(holes_unknown);
    report.bytes = segments.iter().map(|segment| segment.end - segment.start).sum();
    report.holes = len - report.bytes;
    if len > 0 && steps::reflink(&files, options.reflink, &mut report)? {
        report.took = began.elapsed();
        return Ok(report);
    }
    files.reserve(&segments, report.bytes)?;
    let pseudo = is_pseudo(&metadata, &segments);
    #[allow(clippy::single_range_in_vec_init)] // one part, not many numbers
    let segments = if len == 0 { vec![0..u64::MAX] } else { segments };
    let mut job =
        CopyJob { files: &files, len, window: options.window, segments: &segments, pseudo };
    job.run(options, &mut report, on_progress)?;
    report.took = began.elapsed();
    Ok(report)
}

/// True if a file's contents may not match its length. Files of length 0 can still have contents (/proc),
/// and files that use no disk space can have less than their length (/sys).
fn is_pseudo(metadata: &Metadata, segments: &[Range<u64>]) -> bool {
    metadata.len() == 0 || metadata.blocks() == 0 && !segments.is_empty()
}

/// The copy job.
struct CopyJob<'a> {
    files: &'a Files<'a>,
    len: u64,
    window: u64,
    segments: &'a [Range<u64>],
    pseudo: bool,
}

impl CopyJob<'_> {
    fn run(
        &mut self,
        options: &Options,
        report: &mut Report,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<(), CopyError> {
        let files = self.files;
        let mut source = CacheRecord::new(files.source, self.len, self.window);
        let mut dest = WriteBehind::new(files.dest);
        let total = report.bytes;
        if self.direct(&mut source, options, report, on_progress)? {
            return Ok(());
        }
        let mut step = Step::first(options, source.is_told(), report);
        let mut copied = 0;
        'segments: for segment in self.segments {
            let mut at = segment.start;
            while at < segment.end {
                if on_progress(Progress { durable: dest.durable, total }).is_break() {
                    return Err(CopyError::Stopped);
                }
                let end = (at / self.window + 1).saturating_mul(self.window).min(segment.end);
                source.before(&(at..end));
                let got = step.copy(files, at..end, copied > 0, report)?;
                let reached = match got {
                    Ended::Whole => end,
                    Ended::Early(at) => at,
                };
                copied += reached - at;
                if reached > at {
                    dest.wrote(at..reached).map_err(|error| files.write(at, error))?;
                }
                source.after(reached);
                if reached < end {
                    self.check_end(reached)?;
                    break 'segments;
                }
                at = end;
            }
        }
        dest.finish().map_err(|error| files.write(copied, error))?;
        if self.pseudo {
            (report.bytes, report.holes) = (copied, 0);
        }
        // This sets the length of a file that ends in a hole.
        let len = if self.pseudo { copied } else { self.len };
        files.dest.set_len(len).map_err(|error| files.write(len, error))?;
        let _ = on_progress(Progress { durable: dest.durable, total });
        report.fallbacks.extend(dest.whole.take());
        report.source_was_cached = source.was_cached;
        source.after(u64::MAX);
        report.source_dropped = source.dropped;
        Ok(())
    }

    /// Copies everything around the page cache, if that is the best method.
    fn direct(
        &self,
        source: &mut CacheRecord<'_>,
        options: &Options,
        report: &mut Report,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<bool, CopyError> {
        let wanted = match options.method {
            Some(method) => method == Method::Direct,
            None => report.bytes >= DIRECT_FROM && options.reflink != Reflink::Always,
        };
        if !wanted || self.pseudo {
            return Ok(false);
        }
        let direct = match direct::open(self.files, self.segments) {
            Ok(direct) => direct,
            Err(fallback) => {
                report.fallbacks.push(fallback);
                return Ok(false);
            }
        };
        // Record everything: if reads are refused half way through, the rest is read through the page
        // cache after all.
        for segment in self.segments {
            source.before(segment);
        }
        report.method = Method::Direct;
        let sizes = (self.len, report.bytes);
        let cached = |range: &Range<u64>| source.is_cached(range);
        match direct.copy(self.files, self.segments, cached, sizes, on_progress)? {
            Ok(threads) => report.threads = threads,
            Err(fallback) => {
                report.fallbacks.push(fallback);
                return Ok(false);
            }
        }
        report.source_was_cached = source.was_cached;
        source.after(u64::MAX);
        Ok(true)
    }

    /// The source ended at `at`, before its reported length.
    fn check_end(&self, at: u64) -> Result<(), CopyError> {
        if self.pseudo {
            return Ok(());
        }
        Err(CopyError::CutShort { path: self.files.from.into(), at, expected: self.len })
    }
}
