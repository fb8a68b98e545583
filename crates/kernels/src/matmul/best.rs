//! The rows of a matrix in [planes](crate::planes) that have the greatest products with a token, without reading all of it.
//!
//! A weight is `d · (16·(h − 8) + l)`, with `h` from 0 to 15 in the high plane and `l` from 0 to 15 in the low one. The product of a row is that of its
//! high bits, plus the middle of what the low bits may add, within a bound:
//!
//! ```text
//! Σ d·a·(q − 128)·x  =  16 · Σ d·a·(h − 8)·x  +  Σ d·a·7.5·x  +  Σ d·a·(l − 7.5)·x        |the last| ≤ Σ |d|·a·7.5·Σ|x|
//! ```
//!
//! where `x` are the whole numbers of the activations, `a` their scales, and the inner sums are over a block of 32. (This is Hölder's inequality with the
//! greatest `|l − 7.5|` and the sum of `|x|`. Cauchy's and Schwarz's, with the norms of the low bits, which would have to be stored, leaves more rows:
//! in a block a few activations are much larger than the others. `docs/explanation/output-matrix.md` has the numbers.)
//!
//! So a row is read whole, and its product computed as all products are, unless its bound is below the `k`-th greatest product found so far. That is
//! rigorous with rounding, too. With `u = 2⁻²⁴`, `A = Σ |d|·a·Σ|x|` over all blocks and `n` scales of activations:
//!
//! - The product as computed is within `u·A·(384.1 + 128.1·(8 + n))` of the exact sum: in each block `p` has at most `255·Σ|x|`, the number `f` at most
//!   `128·Σ|x|`, and each is rounded once; then there are at most eight additions for each scale, and `n` of those.
//! - 16 times the product of the high bits likewise within `u·A·128.1·(8 + n)`: there `p` and `f` are exact.
//! - The sums of the middle and of the bound have `b` terms of at most `7.5·|d|·a·Σ|x|`, each rounded twice, and two additions follow:
//!   `u·A·(15·(b + 2) + 300)`.
//!
//! All of this together is below `u·A·(4096 + 512·n + 32·b)`, which is added to the bound (it is a ten-thousandth of it). What underflows changes no
//! product by more than `2⁻¹²⁰` times the scales, which is added, too; where something may overflow, all rows are read.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{MatmulScratch, Matrix, Output, Precision, Tokens, dot, few};
use crate::isa::Isa;
use crate::lanes::{Lanes, WIDEST, by_level};
use crate::planes::{self, HIGH};
use crate::tiles::{Layout, TILE_ROWS};
use crate::vec;

/// Maximum number of tokens that are multiplied together.
pub const MAX_TOKENS: usize = 4;

/// The product of a row that is not among the greatest, and was not computed.
pub const NOT_COMPUTED: f32 = f32::MIN;

/// Rows whose high bits are multiplied before the bounds are computed: they stay in the second-level cache.
const ROWS: usize = 128;

/// Bounds from which sums might overflow: products are at most 20 times as large.
const MAX_BOUND: f32 = 1e30;

/// The function that follows products. It never makes a greater number of a smaller one, except for rounding, by at most `slack`.
#[derive(Clone, Copy)]
pub struct Finish<'a> {
    /// Changes products in place.
    pub apply: &'a (dyn Fn(&mut [f32]) + Sync),
    /// See above.
    pub slack: f32,
}

/// The greatest products of one token. Allocated once.
#[derive(Debug)]
pub struct Greatest {
    k: usize,
    /// Rows that are computed in any case, and do not count among the `k`; ascending.
    always: Vec<u32>,
    /// Rows from here on do not count, either.
    limit: usize,
    /// By block of 32 columns: the middle of what the low bits add, as a factor of the block's scale, and the bound of their deviation from it.
    middle: Vec<f32>,
    bound: Vec<f32>,
    /// Bound of what underflows.
    least_bound: f32,
    found: Mutex<BinaryHeap<Reverse<i32>>>,
    /// The `k`-th greatest product so far, as bits; −∞ until there are `k`.
    threshold: AtomicU32,
    /// The number of rows that were read whole.
    rows: AtomicUsize,
}

impl Greatest {
    /// For tokens of up to `cols` values, up to `k` rows, and up to `always` others that are computed in any case.
    pub fn new(cols: usize, k: usize, always: usize) -> Greatest {
        let blocks = cols.div_ceil(32);
        Greatest {
            k: 0,
            always: Vec::with_capacity(always),
            limit: 0,
            middle: vec![0.0; blocks],
            bound: vec![0.0; blocks],
            least_bound: 0.0,
            // One more while the least is replaced.
            found: Mutex::new(BinaryHeap::with_capacity(k + 1)),
            threshold: AtomicU32::new(0),
            rows: AtomicUsize::new(0),
        }
    }

    /// Requests the `k` greatest products of the rows before `limit`, and those of the rows `always`, which do not count.
    pub fn request(&mut self, k: usize, limit: usize, always: impl Iterator<Item = u32>) {
        (self.k, self.limit) = (k, limit);
        self.always.clear();
        self.always.extend(always);
        self.always.sort_unstable();
        self.always.dedup();
    }

    /// The number of rows that were read whole for the last token.
    pub fn rows_read(&self) -> usize {
        self.rows.load(Ordering::Relaxed)
    }

    /// Computes the bounds for token `t`. Returns false if there are none: then all rows have to be read.
    fn begin(&mut self, x: &Tokens<'_>, t: usize) -> bool {
        let x = x.one(t);
        let (blocks, scales) = (x.cols() / 32, x.cols().div_ceil(256));
        let rounding = (4096 + 512 * scales + 32 * blocks) as f32 / (1 << 24) as f32;
        let mut sum = 0.0;
        for b in 0..blocks {
            let [all, magnitudes] = x.sums_of_group(b).map(|sum| sum as f32);
            let a = x.scale()[b / 8];
            self.middle[b] = a * all * 7.5;
            self.bound[b] = a * magnitudes * (7.5 + rounding);
            // The largest f16.
            sum += self.bound[b] * 65504.0;
        }
        let scale = x.scale()[..scales].iter().fold(0.0, |sum, a| sum + a);
        self.least_bound = (1.0 + scale) * f32::from_bits((127 - 120) << 23);
        let found = self.found.get_mut().unwrap_or_else(PoisonError::into_inner);
        found.clear();
        *self.threshold.get_mut() = f32::NEG_INFINITY.to_bits();
        *self.rows.get_mut() = 0;
        // False for NaN, too.
        sum < MAX_BOUND && self.k > 0 && self.k < found.capacity()
    }

    fn threshold(&self) -> f32 {
        f32::from_bits(self.threshold.load(Ordering::Relaxed))
    }

    /// Takes the product of a row into account.
    fn offer(&self, row: usize, product: f32) {
        // A NaN is no greatest.
        let counts = row < self.limit && product >= self.threshold();
        if !counts || self.always.binary_search(&(row as u32)).is_ok() {
            return;
        }
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.push(Reverse(order(product)));
        if found.len() > self.k {
            found.pop();
        }
        if found.len() == self.k
            && let Some(Reverse(least)) = found.peek()
        {
            self.threshold.store(product_of(*least).to_bits(), Ordering::Relaxed);
        }
    }
}

/// A number that is ordered as the float.
fn order(x: f32) -> i32 {
    let bits = x.to_bits() as i32;
    bits ^ (bits >> 31 & i32::MAX)
}

/// The inverse of [`order`].
fn product_of(order: i32) -> f32 {
    f32::from_bits((order ^ (order >> 31 & i32::MAX)) as u32)
}

/// Prepares to find the greatest products of some tokens, one of `greatest` for each. Returns false if all rows have to be read: the matrix is not in
/// planes, or there are no bounds.
pub fn begin<'a>(w: &Matrix<'_>, x: impl Into<Tokens<'a>>, greatest: &mut [Greatest]) -> bool {
    let x = x.into();
    let possible = w.layout() == Layout::Planes
        && w.scale == 1.0
        && x.precision() == Precision::Bits16
        && x.tokens() == greatest.len()
        && x.tokens() <= MAX_TOKENS;
    possible && greatest.iter_mut().enumerate().all(|(t, one)| one.begin(&x, t))
}

/// Writes to `out` the products of rows `rows` that may be among the greatest, or are always computed, with the bits that [`matmul`](super::matmul)
/// and `finish` compute, and [`NOT_COMPUTED`] for all others; [`begin`] has returned true.
///
/// # Safety
/// While it runs, no other thread may access the elements `rows` of `out`.
///
/// # Panics
/// As [`matmul`](super::matmul).
pub unsafe fn rows<'a>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: impl Into<Tokens<'a>>,
    greatest: &[Greatest],
    (out, finish): (Output<'_>, Finish<'_>),
    scratch: &mut MatmulScratch,
) {
    let x = &x.into();
    assert!(rows.start <= rows.end && rows.end <= w.rows(), "rows outside the matrix");
    assert!(x.formats().covers(w.kind()), "the activations were not packed for the matrix");
    assert_eq!(w.cols(), x.cols(), "the activations do not fit the matrix");
    assert_eq!(x.tokens(), greatest.len(), "an entry for each token");
    assert!(out.covers(x.tokens(), &rows), "the output does not have these rows");
    let mut memory = std::mem::take(&mut scratch.tiles);
    let mut whole =
        WholeRows { w, finish, out, rows: [0; TILE_ROWS], count: 0, memory: &mut memory };
    let mut start = rows.start;
    let mut before: Option<Marked<'_>> = None;
    while start < rows.end {
        let (high, first) = w.high_of(start);
        let end = rows.end.min(start + ROWS).min(first + high.rows());
        let mut products = [0.0; MAX_TOKENS * ROWS];
        let to = Output::starting_at(start - first, &mut products, ROWS);
        // SAFETY: the buffer is ours.
        unsafe { few(&high, start - first..end - first, x, to, scratch) };
        // The low bits of the rows before have come meanwhile.
        if let Some(marked) = &before {
            // SAFETY: the elements are ours by the caller's promise.
            unsafe { whole.take(marked, x, greatest) };
        }
        let mut marked = Marked::new(w, high, [first, start]);
        for (t, greatest) in greatest.iter().enumerate() {
            let bounds = &mut products[t * ROWS..][..end - start];
            add_bounds(x.isa(), &high, start - first, greatest, bounds);
            // SAFETY: the elements are ours by the caller's promise.
            unsafe { out.row_mut(t, start..end) }.fill(NOT_COMPUTED);
            marked.mark(t, bounds, greatest, finish);
        }
        before = Some(marked);
        start = end;
    }
    // SAFETY: as above.
    unsafe {
        if let Some(marked) = &before {
            whole.take(marked, x, greatest);
        }
        if let [greatest] = greatest {
            whole.multiply(x, 0, greatest);
        }
    }
    scratch.tiles = memory;
}

/// Makes of products with high bits, from row `first` on, the bounds of the products.
fn add_bounds(
    isa: Isa,
    high: &Matrix<'_>,
    first: usize,
    greatest: &Greatest,
    products: &mut [f32],
) {
    let Greatest { middle, bound, least_bound, .. } = greatest;
    let factors = (&middle[..], &bound[..], *least_bound);
    let mut at = 0;
    while at < products.len() {
        let (tile, skipped) = ((first + at) / TILE_ROWS, (first + at) % TILE_ROWS);
        let count = (TILE_ROWS - skipped).min(products.len() - at);
        let mut sixteen = [0.0; TILE_ROWS];
        sixteen[skipped..skipped + count].copy_from_slice(&products[at..at + count]);
        let (units, sums) = (high.tile(tile), &mut sixteen);
        by_level!(
            isa,
            (units: &[u8], factors: (&[f32], &[f32], f32), sums: &mut [f32; TILE_ROWS]) -> (),
            bounds_of_tile
        );
        products[at..at + count].copy_from_slice(&sixteen[skipped..skipped + count]);
        at += count;
    }
}

/// The bounds of a tile's rows; `sums` has the products of their high bits.
///
/// # Safety
/// As for [`Lanes`].
#[inline(always)]
unsafe fn bounds_of_tile<S: Lanes>(
    units: &[u8],
    (middle, bound, least): (&[f32], &[f32], f32),
    sums: &mut [f32; TILE_ROWS],
) {
    const { assert!(TILE_ROWS == WIDEST) };
    let units = units.as_chunks::<{ TILE_ROWS * HIGH }>().0;
    // SAFETY: a unit begins with sixteen f16; the features are the caller's.
    unsafe {
        for half in 0..TILE_ROWS / S::N {
            let mut middles = S::splat(0.0);
            let mut bounds = S::splat(least);
            for ((unit, middle), bound) in units.iter().zip(middle).zip(bound) {
                let d = S::load_f16(unit.as_ptr().add(2 * S::N * half).cast());
                middles = S::fma(d, S::splat(*middle), middles);
                bounds = S::fma(S::abs(d), S::splat(*bound), bounds);
            }
            let at = sums.as_mut_ptr().add(S::N * half);
            let high = S::mul(S::load(at), S::splat(16.0));
            S::store(at, S::add(S::add(high, middles), bounds));
        }
    }
}

/// Rows that are to be multiplied whole, of up to [`ROWS`] of a group.
struct Marked<'w> {
    high: Matrix<'w>,
    low: &'w [u8],
    /// The first row of the group, and of these rows.
    first: [usize; 2],
    /// For each token, counted from the first of these rows.
    rows: [[u8; ROWS]; MAX_TOKENS],
    counts: [usize; MAX_TOKENS],
}

impl<'w> Marked<'w> {
    fn new(w: &Matrix<'w>, high: Matrix<'w>, first: [usize; 2]) -> Marked<'w> {
        let low = w.low_rows(first[0]..first[0] + high.rows());
        Marked { high, low, first, rows: [[0; ROWS]; MAX_TOKENS], counts: [0; MAX_TOKENS] }
    }

    /// Marks the rows that may be among the greatest of token `t` by their bounds, and those that are always computed.
    fn mark(&mut self, t: usize, bounds: &mut [f32], greatest: &Greatest, finish: Finish<'_>) {
        let start = self.first[1];
        // NaN must be seen as such, whatever follows products. (A loop without an early exit is vectorised.)
        let is_nan = bounds.iter().fold(false, |any, bound| any | bound.is_nan());
        let mut nan = [false; ROWS];
        if is_nan {
            nan.iter_mut().zip(&*bounds).for_each(|(nan, bound)| *nan = bound.is_nan());
        }
        (finish.apply)(bounds);
        let threshold = greatest.threshold() - finish.slack;
        let place = |row: usize| greatest.always.partition_point(|other| (*other as usize) < row);
        let mut always = greatest.always[place(start)..place(start + bounds.len())].iter();
        let mut next = always.next();
        for (i, some) in bounds.chunks(TILE_ROWS).enumerate() {
            let any = some.iter().fold(false, |any, bound| any | (*bound >= threshold));
            let end = start + TILE_ROWS * i + some.len();
            if !any && !is_nan && next.is_none_or(|row| *row as usize >= end) {
                continue;
            }
            for (j, bound) in some.iter().enumerate() {
                let at = TILE_ROWS * i + j;
                let always_computed = next.is_some_and(|row| *row as usize == start + at);
                if always_computed {
                    next = always.next();
                }
                if *bound >= threshold || nan[at] || always_computed {
                    self.rows[t][self.counts[t]] = at as u8;
                    self.counts[t] += 1;
                    prefetch(self.low_row(at));
                }
            }
        }
    }

    /// The low bits of a row, counted from the first of these rows.
    fn low_row(&self, at: usize) -> &'w [u8] {
        let len = self.low.len() / self.high.rows();
        &self.low[(self.first[1] - self.first[0] + at) * len..][..len]
    }
}

/// Rows that are multiplied whole, up to sixteen at a time.
struct WholeRows<'a, 'w> {
    w: &'a Matrix<'w>,
    finish: Finish<'a>,
    out: Output<'a>,
    rows: [usize; TILE_ROWS],
    count: usize,
    /// The rows in GGUF's layout.
    memory: &'a mut [u8],
}

impl WholeRows<'_, '_> {
    /// Takes rows, and multiplies those of which there are sixteen.
    ///
    /// # Safety
    /// The elements of the output for these rows are only ours.
    unsafe fn take(&mut self, marked: &Marked<'_>, x: &Tokens<'_>, greatest: &[Greatest]) {
        let row_bytes = self.w.row_bytes;
        for (t, greatest) in greatest.iter().enumerate() {
            for at in &marked.rows[t][..marked.counts[t]] {
                let row = marked.first[1] + usize::from(*at);
                let in_group = row - marked.first[0];
                let tile = marked.high.tile(in_group / TILE_ROWS);
                let to = &mut self.memory[self.count * row_bytes..][..row_bytes];
                let low = marked.low_row(usize::from(*at));
                planes::put_row(x.isa(), tile, in_group % TILE_ROWS, low, to);
                self.rows[self.count] = row;
                self.count += 1;
                if self.count == TILE_ROWS {
                    // SAFETY: by the caller's promise.
                    unsafe { self.multiply(x, t, greatest) };
                }
            }
            if x.tokens() > 1 {
                // SAFETY: as above.
                unsafe { self.multiply(x, t, greatest) };
            }
        }
    }

    /// Multiplies the rows that were taken.
    ///
    /// # Safety
    /// As [`WholeRows::take`].
    unsafe fn multiply(&mut self, x: &Tokens<'_>, t: usize, greatest: &Greatest) {
        let count = std::mem::take(&mut self.count);
        if count == 0 {
            return;
        }
        let rows = self.w.some_rows(&self.memory[..count * self.w.row_bytes], count);
        let mut products = [0.0; TILE_ROWS];
        let products = &mut products[..count];
        // SAFETY: the buffer is ours.
        unsafe { dot::rows(&rows, 0..count, &x.one(t), Output::new(products, count)) };
        vec::infinite_to_nan(x.isa(), products);
        (self.finish.apply)(products);
        for (row, product) in self.rows.iter().zip(&*products) {
            // SAFETY: by the caller's promise.
            let out = unsafe { self.out.row_mut(t, *row..*row + 1) };
            out[0] = *product;
            greatest.offer(*row, *product);
        }
        greatest.rows.fetch_add(count, Ordering::Relaxed);
    }
}

/// Prefetches bytes of a row, which are read after the next rows' high bits.
#[inline(always)]
fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    super::prefetch::far(bytes.as_ptr(), bytes.len());
    let _ = bytes;
}
