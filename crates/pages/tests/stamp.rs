//! A file that is changed while it is read is known by its stamp.
#![cfg(target_os = "linux")]

use std::fs::{self, File, FileTimes, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use alight_pages::{Map, MapError, Stamp, open_file, times_tell};
use tempfile::TempDir;

/// A folder on a disk.
fn folder() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn write(path: &Path, at: u64) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(b"?", at).unwrap();
}

#[test]
fn a_change_is_seen_even_if_its_time_is_put_back() {
    let folder = folder();
    let path = folder.path().join("file");
    fs::write(&path, vec![7; 10_000]).unwrap();
    let (file, metadata) = open_file(&path).unwrap();
    // At once after the file was written, so within the tick of the clock.
    let stamp = Stamp::before_reading(&file).unwrap();
    assert!(stamp.still_holds(&file).unwrap());
    fs::read(&path).unwrap();
    assert!(stamp.still_holds(&file).unwrap(), "reading is no change");
    write(&path, 5000);
    let times = FileTimes::new().set_modified(metadata.modified().unwrap());
    OpenOptions::new().write(true).open(&path).unwrap().set_times(times).unwrap();
    assert_eq!(file.metadata().unwrap().modified().unwrap(), metadata.modified().unwrap());
    assert!(!stamp.still_holds(&file).unwrap());
}

#[test]
fn a_map_says_so_too() {
    let folder = folder();
    let path = folder.path().join("file");
    fs::write(&path, vec![7; 10_000]).unwrap();
    let map = Map::open(&path).unwrap();
    map.stamp().settle(map.file());
    map.check_unchanged().unwrap();
    write(&path, 5000);
    map.check().unwrap();
    let error = map.check_unchanged().unwrap_err();
    assert!(matches!(error, MapError::Changed { .. }), "{error}");
}

/// The kernel sets the times when a page is written to through a map for the first time since it was
/// brought to the disk. This is why a stamp has everything brought there.
#[test]
fn a_change_through_a_map_that_was_written_to_before_is_seen() {
    let folder = folder();
    let path = folder.path().join("file");
    fs::write(&path, vec![7; 10_000]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    if !times_tell(&file) {
        return eprintln!("skipped: the times of this filesystem do not tell of maps");
    }
    // SAFETY: a new map at an address that the system chooses, which stays until the process ends.
    let start = unsafe {
        let (read_write, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        libc::mmap(std::ptr::null_mut(), 10_000, read_write, shared, file.as_raw_fd(), 0)
    };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: within the map.
    let put = |at: usize, byte: u8| unsafe { start.cast::<u8>().add(at).write_volatile(byte) };
    put(5000, 1);
    // The page is dirty now: no further change to it would set a time.
    let reader = File::open(&path).unwrap();
    let stamp = Stamp::before_reading(&reader).unwrap();
    put(5001, 2);
    assert!(!stamp.still_holds(&reader).unwrap());
}
