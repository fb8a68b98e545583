//! Files made out of ranges of others: every byte as it should be, errors reported, the page cache as it was.

use std::fs::{self, File};
use std::io;
use std::num::NonZero;
use std::ops::{ControlFlow, Range};
use std::path::Path;

use alight_pages::assemble::{AssembleError, Buffer, Maker, Parts, Reader, Record, assemble};
use alight_pages::{evict, residency};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Takes the source's bytes from its end to its beginning, in blocks of `block`.
struct Reversed<'f> {
    reader: Reader<'f>,
    buffer: Buffer,
    len: u64,
    fail_at: Option<u64>,
}

const BLOCK: u64 = 10_007;

impl Maker for Reversed<'_> {
    type Error = io::Error;

    fn make(&mut self, range: Range<u64>, out: &mut [u8]) -> Result<(), io::Error> {
        if self.fail_at.is_some_and(|at| range.contains(&at)) {
            return Err(io::Error::other("cannot"));
        }
        out.fill(0xaa);
        for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            // Block i of the new file is block n - 1 - i of the source.
            let start = self.len - (block + 1) * BLOCK;
            let (from, to) = (range.start.max(block * BLOCK), range.end.min((block + 1) * BLOCK));
            let source = start + from - block * BLOCK..start + to - block * BLOCK;
            let bytes = self.reader.read(source, &mut self.buffer)?;
            out[(from - range.start) as usize..(to - range.start) as usize].copy_from_slice(bytes);
        }
        Ok(())
    }
}

fn source(path: &Path, blocks: u64) -> Vec<u8> {
    let len = (blocks * BLOCK) as usize;
    // The numbers come again after 251 times 256 of them: no two blocks begin at the same one.
    let once: Vec<u8> = (0..251 * 256).map(|i: usize| (i * 7 + i / 251) as u8).collect();
    let mut bytes = once.repeat(len.div_ceil(once.len()));
    bytes.truncate(len);
    fs::write(path, &bytes).unwrap();
    bytes
}

fn reverse(
    (source, path): (&File, &Path),
    dest: &File,
    threads: usize,
    fail_at: Option<u64>,
    on_progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<(), AssembleError<io::Error>> {
    let len = source.metadata().unwrap().len();
    let maker = || Reversed {
        reader: Reader::new(source, path).unwrap(),
        buffer: Buffer::default(),
        len,
        fail_at,
    };
    assemble(dest, len, NonZero::new(threads).unwrap(), maker, on_progress).map(drop)
}

#[test]
fn every_byte_is_where_it_belongs_for_small_and_large_files_and_any_threads() {
    exact(&folder());
}

#[test]
fn so_it_is_where_nothing_goes_around_the_page_cache() {
    match tempfile::tempdir_in("/dev/shm") {
        Ok(folder) => exact(&folder),
        Err(error) => eprintln!("skipped: no tmpfs: {error}"),
    }
}

fn exact(folder: &tempfile::TempDir) {
    for (blocks, threads) in [(1, 1), (300, 2), (2500, 1), (2500, 5), (2500, 40)] {
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let bytes = source(&from, blocks);
        let expected = bytes.rchunks(BLOCK as usize).collect::<Vec<_>>().concat();
        let file = File::open(&from).unwrap();
        let dest = File::options().read(true).write(true).create(true).truncate(true).open(&to);
        let dest = dest.unwrap();
        for cold in [false, true] {
            if cold {
                file.sync_all().unwrap();
                let _ = evict(&file);
            }
            let mut last = 0;
            let mut seen = |done| {
                assert!(done >= last && done <= bytes.len() as u64);
                last = done;
                ControlFlow::Continue(())
            };
            reverse((&file, &from), &dest, threads, None, &mut seen).unwrap();
            assert!(fs::read(&to).unwrap() == expected, "{blocks} blocks, {threads} threads");
        }
    }
}

#[test]
fn what_was_cold_stays_cold_and_what_was_warm_stays_warm() {
    let folder = folder();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    source(&from, 2500);
    let file = File::open(&from).unwrap();
    file.sync_all().unwrap();
    let cold = match evict(&file) {
        Ok(left) if left.is_proven_cold() => left,
        other => return eprintln!("skipped: {other:?}"),
    };
    let dest = File::options().read(true).write(true).create_new(true).open(&to).unwrap();
    reverse((&file, &from), &dest, 3, None, &mut |_| ControlFlow::Continue(())).unwrap();
    let len = file.metadata().unwrap().len();
    // By direct reads nothing at all; else the kernel reads ahead, a window at most.
    let now = residency(&file, 0..len).unwrap();
    assert!(now.cached_bytes(len) <= cold.cached_bytes(len) + (4 << 20), "{now:?}");
    let made = residency(&dest, 0..len).unwrap();
    assert!(made.cached_bytes(len) <= 4 << 20, "the new file is not cached either: {made:?}");

    // Warm pages stay. (Some may be taken by others meanwhile.)
    let whole = fs::read(&from).unwrap();
    assert_eq!(whole.len() as u64, len);
    let before = residency(&file, 0..len).unwrap().cached_bytes(len);
    reverse((&file, &from), &dest, 3, None, &mut |_| ControlFlow::Continue(())).unwrap();
    let after = residency(&file, 0..len).unwrap().cached_bytes(len);
    assert!(after + (4 << 20) >= before, "{after} of {before} bytes are left");
}

#[test]
fn the_first_error_ends_it_and_so_does_the_caller() {
    let folder = folder();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let bytes = source(&from, 2500);
    let file = File::open(&from).unwrap();
    let dest = File::options().read(true).write(true).create_new(true).open(&to).unwrap();
    let middle = Some(bytes.len() as u64 / 2);
    let on = &mut |_| ControlFlow::Continue(());
    let failed = reverse((&file, &from), &dest, 4, middle, on);
    assert!(matches!(failed, Err(AssembleError::Piece(_))), "{failed:?}");
    let stopped = reverse((&file, &from), &dest, 4, None, &mut |_| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(AssembleError::Stopped)), "{stopped:?}");
    let read_only = File::open(&to).unwrap();
    let refused = reverse((&file, &from), &read_only, 4, None, on);
    assert!(matches!(refused, Err(AssembleError::Write { .. })), "{refused:?}");
}

#[test]
fn what_lies_beyond_the_end_is_an_error() {
    let folder = folder();
    let from = folder.path().join("from");
    source(&from, 10);
    let file = File::open(&from).unwrap();
    let reader = Reader::new(&file, &from).unwrap();
    let mut buffer = Buffer::default();
    let len = 10 * BLOCK;
    assert_eq!(reader.read(len..len, &mut buffer).unwrap(), b"");
    assert_eq!(reader.read(len - 1..len, &mut buffer).unwrap().len(), 1);
    for range in [len - 1..len + 1, len..len + 1, 0..u64::MAX] {
        let error = reader.read(range, &mut buffer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
    // Cut short after it was opened.
    File::options().write(true).open(&from).unwrap().set_len(100).unwrap();
    let error = reader.read(0..len, &mut buffer).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn columns_come_from_each_of_their_parts_and_do_not_stay_cached() {
    const MATRIX: u64 = 80 << 20;
    let folder = folder();
    let from = folder.path().join("from");
    let word = |at: u64| (at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let bytes: Vec<u8> = (0..6 * MATRIX / 8).flat_map(|i| word(8 * i).to_le_bytes()).collect();
    fs::write(&from, bytes).unwrap();
    let file = File::open(&from).unwrap();
    file.sync_all().unwrap();
    let is_cold = matches!(evict(&file), Ok(left) if left.is_proven_cold());
    let reader = Reader::new(&file, &from).unwrap();
    let mut buffer = Buffer::default();
    let stride = 1 << 16;
    for matrix in 0..6 {
        let parts = Parts { first: matrix * MATRIX, stride, len: stride, count: MATRIX / stride };
        for range in [0..8, 4096..4112, stride - 8..stride] {
            let found = reader.read_columns(&parts, range.clone(), &mut buffer).unwrap();
            assert_eq!(found.len() as u64, parts.count * (range.end - range.start));
            let words = found.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
            let places = (0..parts.count).flat_map(|i| {
                let at = parts.first + i * stride;
                (at + range.start..at + range.end).step_by(8)
            });
            assert!(words.eq(places.map(word)), "{matrix} {range:?}");
        }
    }
    // Four may be held, whatever their size.
    if is_cold {
        let cached = residency(&file, 0..2 * MATRIX).unwrap().cached;
        assert!(cached <= 64, "{cached} pages of what was read first");
    }
    for (parts, range) in [
        (Parts { first: 6 * MATRIX - 100, stride: 50, len: 60, count: 2 }, 0..1),
        (Parts { first: u64::MAX, stride: u64::MAX, len: 1, count: u64::MAX }, 0..1),
        (Parts { first: 0, stride: 50, len: 10, count: 2 }, 9..11),
    ] {
        let error = reader.read_columns(&parts, range, &mut buffer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{parts:?}");
    }
}

#[test]
fn a_record_takes_out_what_came_in_and_nothing_else() {
    let folder = folder();
    let from = folder.path().join("from");
    let bytes = source(&from, 8000);
    let file = File::open(&from).unwrap();
    file.sync_all().unwrap();
    let len = bytes.len() as u64;
    match evict(&file) {
        Ok(left) if left.is_proven_cold() => {}
        other => return eprintln!("skipped: {other:?}"),
    }
    let cached = |range| residency(&file, range).unwrap().cached;
    let all = Record::of(&file);
    let half = len / 4 / (1 << 20) * (1 << 20);
    alight_pages::warm(&file, 0..half).unwrap();
    // What the kernel reads ahead has come when it has been read itself.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let second_half = Record::of(&file);
    let before = cached(0..len);
    fs::read(&from).unwrap();
    assert!(cached(0..len) > before);
    second_half.restore(&file);
    let after = cached(0..len);
    // Some may be taken by others meanwhile.
    assert!(after <= before && after + 64 >= before, "{after} of {before} pages");
    all.restore(&file);
    assert_eq!(cached(0..len), 0);
}
