//! Memory that parts of files are put into: what is read, what is written, and a file that is cut short.

use std::fs::OpenOptions;
use std::sync::Arc;

use alight_pages::{Map, MapError, Reservation, page_size};

fn file(folder: &tempfile::TempDir, pages: usize) -> Arc<Map> {
    let path = folder.path().join("data");
    let bytes: Vec<u8> = (0..pages * page_size()).map(|i| (i / page_size() + 1) as u8).collect();
    std::fs::write(&path, bytes).unwrap();
    Arc::new(Map::open(&path).unwrap())
}

#[test]
fn parts_of_files_lie_among_zeros_and_are_written_for_this_process_alone() {
    let (folder, page) = (tempfile::tempdir().unwrap(), page_size());
    let map = file(&folder, 5);
    let mut memory = Reservation::new(8 * page).unwrap();
    memory.bytes_mut()[..4 * page].fill(9);
    memory.put(2 * page, &map, page, 3 * page).unwrap();
    let firsts = |memory: &Reservation| [0, 1, 2, 3, 4, 5, 6, 7].map(|i| memory.bytes()[i * page]);
    assert_eq!(firsts(&memory), [9, 9, 2, 3, 4, 0, 0, 0]);
    memory.bytes_mut()[3 * page] = 77;
    memory.check().unwrap();
    assert_eq!(firsts(&memory), [9, 9, 2, 77, 4, 0, 0, 0]);
    assert_eq!(map.bytes()[2 * page], 3, "the file is what it was");
    // The same file again, elsewhere.
    memory.put(5 * page, &map, 0, page).unwrap();
    memory.take_out(2 * page);
    assert_eq!(firsts(&memory), [9, 9, 0, 0, 0, 1, 0, 0]);
    memory.take_out(0);
    memory.bytes_mut().fill(1);
}

#[test]
fn a_file_cut_short_reads_as_zeros_that_can_be_written_and_is_named() {
    let (folder, page) = (tempfile::tempdir().unwrap(), page_size());
    let map = file(&folder, 6);
    let mut memory = Reservation::new(8 * page).unwrap();
    memory.put(page, &map, 0, 6 * page).unwrap();
    let cut = OpenOptions::new().write(true).open(map.path()).unwrap();
    cut.set_len(2 * page as u64).unwrap();
    assert_eq!(memory.bytes()[2 * page], 2);
    assert_eq!(memory.bytes()[4 * page], 0);
    memory.bytes_mut()[5 * page] = 5;
    let error = memory.check().unwrap_err();
    assert!(matches!(error, MapError::FileShrank { .. }), "{error}");
    assert!(error.to_string().contains("data"));
    memory.take_out(page);
    memory.check().unwrap();
    assert_eq!(memory.bytes()[page], 0);
}

#[test]
#[should_panic(expected = "parts that overlap")]
fn parts_do_not_overlap() {
    let (folder, page) = (tempfile::tempdir().unwrap(), page_size());
    let map = file(&folder, 3);
    let mut memory = Reservation::new(8 * page).unwrap();
    memory.put(0, &map, 0, 3 * page).unwrap();
    memory.put(2 * page, &map, 0, page).unwrap();
}

#[test]
fn more_than_there_is_is_an_error() {
    assert!(Reservation::new(usize::MAX).is_err());
    assert!(Reservation::new(isize::MAX as usize - 5000).is_err());
}
