//! What several tests of transfers need.

#[cfg(target_os = "linux")]
pub mod copying;
#[cfg(target_os = "linux")]
pub mod fuse;
#[cfg(target_os = "linux")]
#[allow(dead_code)] // `image` is for the tests of models
pub mod mounts;
#[cfg(target_os = "linux")]
pub mod refuse;

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use alight_pages::transfer::{
    Piece, TransferError, TransferMethod, TransferOptions, TransferReport, transfer,
};
use tempfile::TempDir;

/// Bytes in which every block differs from every other.
pub fn contents(len: usize) -> Vec<u8> {
    const BLOCK: usize = 1 << 16;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut block = Vec::with_capacity(BLOCK);
    while block.len() < BLOCK {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        block.extend_from_slice(&state.to_le_bytes());
    }
    // The same noise again, and in every 64 bytes of it a number that is nowhere else: each byte by itself would take seconds here.
    let mut bytes = block.repeat(len.div_ceil(BLOCK));
    for (number, bytes) in bytes.chunks_exact_mut(64).enumerate() {
        let number = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bytes[..8].copy_from_slice(&number.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A folder on a disk (not in memory).
pub fn disk_folder() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A file with these bytes, on the disk.
pub fn write(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

/// A folder on a disk, and a file in it.
pub fn on_disk(bytes: &[u8]) -> (TempDir, PathBuf) {
    let folder = disk_folder();
    let path = folder.path().join("weights");
    write(&path, bytes);
    (folder, path)
}

/// Small blocks, so that a small file takes many.
pub fn options(ring: bool) -> TransferOptions {
    let mut options = TransferOptions::default();
    (options.threads, options.block, options.depth, options.readers) = (2, 16384, 8, 4);
    (options.reader_block, options.ring) = (16384, ring);
    options
}

/// The whole file in pieces that begin and end anywhere, the last one at its end.
pub fn uneven_pieces(len: usize) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let (mut at, mut step) = (0, 1);
    while at < len {
        let end = len.min(at + step);
        pieces.push(Piece::slot(at as u64..end as u64));
        (at, step) = (end, step % 100_000 * 3 + 77);
    }
    pieces
}

/// Transfers all pieces and compares each with the file's bytes, once.
pub fn compare(
    path: &Path,
    expected: &[u8],
    pieces: &[Piece],
    method: TransferMethod,
    options: &TransferOptions,
) -> Result<TransferReport, TransferError> {
    let file = File::open(path).unwrap();
    let seen: Vec<AtomicUsize> = pieces.iter().map(|_| AtomicUsize::new(0)).collect();
    let stop = AtomicBool::new(false);
    let report = transfer(&file, path, pieces, method, options, &stop, &|i, bytes| {
        let range = pieces[i].range().start as usize..pieces[i].range().end as usize;
        assert!(bytes == &expected[range.clone()], "piece {i}, {range:?}");
        seen[i].fetch_add(1, SeqCst);
    })?;
    assert!(seen.iter().all(|count| count.load(SeqCst) == 1), "every piece, once");
    assert_eq!(report.bytes, pieces.iter().map(|p| p.range().end - p.range().start).sum::<u64>());
    Ok(report)
}

/// Bytes at these addresses that are in memory, as the page tables have it: to the page, since the kernel takes this memory and that of another
/// test for one mapping where they meet.
#[cfg(target_os = "linux")]
pub fn resident(at: Range<*const u8>) -> usize {
    use std::os::unix::fs::FileExt;
    let page = alight_pages::page_size();
    let (first, end) = (at.start as usize / page, (at.end as usize).div_ceil(page));
    // A number for each page of the address space, whose highest bit says that the page is there.
    let mut numbers = vec![0; 8 * (end - first)];
    let table = File::open("/proc/self/pagemap").unwrap();
    table.read_exact_at(&mut numbers, 8 * first as u64).unwrap();
    let numbers = numbers.as_chunks().0.iter().map(|bytes| u64::from_ne_bytes(*bytes));
    numbers.filter(|number| number >> 63 == 1).count() * page
}
