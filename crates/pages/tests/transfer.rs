//! What a transfer brings: exactly the bytes of the file, whatever the ranges, places and engines.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use alight_pages::Region;
use alight_pages::transfer::{
    Engine, Piece, TransferError, TransferFallback, TransferMethod, TransferOptions, transfer,
};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::common::{self, compare, contents, on_disk, uneven_pieces};

const LEN: usize = 3 * 1024 * 1024 + 1234;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]
    #[test]
    fn random_ranges_arrive_as_they_are_in_the_file(
        ranges in prop::collection::vec((0..LEN, 0..300_000usize, 0..4u8), 0..12),
        threads in 1..4usize,
        block in prop::sample::select(vec![4096, 8192, 65536, 1 << 20]),
        depth in 1..12usize,
        engine in 0..3u8,
        register in any::<bool>(),
    ) {
        static FILE: std::sync::OnceLock<(TempDir, PathBuf, Vec<u8>)> = std::sync::OnceLock::new();
        let (_, path, expected) = FILE.get_or_init(|| {
            let expected = contents(LEN);
            let (folder, path) = on_disk(&expected);
            (folder, path, expected)
        });
        // Targets: each in a range of its own, congruent to the file or a byte off, with guards.
        const ROOM: usize = 320 * 4096;
        let region = Region::new(ranges.len() * ROOM).unwrap();
        // SAFETY: nothing else uses the region yet.
        unsafe { std::ptr::write_bytes(region.as_mut_ptr(), 0xA5, region.len()) };
        let mut places = Vec::new();
        let pieces: Vec<Piece> = ranges.iter().enumerate().map(|(i, (start, len, place))| {
            let end = (start + len).min(LEN);
            let range = *start as u64..end as u64;
            let at = i * ROOM + 4096 + start % 4096 + usize::from(*place == 2);
            if *place < 2 {
                places.push(None);
                return Piece::slot(range);
            }
            places.push(Some(at..at + end - start));
            // SAFETY: a part of the region that no other piece uses, of 300,000 bytes.
            unsafe { Piece::at(range, region.as_mut_ptr().add(at)) }
        }).collect();
        let (method, ring) = match engine {
            0 => (TransferMethod::Direct, true),
            1 => (TransferMethod::Direct, false),
            _ => (TransferMethod::Read, true),
        };
        let mut options = TransferOptions::default();
        (options.threads, options.block, options.depth, options.readers) =
            (threads, block, depth, 3);
        (options.ring, options.register, options.reader_block) = (ring, register, block);
        let report = compare(path, expected, &pieces, method, &options).unwrap();
        if cfg!(target_os = "linux") {
            prop_assert_eq!(report.direct, method == TransferMethod::Direct, "{:?}", report.fallbacks);
            let by_ring = method == TransferMethod::Direct && ring && !pieces.is_empty();
            prop_assert!(!by_ring || report.engine == Engine::IoUring, "{:?}", report.fallbacks);
        }
        let mut image = vec![0xA5; region.len()];
        for (piece, place) in pieces.iter().zip(places) {
            if let Some(place) = place {
                let range = piece.range().start as usize..piece.range().end as usize;
                image[place].copy_from_slice(&expected[range]);
            }
        }
        prop_assert!(region.bytes() == image, "something was written outside of a piece's place");
    }
}

/// Each way of reading.
fn ways() -> Vec<(TransferMethod, TransferOptions)> {
    vec![
        (TransferMethod::Direct, common::options(true)),
        (TransferMethod::Direct, common::options(false)),
        (TransferMethod::Read, common::options(true)),
    ]
}

#[test]
fn a_file_that_is_too_short_is_refused_before_anything_is_handed_over() {
    let (_folder, path) = on_disk(&contents(100_000));
    let file = File::open(&path).unwrap();
    for (method, options) in ways() {
        let pieces = [Piece::slot(0..5000), Piece::slot(5000..100_001)];
        let error =
            transfer(&file, &path, &pieces, method, &options, &AtomicBool::new(false), &|_, _| {
                panic!("nothing may be handed over")
            });
        let error = error.unwrap_err();
        let TransferError::EndOfFile { wanted: 100_001, found: 100_000, .. } = &error else {
            panic!("{error}")
        };
        let text = error.to_string();
        assert!(text.starts_with(path.to_str().unwrap()) && text.contains("100001"), "{text}");
        // No bytes are wanted after the end.
        let nothing = [Piece::slot(200_000..200_000)];
        let report = transfer(
            &file,
            &path,
            &nothing,
            method,
            &options,
            &AtomicBool::new(false),
            &|_, bytes| {
                assert!(bytes.is_empty());
            },
        );
        assert_eq!(report.unwrap().bytes, 0);
    }
}

#[test]
fn a_file_cut_short_while_it_is_read_is_an_error_that_says_where_it_ends() {
    for (method, mut options) in ways() {
        let expected = contents(4 << 20);
        let (_folder, path) = on_disk(&expected);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        (options.threads, options.readers) = (1, 1);
        let pieces: Vec<_> = (0..64).map(|i| Piece::slot(i << 16..(i + 1) << 16)).collect();
        let seen = AtomicUsize::new(0);
        let error = transfer(
            &file,
            &path,
            &pieces,
            method,
            &options,
            &AtomicBool::new(false),
            &|i, bytes| {
                assert!(bytes == &expected[i << 16..(i + 1) << 16], "piece {i}");
                seen.fetch_add(1, SeqCst);
                if i == 3 {
                    file.set_len((1 << 20) + 777).unwrap();
                }
            },
        );
        let error = error.unwrap_err();
        let TransferError::EndOfFile { found, wanted, .. } = error else { panic!("{error}") };
        assert_eq!(found, (1 << 20) + 777);
        assert!(wanted > found && wanted <= 4 << 20);
        assert!((4..=17).contains(&seen.load(SeqCst)), "{} pieces", seen.load(SeqCst));
    }
}

#[test]
fn when_told_to_stop_it_stops_soon_and_says_so() {
    let len = 8 << 20;
    let (_folder, path) = on_disk(&contents(len));
    let file = File::open(&path).unwrap();
    for (method, options) in ways() {
        let pieces: Vec<_> =
            (0..len as u64 >> 12).map(|i| Piece::slot(i << 12..(i + 1) << 12)).collect();
        let (stop, seen) = (AtomicBool::new(false), AtomicUsize::new(0));
        let result = transfer(&file, &path, &pieces, method, &options, &stop, &|_, _| {
            if seen.fetch_add(1, SeqCst) == 9 {
                stop.store(true, SeqCst);
            }
        });
        assert!(matches!(result, Err(TransferError::Stopped { .. })), "{result:?}");
        let seen = seen.load(SeqCst);
        assert!((10..20).contains(&seen), "{seen} of {} pieces", pieces.len());
    }
}

#[test]
fn a_panic_of_the_consumer_ends_the_transfer_and_reaches_the_caller() {
    let len = 8 << 20;
    let (_folder, path) = on_disk(&contents(len));
    let file = File::open(&path).unwrap();
    for (method, options) in ways() {
        let pieces: Vec<_> =
            (0..len as u64 >> 12).map(|i| Piece::slot(i << 12..(i + 1) << 12)).collect();
        let seen = AtomicUsize::new(0);
        let panic = std::panic::catch_unwind(|| {
            transfer(&file, &path, &pieces, method, &options, &AtomicBool::new(false), &|_, _| {
                if seen.fetch_add(1, SeqCst) == 9 {
                    // Without the message that a panic prints.
                    std::panic::resume_unwind(Box::new("as planned"));
                }
            })
        });
        assert_eq!(*panic.unwrap_err().downcast::<&str>().unwrap(), "as planned");
        // Others go on until the panic is on its way out of the consumer, which on a busy machine may
        // not get a processor for a while.
        let seen = seen.load(SeqCst);
        assert!(seen < pieces.len() / 2, "{seen} of {} pieces", pieces.len());
    }
}

#[test]
fn memory_and_consumers_are_as_few_as_promised() {
    let len = 16 << 20;
    let expected = contents(len);
    let (_folder, path) = on_disk(&expected);
    let file = File::open(&path).unwrap();
    for (method, options) in ways() {
        let pieces: Vec<_> = (0..64).map(|i| Piece::slot(i << 18..(i + 1) << 18)).collect();
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let report =
            transfer(&file, &path, &pieces, method, &options, &AtomicBool::new(false), &|_, _| {
                most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                std::thread::sleep(std::time::Duration::from_millis(1));
                inside.fetch_sub(1, SeqCst);
            });
        // 4 readers or 2 threads with 2 slots each (8 blocks of 16 KiB are less than a piece).
        assert_eq!(report.unwrap().buffers, 4 << 18);
        assert_eq!(most.load(SeqCst), 2);
    }
}

/// The page cache is not touched by direct reads, neither where it is empty nor where it is not.
#[cfg(target_os = "linux")]
#[test]
fn direct_reads_leave_the_page_cache_as_it_was() {
    use alight_pages::{CacheProbe, evict, residency};
    use std::os::unix::fs::FileExt;
    let len = (4 << 20) + 1234;
    let expected = contents(len);
    let (_folder, path) = on_disk(&expected);
    let file = File::open(&path).unwrap();
    let cached = || residency(&file, 0..len as u64).unwrap();
    let pieces = uneven_pieces(len);
    for ring in [true, false] {
        let cold = evict(&file).unwrap();
        if cold.probe != CacheProbe::Cachestat || cold.cached != 0 {
            eprintln!("skipped: no way to tell what is cached ({cold:?})");
            return;
        }
        compare(&path, &expected, &pieces, TransferMethod::Direct, &common::options(ring)).unwrap();
        assert_eq!(cached().cached, 0);
        // A part of it.
        // SAFETY: an open file.
        unsafe {
            libc::posix_fadvise(
                std::os::fd::AsRawFd::as_raw_fd(&file),
                0,
                0,
                libc::POSIX_FADV_RANDOM,
            )
        };
        file.read_exact_at(&mut [0; 8192], 1 << 20).unwrap();
        let some = cached().cached;
        assert!(some > 0 && some < cached().pages, "{:?}", cached());
        compare(&path, &expected, &pieces, TransferMethod::Direct, &common::options(ring)).unwrap();
        assert_eq!(cached().cached, some);
        // All of it, which is what the other way leaves.
        compare(&path, &expected, &pieces, TransferMethod::Read, &common::options(ring)).unwrap();
        assert_eq!(cached().cached, cached().pages);
        compare(&path, &expected, &pieces, TransferMethod::Direct, &common::options(ring)).unwrap();
        assert_eq!(cached().cached, cached().pages);
    }
}

/// Bytes that are in the page cache after direct reads are reported, whoever put them there.
#[test]
fn what_is_cached_after_direct_reads_is_reported() {
    let expected = contents(LEN);
    let (_folder, path) = on_disk(&expected);
    let file = File::open(&path).unwrap();
    for reads_it_too in [false, true] {
        if !alight_pages::evict(&file).is_ok_and(|left| left.is_proven_cold()) {
            return;
        }
        let each = |_: usize, _: &[u8]| {
            if reads_it_too {
                assert!(std::fs::read(&path).unwrap() == expected);
            }
        };
        let (options, stop) = (TransferOptions::default(), AtomicBool::new(false));
        let pieces = [Piece::slot(0..LEN as u64)];
        let method = TransferMethod::Direct;
        let report = transfer(&file, &path, &pieces, method, &options, &stop, &each).unwrap();
        if !report.direct {
            return;
        }
        let stayed = report.fallbacks.iter().find_map(|fallback| match fallback {
            TransferFallback::StayedCached { bytes } => Some(*bytes),
            _ => None,
        });
        let all = stayed.is_some_and(|bytes| bytes > LEN as u64 / 2);
        assert_eq!(all, reads_it_too, "{:?}", report.fallbacks);
    }
}
