//! Disk behaviour that is rare in practice: short, interrupted and failing reads of a ring.

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::SeqCst};

use super::work::Work;
use super::{Engine, Piece, TransferMethod, TransferOptions, TransferReport, run};
use crate::region::Region;

const LEN: usize = 300_000;

/// Reads a file on a disk, half of it to slots and half to memory, with `interpose` between the
/// kernel and the engine, and compares it.
fn read(interpose: &super::flights::Interpose) -> TransferReport {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = folder.path().join("weights");
    let expected: Vec<u8> =
        (0..LEN as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut file = File::create(&path).unwrap();
    file.write_all(&expected).unwrap();
    file.sync_all().unwrap();
    let file = File::open(&path).unwrap();
    let image = Region::new(LEN).unwrap();
    let mut pieces = Vec::new();
    for start in (0..LEN).step_by(30_000) {
        let range = start as u64..start as u64 + 30_000;
        pieces.push(Piece::slot(range.clone()));
        // SAFETY: parts of a region that are not used otherwise.
        pieces.push(unsafe { Piece::at(range, image.as_mut_ptr().add(start)) });
    }
    let mut options = TransferOptions::default();
    (options.threads, options.block, options.depth) = (2, 8192, 6);
    let (stop, seen) = (AtomicBool::new(false), AtomicUsize::new(0));
    let each = |i: usize, bytes: &[u8]| {
        let start = i / 2 * 30_000;
        assert!(bytes == &expected[start..start + 30_000], "piece {i}");
        seen.fetch_add(1, SeqCst);
    };
    let mut work = Work::new(&file, &path, &pieces, &options, &stop, &each);
    work.interpose = Some(interpose);
    let report = run(&work, TransferMethod::Direct).unwrap();
    assert_eq!(seen.load(SeqCst), pieces.len());
    assert!(image.bytes() == expected);
    assert_eq!((report.engine, report.direct), (Engine::IoUring, true), "{report:?}");
    report
}

/// Shortens a read of `count` bytes to `to` to `kept` bytes.
fn shorten(count: i32, kept: i32, to: *mut u8) -> i32 {
    if count <= kept {
        return count;
    }
    // SAFETY: `count` bytes were read to this address for the engine, which does not look at
    // them yet.
    unsafe { std::ptr::write_bytes(to.add(kept as usize), 0xEE, (count - kept) as usize) };
    kept
}

#[test]
fn what_came_short_is_read_again_from_there() {
    for kept in [1, 511, 4096, 5000, 8191] {
        read(&|count, to| shorten(count, kept, to));
    }
}

#[test]
fn some_came_short() {
    let turn = AtomicI32::new(0);
    read(&|count, to| match turn.fetch_add(1, SeqCst) % 3 {
        0 => shorten(count, 4096, to),
        1 => shorten(count, 4095, to),
        _ => count,
    });
}

#[test]
fn what_was_interrupted_or_failed_is_tried_again() {
    for errno in [libc::EINTR, libc::EAGAIN, libc::EIO, libc::EINVAL] {
        let turn = AtomicI32::new(0);
        let failed = AtomicUsize::new(0);
        read(&|count, to| {
            if turn.fetch_add(1, SeqCst) % 7 == 6 {
                return count;
            }
            failed.fetch_add(1, SeqCst);
            shorten(count, 0, to);
            -errno
        });
        assert!(failed.load(SeqCst) > 10);
    }
}
