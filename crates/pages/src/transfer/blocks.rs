//! Pieces cut into blocks: single reads, aligned as the file requires.

use super::{Piece, PieceBuffer, Target};

/// The alignment of reads, in bytes; powers of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Align {
    /// Alignment of offsets in the file, and of lengths.
    pub offset: usize,
    /// Alignment of addresses.
    pub memory: usize,
}

impl Align {
    /// Reads through the page cache need none.
    pub const NONE: Align = Align { offset: 1, memory: 1 };

    fn down(self, at: u64) -> u64 {
        at & !(self.offset as u64 - 1)
    }

    fn up(self, at: u64) -> u64 {
        self.down(at + (self.offset as u64 - 1))
    }
}

/// One read.
#[derive(Debug)]
pub(crate) struct Block {
    /// Offset in the file.
    pub offset: u64,
    /// Bytes to read, up to the next multiple of the alignment.
    pub len: usize,
    /// Address in memory. `len` bytes from here on belong to the transfer.
    pub to: *mut u8,
    /// True if `to` is in a slot (or in the caller's memory).
    pub in_slot: bool,
    /// Bytes that must arrive: less than `len` at the end of a piece.
    pub need: usize,
    /// Bytes that have arrived.
    pub done: usize,
    /// Number of retries without progress.
    #[cfg(target_os = "linux")]
    pub tries: u32,
    copy: Option<Copy>,
}

/// The part of a block that is copied elsewhere when it is complete.
#[derive(Debug)]
struct Copy {
    skip: usize,
    len: usize,
    to: *mut u8,
}

impl Block {
    /// A read of `len` bytes at `offset` to their final address, of which `need` must arrive.
    pub fn new(offset: u64, len: usize, need: usize, to: *mut u8) -> Block {
        Block {
            offset,
            len,
            to,
            in_slot: false,
            need,
            done: 0,
            #[cfg(target_os = "linux")]
            tries: 0,
            copy: None,
        }
    }

    /// Records that `count` bytes arrived, counted from `from` (at most `done`). Returns true if that is
    /// progress.
    pub fn advance(&mut self, from: usize, count: usize) -> bool {
        let done = from + count.min(self.len - from);
        let progress = done > self.done;
        self.done = self.done.max(done);
        progress
    }

    pub fn complete(&self) -> bool {
        self.done >= self.need
    }

    /// The offset within the block from which an aligned read continues.
    pub fn resume(&self, align: Align) -> usize {
        self.done & !(align.offset.max(align.memory) - 1)
    }

    /// Copies bytes that were read into a slot to the piece's buffer. The block must be complete.
    pub fn deliver(&self) {
        if let Some(copy) = &self.copy {
            // SAFETY: `skip + len` bytes of the block have been read (it is complete, and they are part
            // of what it needs) into a slot; `to` has space for `len` bytes, by the contract of
            // `Piece::at`, and is not in a slot.
            unsafe { std::ptr::copy_nonoverlapping(self.to.add(copy.skip), copy.to, copy.len) };
        }
    }
}

/// The reads of a piece, and the address of its bytes.
pub(crate) struct Plan {
    pub blocks: Vec<Block>,
    pub bytes: *const u8,
    pub len: usize,
}

/// True if the inner, aligned part of a piece can be read straight to its target.
fn straight(piece: &Piece, target: Target, align: Align) -> bool {
    let inner = align.up(piece.range.start);
    let address = target.0 as usize + (inner - piece.range.start) as usize;
    inner < align.down(piece.range.end) && address.is_multiple_of(align.memory)
}

/// Bytes of a slot that this piece needs.
pub(crate) fn slot_bytes(piece: &Piece, align: Align) -> usize {
    match piece.buffer {
        _ if piece.len() == 0 => 0,
        PieceBuffer::Caller(target) if straight(piece, target, align) => match align.offset {
            1 => 0,
            offset => 2 * offset,
        },
        _ => (align.up(piece.range.end) - align.down(piece.range.start)) as usize,
    }
}

/// Cuts `piece` into reads of at most `block` bytes, a multiple of the alignment. `slot` is aligned
/// and has [`slot_bytes`].
pub(crate) fn plan(piece: &Piece, slot: *mut u8, align: Align, block: usize) -> Plan {
    let (start, end) = (piece.range.start, piece.range.end);
    let len = piece.len() as usize;
    let mut blocks = Vec::new();
    if len == 0 {
        return Plan { blocks, bytes: slot, len };
    }
    // A read of the aligned range around `from..until` to `to`.
    let mut cut = |from: u64, until: u64, to: *mut u8, in_slot: bool| {
        let first = align.down(from);
        let mut offset = first;
        while offset < until {
            let next = (offset + block as u64).min(align.up(until));
            let (len, need) = ((next - offset) as usize, (next.min(until) - offset) as usize);
            // Stays within the slot or the target, which hold the whole aligned range.
            let to = to.wrapping_add((offset - first) as usize);
            blocks.push(Block { in_slot, ..Block::new(offset, len, need, to) });
            offset = next;
        }
    };
    let target = match piece.buffer {
        PieceBuffer::Slot => {
            cut(start, end, slot, true);
            let bytes = slot.wrapping_add((start - align.down(start)) as usize);
            return Plan { blocks, bytes, len };
        }
        PieceBuffer::Caller(target) => target,
    };
    if straight(piece, target, align) {
        let (inner, outer) = (align.up(start), align.down(end));
        if start < inner {
            cut(start, inner, slot, true);
        }
        let to = target.0.wrapping_add((inner - start) as usize);
        cut(inner, outer, to, false);
        if outer < end {
            cut(outer, end, slot.wrapping_add(align.offset), true);
        }
    } else {
        cut(start, end, slot, true);
    }
    // Bytes read into a slot are copied to the target later.
    for block in blocks.iter_mut().filter(|block| block.in_slot) {
        let skip = start.saturating_sub(block.offset) as usize;
        let at = (block.offset + skip as u64 - start) as usize;
        let to = target.0.wrapping_add(at);
        block.copy = Some(Copy { skip, len: block.need - skip, to });
    }
    Plan { blocks, bytes: target.0, len }
}
