//! Copies on a plain disk: the same bytes and holes by every way, and the page cache as it was.
#![cfg(target_os = "linux")]

use std::fs::{self, File, OpenOptions};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use alight_pages::copy::{CopyError, Fallback, Method, Options, Verified, verify};
use alight_pages::{CacheProbe, evict, residency};
use proptest::prelude::*;

use crate::common::copying::{
    METHODS, allocated, assert_same, by, cached_pages, copy, copy_and, half_warm, segments,
    stays_half_warm,
};
use crate::common::{contents, disk_folder, on_disk, write};

/// True if pages of files in this folder can be counted and given up: on an overlay, or on a kernel
/// without such calls, a test of what is cached says nothing.
fn cache_can_be_told(path: &Path) -> bool {
    let file = File::open(path).unwrap();
    let told = evict(&file).is_ok_and(|left| left.cached == 0 && left.probe != CacheProbe::Sampled);
    if !told {
        eprintln!("skipped: what is cached of files here cannot be told");
    }
    told
}

#[test]
fn every_length_by_every_way() {
    let folder = disk_folder();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    for len in [0, 1, 4095, 4096, 4097, 1 << 20, (5 << 20) + 4096, (9 << 20) + 1234] {
        write(&from, &contents(len));
        for method in METHODS {
            let report = copy(&from, &to, &by(method)).unwrap();
            assert!(fs::read(&to).unwrap() == fs::read(&from).unwrap(), "{len}, {report:?}");
            assert_eq!((report.bytes, report.holes), (len as u64, 0));
            if len > 0 && !matches!(report.method, Method::Reflink) {
                assert_eq!(report.method, method, "{report:?}");
            }
        }
    }
}

#[test]
fn by_itself_it_goes_around_the_page_cache_only_for_large_files() {
    let (folder, from) = on_disk(&contents(17 << 20));
    let to = folder.path().join("to");
    let report = copy(&from, &to, &Options::default()).unwrap();
    assert_same(&from, &to);
    match report.method {
        Method::Reflink | Method::Direct => {}
        // Not on ext4 or xfs, or not on a disk.
        _ => assert!(
            report.fallbacks.iter().any(|why| matches!(why, Fallback::NotDirect { .. })),
            "{report:?}"
        ),
    }
    write(&from, &contents(1 << 20));
    let report = copy(&from, &to, &Options::default()).unwrap();
    assert_ne!(report.method, Method::Direct, "{report:?}");
}

#[derive(Clone, Debug)]
struct Layout {
    /// Holes and data in turn, in bytes; with odd ends if `odd`.
    parts: Vec<u64>,
    begins_with_data: bool,
    odd: bool,
}

fn layouts() -> impl Strategy<Value = Layout> {
    let part = prop_oneof![1..4_u64, 1..80_u64, 200..3000_u64];
    (prop::collection::vec(part, 0..12), any::<bool>(), any::<bool>())
        .prop_map(|(parts, begins_with_data, odd)| Layout { parts, begins_with_data, odd })
}

fn make(path: &Path, layout: &Layout) {
    let file = File::create(path).unwrap();
    let (mut at, mut data) = (0, layout.begins_with_data);
    for (i, pages) in layout.parts.iter().enumerate() {
        let len = pages * 4096 + if layout.odd { i as u64 * 77 } else { 0 };
        if data {
            file.write_all_at(&contents(len as usize), at).unwrap();
        }
        (at, data) = (at + len, !data);
    }
    file.set_len(at).unwrap();
    // Blocks are allocated when they are written: before that, holes next to them may not be told.
    file.sync_all().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) })]

    #[test]
    fn sparse_files_keep_their_bytes_and_holes(layout in layouts(), window in 1..4_u64) {
        let folder = disk_folder();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        make(&from, &layout);
        for method in METHODS {
            let mut options = by(method);
            options.window = window << 21;
            let report = copy(&from, &to, &options).unwrap();
            assert_same(&from, &to);
            prop_assert_eq!(segments(&from), segments(&to), "{:?}", report);
            prop_assert!(allocated(&to) <= allocated(&from) + 4096, "{:?}", report);
            let told: i64 = segments(&from).iter().map(|(start, end)| end - start).sum();
            prop_assert_eq!(report.bytes, told as u64);
            prop_assert_eq!(report.bytes + report.holes, fs::metadata(&from).unwrap().len());
        }
    }
}

#[test]
fn what_was_cached_stays_and_nothing_else_does() {
    let (folder, from) = on_disk(&contents((40 << 20) + 1000));
    let to = folder.path().join("to");
    if !cache_can_be_told(&from) {
        return;
    }
    for method in METHODS {
        let file = File::open(&from).unwrap();
        // Cold, to the page; half warm, to the page; warm, to the page.
        assert_eq!(evict(&file).unwrap().cached, 0);
        let report = copy(&from, &to, &by(method)).unwrap();
        let reflinked = report.method == Method::Reflink;
        assert_eq!(cached_pages(&from).iter().filter(|there| **there).count(), 0, "{report:?}");
        assert_eq!(cached_pages(&to).iter().filter(|there| **there).count(), 0, "{report:?}");
        assert_eq!(report.source_was_cached, 0);

        let before = half_warm(&from);
        let share = before.iter().filter(|there| **there).count();
        assert!((1000..9000).contains(&share), "{share} of {}", before.len());
        let report = stays_half_warm(&from, || copy(&from, &to, &by(method)).unwrap());
        assert!(reflinked || report.source_was_cached >= share as u64 * 4096 - 4096, "{report:?}");
        assert_eq!(cached_pages(&to).iter().filter(|there| **there).count(), 0, "{report:?}");

        // (The system may take pages at any time; not three times in a row.)
        let report = (0..3).find_map(|_| {
            alight_pages::warm(&file, 0..u64::MAX).unwrap();
            let report = copy(&from, &to, &by(method)).unwrap();
            cached_pages(&from).iter().all(|there| *there).then_some(report)
        });
        let report = report.expect("a warm source stays warm");
        assert_eq!(cached_pages(&to).iter().filter(|there| **there).count(), 0, "{report:?}");
        assert_eq!(report.source_dropped, 0, "{report:?}");
        assert_same(&from, &to);
    }
}

/// Readahead continues where a hole begins, too.
#[test]
fn what_was_read_ahead_into_a_hole_goes_too() {
    let folder = disk_folder();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    make(&from, &Layout { parts: vec![3000, 3000, 300], begins_with_data: true, odd: false });
    if !cache_can_be_told(&from) {
        return;
    }
    for method in METHODS {
        evict(&File::open(&from).unwrap()).unwrap();
        let report = copy(&from, &to, &by(method)).unwrap();
        assert_eq!(cached_pages(&from).iter().filter(|there| **there).count(), 0, "{report:?}");
    }
}

#[test]
fn at_no_moment_more_than_64_mib_are_cached() {
    let (folder, from) = on_disk(&contents(200 << 20));
    let to = folder.path().join("to");
    if !cache_can_be_told(&from) {
        return;
    }
    let len = 200 << 20;
    for method in METHODS {
        let source = File::open(&from).unwrap();
        evict(&source).unwrap();
        let _ = fs::remove_file(&to);
        let (done, peak) = (AtomicBool::new(false), AtomicU64::new(0));
        let samples = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    let cached = |file: &File| residency(file, 0..len).unwrap().cached * 4096;
                    let dest = File::open(&to).map_or(0, |file| cached(&file));
                    peak.fetch_max(cached(&source) + dest, Relaxed);
                    samples.fetch_add(1, Relaxed);
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
            });
            let copied = copy(&from, &to, &by(method));
            done.store(true, Relaxed);
            let report = copied.unwrap();
            assert!(matches!(report.method, Method::Reflink) || report.method == method);
        });
        let (peak, samples) = (peak.load(Relaxed), samples.load(Relaxed));
        eprintln!("{}: {} MiB at most, {samples} samples", method.name(), peak >> 20);
        assert!(peak <= 64 << 20, "{}: {} MiB", method.name(), peak >> 20);
    }
}

#[test]
fn progress_is_what_is_on_the_disk_and_can_stop_it() {
    let (folder, from) = on_disk(&contents(48 << 20));
    let to = folder.path().join("to");
    for method in METHODS {
        let mut last = 0;
        let report = copy_and(&from, &to, &by(method), &mut |progress| {
            assert!(progress.durable >= last && progress.durable <= progress.total);
            assert_eq!(progress.total, 48 << 20);
            last = progress.durable;
            ControlFlow::Continue(())
        });
        let reflinked = report.unwrap().method == Method::Reflink;
        if method != Method::Direct && !reflinked {
            assert_eq!(last, 48 << 20);
        }
        let mut calls = 0;
        let stopped = copy_and(&from, &to, &by(method), &mut |_| {
            calls += 1;
            ControlFlow::Break(())
        });
        assert!(reflinked || matches!(stopped, Err(CopyError::Stopped)), "{stopped:?}");
        assert!(calls <= 1, "asked again after it said no");
    }
}

#[test]
fn a_source_that_is_cut_short_is_an_error_that_says_where() {
    let (folder, from) = on_disk(&contents(64 << 20));
    let to = folder.path().join("to");
    for method in METHODS {
        write(&from, &contents(64 << 20));
        let file = OpenOptions::new().write(true).open(&from).unwrap();
        let result = copy_and(&from, &to, &by(method), &mut |_| {
            file.set_len(20 << 20).unwrap();
            ControlFlow::Continue(())
        });
        match result {
            Err(CopyError::CutShort { at, expected, .. }) => {
                assert_eq!((at, expected), (20 << 20, 64 << 20), "{method:?}");
            }
            // Read whole before it was cut, or shared.
            Ok(report) => {
                assert!(matches!(report.method, Method::Direct | Method::Reflink), "{report:?}")
            }
            Err(error) => panic!("{method:?}: {error}"),
        }
    }
}

#[test]
fn files_of_proc_and_sys_have_other_lengths_than_they_say() {
    let folder = disk_folder();
    let to = folder.path().join("to");
    for path in ["/proc/self/auxv", "/sys/kernel/mm/transparent_hugepage/enabled"] {
        let Ok(expected) = fs::read(path) else {
            eprintln!("skipped: no {path}");
            continue;
        };
        for method in METHODS {
            let report = copy(Path::new(path), &to, &by(method)).unwrap();
            assert_eq!(fs::read(&to).unwrap(), expected, "{report:?}");
            assert_eq!(report.bytes, expected.len() as u64);
        }
        let verified = || {
            let source = File::open(path).unwrap();
            let dest = OpenOptions::new().read(true).write(true).open(&to).unwrap();
            let (from, options) = (Path::new(path), Options::default());
            verify((&source, from), (&dest, &to), &options, &mut |_| ControlFlow::Continue(()))
        };
        let is_proc = path.starts_with("/proc");
        assert_eq!(verified().unwrap() == Verified::NotCompared, is_proc, "{path}");
        // One byte less, and one that is another.
        let len = expected.len() as u64;
        if !is_proc {
            OpenOptions::new().write(true).open(&to).unwrap().set_len(len - 1).unwrap();
            let differs = verified();
            assert!(matches!(differs, Err(CopyError::Differs { .. })), "{differs:?}");
            fs::write(&to, [&expected[..expected.len() - 1], b"?"].concat()).unwrap();
            let differs = verified();
            assert!(matches!(differs, Err(CopyError::Differs { at, .. }) if at == len - 1));
        }
    }
}

#[test]
fn verification_names_the_first_byte_that_differs() {
    let folder = disk_folder();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    make(&from, &Layout { parts: vec![700, 3000, 2600], begins_with_data: true, odd: true });
    copy(&from, &to, &Options::default()).unwrap();
    let (source, dest) =
        (File::open(&from).unwrap(), OpenOptions::new().read(true).write(true).open(&to).unwrap());
    let run = || {
        verify((&source, &from), (&dest, &to), &Options::default(), &mut |_| {
            ControlFlow::Continue(())
        })
    };
    // The same bytes, and a hole too many.
    let len = fs::metadata(&from).unwrap().len();
    dest.set_len(len + (5 << 20)).unwrap();
    assert!(matches!(run(), Err(CopyError::Differs { at, .. }) if at == len));
    dest.set_len(len).unwrap();
    let told = cache_can_be_told(&from);
    assert_ne!(run().unwrap(), Verified::Unproven);
    if told {
        let cached = [&from, &to].map(|path| cached_pages(path).iter().filter(|p| **p).count());
        assert_eq!(cached, [0, 0], "verification leaves nothing cached either");
    }
    // In data, in the hole, at the end; the last first, so that each is the first when it is made.
    for at in [len - 1, 16_000_000, 3_000_001, 0] {
        let mut byte = [0];
        dest.read_exact_at(&mut byte, at).unwrap();
        dest.write_all_at(&[byte[0] ^ 1], at).unwrap();
        match run() {
            Err(CopyError::Differs { at: found, .. }) => assert_eq!(found, at),
            other => panic!("{at}: {other:?}"),
        }
    }
    // Nothing but holes, and one is larger.
    let empty = tempfile::tempfile_in(folder.path()).unwrap();
    empty.set_len(1 << 20).unwrap();
    dest.set_len(0).unwrap();
    dest.set_len(2 << 20).unwrap();
    let result = verify((&empty, &from), (&dest, &to), &Options::default(), &mut |_| {
        ControlFlow::Continue(())
    });
    assert!(matches!(result, Err(CopyError::Differs { at: 0x10_0000, .. })), "{result:?}");
    dest.set_len(0).unwrap();
    dest.set_len(len - 5).unwrap();
    assert!(matches!(run(), Err(CopyError::Differs { at: 0, .. })));
}
