//! Disk behaviour that is rare in practice: short, interrupted and failing reads of slots.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};

use super::{Groups, SlotOptions, Slots, Span};
use crate::map::Map;

/// See [`super::Shared::seen`].
pub(super) type Interpose = Box<dyn Fn(i32, *mut u8) -> i32 + Send + Sync>;

const PIECE: usize = 30_000;

/// A file of 20 pieces, in two groups of ten.
fn file(folder: &std::path::Path) -> (PathBuf, Vec<u8>, Groups) {
    let path = folder.join("weights");
    let bytes: Vec<u8> =
        (0..20 * PIECE as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&path, &bytes).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let piece = |i: usize| {
        let start = (i * PIECE) as u64;
        let cut = start + 20_000;
        vec![
            Span { file: 0, range: start..cut },
            Span { file: 0, range: cut..start + PIECE as u64 },
        ]
    };
    (path, bytes, vec![(0..10).map(piece).collect(), (10..20).map(piece).collect()])
}

/// Visits pieces, and compares all bytes as long as no read has failed.
fn visit(options: SlotOptions, interpose: Option<Interpose>) -> Slots {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let (path, bytes, groups) = file(folder.path());
    let file = File::open(&path).unwrap();
    let least = Slots::least(&groups, 4096);
    let slots = Slots::build(&[(&file, path)], None, &groups, least, options, interpose).unwrap();
    for i in 0..60 {
        let group = i % 2;
        let wanted = [i * 3 % 10, i * 7 % 10, (i + 1) % 10, i % 4];
        let mut held = slots.hold(group, wanted.into_iter());
        let mut seen = [false; 10];
        loop {
            for piece in wanted {
                if held.is_here(piece) && !std::mem::replace(&mut seen[piece], true) {
                    let start = (group * 10 + piece) * PIECE;
                    let [one, two] = [0, 1].map(|span| held.bytes(piece, span));
                    let right = one == &bytes[start..start + 20_000]
                        && two == &bytes[start + 20_000..start + PIECE];
                    assert!(right || slots.failure().is_some(), "piece {piece} of {group}");
                }
            }
            if held.all_here() {
                break;
            }
            held.wait_for_more();
        }
        assert!(wanted.iter().all(|piece| seen[*piece]));
    }
    slots
}

fn ways() -> [SlotOptions; 4] {
    let with = |direct, ring| SlotOptions { direct, ring, ..SlotOptions::default() };
    [
        with(true, true),
        with(true, false),
        with(false, false),
        SlotOptions { shuffled: Some(5), ..with(true, true) },
    ]
}

#[test]
fn every_way_of_reading_brings_the_bytes_of_the_file() {
    for options in ways() {
        assert!(visit(options, None).failure().is_none(), "{options:?}");
    }
}

#[test]
fn what_came_short_or_was_interrupted_is_read_again() {
    for options in ways() {
        let turn = AtomicI32::new(0);
        let interpose = move |count: i32, to: *mut u8| {
            let keep = match turn.fetch_add(1, SeqCst) % 5 {
                // A read that did not go through the ring.
                _ if count <= 0 => return count,
                0 => 4096.min(count),
                1 => 511.min(count),
                2 => 0,
                _ => count,
            };
            // SAFETY: the ring has read `count` bytes to this address, and does not look at them yet.
            unsafe { std::ptr::write_bytes(to.add(keep as usize), 0xEE, (count - keep) as usize) };
            if keep == 0 { -libc::EAGAIN } else { keep }
        };
        assert!(visit(options, Some(Box::new(interpose))).failure().is_none(), "{options:?}");
    }
}

#[test]
fn a_read_that_fails_is_named_and_nothing_waits_for_ever() {
    for options in ways() {
        let turn = AtomicI32::new(0);
        let interpose = move |result: i32, _: *mut u8| match turn.fetch_add(1, SeqCst) {
            0..12 => result,
            _ => -libc::EIO,
        };
        let slots = visit(options, Some(Box::new(interpose)));
        let failure = slots.failure().expect("a failure").to_string();
        let error = std::io::Error::from_raw_os_error(libc::EIO).to_string();
        assert!(failure.contains("weights") && failure.contains(&error), "{failure}");
    }
}

#[test]
fn a_piece_that_could_not_be_read_is_read_again() {
    for options in ways() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (path, bytes, groups) = file(folder.path());
        let file = File::open(&path).unwrap();
        let fails = Arc::new(AtomicBool::new(false));
        let interpose = {
            let fails = Arc::clone(&fails);
            move |result: i32, _: *mut u8| if fails.load(SeqCst) { -libc::EIO } else { result }
        };
        let (files, interpose) = ([(&file, path)], Some(Box::new(interpose) as Interpose));
        let least = Slots::least(&groups, 4096);
        let slots = Slots::build(&files, None, &groups, least, options, interpose).unwrap();
        let visit = |group: usize, wanted: [usize; 3]| {
            let mut held = slots.hold(group, wanted.into_iter());
            held.wait();
            let right = wanted.iter().all(|piece| {
                held.bytes(*piece, 1)
                    == &bytes
                        [(group * 10 + piece) * PIECE + 20_000..(group * 10 + piece + 1) * PIECE]
            });
            (held.failure(), right)
        };
        assert!(matches!(visit(0, [1, 2, 3]), (None, true)), "{options:?}");
        fails.store(true, SeqCst);
        // Those that are there are of use.
        assert!(matches!(visit(0, [1, 2, 3]), (None, true)), "{options:?}");
        let failure = visit(0, [3, 4, 5]).0.expect("a failure").to_string();
        assert!(failure.contains("weights") && slots.failures() == 2, "{options:?}: {failure}");
        assert_eq!(slots.here(0)[..6], [false, true, true, true, false, false], "{options:?}");
        assert!(visit(1, [0, 1, 2]).0.is_some() && slots.failures() == 5, "{options:?}");
        fails.store(false, SeqCst);
        assert!(matches!(visit(1, [0, 1, 2]), (None, true)), "{options:?}");
        assert!(matches!(visit(0, [3, 4, 5]), (None, true)), "{options:?}");
        assert_eq!(slots.failures(), 5, "{options:?}");
    }
}

#[test]
fn parts_that_may_follow_are_one_span_and_others_are_not() {
    let at = |file, start, end| Span { file, range: start..end };
    let parts = [
        (at(0, 4096, 5000), true),
        (at(0, 5100, 6000), true),
        // As near, but on its own.
        (at(0, 6000, 6100), false),
        // In another file, before it, too far away, and after the second.
        (at(1, 6000, 6100), true),
        (at(0, 4000, 4096), true),
        (at(0, 6228, 6300), true),
        (at(0, 6000, 6001), true),
    ];
    let (spans, places) = super::join(&parts, 128);
    let expected = [
        at(0, 4096, 6001),
        at(0, 6000, 6100),
        at(1, 6000, 6100),
        at(0, 4000, 4096),
        at(0, 6228, 6300),
    ];
    assert_eq!(spans, expected);
    let all = [(0, 0), (0, 1004), (1, 0), (2, 0), (3, 0), (4, 0), (0, 1904)];
    assert_eq!(places, all);
    assert_eq!(super::join(&parts, 0).0.len(), parts.len(), "nothing is that near");
}

/// Visits groups in a cycle, each with all of its pieces. Returns the bytes read in the last of `cycles` cycles.
fn read_by_the_last_cycle(cycles: usize, groups: &Groups, slots: &Slots, ahead: u64) -> u64 {
    let mut before = 0;
    for cycle in 0..cycles {
        if cycle + 1 == cycles {
            before = slots.counts().brought;
        }
        for (group, pieces) in groups.iter().enumerate() {
            let mut held = slots.hold(group, 0..pieces.len());
            held.read_on(ahead);
            held.wait();
            assert!((0..pieces.len()).all(|piece| held.is_here(piece)));
        }
    }
    (slots.counts().brought - before) * PIECE as u64
}

/// Pieces that fit are read once; of a cycle that does not fit, only what does not fit is read again.
#[test]
fn of_a_cycle_only_what_does_not_fit_is_read_again() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let (path, _, _) = file(folder.path());
    let map = Arc::new(Map::open(&path).unwrap());
    let span = |i: usize| Span { file: 0, range: (i * PIECE) as u64..((i + 1) * PIECE) as u64 };
    // Ten groups of two; slots for 14 of the 20 pieces.
    let groups: Groups = (0..10).map(|i| vec![vec![span(2 * i)], vec![span(2 * i + 1)]]).collect();
    let open =
        |budget, options| Slots::of_maps(&[Arc::clone(&map)], &groups, budget, options).unwrap();
    let slot = (PIECE as u64).next_multiple_of(4096) + 4096;
    // In the page cache, where the order does not depend on when a piece arrives.
    let options = SlotOptions { shared: true, whole: true, guess: false, ..SlotOptions::default() };
    for (fitting, ahead) in [(14, 0), (14, 2 * PIECE as u64), (20, u64::MAX)] {
        let slots = open(fitting * slot, options);
        let fit = slots.sizes().slots;
        let read = read_by_the_last_cycle(12, &groups, &slots, ahead);
        let missing = (20 - fit) as u64 * PIECE as u64;
        assert!(
            (missing..=missing + 2 * PIECE as u64).contains(&read),
            "{fit} slots, {ahead} ahead: {read} bytes, {missing} do not fit"
        );
    }
    // By past uses alone, more would be read again.
    let options = SlotOptions { whole: false, ..options };
    let slots = open(14 * slot, options);
    let missing = (20 - slots.sizes().slots) as u64 * PIECE as u64;
    let read = read_by_the_last_cycle(12, &groups, &slots, 0);
    assert!(read > missing + 2 * PIECE as u64, "{read} bytes, {missing} do not fit");
}
