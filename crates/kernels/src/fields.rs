//! Moves the parts of a block to their places in a unit of a tile, and back.

/// Rows of a tile.
pub const TILE_ROWS: usize = alight_types::packed::TILE_ROWS as usize;

/// A part of a block, in the order in which parts follow one another in a unit.
pub(crate) enum Field {
    /// `count` elements of 1, 2 or 4 bytes from byte `at` on, each transposed separately.
    Elements { at: usize, size: usize, count: usize },
    /// Signed bytes from `at` on, as lines, stored with the sign bit inverted.
    Signed { at: usize, count: usize },
    /// 32 fifth bits of Q5_0 and Q5_1: bit `i` belongs to weight `i`.
    Bits32 { at: usize },
    /// 256 fifth bits of Q5_K: bit `g` of byte `i` belongs to weight `32g + i`.
    Bits256 { at: usize },
}

use Field::{Bits32, Bits256, Elements, Signed};

/// `count` elements of two bytes: f16 or bf16.
pub(crate) const fn halves(at: usize, count: usize) -> Field {
    Elements { at, size: 2, count }
}

/// `count` bytes.
pub(crate) const fn bytes(at: usize, count: usize) -> Field {
    Elements { at, size: 1, count }
}

/// `count` elements of four bytes: lines of 64 bytes in a unit.
pub(crate) const fn lines(at: usize, count: usize) -> Field {
    Elements { at, size: 4, count }
}

/// Where a type that ends with nibbles has its nibbles, and its fifth bits if it has any.
#[derive(Clone, Copy)]
pub(crate) struct NibblePlaces {
    /// Byte of the block where its nibbles begin.
    pub nibbles: usize,
    /// Byte of the unit where its lines of nibbles begin.
    pub lines: usize,
    /// Byte of the block where its fifth bits begin.
    pub fifth: Option<usize>,
    /// Byte of the unit where its masks of fifth bits begin.
    pub masks: Option<usize>,
}

impl NibblePlaces {
    pub(crate) const fn of(fields: &[Field]) -> NibblePlaces {
        let last = fields.len() - 1;
        let (nibbles, lines) = (fields[last].at(), offset(fields, last));
        let mut places = NibblePlaces { nibbles, lines, fifth: None, masks: None };
        let mut i = 0;
        while i < last {
            if let Bits32 { at } | Bits256 { at } = fields[i] {
                places.fifth = Some(at);
                places.masks = Some(offset(fields, i));
            }
            i += 1;
        }
        places
    }
}

/// Returns where field `n` begins in a unit.
pub(crate) const fn offset(fields: &[Field], n: usize) -> usize {
    let (mut at, mut i) = (0, 0);
    while i < n {
        at += fields[i].unit_bytes();
        i += 1;
    }
    at
}

/// Fills a unit from 16 blocks: the block of row `r` begins at `r · stride`.
#[inline(never)]
pub(super) fn pack(fields: &[Field], blocks: &[u8], stride: usize, mut unit: &mut [u8]) {
    for field in fields {
        let (part, rest) = unit.split_at_mut(field.unit_bytes());
        match *field {
            Elements { at, size: 1, count } => scatter::<1>(&blocks[at..], stride, count, part),
            Elements { at, size: 2, count } => scatter::<2>(&blocks[at..], stride, count, part),
            Elements { at, count, .. } if count % 4 == 0 => {
                transpose(&blocks[at..], [stride, 4], part, [4, 64], count)
            }
            Elements { at, count, .. } => scatter::<4>(&blocks[at..], stride, count, part),
            Signed { at, count } => {
                transpose(&blocks[at..], [stride, 4], part, [4, 64], count);
                part.iter_mut().for_each(|b| *b ^= 0x80);
            }
            Bits32 { at } => {
                let mut masks = [0u64; 8];
                for r in 0..TILE_ROWS {
                    let bits = u64::from(u32_at(blocks, r * stride + at));
                    for (i, mask) in masks.iter_mut().enumerate() {
                        *mask |= ((bits >> first_bit32(i)) & 15) << (4 * r);
                    }
                }
                write_masks(&masks, part);
            }
            Bits256 { at } => {
                for l in 0..8 {
                    let mut masks = [0u64; 8];
                    for r in 0..TILE_ROWS {
                        let bytes = u32_at(blocks, r * stride + at + 4 * l);
                        for (g, mask) in masks.iter_mut().enumerate() {
                            *mask |= u64::from(nibble(bytes >> g)) << (4 * r);
                        }
                    }
                    for (g, mask) in masks.iter().enumerate() {
                        write_masks(&[*mask], &mut part[8 * mask256(g, l)..]);
                    }
                }
            }
        }
        unit = rest;
    }
}

/// The inverse of [`pack`].
#[inline(never)]
pub(crate) fn unpack(fields: &[Field], mut unit: &[u8], blocks: &mut [u8], stride: usize) {
    for field in fields {
        let (part, rest) = unit.split_at(field.unit_bytes());
        match *field {
            Elements { at, size: 4, count } if count % 4 == 0 => {
                transpose(part, [4, 64], &mut blocks[at..], [stride, 4], count);
            }
            Signed { at, count } => {
                transpose(part, [4, 64], &mut blocks[at..], [stride, 4], count);
                for r in 0..TILE_ROWS {
                    let signed = &mut blocks[r * stride + at..][..4 * count];
                    signed.iter_mut().for_each(|b| *b ^= 0x80);
                }
            }
            Elements { at, size: 1, count } => gather::<1>(part, count, &mut blocks[at..], stride),
            Elements { at, size: 2, count } => gather::<2>(part, count, &mut blocks[at..], stride),
            Elements { at, count, .. } => gather::<4>(part, count, &mut blocks[at..], stride),
            Bits32 { at } => put_bytes(bits32_of_rows(part), &mut blocks[at..], stride),
            Bits256 { at } => {
                for l in 0..8 {
                    let bytes = bits256_of_rows(part, l);
                    put_bytes(bytes, &mut blocks[at + 4 * l..], stride);
                }
            }
        }
        unit = rest;
    }
}

/// Extracts the block of row `r` from a unit, as [`unpack`] does for all rows.
#[inline(never)]
pub(crate) fn row(fields: &[Field], mut unit: &[u8], r: usize, block: &mut [u8]) {
    for field in fields {
        let (part, rest) = unit.split_at(field.unit_bytes());
        match *field {
            Elements { at, size: 1, count } => gather_row::<1>(part, r, count, &mut block[at..]),
            Elements { at, size: 2, count } => gather_row::<2>(part, r, count, &mut block[at..]),
            Elements { at, count, .. } => gather_row::<4>(part, r, count, &mut block[at..]),
            Signed { at, count } => {
                let to = block[at..][..4 * count].chunks_exact_mut(4);
                for (to, from) in to.zip(part.chunks_exact(TILE_ROWS * 4)) {
                    for (to, from) in to.iter_mut().zip(&from[r * 4..]) {
                        *to = from ^ 0x80;
                    }
                }
            }
            Bits32 { at } => block[at..][..4].copy_from_slice(&bits32(part, r).to_le_bytes()),
            Bits256 { at } => {
                for l in 0..8 {
                    let bytes = bits256(part, r, l).to_le_bytes();
                    block[at + 4 * l..][..4].copy_from_slice(&bytes);
                }
            }
        }
        unit = rest;
    }
}

/// Returns the 32 bits of row `r` from eight masks.
#[inline(always)]
fn bits32(masks: &[u8], r: usize) -> u32 {
    (0..8)
        .fold(0u32, |bits, i| bits | ((mask_at(masks, i) >> (4 * r)) as u32 & 15) << first_bit32(i))
}

/// Returns bytes `4l .. 4l + 4` of row `r` from 64 masks.
#[inline(always)]
fn bits256(masks: &[u8], r: usize, l: usize) -> u32 {
    (0..8).fold(0u32, |bytes, g| {
        let n = (mask_at(masks, mask256(g, l)) >> (4 * r)) as u32 & 15;
        bytes | bits_of(n) << g
    })
}

/// Returns mask `i` of a unit's masks: the nibble of each row.
#[inline(always)]
fn nibbles_at(masks: &[u8], i: usize) -> [u8; TILE_ROWS] {
    let mut nibbles = [0; TILE_ROWS];
    for (two, byte) in nibbles.as_chunks_mut::<2>().0.iter_mut().zip(&masks[8 * i..][..8]) {
        *two = [byte & 15, byte >> 4];
    }
    nibbles
}

/// [`bits32`] for all rows: four bytes of each, column by column. Compilers vectorise loops over
/// rows.
#[inline(never)]
fn bits32_of_rows(masks: &[u8]) -> [[u8; TILE_ROWS]; 4] {
    // Eight bits are two masks of low nibbles, or of high ones.
    let byte = |first: usize| {
        let [low, high] = [first, first + 2].map(|i| nibbles_at(masks, i));
        std::array::from_fn(|r| low[r] | high[r] << 4)
    };
    [0, 4, 1, 5].map(byte)
}

/// [`bits256`] for all rows.
#[inline(never)]
fn bits256_of_rows(masks: &[u8], l: usize) -> [[u8; TILE_ROWS]; 4] {
    let mut bytes = [[0; TILE_ROWS]; 4];
    for g in 0..8 {
        let nibbles = nibbles_at(masks, mask256(g, l));
        for (j, bytes) in bytes.iter_mut().enumerate() {
            for (byte, nibble) in bytes.iter_mut().zip(nibbles) {
                *byte |= (nibble >> j & 1) << g;
            }
        }
    }
    bytes
}

/// Writes four bytes of each row, which are given column by column, to the rows' blocks.
#[inline(always)]
fn put_bytes(bytes: [[u8; TILE_ROWS]; 4], blocks: &mut [u8], stride: usize) {
    for r in 0..TILE_ROWS {
        blocks[r * stride..][..4].copy_from_slice(&bytes.map(|column| column[r]));
    }
}

/// Moves `count` elements of `N` bytes of 16 blocks to their places.
#[inline(never)]
fn scatter<const N: usize>(blocks: &[u8], stride: usize, count: usize, part: &mut [u8]) {
    for r in 0..TILE_ROWS {
        let from = blocks[r * stride..][..N * count].chunks_exact(N);
        for (from, to) in from.zip(part.chunks_exact_mut(TILE_ROWS * N)) {
            to[r * N..][..N].copy_from_slice(from);
        }
    }
}

/// The inverse of [`scatter`].
#[inline(never)]
fn gather<const N: usize>(part: &[u8], count: usize, blocks: &mut [u8], stride: usize) {
    for r in 0..TILE_ROWS {
        let to = blocks[r * stride..][..N * count].chunks_exact_mut(N);
        for (to, from) in to.zip(part.chunks_exact(TILE_ROWS * N)) {
            to.copy_from_slice(&from[r * N..][..N]);
        }
    }
}

/// Does the work of [`gather`] for row `r`.
#[inline(always)]
fn gather_row<const N: usize>(part: &[u8], r: usize, count: usize, block: &mut [u8]) {
    let to = block[..N * count].chunks_exact_mut(N);
    for (to, from) in to.zip(part.chunks_exact(TILE_ROWS * N)) {
        to.copy_from_slice(&from[r * N..][..N]);
    }
}

/// Copies `count` elements (a multiple of four) of four bytes of 16 rows, in squares of four by
/// four. Element `e` of row `r` is at `r · stride[0] + e · stride[1]`; one of the two is 4.
#[inline(never)]
pub(crate) fn transpose(from: &[u8], fs: [usize; 2], to: &mut [u8], ts: [usize; 2], count: usize) {
    for e in (0..count).step_by(4) {
        for r in (0..TILE_ROWS).step_by(4) {
            let (from, to) = (&from[r * fs[0] + e * fs[1]..], &mut to[r * ts[0] + e * ts[1]..]);
            square(from, fs[0].max(fs[1]), to, ts[0].max(ts[1]));
        }
    }
}

/// Transposes a 4 × 4 matrix of four-byte numbers; its rows are `fs` and `ts` bytes apart.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn square(from: &[u8], fs: usize, to: &mut [u8], ts: usize) {
    use std::arch::x86_64::*;
    assert!(from.len() >= 3 * fs + 16 && to.len() >= 3 * ts + 16);
    // SAFETY: inside the slices by the assertion; SSE2 is part of the architecture.
    unsafe {
        let load = |i: usize| _mm_loadu_si128(from.as_ptr().add(i * fs).cast());
        let (a, b, c, d) = (load(0), load(1), load(2), load(3));
        let (ab, cd) = (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
        let (ef, gh) = (_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
        let mut store = |i: usize, v| _mm_storeu_si128(to.as_mut_ptr().add(i * ts).cast(), v);
        store(0, _mm_unpacklo_epi64(ab, cd));
        store(1, _mm_unpackhi_epi64(ab, cd));
        store(2, _mm_unpacklo_epi64(ef, gh));
        store(3, _mm_unpackhi_epi64(ef, gh));
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn square(from: &[u8], fs: usize, to: &mut [u8], ts: usize) {
    for i in 0..4 {
        for j in 0..4 {
            let v: [u8; 4] = std::array::from_fn(|b| from[i * fs + 4 * j + b]);
            to[j * ts + 4 * i..][..4].copy_from_slice(&v);
        }
    }
}

impl Field {
    /// Returns the byte of the block where the field begins.
    pub(crate) const fn at(&self) -> usize {
        match *self {
            Elements { at, .. } | Signed { at, .. } | Bits32 { at } | Bits256 { at } => at,
        }
    }

    /// Returns the bytes of the field in a unit.
    const fn unit_bytes(&self) -> usize {
        TILE_ROWS
            * match *self {
                Elements { size, count, .. } => size * count,
                Signed { count, .. } => 4 * count,
                Bits32 { .. } => 4,
                Bits256 { .. } => 32,
            }
    }
}

#[inline(always)]
fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Returns mask `i` of a unit's masks.
#[inline(always)]
fn mask_at(masks: &[u8], i: usize) -> u64 {
    u64::from(u32_at(masks, 8 * i)) | u64::from(u32_at(masks, 8 * i + 4)) << 32
}

#[inline(always)]
fn write_masks(masks: &[u64], to: &mut [u8]) {
    for (mask, to) in masks.iter().zip(to.chunks_exact_mut(8)) {
        to.copy_from_slice(&mask.to_le_bytes());
    }
}

/// Returns the first of four weights whose fifth bits are in mask `i` of a group of 32: line `i / 2`,
/// low or high nibbles.
#[inline(always)]
pub(crate) const fn first_bit32(i: usize) -> usize {
    16 * (i % 2) + 4 * (i / 2)
}

/// Returns the mask of weights `32g + 4l ..` of a Q5_K block: that of line `l` of the pair of groups.
#[inline(always)]
pub(crate) const fn mask256(g: usize, l: usize) -> usize {
    16 * (g / 2) + 2 * l + g % 2
}

/// Collects bits 0, 8, 16 and 24 into a nibble.
#[inline(always)]
const fn nibble(bytes: u32) -> u32 {
    ((bytes & 0x0101_0101).wrapping_mul(1 << 24 | 1 << 17 | 1 << 10 | 1 << 3) >> 24) & 15
}

/// The inverse of [`nibble`].
#[inline(always)]
pub(crate) const fn bits_of(nibble: u32) -> u32 {
    nibble.wrapping_mul(1 | 1 << 7 | 1 << 14 | 1 << 21) & 0x0101_0101
}
