//! What a transfer brings: exactly the bytes of the file, whatever the ranges, places and engines.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use alight_pages::Region;
use alight_pages::transfer::{Method, Options, Piece, Report, TransferError, transfer};
use proptest::prelude::*;
use tempfile::TempDir;

/// Bytes in which every block differs from every other.
fn contents(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A folder on a disk (not in memory), and a file in it.
fn on_disk(bytes: &[u8]) -> (TempDir, PathBuf) {
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("weights");
    let mut file = File::create(&path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
    (folder, path)
}

fn options(threads: usize, block: usize, depth: usize, readers: usize) -> Options {
    let mut options = Options::default();
    (options.threads, options.block, options.depth, options.readers) =
        (threads, block, depth, readers);
    options
}

/// Transfers all pieces and compares each with the file's bytes, once.
fn compare(
    path: &PathBuf,
    expected: &[u8],
    pieces: &[Piece],
    method: Method,
    options: &Options,
) -> Result<Report, TransferError> {
    let file = File::open(path).unwrap();
    let seen: Vec<AtomicUsize> = pieces.iter().map(|_| AtomicUsize::new(0)).collect();
    let stop = AtomicBool::new(false);
    let report = transfer(&file, path, pieces, method, options, &stop, &|i, bytes| {
        let range = pieces[i].range.start as usize..pieces[i].range.end as usize;
        assert!(bytes == &expected[range.clone()], "piece {i}, {range:?}");
        seen[i].fetch_add(1, SeqCst);
    })?;
    assert!(seen.iter().all(|count| count.load(SeqCst) == 1), "every piece, once");
    assert_eq!(report.bytes, pieces.iter().map(|p| p.range.end - p.range.start).sum::<u64>());
    Ok(report)
}

const LEN: usize = 3 * 1024 * 1024 + 1234;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn random_ranges_arrive_as_they_are_in_the_file(
        ranges in prop::collection::vec((0..LEN, 0..300_000usize, 0..4u8), 0..12),
        threads in 1..4usize,
        block in prop::sample::select(vec![4096, 8192, 65536, 1 << 20]),
        depth in 1..12usize,
        direct in any::<bool>(),
    ) {
        static FILE: std::sync::OnceLock<(TempDir, PathBuf, Vec<u8>)> = std::sync::OnceLock::new();
        let (_, path, expected) = FILE.get_or_init(|| {
            let expected = contents(LEN);
            let (folder, path) = on_disk(&expected);
            (folder, path, expected)
        });
        // Targets: each in a room of its own, congruent to the file or a byte off, with guards.
        const ROOM: usize = 320 * 4096;
        let region = Region::new(ranges.len() * ROOM).unwrap();
        // SAFETY: nobody else uses the region yet.
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
            // SAFETY: a part of the region that no other piece uses, with room for 300,000 bytes.
            unsafe { Piece::at(range, region.as_mut_ptr().add(at)) }
        }).collect();
        let method = if direct { Method::Direct } else { Method::Read };
        let report = compare(path, expected, &pieces, method, &options(threads, block, depth, 3));
        let report = report.unwrap();
        prop_assert_eq!(report.direct, direct, "{:?}", report.fallbacks);
        let mut image = vec![0xA5; region.len()];
        for (piece, place) in pieces.iter().zip(places) {
            if let Some(place) = place {
                let range = piece.range.start as usize..piece.range.end as usize;
                image[place].copy_from_slice(&expected[range]);
            }
        }
        prop_assert!(region.bytes() == image, "something was written outside of a piece's place");
    }
}
