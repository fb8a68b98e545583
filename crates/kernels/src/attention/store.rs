//! Stores one position's keys and values, rounded, in the cache's layout.

use std::marker::PhantomData;

use super::{COLUMNS, KvShape, KvType, LINE, PageTable, bytes, levels, rotation};
use crate::Isa;
use crate::lanes::{Lanes, by_level};

/// Stores the keys `k` (`[kv_heads][k_dim]`) and values `v` (`[kv_heads][v_dim]`, none where they are the beginnings of keys)
/// of one position.
///
/// For f16 they are rounded to nearest even; beyond ±65504 they saturate, NaN stays NaN. For f32 they stay as they are. Panics if a slice has the wrong
/// length or `pos` is not below the capacity.
pub fn kv_store(
    isa: Isa,
    shape: &KvShape,
    k_cache: &mut [u16],
    v_cache: &mut [u16],
    pos: usize,
    k: &[f32],
    v: &[f32],
) {
    // SAFETY: the caches are borrowed exclusively, so this position is not accessed elsewhere.
    unsafe { KvWriter::new(*shape, k_cache, v_cache).store(isa, pos, k, v) }
}

/// Lets several threads store different positions of one cache.
///
/// Positions of the same group of 16 share cache lines of the key cache: where there are many positions, give a thread 16 or
/// more at a time, aligned to 16.
#[derive(Clone, Copy)]
pub struct KvWriter<'a> {
    shape: KvShape,
    k: *mut u16,
    v: *mut u16,
    /// Number of elements from there on.
    lens: [usize; 2],
    table: PageTable<'a>,
    lifetime: PhantomData<&'a mut [u16]>,
}

// SAFETY: it represents two `&mut [u16]`; concurrent use is governed by the contract of `store`.
unsafe impl Send for KvWriter<'_> {}
// SAFETY: as above.
unsafe impl Sync for KvWriter<'_> {}

impl<'a> KvWriter<'a> {
    /// Creates a writer into a cache of one page: `k` (`k_len` elements) and `v` (`v_len` elements). Panics on other lengths.
    pub fn new(shape: KvShape, k: &'a mut [u16], v: &'a mut [u16]) -> KvWriter<'a> {
        shape.check();
        assert_eq!(k.len(), shape.k_len(), "key cache length for {shape:?}");
        assert_eq!(v.len(), shape.v_len(), "value cache length for {shape:?}");
        shape.check_aligned([k.as_ptr(), v.as_ptr()], 0);
        let (k, v, lens) = (k.as_mut_ptr(), v.as_mut_ptr(), [k.len(), v.len()]);
        KvWriter { shape, k, v, lens, table: PageTable::ONE, lifetime: PhantomData }
    }

    /// Creates a writer into pages of a memory, in which the keys of page 0 are at `k` and its values at `v`; the pages are
    /// those of `table`. Panics if one is outside `k` or `v`.
    pub fn paged(
        shape: KvShape,
        memory: &'a mut [u16],
        [k, v]: [usize; 2],
        table: PageTable<'a>,
    ) -> KvWriter<'a> {
        shape.check_paged();
        let (k, v) = (&raw mut memory[k..], &raw mut memory[v..]);
        let lens = [k.len(), v.len()];
        shape.check_aligned([k.cast(), v.cast()], table.stride);
        KvWriter { shape, k: k.cast(), v: v.cast(), lens, table, lifetime: PhantomData }
    }

    /// Returns a writer into other pages of the same memory.
    pub fn with_table<'b>(&self, table: PageTable<'b>) -> KvWriter<'b>
    where
        'a: 'b,
    {
        KvWriter { table, ..*self }
    }

    /// Returns the elements of the keys, and of the values, of one position.
    pub(crate) fn widths(&self) -> [usize; 2] {
        [self.shape.k_dim, self.shape.stored_v_dim()].map(|dim| self.shape.kv_heads * dim)
    }

    /// Stores one position, like [`kv_store`], with the same panics.
    ///
    /// # Safety
    /// No other call may store the same position of the same page at the same time, through any copy.
    pub unsafe fn store(&self, isa: Isa, pos: usize, k: &[f32], v: &[f32]) {
        let s = &self.shape;
        let (page, pos) = (pos / s.capacity, pos % s.capacity);
        assert!(page < self.table.pages.len(), "position {pos} of page {page} of {:?}", self.table);
        let start = self.table.start(page);
        let inside = start + s.k_len() <= self.lens[0] && start + s.v_len() <= self.lens[1];
        assert!(inside, "page {page} of {:?} is outside of the memory", self.table);
        assert_eq!(k.len(), s.kv_heads * s.k_dim, "keys of one position");
        assert_eq!(v.len(), s.kv_heads * s.stored_v_dim(), "values of one position");
        match s.ty {
            KvType::F16 => self.store_halves(isa, start, pos, k, v),
            KvType::Q8_0 => self.store_bytes(start, pos, k, v),
            KvType::Q4R => self.store_levels(isa, start, pos, k, v),
            KvType::F32 => self.store_floats(start, pos, k, v),
        }
    }

    /// Stores position `pos` of the page that begins at `start`, as f16.
    fn store_halves(&self, isa: Isa, start: usize, pos: usize, k: &[f32], v: &[f32]) {
        let s = &self.shape;
        for (h, head) in k.chunks_exact(s.k_dim).enumerate() {
            let line = start + (h * s.capacity + pos / LINE * LINE) * s.k_dim + pos % LINE;
            for (c, part) in head.chunks(COLUMNS).enumerate() {
                let mut halves = [0u16; COLUMNS];
                narrow(isa, part, &mut halves[..part.len()]);
                for (d, &x) in halves[..part.len()].iter().enumerate() {
                    let at = line + (c * COLUMNS + d) * LINE;
                    // SAFETY: pos < capacity, so the index is within k_len from the page's start, which is inside the memory;
                    // this position's elements are the caller's alone.
                    unsafe { self.k.add(at).write(x) }
                }
            }
        }
        for (h, head) in v.chunks_exact(s.v_dim).enumerate() {
            for (c, columns) in head.chunks(COLUMNS).enumerate() {
                let (at, _) = s.value_columns(pos, c * COLUMNS);
                let at = start + h * s.capacity * s.v_dim + at;
                // SAFETY: as above, with v_len; at..at + columns.len() is this position's.
                narrow(isa, columns, unsafe {
                    std::slice::from_raw_parts_mut(self.v.add(at), columns.len())
                });
            }
        }
    }

    /// The same as f32.
    fn store_floats(&self, start: usize, pos: usize, k: &[f32], v: &[f32]) {
        let s = &self.shape;
        let [keys, values] = [self.k, self.v].map(|all| all.wrapping_add(start).cast::<f32>());
        for (h, head) in k.chunks_exact(s.k_dim).enumerate() {
            let line = (h * s.capacity + pos / LINE * LINE) * s.k_dim + pos % LINE;
            for (d, &x) in head.iter().enumerate() {
                // SAFETY: pos < capacity, so the index is within k_len from the page's start, which is inside the memory and
                // aligned; this position's elements are the caller's alone.
                unsafe { keys.add(line + d * LINE).write(x) }
            }
        }
        for (h, head) in v.chunks_exact(s.v_dim).enumerate() {
            for (c, columns) in head.chunks(COLUMNS).enumerate() {
                let (at, _) = s.value_columns(pos, c * COLUMNS);
                let at = h * s.capacity * s.v_dim + at;
                // SAFETY: as above, with v_len; at..at + columns.len() is this position's.
                unsafe { values.add(at).copy_from_nonoverlapping(columns.as_ptr(), columns.len()) }
            }
        }
    }

    /// The same as bytes and scales.
    fn store_bytes(&self, start: usize, pos: usize, k: &[f32], v: &[f32]) {
        let s = &self.shape;
        for (h, head) in k.chunks_exact(s.k_dim).enumerate() {
            let line = (h * s.capacity + pos / LINE * LINE) * s.stored(s.k_dim);
            // SAFETY: pos < capacity, so bytes and scales are within k_len from the page's start, which is inside the memory;
            // this position's are the caller's alone.
            let line = unsafe { self.k.add(start + line) };
            let (places, scales) = (line.cast::<u8>(), line.wrapping_add(LINE / 2 * s.k_dim));
            // SAFETY: as above.
            let put = |d: usize, x| unsafe { places.add(d * LINE + pos % LINE).write(x) };
            // SAFETY: as above.
            let put_scale = |g: usize, x| unsafe { scales.add(g * LINE + pos % LINE).write(x) };
            bytes::round(head, put, put_scale);
        }
        for (h, head) in v.chunks_exact(s.v_dim).enumerate() {
            // SAFETY: as above, with v_len.
            let all = unsafe { self.v.add(start + h * s.capacity * s.stored(s.v_dim)) };
            let put = |d: usize, x| {
                let (at, _) = bytes::value_group(s, pos, d / bytes::GROUP);
                // SAFETY: as above.
                unsafe { all.cast::<u8>().add(at + d % bytes::GROUP).write(x) }
            };
            let put_scale = |g: usize, x| {
                let (_, at) = bytes::value_group(s, pos, g);
                // SAFETY: as above.
                unsafe { all.add(at).write(x) }
            };
            bytes::round(head, put, put_scale);
        }
    }

    /// The same, rotated, as levels and scales.
    fn store_levels(&self, isa: Isa, start: usize, pos: usize, k: &[f32], v: &[f32]) {
        let s = &self.shape;
        let [k_block, v_block] = rotation::blocks(s);
        for (h, head) in k.chunks_exact(s.k_dim).enumerate() {
            let line = (h * s.capacity + pos / LINE * LINE) * s.stored(s.k_dim);
            // SAFETY: pos < capacity, so codes and scales are within k_len from the page's start, which is inside the memory;
            // this position's are the caller's alone, in bytes that no other position shares.
            let line = unsafe { self.k.add(start + line) };
            let (places, scales) = (line.cast::<u8>(), line.wrapping_add(LINE / 4 * s.k_dim));
            rotate_and_round(isa, k_block, head, &mut |g, scale, codes| {
                // SAFETY: as above.
                unsafe { scales.add(g * LINE + pos % LINE).write(scale) }
                for (i, [low, high]) in codes.as_chunks().0.iter().enumerate() {
                    let at = (g * levels::GROUP_BYTES + i) * LINE + pos % LINE;
                    // SAFETY: as above.
                    unsafe { places.add(at).write(low | high << 4) }
                }
            });
        }
        for (h, head) in v.chunks_exact(s.v_dim).enumerate() {
            // SAFETY: as above, with v_len.
            let all = unsafe { self.v.add(start + h * s.capacity * s.stored(s.v_dim)) };
            rotate_and_round(isa, v_block, head, &mut |g, scale, codes| {
                let (at, scale_at) = levels::value_group(s, pos, g);
                let (low, high) = codes.split_at(levels::GROUP_BYTES);
                // SAFETY: as above.
                unsafe { all.add(scale_at).write(scale) }
                for (i, (low, high)) in low.iter().zip(high).enumerate() {
                    // SAFETY: as above.
                    unsafe { all.cast::<u8>().add(at + i).write(low | high << 4) }
                }
            });
        }
    }
}

/// Rotates a row of whole blocks, rounds it, and passes each group's number, scale and codes to `put`.
fn rotate_and_round(
    isa: Isa,
    block: usize,
    row: &[f32],
    put: &mut dyn FnMut(usize, u16, &[u8; levels::GROUP]),
) {
    let mut x = [0f32; rotation::MAX_BLOCK];
    let x = &mut x[..block];
    for (b, from) in row.chunks_exact(block).enumerate() {
        x.copy_from_slice(from);
        rotation::rotate(isa, block, x);
        for (g, x) in x.as_chunks().0.iter().enumerate() {
            let (scale, codes) = round(isa, x);
            put(b * (block / levels::GROUP) + g, scale, &codes);
        }
    }
}

/// [`levels::round`].
fn round(isa: Isa, x: &[f32; levels::GROUP]) -> (u16, [u8; levels::GROUP]) {
    use levels::{GROUP, round as round_lanes};
    by_level!(isa, (x: &[f32; GROUP]) -> (u16, [u8; GROUP]), round_lanes)
}

/// Rounds to f16, saturating.
fn narrow(isa: Isa, from: &[f32], to: &mut [u16]) {
    by_level!(isa, (from: &[f32], to: &mut [u16]) -> (), narrow_lanes)
}

#[inline(always)]
unsafe fn saturate_lanes<S: Lanes>(x: S::V) -> S::V {
    // A NaN as second operand is returned.
    // SAFETY: the caller has the features.
    unsafe { S::max(S::splat(-65504.0), S::min(S::splat(65504.0), x)) }
}

#[inline(always)]
unsafe fn narrow_lanes<S: Lanes>(from: &[f32], to: &mut [u16]) {
    let whole = from.len().min(to.len()) / S::N * S::N;
    for d in (0..whole).step_by(S::N) {
        // SAFETY: both have N more elements; the caller has the features.
        unsafe {
            let x = S::load(from.as_ptr().add(d));
            S::store_f16(to.as_mut_ptr().add(d), saturate_lanes::<S>(x));
        }
    }
    let n = from.len().min(to.len()) - whole;
    if n > 0 {
        // SAFETY: both have n more elements; the caller has the features.
        unsafe {
            let x = S::load_n(from.as_ptr().add(whole), n);
            S::store_f16_n(to.as_mut_ptr().add(whole), saturate_lanes::<S>(x), n);
        }
    }
}
