//! The symbols of a text while they are merged: a linked list over a vector, initially one entry
//! per character. Merging by rank and merging by score both use it.

/// No symbol.
pub(super) const NONE: u32 = u32::MAX;

/// A range of the text; `len` 0: it was merged into another.
#[derive(Clone, Copy)]
pub(super) struct Symbol {
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) prev: u32,
    pub(super) next: u32,
}

/// Replaces the content of `symbols` with one symbol per character of `text`.
pub(super) fn cut(text: &[u8], symbols: &mut Vec<Symbol>) {
    symbols.clear();
    let mut start = 0;
    while start < text.len() {
        let len = char_len(text[start]).min(text.len() - start);
        let number = symbols.len() as u32;
        symbols.push(Symbol {
            start: start as u32,
            len: len as u32,
            prev: number.checked_sub(1).unwrap_or(NONE),
            next: number + 1,
        });
        start += len;
    }
    if let Some(last) = symbols.last_mut() {
        last.next = NONE;
    }
}

/// Joins two neighbours into `left`, if their total length is still `len` bytes: a candidate is
/// stale when one of them has been merged since. Returns the new neighbours of the joint symbol.
pub(super) fn join(symbols: &mut [Symbol], left: u32, right: u32, len: u32) -> Option<(u32, u32)> {
    let (l, r) = (symbols[left as usize], symbols[right as usize]);
    if l.len == 0 || r.len == 0 || l.len + r.len != len {
        return None;
    }
    symbols[left as usize].len = len;
    symbols[left as usize].next = r.next;
    symbols[right as usize].len = 0;
    if r.next != NONE {
        symbols[r.next as usize].prev = left;
    }
    Some((l.prev, r.next))
}

/// The length of a UTF-8 character by its first byte.
#[inline]
pub(super) fn char_len(first: u8) -> usize {
    match first {
        0..=0xbf => 1,
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        _ => 4,
    }
}
