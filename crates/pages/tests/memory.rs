//! Memory: regions, and what of a map is given back and locked, as the kernel accounts for it.
#![cfg(target_os = "linux")]

use std::fs;
use std::ops::Range;

use alight_pages::{Map, Region};

use crate::common::{self, contents, on_disk};

fn resident(bytes: &[u8]) -> usize {
    common::resident(bytes.as_ptr_range())
}

/// Bytes that are locked within the addresses of `bytes`, by /proc/self/smaps.
fn locked(bytes: &[u8]) -> usize {
    let ours = bytes.as_ptr_range();
    let ours = ours.start as usize..ours.end as usize;
    let (mut within, mut sum) = (false, 0);
    for line in fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap();
        if let Some((start, end)) = first.split_once('-') {
            let at = |text| usize::from_str_radix(text, 16).unwrap();
            within = at(start) < ours.end && ours.start < at(end);
        } else if within && first == "Locked:" {
            sum += words.next().unwrap().parse::<usize>().unwrap() * 1024;
        }
    }
    sum
}

fn page() -> usize {
    // SAFETY: asks for a constant of the system.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

#[test]
fn a_region_is_aligned_zero_and_free_until_touched() {
    // More than the machine has.
    let region = Region::new(1 << 40).unwrap();
    assert_eq!((region.len(), region.is_empty()), (1 << 40, false));
    assert!((region.as_mut_ptr() as usize).is_multiple_of(2 << 20));
    assert_eq!(resident(&region.bytes()[..1 << 30]), 0);
    assert_eq!(region.bytes()[(1 << 40) - 1], 0);
    let empty = Region::new(0).unwrap();
    assert!(empty.is_empty() && empty.bytes().is_empty());
    let odd = Region::new(5000).unwrap();
    assert_eq!(odd.bytes(), [0; 5000]);
}

#[test]
fn a_region_that_cannot_be_is_an_error_that_says_how_much_was_wanted() {
    for (len, size) in
        [(1 << 60, "1.15 EB"), (usize::MAX, "18.4 EB"), (isize::MAX as usize, "9.22 EB")]
    {
        let error = Region::new(len).unwrap_err();
        assert_eq!(error.len, len);
        assert!(error.to_string().contains(size), "{error}");
    }
}

#[test]
fn threads_fill_a_region_part_by_part_and_it_goes_when_dropped() {
    const PART: usize = 3_000_000;
    let region = Region::new(4 * PART).unwrap();
    std::thread::scope(|scope| {
        for i in 0..4 {
            let region = &region;
            scope.spawn(move || {
                // SAFETY: each thread writes to a part of its own, which nothing reads yet.
                unsafe {
                    std::ptr::write_bytes(region.as_mut_ptr().add(i * PART), i as u8 + 1, PART);
                }
            });
        }
    });
    let filled = region.bytes().chunks(PART).zip(1..).all(|(part, i)| part.iter().all(|b| *b == i));
    assert!(filled);
    assert!(resident(region.bytes()) >= 4 * PART);
}

#[test]
fn a_locked_region_is_locked() {
    let region = Region::new(1 << 20).unwrap();
    if let Err(error) = region.lock() {
        return eprintln!("skipped: {error}");
    }
    assert_eq!(resident(region.bytes()), 1 << 20);
    assert_eq!(locked(region.bytes()), 1 << 20);
    Region::new(0).unwrap().lock().unwrap();
}

#[test]
fn what_is_given_back_is_whole_pages_and_the_map_stays_valid() {
    let page = page();
    let len = 40 * page + 17;
    let expected = contents(len);
    let (_folder, path) = on_disk(&expected);
    let map = Map::open(&path).unwrap();
    let whole = 41 * page;
    let given = |range: Range<usize>, bytes: usize| {
        map.populate(0..len).unwrap();
        assert_eq!(resident(map.bytes()), whole);
        assert_eq!(map.give_back(range.clone()), bytes, "{range:?}");
        assert_eq!(resident(map.bytes()), whole - bytes, "{range:?}");
        assert!(map.bytes() == expected);
        map.check().unwrap();
    };
    given(page..3 * page, 2 * page);
    given(page + 1..3 * page, page);
    given(page..3 * page - 1, page);
    given(page + 1..2 * page - 1, 0);
    given(page + 1..3 * page - 1, 0);
    given(5..5, 0);
    #[allow(clippy::reversed_empty_ranges)]
    given(9 * page..3 * page, 0);
    // The last page ends with the file.
    given(39 * page..len, 2 * page);
    given(39 * page..len - 1, page);
    given(0..usize::MAX, whole);
    given(len + page..usize::MAX, 0);
    given(usize::MAX - 1..usize::MAX, 0);
}

#[test]
fn what_is_locked_is_not_given_back() {
    let page = page();
    let len = 16 * page;
    let expected = contents(len);
    let (_folder, path) = on_disk(&expected);
    let map = Map::open(&path).unwrap();
    // Parts of two neighbours share page 5; page 9 is locked by its last byte.
    for range in [4 * page..5 * page + 10, 5 * page + 10..6 * page, 10 * page - 1..10 * page] {
        if let Err(error) = map.lock(range) {
            return eprintln!("skipped: {error}");
        }
    }
    map.populate(0..len).unwrap();
    assert_eq!(locked(map.bytes()), 3 * page);
    assert_eq!(map.give_back(4 * page..6 * page), 0);
    assert_eq!(map.give_back(0..len), 13 * page);
    assert_eq!(resident(map.bytes()), 3 * page);
    // Page 5 stays as long as one of its two does.
    map.unlock(4 * page..5 * page + 10);
    assert_eq!(locked(map.bytes()), 2 * page);
    assert_eq!(map.give_back(0..len), 14 * page);
    assert_eq!(resident(map.bytes()), 2 * page);
    map.unlock(0..usize::MAX);
    assert_eq!(locked(map.bytes()), 0);
    assert_eq!(map.give_back(0..len), len);
    assert_eq!(resident(map.bytes()), 0);
    assert!(map.bytes() == expected);
    // Locks and unlocks that are about nothing.
    map.lock(7..7).unwrap();
    map.lock(len..usize::MAX).unwrap();
    map.unlock(len..usize::MAX);
}
