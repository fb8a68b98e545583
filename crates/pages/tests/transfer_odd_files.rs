//! Files whose reads are refused, come short, fail, or end early: a FUSE filesystem that this test
//! answers itself, so that the kernel's real answers reach the engines.
//!
//! Mounting takes root; elsewhere these tests are skipped, and say so.
#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use alight_pages::transfer::{Engine, TransferError, TransferFallback, TransferMethod};

use crate::common::fuse::{Asked, Behaviour, Fuse};
use crate::common::{compare, contents, options, uneven_pieces};

const LEN: usize = 400_000;

/// Mounts a file of `LEN` bytes, of which `read` is given each read and the bytes it would have.
fn mount(
    refuse_direct_open: i32,
    read: impl Fn(&Asked, Vec<u8>) -> Result<Vec<u8>, i32> + Send + 'static,
) -> Option<Fuse> {
    let bytes = contents(LEN);
    let read = Box::new(move |asked: Asked| {
        let from = asked.offset.min(bytes.len());
        let until = (asked.offset + asked.len).min(bytes.len());
        read(&asked, bytes[from..until].to_vec())
    });
    // Each second one does not even say what it is.
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let statfs = COUNT.fetch_add(1, SeqCst).is_multiple_of(2);
    match Fuse::mount(Behaviour { len: LEN, refuse_direct_open, statfs, read }) {
        Ok(fuse) => Some(fuse),
        Err(reason) => {
            eprintln!("skipped: {reason}");
            None
        }
    }
}

/// What the report says where io_uring was wanted: not on FUSE.
fn without_ring<const N: usize>(ring: bool, more: [TransferFallback; N]) -> Vec<TransferFallback> {
    let first = ring.then_some(TransferFallback::NoRingOnFuse);
    first.into_iter().chain(more).collect()
}

#[test]
fn reads_that_come_short_are_continued() {
    // Down to a byte at a time: less than a direct read can go on from.
    for most in [70_001, 5000, 4096, 777] {
        let shorter = Arc::new(AtomicUsize::new(0));
        let count = shorter.clone();
        let Some(fuse) = mount(0, move |_, mut bytes| {
            if bytes.len() > most {
                count.fetch_add(1, SeqCst);
            }
            bytes.truncate(most);
            Ok(bytes)
        }) else {
            return;
        };
        for (method, ring) in [
            (TransferMethod::Direct, true),
            (TransferMethod::Direct, false),
            (TransferMethod::Read, true),
        ] {
            let mut options = options(ring);
            (options.block, options.reader_block) = (131_072, 131_072);
            shorter.store(0, SeqCst);
            let report =
                compare(&fuse.path, &contents(LEN), &uneven_pieces(LEN), method, &options).unwrap();
            assert!(shorter.load(SeqCst) > 0, "no read came short");
            let by_ring = method == TransferMethod::Direct && ring;
            assert_eq!(report.fallbacks, without_ring(by_ring, []));
            assert_eq!(report.engine, Engine::Threads);
        }
    }
}

#[test]
fn interrupted_and_busy_reads_are_tried_again() {
    for errno in [libc::EINTR, libc::EAGAIN] {
        let failed = Arc::new(AtomicUsize::new(0));
        let count = failed.clone();
        // Three of four reads fail.
        let Some(fuse) =
            mount(
                0,
                move |_, bytes| {
                    if count.fetch_add(1, SeqCst) % 4 != 3 { Err(errno) } else { Ok(bytes) }
                },
            )
        else {
            return;
        };
        for (method, ring) in [
            (TransferMethod::Direct, true),
            (TransferMethod::Direct, false),
            (TransferMethod::Read, true),
        ] {
            failed.store(0, SeqCst);
            let report =
                compare(&fuse.path, &contents(LEN), &uneven_pieces(LEN), method, &options(ring));
            let by_ring = method == TransferMethod::Direct && ring;
            assert_eq!(report.unwrap().fallbacks, without_ring(by_ring, []));
            assert!(failed.load(SeqCst) > 50);
        }
    }
}

#[test]
fn a_failing_disk_is_an_error_that_names_the_file_and_the_place() {
    let Some(fuse) = mount(0, |asked, bytes| {
        let bad = asked.offset <= 200_000 && 200_000 < asked.offset + asked.len;
        if bad { Err(libc::EIO) } else { Ok(bytes) }
    }) else {
        return;
    };
    for (method, ring) in [
        (TransferMethod::Direct, true),
        (TransferMethod::Direct, false),
        (TransferMethod::Read, true),
    ] {
        let result =
            compare(&fuse.path, &contents(LEN), &uneven_pieces(LEN), method, &options(ring));
        let error = result.unwrap_err();
        let TransferError::Read { at, len, source, .. } = &error else { panic!("{error}") };
        assert!(*at <= 200_000 && 200_000 < at + len, "{error}");
        assert_eq!(source.raw_os_error(), Some(libc::EIO));
        assert!(error.to_string().starts_with(fuse.path.to_str().unwrap()), "{error}");
    }
}

#[test]
fn a_file_that_ends_before_its_length_is_an_error_that_says_where() {
    // `stat` says 400,000.
    let Some(fuse) = mount(0, |asked, mut bytes| {
        bytes.truncate(300_123_usize.saturating_sub(asked.offset));
        Ok(bytes)
    }) else {
        return;
    };
    for (method, ring) in [
        (TransferMethod::Direct, true),
        (TransferMethod::Direct, false),
        (TransferMethod::Read, true),
    ] {
        let mut options = options(ring);
        (options.threads, options.readers, options.depth) = (1, 1, 1);
        let result = compare(&fuse.path, &contents(LEN), &uneven_pieces(LEN), method, &options);
        let error = result.unwrap_err();
        let TransferError::EndOfFile { found, wanted, .. } = &error else { panic!("{error}") };
        assert_eq!(*found, 300_123, "{error}");
        assert!(*wanted > *found && *wanted <= LEN as u64);
    }
}

#[test]
fn refused_direct_reads_go_through_the_page_cache_and_the_report_says_so() {
    for errno in [libc::EINVAL, libc::EOPNOTSUPP] {
        let Some(fuse) = mount(errno, |_, bytes| Ok(bytes)) else { return };
        for ring in [true, false] {
            let pieces = uneven_pieces(LEN);
            let report = compare(
                &fuse.path,
                &contents(LEN),
                &pieces,
                TransferMethod::Direct,
                &options(ring),
            );
            let report = report.unwrap();
            assert_eq!(report.fallbacks, [TransferFallback::DirectNotOpened { errno }]);
            assert!(!report.direct && report.engine == Engine::Threads);
        }
    }
    // Opened, but then not read: from the start, and from the middle on.
    for errno in [libc::EINVAL, libc::EOPNOTSUPP] {
        for from in [0, 200_000] {
            let Some(fuse) =
                mount(
                    0,
                    move |asked, bytes| {
                        if asked.direct && asked.offset >= from { Err(errno) } else { Ok(bytes) }
                    },
                )
            else {
                return;
            };
            for ring in [true, false] {
                let pieces = uneven_pieces(LEN);
                let report = compare(
                    &fuse.path,
                    &contents(LEN),
                    &pieces,
                    TransferMethod::Direct,
                    &options(ring),
                );
                let report = report.unwrap();
                assert_eq!(
                    report.fallbacks,
                    without_ring(ring, [TransferFallback::DirectNotRead { errno }])
                );
                assert!(!report.direct);
                let text = report.fallbacks.last().unwrap().to_string();
                assert!(text.contains("direct") && text.contains("page cache"), "{text}");
            }
        }
    }
}
