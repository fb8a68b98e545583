//! The input of a transfer: pieces of a file, the memory that they go to, and how they are read.

use std::ops::Range;

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferMethod {
    /// Around the page cache, which stays as it is.
    Direct,
    /// Through the page cache, which keeps what was read.
    Read,
}

/// A requested part of the file, and the target of its bytes: a slot of the transfer, or memory of the caller.
///
/// Memory of the caller is valid for the number of bytes that the piece had when it was created, so a piece cannot be changed:
///
/// ```compile_fail,E0616
/// use alight_pages::transfer::Piece;
///
/// let mut piece = Piece::slot(0..4096);
/// piece.range.end = 8192;
/// ```
///
/// and only one piece may exist for it:
///
/// ```compile_fail,E0277
/// fn copies<T: Clone>() {}
/// copies::<alight_pages::transfer::Piece>();
/// ```
#[derive(Debug)]
pub struct Piece {
    pub(super) range: Range<u64>,
    pub(super) buffer: PieceBuffer,
}

/// The target of a piece's bytes.
#[derive(Debug)]
pub(super) enum PieceBuffer {
    /// A slot of the transfer, which is reused for another piece as soon as the consumer returns.
    Slot,
    /// Memory of the caller.
    Caller(Target),
}

/// Memory of the caller that receives a piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target(pub(super) *mut u8);

// SAFETY: by the contract of `Piece::at`, only the transfer uses the memory, on whichever thread.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Piece {
    /// A piece that is handed to the consumer in a slot, which is reused for another piece as soon as the consumer returns. An empty
    /// range is handed over without reading.
    pub fn slot(range: Range<u64>) -> Piece {
        Piece { range, buffer: PieceBuffer::Slot }
    }

    /// A piece that goes to `address`.
    ///
    /// If that equals the piece's offset in the file modulo 4096 (more if the filesystem requires more), the piece is read into it
    /// directly; any other address is correct too but costs a copy. Nothing outside of it is written. Cut contiguous pieces at multiples
    /// of 4096 bytes of the file: each cut elsewhere costs two more reads of 4 KiB.
    ///
    /// # Safety
    /// Whenever the piece is passed to [`transfer`](super::transfer()), `address` must be valid for writing the piece's number of bytes,
    /// and until the transfer is over nothing else (including another transfer) reads or writes them, except the consumer, after the
    /// piece was handed to it (and then nothing writes while it is read).
    pub unsafe fn at(range: Range<u64>, address: *mut u8) -> Piece {
        Piece { range, buffer: PieceBuffer::Caller(Target(address)) }
    }

    /// Returns its range in the file.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    pub(super) fn len(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }
}

/// The sizes and numbers of reads, and of the threads that make them.
///
/// The defaults are measured: `examples/read_speed.rs`, best GB/s of 5 rounds of 256 MiB, cold by cachestat, 2 cores, ext4 on a virtio
/// disk that reaches 2.5 GB/s, Linux 6.18, 2026-11-22, with other work on the machine (which changes any of these by 0.1, and medians by
/// more):
///
/// | | 256 KiB | 512 KiB | 1 MiB | 2 MiB | 4 MiB |
/// |---|---|---|---|---|---|
/// | ring, 2 threads | 2.4 at depth 16, 2.5 at 64 | 2.4, 2.4 | 2.3 at 8, 2.4 at 32 | 2.4 at 8, 2.3 at 16 | 2.1 at 4, 2.4 at 8 |
/// | ring, 2 threads, not registered | | | 2.6 at 32 | | |
/// | direct by 1, 4, 8, 16 readers | | | 2.5, 2.5, 2.4, 2.4 | | 2.3, 2.7, 2.5, 2.5 |
/// | page cache by 1, 4, 8, 16 readers | | | 1.3, 2.1, 1.0, 1.0 | | 2.2, 1.8, 2.1, 1.9 |
///
/// That is: 4 MiB in flight keep this disk busy, and how they are cut matters little. 16 reads of 1 MiB suit disks with more to do and
/// slow consumers, and use few slots. Readers that wait have one read in flight each, which is larger.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TransferOptions {
    /// Threads on which consumers run at the same time, at least 1.
    pub threads: usize,
    /// Bytes of one read through a ring; rounded up to the alignment that the file requires.
    pub block: usize,
    /// Reads in flight through rings, over all threads.
    pub depth: usize,
    /// Threads that read where there is no ring: they mostly wait, so there are more of them than cores.
    pub readers: usize,
    /// Bytes of one read of such a thread.
    pub reader_block: usize,
    /// True to use io_uring if it is available.
    pub ring: bool,
    /// True to register slots with the kernel if it allows it.
    pub register: bool,
}

impl Default for TransferOptions {
    fn default() -> TransferOptions {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        TransferOptions {
            threads: cores,
            block: 1 << 20,
            depth: 16,
            readers: (2 * cores).clamp(4, 16),
            reader_block: 4 << 20,
            ring: true,
            register: true,
        }
    }
}
