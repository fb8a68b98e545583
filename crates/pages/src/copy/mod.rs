//! The bytes of one open file into another, leaving the page cache as it was.
//!
//! The methods, in this order: sharing them (reflink); around the page cache (large files on plain disks);
//! copy_file_range; reading and writing. A method is given up only if the system refuses it and it has
//! copied nothing yet, and the [`Report`] says why. All of them keep holes, and what cannot go around
//! the page cache is copied in windows: what this copy loads into it is at most a few of them at any
//! moment, and nothing at the end. Cached pages of the source stay cached.
//!
//! Measured (`examples/copy_speed.rs`, 1.9 GB, ext4 on a virtio disk, 2 cores, fsync included, seconds;
//! 2026-11-22 beside other work on the machine, the best of 4; CPU is what the process computed):
//!
//! | | cold | warm | CPU cold |
//! |---|---|---|---|
//! | direct | 1.43 | 0.63 | 0.05 |
//! | copy_file_range, windows of 16 MiB | 1.62 | 0.90 | 0.77 |
//! | copy_file_range, windows of 8 MiB | 1.80 | 0.67 | 0.71 |
//! | read/write, RWF_DONTCACHE, 256 KiB | 2.52 | 0.72 | 1.04 |
//!
//! Beside programs that want the cores, the last three take ten times as long, the first does not.
//!
//! Progress counts bytes that are on the disk, not bytes on their way there.

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

/// Bytes from which on a file is copied around the page cache: for less it is not worth the set-up.
const DIRECT_FROM: u64 = 16 << 20;

/// Copies all bytes of `source` to `dest`, a new file that is empty and open for writing (each with its
/// path, for messages). `dest` then has the same length and holes; its bytes are on the disk, but to
/// sync the file is left to the caller.
///
/// # Errors
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
    let mut job = Job { files: &files, len, window: options.window, segments: &segments, pseudo };
    job.run(options, &mut report, on_progress)?;
    report.took = began.elapsed();
    Ok(report)
}

/// True if the contents of a file may be others than its length says. Files of no length can have contents all the same
/// (/proc), and files that take no space on the disk can have less than they say (/sys).
fn is_pseudo(metadata: &Metadata, segments: &[Range<u64>]) -> bool {
    metadata.len() == 0 || metadata.blocks() == 0 && !segments.is_empty()
}

/// What is copied.
struct Job<'a> {
    files: &'a Files<'a>,
    len: u64,
    window: u64,
    segments: &'a [Range<u64>],
    pseudo: bool,
}

impl Job<'_> {
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
        // A file that ends in a hole gets its length from this.
        let len = if self.pseudo { copied } else { self.len };
        files.dest.set_len(len).map_err(|error| files.write(len, error))?;
        let _ = on_progress(Progress { durable: dest.durable, total });
        report.fallbacks.extend(dest.whole.take());
        report.source_was_cached = source.was_cached;
        source.after(u64::MAX);
        report.source_dropped = source.dropped;
        Ok(())
    }

    /// Copies everything around the page cache, if that is best.
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
        // Everything is recorded: if reads are refused half way through, the rest is read through the
        // page cache after all.
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

    /// The source ended at `at`, earlier than it said.
    fn check_end(&self, at: u64) -> Result<(), CopyError> {
        if self.pseudo {
            return Ok(());
        }
        Err(CopyError::CutShort { path: self.files.from.into(), at, expected: self.len })
    }
}
