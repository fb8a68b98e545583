//! Pieces in slots are the bytes of the file, whatever there is room for; and what is kept is worth keeping.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use alight_pages::slots::replay::{Rule, Visited, replay};
use alight_pages::slots::{Groups, HeldGroup, SlotOptions, Slots, SlotsError, Span};
use alight_pages::{Map, evict, mark, residency};

/// Bytes of a piece of which some are in the page cache.
const PIECE: usize = 100_000;

/// Numbers that look random.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// About normal.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| (self.next() >> 11) as f64 / (1u64 << 53) as f64).sum::<f64>() - 6.0
    }
}

/// A file of bytes that say where they are.
fn file(path: &Path, len: usize) -> (File, Vec<u8>) {
    let mut rng = Rng(77);
    let bytes: Vec<u8> =
        (0..len.div_ceil(8)).flat_map(|_| rng.next().to_le_bytes()).take(len).collect();
    File::create(path).unwrap().write_all(&bytes).unwrap();
    (File::open(path).unwrap(), bytes)
}

/// Pieces of odd sizes at odd places, of two spans each, of which every group has some.
fn odd_groups(rng: &mut Rng, groups: usize, pieces: usize, len: usize) -> Groups {
    let mut group = |_| {
        let sizes = [1 + rng.below(9000), 1 + rng.below(1_300_000)];
        let mut span = |i: usize| {
            let start = rng.below(len - sizes[i]) as u64;
            Span { file: i, range: start..start + sizes[i] as u64 }
        };
        (0..pieces).map(|_| vec![span(0), span(1)]).collect()
    };
    (0..groups).map(&mut group).collect()
}

/// A file of four groups of 20 pieces of 9,000 bytes.
struct Even {
    _folder: tempfile::TempDir,
    path: PathBuf,
    file: File,
    bytes: Vec<u8>,
    groups: Groups,
    /// The least memory for them.
    least: u64,
}

impl Even {
    fn new() -> Even {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let (file, bytes) = file(&path, 1 << 20);
        let span = |i: u64| vec![Span { file: 0, range: i * 10_000..i * 10_000 + 9_000 }];
        let groups: Groups = (0..4).map(|g| (0..20).map(|i| span(g * 20 + i)).collect()).collect();
        let least = Slots::least(&groups, 4096);
        Even { _folder: folder, path, file, bytes, groups, least }
    }

    fn slots(&self, budget: u64, options: SlotOptions) -> Slots {
        Slots::new(&[(&self.file, self.path.clone())], &self.groups, budget, options).unwrap()
    }

    /// Fails unless a piece is held with the bytes of the file.
    fn check(&self, held: &HeldGroup<'_>, group: usize, piece: usize) {
        let range = &self.groups[group][piece][0].range;
        assert!(held.bytes(piece, 0) == &self.bytes[range.start as usize..range.end as usize]);
    }
}

fn reading(direct: bool) -> SlotOptions {
    SlotOptions { direct, ..SlotOptions::default() }
}

#[test]
fn what_is_held_are_the_bytes_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let len = 5_000_001;
    let paths = ["one", "two"].map(|name| folder.path().join(name));
    let files = [file(&paths[0], len), file(&paths[1], len)];
    let named: Vec<_> =
        files.iter().zip(&paths).map(|((file, _), path)| (file, path.clone())).collect();
    for (seed, direct) in [(1, true), (2, false), (3, true)] {
        let mut rng = Rng(seed);
        let mut groups = odd_groups(&mut rng, 4, 5, len);
        // The end of a file is in the middle of a block.
        groups[0][0][1].range = len as u64 - 70_000..len as u64;
        let least = Slots::least(&groups, 4096);
        for budget in [least, least * 3 / 2, u64::MAX / 4] {
            let slots = Slots::new(&named, &groups, budget, reading(direct)).unwrap();
            assert!(slots.sizes().bytes <= budget && slots.sizes().pieces == 20);
            for visit in 0..60 {
                let group = visit % 4;
                let wanted: Vec<usize> = (0..rng.below(8)).map(|_| rng.below(5)).collect();
                let mut held = slots.hold(group, wanted.iter().copied());
                let check = |held: &alight_pages::slots::HeldGroup<'_>, piece: usize| {
                    for (i, span) in groups[group][piece].iter().enumerate() {
                        let (from, to) = (span.range.start as usize, span.range.end as usize);
                        assert!(
                            held.bytes(piece, i) == &files[span.file].1[from..to],
                            "{group} {piece} {i}"
                        );
                    }
                };
                wanted
                    .iter()
                    .filter(|piece| held.is_here(**piece))
                    .for_each(|piece| check(&held, *piece));
                // A visit may end before all has come.
                if visit % 7 != 3 {
                    held.wait();
                    assert!(held.all_here());
                    wanted.iter().for_each(|piece| check(&held, *piece));
                }
            }
            let counts = slots.counts();
            assert!(slots.failure().is_none() && counts.hits <= counts.wanted);
            assert!(counts.read_bytes >= counts.missed_bytes);
            if budget > u64::MAX / 8 {
                // Everything fits: each piece is read once.
                assert!(slots.sizes().slots == 20 && counts.missed_bytes <= pieces_bytes(&groups));
            }
        }
        let too_few = Slots::new(&named, &groups, least / 2, reading(direct));
        assert!(matches!(too_few, Err(SlotsError::TooFew { .. })));
    }
}

fn pieces_bytes(groups: &Groups) -> u64 {
    groups.iter().flatten().flatten().map(|span| span.range.end - span.range.start).sum()
}

#[test]
fn visits_of_several_threads_come_one_after_the_other() {
    let even = Even::new();
    let slots = even.slots(even.least, SlotOptions::default());
    std::thread::scope(|scope| {
        for seed in 1..5 {
            let (slots, even) = (&slots, &even);
            scope.spawn(move || {
                let mut rng = Rng(seed);
                for _ in 0..200 {
                    let (group, piece) = (rng.below(4), rng.below(20));
                    let mut held = slots.hold(group, [piece, (piece + 7) % 20].into_iter());
                    held.wait();
                    even.check(&held, group, piece);
                }
            });
        }
    });
}

/// Wants all pieces of four groups of 20, one group after the other.
fn want_all(slots: &Slots) {
    (0..4).for_each(|group| slots.hold(group, 0..20).wait());
}

#[test]
fn what_was_guessed_is_there() {
    let even = Even::new();
    let slots = even.slots(even.least, SlotOptions::default());
    let unwanted = || (slots.counts().unwanted_bytes, slots.counts().read_bytes / 50);
    // Nothing is guessed before as much was read that the guesses may be wrong.
    let mut held = slots.hold(0, [0].into_iter());
    held.wait();
    held.guess(1, [(0, 9)].into_iter());
    drop(held);
    assert_eq!(slots.counts().guessed, 0);
    (0..4).for_each(|_| want_all(&slots));
    let mut found_guessed = 0;
    for visit in 0..12 {
        // Two that stay, and one that is another in each cycle.
        let wanted = |visit: usize| (visit % 4, [0, 1, 5 + visit / 4]);
        let (group, pieces) = wanted(visit);
        let mut held = slots.hold(group, pieces.into_iter());
        let found = held.found();
        assert!(found.wanted == 3 && found.missed() <= if visit < 4 { 3 } else { 1 }, "{found:?}");
        found_guessed += u64::from(found.guessed);
        held.wait();
        assert!(held.may_guess());
        let (next, guesses) = wanted(visit + 1);
        held.guess(next, guesses.into_iter().rev().map(|piece| (piece, 9)));
        // What this visit holds stays.
        pieces.iter().for_each(|piece| even.check(&held, group, *piece));
    }
    let right = slots.counts();
    assert_eq!(found_guessed, right.guessed_right);
    assert!(right.guessed > 8 && right.guessed - right.guessed_right <= 1, "{right:?}");
    // All but the last guess was wanted.
    assert!(right.unwanted_bytes <= 2 * 8192, "{right:?}");
    // Guesses that are wrong come to an end: each class by itself, and all of them until more was read that was wanted. What is named is wanted
    // in none of these visits, or in all.
    let name = |visits: usize, class: u8, right: bool| {
        let before = slots.counts().guessed;
        for visit in 0..visits {
            let named = |visit: usize| 1 + visit % 19;
            let wanted = if right { named(visit + 18) } else { 0 };
            let mut held = slots.hold(visit % 4, [wanted].into_iter());
            held.wait();
            // The disk has to be done with the last guess.
            let patience = Instant::now() + Duration::from_secs(20);
            while !held.may_guess() && unwanted().0 + 16_384 <= unwanted().1 {
                assert!(Instant::now() < patience, "{:?}", slots.counts());
                std::thread::yield_now();
            }
            if held.may_guess() {
                held.guess((visit + 1) % 4, [(named(visit), class)].into_iter());
            }
        }
        let guessed = slots.counts().guessed - before;
        let (unwanted, most) = unwanted();
        let is_counted = unwanted > 0 || right || guessed == 0;
        assert!(is_counted && unwanted <= most, "{:?}", slots.counts());
        guessed
    };
    let with_room = |visits: usize, class: u8, right: bool| {
        (0..20).for_each(|_| want_all(&slots));
        name(visits, class, right)
    };
    assert!((2..=16).contains(&name(200, 1, false)), "{:?}", slots.counts());
    (0..16).for_each(|_| _ = with_room(200, 1, false));
    assert_eq!(with_room(200, 1, false), 0, "a class that was wrong is not trusted");
    assert!((2..=16).contains(&with_room(200, 2, false)), "{:?}", slots.counts());
    // It is judged by what is named, read or not.
    with_room(1000, 1, true);
    assert!(with_room(400, 1, true) > 16, "{:?}", slots.counts());
}

#[test]
fn nothing_is_guessed_where_that_is_not_wanted() {
    let even = Even::new();
    let slots = even.slots(even.least, SlotOptions { guess: false, ..SlotOptions::default() });
    (0..4).for_each(|_| want_all(&slots));
    let mut held = slots.hold(0, [0].into_iter());
    held.wait();
    assert!(!held.may_guess());
}

/// A prompt's visits: each says what the next will want. All bytes are those of the file, each piece is read once, and what a visit
/// holds stays, with much room and with little.
#[test]
fn what_is_read_ahead_is_read_once() {
    let even = Even::new();
    let least = even.least;
    for ring in [true, false] {
        for budget in [least, least + least / 2, 2 * least, 4 * least] {
            let slots = even.slots(budget, SlotOptions { ring, ..SlotOptions::default() });
            for group in 0..4 {
                let mut held = slots.hold(group, 0..20);
                if group < 3 {
                    held.read_ahead(group + 1, 0..20);
                }
                held.wait();
                (0..20).for_each(|piece| even.check(&held, group, piece));
            }
            let counts = slots.counts();
            assert_eq!((counts.wanted, counts.missed_bytes), (80, 80 * 9_000), "{counts:?}");
            // Whole blocks of the disk, and each piece once.
            assert!(counts.read_bytes <= 80 * 16_384, "{counts:?}");
        }
    }
}

#[cfg(target_os = "linux")]
fn resident(slots: &Slots) -> usize {
    let (start, len) = slots.memory();
    crate::common::resident(start.cast_const()..start.wrapping_add(len))
}

/// With less memory there are fewer slots, whose memory goes back; with more there are more again. The bytes are always those of the file.
#[test]
fn the_budget_may_change_between_visits() {
    let even = Even::new();
    let usual = SlotOptions::default();
    for options in [
        usual,
        reading(false),
        SlotOptions { ring: false, ..usual },
        SlotOptions { shuffled: Some(1), ..usual },
    ] {
        let slots = even.slots(u64::MAX / 4, options);
        let all = slots.sizes();
        assert_eq!(all.slots, 80);
        let mut rng = Rng(7);
        let mut visits = |count: usize| {
            for visit in 0..count {
                let group = visit % 4;
                let wanted: Vec<usize> = (0..1 + rng.below(20)).map(|_| rng.below(20)).collect();
                let mut held = slots.hold(group, wanted.iter().copied());
                if visit % 3 == 1 {
                    held.read_ahead((group + 1) % 4, 0..5);
                }
                if visit % 4 != 3 {
                    held.wait();
                    wanted.iter().for_each(|piece| even.check(&held, group, *piece));
                }
            }
        };
        visits(40);
        want_all(&slots);
        assert!(slots.failure().is_none());
        let (quarter, align) = (all.bytes / 4, if options.direct { 4096 } else { 1 });
        let of_group = Slots::least(&even.groups, align);
        for budget in [2 * quarter, quarter + 1, 0, 3 * quarter, of_group, u64::MAX] {
            slots.set_budget(budget);
            visits(40);
            let (sizes, most) = (slots.sizes(), budget.clamp(of_group, all.bytes));
            // Slots of each of two sizes are whole.
            let least = most - 2 * 16384;
            assert!(
                (least..=most).contains(&sizes.bytes),
                "{sizes:?}, {least} to {most}, {options:?}"
            );
            assert!((sizes.slots == 80) == (budget == u64::MAX), "{sizes:?}");
            #[cfg(target_os = "linux")]
            assert!(
                resident(&slots) as u64 <= sizes.bytes + 4096 * 80,
                "{} bytes, {sizes:?}",
                resident(&slots)
            );
        }
        // All of them are used again.
        want_all(&slots);
        assert_eq!((0..4).map(|group| slots.here(group).len()).sum::<usize>(), 80);
        assert!((0..4).all(|group| slots.here(group).iter().all(|here| *here)));
        assert!(slots.failure().is_none());
    }
}

#[test]
fn a_file_that_was_cut_short_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for direct in [true, false] {
        let path = folder.path().join("short");
        let (file, _) = file(&path, 100_000);
        let groups: Groups = vec![
            (0..4).map(|i| vec![Span { file: 0, range: i * 20_000..(i + 1) * 20_000 }]).collect(),
        ];
        let slots =
            Slots::new(&[(&file, path.clone())], &groups, 1 << 20, reading(direct)).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(50_000).unwrap();
        let mut held = slots.hold(0, [0, 3].into_iter());
        held.wait();
        let failure = slots.failure().expect("a failure").to_string();
        assert!(failure.contains("short") && failure.contains("50000"), "{failure}");
    }
}

/// Which pieces each visit wants, of `groups` groups of `pieces` pieces. Scores of pieces have a part that stays, one that changes
/// slowly, and one that is new each time; `used` of the highest are wanted. The strengths of the parts are those with which the
/// hits of Qwen3-30B-A3B's own routing come out.
fn trace(groups: usize, pieces: usize, used: usize, cycles: usize) -> Vec<Vec<usize>> {
    let (stays, slow, keeps) = (1.6, 1.0, 0.5f64);
    let mut rng = Rng(4711);
    let always: Vec<f64> = (0..groups * pieces).map(|_| stays * rng.normal()).collect();
    let mut slowly: Vec<f64> = (0..groups * pieces).map(|_| rng.normal()).collect();
    let mut visits = Vec::new();
    for _ in 0..cycles {
        for group in 0..groups {
            let mut scores: Vec<(f64, usize)> = (0..pieces)
                .map(|piece| {
                    let i = group * pieces + piece;
                    slowly[i] = keeps * slowly[i] + (1.0 - keeps * keeps).sqrt() * rng.normal();
                    (always[i] + slow * slowly[i] + rng.normal(), piece)
                })
                .collect();
            scores.sort_by(|a, b| b.0.total_cmp(&a.0));
            visits.push(scores[..used].iter().map(|(_, piece)| *piece).collect());
        }
    }
    visits
}

#[test]
fn what_is_kept_is_wanted_again_more_often_than_what_was_used_last() {
    let (groups, pieces, used, cycles) = (24, 64, 4, 60);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let (file, _) = file(&path, groups * pieces * 64);
    let span = |i: usize| vec![Span { file: 0, range: (i * 64) as u64..(i * 64 + 64) as u64 }];
    let all: Groups =
        (0..groups).map(|g| (0..pieces).map(|i| span(g * pieces + i)).collect()).collect();
    let visits = trace(groups, pieces, used, cycles);
    let warm = visits.len() / 2;
    let visited = |(i, wanted): (usize, &Vec<usize>)| {
        let mut wanted = wanted.clone();
        wanted.sort_unstable();
        Visited { group: i % groups, wanted }
    };
    let visited: Vec<Visited> = visits.iter().enumerate().map(visited).collect();
    // Unaligned reads, so that a slot is as large as a piece.
    for (share, least_gain) in [(10, 0.05), (25, -0.01), (50, -0.01)] {
        let room = groups * pieces * share / 100;
        let budget = (room * 64) as u64;
        let slots = Slots::new(&[(&file, path.clone())], &all, budget, reading(false)).unwrap();
        assert_eq!(slots.sizes().slots, room);
        let mut before = slots.counts();
        for (i, wanted) in visits.iter().enumerate() {
            if i == warm {
                before = slots.counts();
            }
            slots.hold(i % groups, wanted.iter().copied()).wait();
        }
        let after = slots.counts();
        let replayed = |rule| replay(&vec![pieces; groups], &visited, room, rule, warm);
        let [expected, lru, best] = Rule::ALL.map(replayed);
        assert_eq!(
            (expected.wanted, expected.hits),
            (after.wanted - before.wanted, after.hits - before.hits),
            "a replay is what happens"
        );
        let [ours, lru, best] = [expected, lru, best].map(|replayed| replayed.share());
        println!("{share} %: ours {ours:.3}, least recently used {lru:.3}, clairvoyant {best:.3}");
        assert!(ours >= lru + least_gain, "{share} %: {ours} and {lru}");
        assert!(
            ours <= best,
            "{share} %: {ours} and {best}: nobody is better than one who knows all"
        );
    }
}

/// A prompt wants all pieces once: each that has no room is read once, and what is wanted afterwards is there as it was before.
#[test]
fn what_is_kept_stays_when_all_is_wanted_once() {
    let (groups, pieces, used) = (24, 64, 4);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let (file, _) = file(&path, groups * pieces * 64);
    let span = |i: usize| vec![Span { file: 0, range: (i * 64) as u64..(i * 64 + 64) as u64 }];
    let all: Groups =
        (0..groups).map(|g| (0..pieces).map(|i| span(g * pieces + i)).collect()).collect();
    let visits = trace(groups, pieces, used, 120);
    for share in [25, 45, 70] {
        let room = groups * pieces * share / 100;
        let named = [(&file, path.clone())];
        // The share of hits of later visits, with a prompt before them and without one.
        let [with, without] = [true, false].map(|prompt| {
            let slots = Slots::new(&named, &all, (room * 64) as u64, reading(false)).unwrap();
            let (earlier, later) = visits.split_at(90 * groups);
            let hits = |visits: &[Vec<usize>]| {
                let before = slots.counts();
                for (i, wanted) in visits.iter().enumerate() {
                    slots.hold(i % groups, wanted.iter().copied()).wait();
                }
                let after = slots.counts();
                (after.hits - before.hits) as f64 / (after.wanted - before.wanted) as f64
            };
            hits(earlier);
            if prompt {
                let here = (0..groups).flat_map(|group| slots.here(group));
                let missing = here.filter(|here| !here).count();
                let before = slots.counts().brought;
                for group in 0..groups {
                    let mut held = slots.hold(group, 0..pieces);
                    if group + 1 < groups {
                        held.read_ahead(group + 1, 0..pieces);
                    }
                    held.wait();
                }
                let brought = (slots.counts().brought - before) as usize;
                println!("{share} %: {missing} are missing, {brought} are read");
                // What two groups that follow one another have in slots may go for each other's, but no more.
                assert!(brought <= missing + 2 * pieces, "{share} %: {brought} for {missing}");
            }
            hits(&later[..10 * groups])
        });
        println!("{share} %: hits {with:.3}, without the prompt {without:.3}");
        assert!(with >= without - 0.03, "{share} %: {with} and {without}");
    }
}

/// Pieces of the page cache have the bytes of the file, there are never more of them than slots, and another process changes where they
/// are, but not what they are.
#[test]
fn pieces_in_the_page_cache_are_the_bytes_of_the_file_and_are_dropped() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("file");
    let (_, bytes) = file(&path, 80 * PIECE);
    let span = |i: usize| Span { file: 0, range: (i * PIECE) as u64..((i + 1) * PIECE) as u64 };
    let groups: Groups =
        (0..4).map(|g| (0..20).map(|i| vec![span(g * 20 + i)]).collect()).collect();
    let least = Slots::least(&groups, 4096);
    let usual = SlotOptions::default();
    for options in [
        SlotOptions { shared: true, ..usual },
        SlotOptions { shared: true, ring: false, ..usual },
        SlotOptions { shared: true, shuffled: Some(1), ..usual },
        usual,
        SlotOptions { ring: false, ..usual },
    ] {
        let open = File::open(&path).unwrap();
        open.sync_all().unwrap();
        let told = evict(&open).is_ok_and(|left| left.cached == 0);
        let map = Arc::new(Map::open(&path).unwrap());
        let slots = Slots::of_maps(&[Arc::clone(&map)], &groups, least, options).unwrap();
        let mut rng = Rng(3);
        let mut visits = |count: usize| {
            for visit in 0..count {
                let group = visit % 4;
                let wanted = [rng.below(20), rng.below(20), rng.below(20)];
                let mut held = slots.hold(group, wanted.into_iter());
                if visit % 5 == 2 {
                    held.read_ahead((group + 1) % 4, 0..3);
                }
                held.wait();
                for piece in wanted {
                    let start = (group * 20 + piece) * PIECE;
                    assert!(held.bytes(piece, 0) == &bytes[start..start + PIECE], "{options:?}");
                }
            }
        };
        let cached = || residency(&open, 0..u64::MAX).unwrap().cached * 4096;
        visits(700);
        let counts = slots.counts();
        let all = if options.shared { counts.brought } else { 0 };
        assert_eq!((counts.cached, slots.are_shared()), (all, options.shared), "{options:?}");
        // Beside a slot's piece, the pages at both ends, of which it has a part.
        let most = if options.shared { least + least / 8 + (1 << 20) } else { 1 << 20 };
        // On a busy machine, what is read ahead may still arrive, and be dropped a little later.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while told && cached() > most && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(!told || cached() <= most, "{} of {most}, {options:?}", cached());
        // Somebody else comes.
        let theirs = File::open(&path).unwrap();
        mark(&theirs).unwrap();
        visits(600);
        assert!(slots.are_shared() && slots.failure().is_none(), "{options:?}");
        let more = slots.counts();
        assert!(more.cached > counts.cached, "{options:?}");
        assert!(!told || cached() <= least + least / 8 + (1 << 20), "{options:?}");
    }
}

#[test]
fn a_mapped_file_that_was_cut_short_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("short");
    let _ = file(&path, 100_000);
    let groups: Groups =
        vec![(0..4).map(|i| vec![Span { file: 0, range: i * 20_000..(i + 1) * 20_000 }]).collect()];
    let map = Arc::new(Map::open(&path).unwrap());
    let options = SlotOptions { shared: true, ..SlotOptions::default() };
    let slots = Slots::of_maps(&[map], &groups, 1 << 20, options).unwrap();
    slots.hold(0, [0, 3].into_iter()).wait();
    assert!(slots.failure().is_none());
    // All that is wanted is there, and is gone.
    File::options().write(true).open(&path).unwrap().set_len(50_000).unwrap();
    slots.hold(0, [0, 3].into_iter()).wait();
    let failure = slots.failure().expect("a failure").to_string();
    assert!(failure.contains("short") && failure.contains("50000"), "{failure}");
}
