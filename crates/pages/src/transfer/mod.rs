//! Reading ranges of a file completely, fast, and around the page cache where that helps.
//!
//! [`TransferMethod::Direct`] reads with O_DIRECT through io_uring, one ring per thread. With a ring per
//! thread, instead of one thread that reads for all, a thread that consumes a piece has its next
//! pieces in flight meanwhile, nothing is handed from thread to thread, no core is spent on a thread
//! that only waits, and a slow consumer delays no other, since pieces are taken one by one.
//!
//! If one of these is not available, the next best is used and the [`TransferReport`] states why: io_uring
//! refused (a seccomp filter, an old kernel) → plain reads by more threads than there are cores;
//! locked memory refused → buffers that are not registered; O_DIRECT refused or pointless → reads
//! through the page cache. [`TransferMethod::Read`] is the last of these from the start.
//!
//! Blocks are aligned as `statx` (STATX_DIOALIGN) requires. A piece that begins or ends within a block
//! is read into a slot, in whole blocks, or, if it goes straight to its buffer, in three parts, of
//! which the outer ones go through a small buffer: nothing is ever written outside a piece's buffer.

pub(crate) mod blocks;
pub(crate) mod direct;
mod error;
#[cfg(target_os = "linux")]
pub(crate) mod flights;
mod piece;
mod report;
#[cfg(target_os = "linux")]
mod ring;
#[cfg(all(test, target_os = "linux"))]
mod tests;
pub(crate) mod threads;
mod work;

use std::fs::File;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

pub use error::TransferError;
pub use piece::{Piece, TransferMethod, TransferOptions};
use piece::{PieceBuffer, Target};
pub use report::{Engine, TransferFallback, TransferReport};

use crate::residency;
use threads::Reads;
use work::Work;

/// Reads every piece completely and calls `each` with its index and bytes as soon as it has arrived,
/// approximately in order, on at most `options.threads` threads at a time. Returns when the last call
/// has returned.
///
/// The memory of slots, see [`TransferReport::buffers`]: for each of `threads`, the largest piece times the
/// number of pieces that cover its share of `depth` blocks, plus one (with the defaults, two threads
/// and pieces of 4 MiB: 2 × 3 × 4 MiB); or, without a ring, one piece for each of `readers`. Cut large
/// tensors into pieces of a few MiB, smaller ones if there are many threads.
///
/// When `stop` becomes true, nothing more is read, and pieces in flight are awaited and dropped. A
/// panic in `each` likewise stops the transfer, and continues in the caller.
///
/// # Errors
/// The file ends before a piece does, a read fails, there is no memory for slots, or the transfer
/// was stopped. Some pieces may have been handed over before that.
pub fn transfer(
    file: &File,
    path: &Path,
    pieces: &[Piece],
    method: TransferMethod,
    options: &TransferOptions,
    stop: &AtomicBool,
    each: &(dyn Fn(usize, &[u8]) + Sync),
) -> Result<TransferReport, TransferError> {
    run(&Work::new(file, path, pieces, options, stop, each), method)
}

/// Minimum bytes in the page cache that are reported after direct reads.
const MIN_STAYED: u64 = 256 << 10;

/// Bytes of the pieces' range that are in the page cache, at least approximately; `None` if the system does not report it.
fn cached_bytes(work: &Work) -> Option<u64> {
    let start = work.pieces.iter().map(|piece| piece.range().start).min()?;
    let end = work.pieces.iter().map(|piece| piece.range().end).max()?;
    let found = residency::reported(work.file, start..end)?;
    Some((found.share() * (end - start) as f64) as u64)
}

fn run(work: &Work, method: TransferMethod) -> Result<TransferReport, TransferError> {
    let begun = Instant::now();
    let mut report = TransferReport::new(work.pieces.iter().map(Piece::len).sum());
    work.check_length()?;
    let opened = match method {
        TransferMethod::Read => None,
        TransferMethod::Direct => match direct::open(work.file, work.path) {
            Ok(direct) => Some(direct),
            Err(why) => {
                report.fallbacks.push(why);
                None
            }
        },
    };
    let cached_before = opened.is_some().then(|| cached_bytes(work)).flatten();
    if let Some(direct) = &opened {
        #[cfg(target_os = "linux")]
        if work.options.ring && direct.fuse {
            report.fallbacks.push(TransferFallback::NoRingOnFuse);
        } else if work.options.ring {
            ring::run(work, direct, &mut report)?;
        }
        if work.remains() && !work.direct_refused() {
            threads::run(work, Some(direct), &mut report)?;
        }
    }
    match work.refusal() {
        Some(why) => report.fallbacks.push(why),
        None => report.direct = opened.is_some(),
    }
    if work.remains() {
        threads::run(work, None, &mut report)?;
    }
    work.finish()?;
    if let (true, Some(before)) = (report.direct, cached_before) {
        let bytes = cached_bytes(work).map_or(0, |after| after.saturating_sub(before));
        // A few pages may be those of a header, or of read-ahead.
        if bytes >= (report.bytes / 8).max(MIN_STAYED) {
            report.fallbacks.push(TransferFallback::StayedCached { bytes });
        }
    }
    report.took = begun.elapsed();
    Ok(report)
}
