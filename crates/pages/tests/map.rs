//! What a map refuses, and what happens to it when its file changes underneath.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use alight_pages::{Advice, FileKind, Map, MapError};
use tempfile::TempDir;

const PAGE: usize = 65536; // a multiple of every page size in use

/// A file of `len` bytes, byte `i` being `(i % 251) + 1`: never zero.
fn file(folder: &TempDir, name: &str, len: usize) -> std::path::PathBuf {
    let path = folder.path().join(name);
    let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8 + 1).collect();
    fs::write(&path, bytes).unwrap();
    path
}

fn cut(path: &Path, len: usize) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(len as u64).unwrap();
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|b| u64::from(*b)).sum()
}

#[test]
fn a_regular_file_is_mapped_and_read() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "model", 3 * PAGE + 17);
    let map = Map::open(&path).unwrap();
    assert_eq!(map.len(), 3 * PAGE + 17);
    assert_eq!(map.bytes(), fs::read(&path).unwrap());
    assert_eq!(map.path(), path);
    assert!(!map.is_empty());
    map.check().unwrap();
}

#[test]
fn ranges_are_populated_and_advised_wherever_they_lie() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "model", 3 * PAGE + 17);
    let map = Map::open(&path).unwrap();
    let len = map.len();
    for range in [0..len, 0..0, 5..6, PAGE - 1..PAGE + 1, len - 1..len, len..len, 7..usize::MAX] {
        map.populate(range.clone()).unwrap();
        map.touch(range.clone()).unwrap();
        for advice in
            [Advice::Normal, Advice::Sequential, Advice::Random, Advice::WillNeed, Advice::DontNeed]
        {
            map.advise(range.clone(), advice).unwrap();
        }
    }
    #[allow(clippy::reversed_empty_ranges)]
    map.populate(9..3).unwrap();
    map.populate(usize::MAX - 1..usize::MAX).unwrap();
    map.touch(usize::MAX - 1..usize::MAX).unwrap();
    assert_eq!(map.bytes(), fs::read(&path).unwrap());
    map.check().unwrap();
}

/// Bytes of the map that are in this process's page table.
#[cfg(target_os = "linux")]
fn resident(map: &Map) -> usize {
    crate::common::resident(map.bytes().as_ptr_range())
}

#[test]
#[cfg(target_os = "linux")]
fn populate_fills_the_page_table_and_opening_does_not() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "model", 64 * PAGE);
    let map = Map::open(&path).unwrap();
    assert_eq!(resident(&map), 0);
    map.populate(0..16 * PAGE).unwrap();
    // The kernel may map a little more than asked.
    assert!((16 * PAGE..=32 * PAGE).contains(&resident(&map)), "{}", resident(&map));
    map.populate(0..map.len()).unwrap();
    assert_eq!(resident(&map), 64 * PAGE);

    // The file was written a moment ago, so all of it is cached.
    let map = Map::open(&path).unwrap();
    map.touch(0..map.len()).unwrap();
    assert!(resident(&map) >= 32 * PAGE, "{}", resident(&map));
}

#[test]
fn what_is_not_a_regular_file_with_content_is_refused_by_name() {
    let folder = TempDir::new().unwrap();
    let kind = |path: &Path| match Map::open(path) {
        Err(error @ MapError::NotAFile { .. }) => {
            let MapError::NotAFile { kind, path: ref named } = error else { unreachable!() };
            assert_eq!(named, path);
            assert!(error.to_string().starts_with(&format!("'{}'", path.display())), "{error}");
            kind
        }
        other => panic!("{}: {other:?}", path.display()),
    };
    assert_eq!(kind(folder.path()), FileKind::Directory);
    assert_eq!(kind(Path::new("/dev/zero")), FileKind::CharacterDevice);
    assert_eq!(kind(Path::new("/dev/null")), FileKind::CharacterDevice);

    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert_eq!(kind(&socket), FileKind::Socket);

    let link = folder.path().join("link-to-folder");
    std::os::unix::fs::symlink(folder.path(), &link).unwrap();
    assert_eq!(kind(&link), FileKind::Directory);

    let empty = file(&folder, "empty", 0);
    let error = Map::open(&empty).unwrap_err();
    assert!(matches!(&error, MapError::Empty { path } if *path == empty), "{error:?}");

    let missing = folder.path().join("missing");
    let error = Map::open(&missing).unwrap_err();
    assert!(matches!(&error, MapError::Open { path, .. } if *path == missing), "{error:?}");
    assert!(error.to_string().contains("missing' does not exist"), "{error}");

    let dangling = folder.path().join("dangling");
    std::os::unix::fs::symlink(&missing, &dangling).unwrap();
    assert!(matches!(Map::open(&dangling), Err(MapError::Open { .. })));
}

#[test]
fn a_pipe_is_refused_without_waiting_for_a_writer() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("pipe");
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a valid string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let started = Instant::now();
    let opened = thread::spawn(move || Map::open(&path).map(drop));
    while !opened.is_finished() {
        assert!(started.elapsed() < Duration::from_secs(10), "open waits on a pipe");
        thread::sleep(Duration::from_millis(1));
    }
    let error = opened.join().unwrap().unwrap_err();
    assert!(matches!(error, MapError::NotAFile { kind: FileKind::Pipe, .. }), "{error:?}");
}

#[test]
fn a_file_that_turns_into_a_pipe_while_it_is_opened_does_not_keep_us_waiting() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "model", 100);
    let (pipe, spare) = (folder.path().join("pipe"), folder.path().join("spare"));
    let until = Instant::now() + Duration::from_millis(500);
    let target = path.clone();
    let opener = thread::spawn(move || {
        while Instant::now() < until {
            match Map::open(&target) {
                Ok(_) | Err(MapError::NotAFile { kind: FileKind::Pipe, .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
    });
    let name = CString::new(pipe.as_os_str().as_bytes()).unwrap();
    while !opener.is_finished() {
        assert!(Instant::now() < until + Duration::from_secs(10), "open waits on a pipe");
        // SAFETY: a valid string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        fs::rename(&pipe, &path).unwrap();
        fs::write(&spare, [1; 100]).unwrap();
        fs::rename(&spare, &path).unwrap();
    }
    opener.join().unwrap();
}

#[test]
fn a_symbolic_link_to_a_file_is_followed() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "model", 100);
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let map = Map::open(&link).unwrap();
    assert_eq!(map.bytes(), fs::read(&path).unwrap());
    assert_eq!(map.path(), link);
}

#[test]
fn a_file_cut_short_while_mapped_reads_zeros_and_is_named() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "model", 8 * PAGE);
    let map = Map::open(&path).unwrap();
    let before = map.bytes()[..2 * PAGE].to_vec();
    cut(&path, 2 * PAGE);
    // Before any touch: the length tells.
    let error = map.check().unwrap_err();
    assert!(
        matches!(&error, MapError::FileShrank { path: named, expected, found }
            if *named == path && *expected == 8 * PAGE as u64 && *found == 2 * PAGE as u64),
        "{error:?}"
    );
    assert!(error.to_string().starts_with(&format!("'{}'", path.display())), "{error}");
    // Touching the lost part does not end the process.
    assert_eq!(map.bytes()[..2 * PAGE], before);
    assert_eq!(sum(&map.bytes()[2 * PAGE..]), 0);
    assert!(matches!(map.check(), Err(MapError::FileShrank { .. })));
    // Growing again does not make it whole: what was read is still wrong.
    cut(&path, 8 * PAGE);
    let error = map.check().unwrap_err();
    assert!(matches!(error, MapError::Unreadable { at, .. } if at == 2 * PAGE as u64), "{error:?}");
    assert!(matches!(map.populate(0..map.len()), Err(MapError::Unreadable { .. })));
    // Another map of the same file is not affected.
    Map::open(&path).unwrap().check().unwrap();
}

#[test]
fn a_file_cut_within_its_last_page_is_noticed_although_nothing_faults() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "model", PAGE + 100);
    let map = Map::open(&path).unwrap();
    cut(&path, PAGE + 50);
    assert_eq!(sum(&map.bytes()[PAGE + 50..]), 0);
    assert!(matches!(map.check(), Err(MapError::FileShrank { .. })));
}

#[test]
fn a_file_cut_to_nothing_can_be_populated_without_dying() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "model", 8 * PAGE);
    let map = Map::open(&path).unwrap();
    cut(&path, 0);
    for error in [map.populate(0..map.len()), map.touch(0..map.len())].map(Result::unwrap_err) {
        assert!(matches!(error, MapError::FileShrank { found: 0, .. }), "{error:?}");
    }
    assert_eq!(sum(map.bytes()), 0);
}

#[test]
fn only_the_map_of_the_file_that_shrank_is_poisoned() {
    let folder = TempDir::new().unwrap();
    let paths: Vec<_> = (0..5).map(|i| file(&folder, &format!("shard-{i}"), 4 * PAGE)).collect();
    let maps: Vec<_> = paths.iter().map(|path| Map::open(path).unwrap()).collect();
    cut(&paths[2], 0);
    let sums: Vec<u64> = maps.iter().map(|map| sum(map.bytes())).collect();
    for (i, map) in maps.iter().enumerate() {
        assert_eq!(map.check().is_err(), i == 2, "map {i}");
        assert_eq!(sums[i] == 0, i == 2, "map {i}");
    }
}

#[test]
fn every_second_page_of_a_large_lost_file_can_be_touched_from_the_back() {
    // More holes than a process may have mappings (65530 by default on Linux).
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("sparse");
    let len = 140_000 * 4096;
    File::create(&path).unwrap().set_len(len as u64).unwrap();
    let map = Map::open(&path).unwrap();
    cut(&path, 0);
    let total: u64 = (0..len).step_by(8192).rev().map(|at| u64::from(map.bytes()[at])).sum();
    assert_eq!(total, 0);
    assert!(matches!(map.check(), Err(MapError::FileShrank { found: 0, .. })));
}

#[test]
fn many_threads_may_fault_at_once_while_maps_come_and_go() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "model", 64 * PAGE);
    let other = file(&folder, "other", 2 * PAGE);
    let expected = fs::read(&other).unwrap();
    for _ in 0..20 {
        fs::write(&path, vec![7_u8; 64 * PAGE]).unwrap();
        let map = Arc::new(Map::open(&path).unwrap());
        cut(&path, 0);
        thread::scope(|scope| {
            for part in 0..8 {
                let map = Arc::clone(&map);
                scope.spawn(move || {
                    assert_eq!(sum(&map.bytes()[part * 8 * PAGE..(part + 1) * 8 * PAGE]), 0);
                    assert!(matches!(map.check(), Err(MapError::FileShrank { .. })));
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let map = Map::open(&other).unwrap();
                        assert!(map.bytes() == expected);
                        map.check().unwrap();
                    }
                });
            }
        });
    }
}

#[test]
fn a_file_replaced_by_rename_keeps_its_old_content_in_the_map() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "model", 4 * PAGE);
    let old = fs::read(&path).unwrap();
    let map = Map::open(&path).unwrap();
    let new = folder.path().join("new");
    File::create(&new).unwrap().write_all(b"short").unwrap();
    fs::rename(&new, &path).unwrap();
    assert_eq!(map.bytes(), old);
    map.check().unwrap();
    fs::remove_file(&path).unwrap();
    map.populate(0..map.len()).unwrap();
    assert_eq!(map.bytes(), old);
}

#[test]
fn a_map_has_no_faults_of_the_maps_before_it() {
    let folder = TempDir::new().unwrap();
    let (cut_later, whole) = (file(&folder, "cut", 2 * PAGE), file(&folder, "whole", PAGE));
    // Other tests open maps meanwhile, and may take the entries of these: some of so many are taken below.
    let faulty: Vec<Map> = (0..8).map(|_| Map::open(&cut_later).unwrap()).collect();
    cut(&cut_later, PAGE);
    for map in &faulty {
        assert_eq!(sum(&map.bytes()[PAGE..]), 0);
        assert!(map.faults() > 0);
    }
    drop(faulty);
    let fresh: Vec<Map> = (0..16).map(|_| Map::open(&whole).unwrap()).collect();
    for map in &fresh {
        assert_eq!(map.faults(), 0);
        map.check_since(0).unwrap();
    }
}

#[test]
fn a_file_that_has_its_length_again_is_read_again() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "model", 4 * PAGE + 17);
    let whole = fs::read(&path).unwrap();
    let map = Map::open(&path).unwrap();
    map.try_again().unwrap();
    let before = map.faults();
    // A lock, if there may be one here, is kept.
    let _ = map.lock(2 * PAGE..2 * PAGE + 5);
    for _ in 0..3 {
        cut(&path, PAGE);
        assert_eq!(map.bytes()[..PAGE], whole[..PAGE]);
        assert_eq!(sum(&map.bytes()[PAGE..]), 0, "what is missing reads as zeros");
        for _ in 0..2 {
            assert!(matches!(map.check(), Err(MapError::FileShrank { .. })));
            assert!(matches!(map.try_again(), Err(MapError::FileShrank { .. })));
        }
        // In place: the file is the same.
        OpenOptions::new().write(true).open(&path).unwrap().write_all(&whole).unwrap();
        let error = map.check().unwrap_err();
        assert!(matches!(error, MapError::Unreadable { .. }), "{error}");
        assert!(error.to_string().contains("model"), "{error}");
        map.try_again().unwrap();
        map.check().unwrap();
        assert_eq!(map.bytes(), whole);
        // Whoever has read zeros meanwhile learns of it.
        let error = map.check_since(before).unwrap_err();
        assert!(matches!(error, MapError::Unreadable { at, .. } if at >= PAGE as u64), "{error}");
        map.check_since(map.faults()).unwrap();
    }
}
