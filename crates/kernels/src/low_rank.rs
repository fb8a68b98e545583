//! Products with the two factors of corrections of low rank (LoRA: Hu et al. 2021), which are read where their file has them, in its type.
//!
//! Invariant: a product has the same bits whichever rows of the factor and tokens are computed with it, on every SIMD level.

use std::ops::Range;

use crate::dequant::floats;
use crate::half::{bf16_to_f32, f16_to_f32};
use crate::lanes::{self, Lanes, SUMS, WIDEST, by_level};
use crate::{Isa, WeightType, vec};

/// Rows of a factor, or tokens, whose numbers are converted at a time.
const CONVERTED: usize = 256;

/// Numbers in the type that they are stored in.
#[derive(Clone, Copy, Debug)]
pub enum Numbers<'a> {
    /// As they are computed with.
    F32(&'a [f32]),
    /// Half precision.
    F16(&'a [u16]),
    /// The upper halves of f32.
    BF16(&'a [u16]),
}

impl<'a> Numbers<'a> {
    /// Returns the numbers of a type that bytes are, in place; `None` if there is no kernel for the type, or if the bytes are not whole numbers at addresses
    /// of such.
    pub fn in_place(ty: WeightType, bytes: &'a [u8]) -> Option<Numbers<'a>> {
        match ty {
            WeightType::F32 => floats(bytes).map(Numbers::F32),
            WeightType::F16 => halves(bytes).map(Numbers::F16),
            WeightType::BF16 => halves(bytes).map(Numbers::BF16),
            _ => None,
        }
    }

    /// Returns how many there are.
    pub fn len(self) -> usize {
        match self {
            Numbers::F32(values) => values.len(),
            Numbers::F16(values) | Numbers::BF16(values) => values.len(),
        }
    }

    /// Returns true if there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns some of them.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn range(self, range: Range<usize>) -> Numbers<'a> {
        match self {
            Numbers::F32(values) => Numbers::F32(&values[range]),
            Numbers::F16(values) => Numbers::F16(&values[range]),
            Numbers::BF16(values) => Numbers::BF16(&values[range]),
        }
    }

    /// Returns one of them.
    ///
    /// # Panics
    /// If there is none with this index.
    pub fn get(self, i: usize) -> f32 {
        match self {
            Numbers::F32(values) => values[i],
            Numbers::F16(values) => f16_to_f32(values[i]),
            Numbers::BF16(values) => bf16_to_f32(values[i]),
        }
    }

    /// Calls `f` for stretches of them as f32: their range, and the numbers.
    pub fn each_stretch(self, isa: Isa, mut f: impl FnMut(Range<usize>, &[f32])) {
        let mut converted = [0.0; CONVERTED];
        for first in (0..self.len()).step_by(CONVERTED) {
            let range = first..self.len().min(first + CONVERTED);
            let to = &mut converted[..range.len()];
            match self.range(range.clone()) {
                Numbers::F32(values) => {
                    f(range, values);
                    continue;
                }
                Numbers::F16(values) => vec::widen_f16(isa, values, to),
                Numbers::BF16(values) => {
                    to.iter_mut().zip(values).for_each(|(to, value)| *to = bf16_to_f32(*value));
                }
            }
            f(range, to);
        }
    }

    /// `y += s · self`.
    ///
    /// # Panics
    /// On different lengths.
    pub fn add_times_to(self, isa: Isa, y: &mut [f32], s: f32) {
        assert_eq!(y.len(), self.len(), "lengths of a sum");
        self.each_stretch(isa, |range, values| vec::add_times(isa, &mut y[range], values, s));
    }
}

/// Returns numbers of two bytes in place.
fn halves(bytes: &[u8]) -> Option<&[u16]> {
    const { assert!(cfg!(target_endian = "little"), "files are little-endian") };
    // SAFETY: any two bytes are a u16.
    let (before, halves, after) = unsafe { bytes.align_to::<u16>() };
    (before.is_empty() && after.is_empty()).then_some(halves)
}

/// Computes the products of a first factor `a` `[rank, columns]` with tokens: `out[t · stride + k] = Σ a[k, j] x[t][j]`, each in the order of [`vec::dot`].
///
/// # Panics
/// If the tokens have other lengths, or the output is too short.
pub fn multiply(isa: Isa, a: Numbers<'_>, x: &[&[f32]], out: &mut [f32], stride: usize) {
    let Some(cols) = x.first().map(|x| x.len()).filter(|cols| *cols > 0) else { return };
    let rank = a.len() / cols;
    assert!(a.len() == rank * cols && x.iter().all(|x| x.len() == cols), "columns of a factor");
    assert!((x.len() - 1) * stride + rank <= out.len(), "a buffer for products of a factor");
    by_level!(isa, (a: Numbers<'_>, x: &[&[f32]], out: &mut [f32], stride: usize) -> (), multiply_lanes)
}

/// Adds the products of rows of a second factor `b` `[rows, rank]` with those of the first: `out[i] += s · Σ b[i · step, k] ax[k]`. The sum is kept in 16
/// lanes, term `k` in lane `k % 16`, which are added by halves. An infinite result becomes NaN.
///
/// # Panics
/// If the factor has fewer rows.
pub fn add(isa: Isa, (b, step): (Numbers<'_>, usize), ax: &[f32], s: f32, out: &mut [f32]) {
    let rows = b.len() / ax.len().max(1);
    assert!(out.is_empty() || (out.len() - 1) * step < rows, "a correction with fewer rows");
    by_level!(isa, (b: Numbers<'_>, step: usize, ax: &[f32], s: f32, out: &mut [f32]) -> (), add_lanes);
    vec::infinite_to_nan(isa, out);
}

/// A type of numbers.
trait Element {
    /// A number as it is stored.
    type Stored: Copy;
    /// The first `n` numbers, at most a vector, zeros beyond.
    ///
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn load<S: Lanes>(p: *const Self::Stored, n: usize) -> S::V;
}

struct StoredF32;
struct StoredF16;
struct StoredBf16;

impl Element for StoredF32 {
    type Stored = f32;
    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const f32, n: usize) -> S::V {
        // SAFETY: the caller's.
        unsafe { lanes::load_up_to::<S>(p, n) }
    }
}

impl Element for StoredF16 {
    type Stored = u16;
    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const u16, n: usize) -> S::V {
        // SAFETY: the caller's.
        unsafe { if n == S::N { S::load_f16(p) } else { S::load_f16_n(p, n) } }
    }
}

impl Element for StoredBf16 {
    type Stored = u16;
    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const u16, n: usize) -> S::V {
        // The compiler makes a widening and a shift of it.
        let mut wide = [0.0f32; WIDEST];
        // SAFETY: the caller's; a vector has at most as many lanes as the array.
        unsafe {
            for (i, to) in wide[..n].iter_mut().enumerate() {
                *to = f32::from_bits(u32::from(*p.add(i)) << 16);
            }
            S::load(wide.as_ptr())
        }
    }
}

#[inline(always)]
unsafe fn multiply_lanes<S: Lanes>(a: Numbers<'_>, x: &[&[f32]], out: &mut [f32], stride: usize) {
    // SAFETY: the caller vouches for the features and the lengths.
    unsafe {
        match a {
            Numbers::F32(a) => multiply_of::<S, StoredF32>(a, x, out, stride),
            Numbers::F16(a) => multiply_of::<S, StoredF16>(a, x, out, stride),
            Numbers::BF16(a) => multiply_of::<S, StoredBf16>(a, x, out, stride),
        }
    }
}

/// Rows of the factor and tokens that a tile has: as many as vectors for their sums are in registers.
#[inline(always)]
unsafe fn multiply_of<S: Lanes, E: Element>(
    a: &[E::Stored],
    x: &[&[f32]],
    out: &mut [f32],
    stride: usize,
) {
    let cols = x[0].len();
    let rank = a.len() / cols;
    let row = |k: usize| a[k * cols..][..cols].as_ptr();
    let wide = S::N == WIDEST;
    let mut t = 0;
    // SAFETY: the caller vouches for the features; rows and tokens have `cols` numbers.
    unsafe {
        while wide && t + 2 <= x.len() {
            let (tokens, mut k) = ([x[t].as_ptr(), x[t + 1].as_ptr()], 0);
            while k < rank {
                if k + 2 <= rank {
                    let rows = [row(k), row(k + 1)];
                    let sums = tile::<S, E, 2, 2>(rows, tokens, cols);
                    for (i, sums) in sums.iter().enumerate() {
                        out[(t + i) * stride + k..][..2].copy_from_slice(sums);
                    }
                    k += 2;
                } else {
                    let sums = tile::<S, E, 1, 2>([row(k)], tokens, cols);
                    sums.iter().enumerate().for_each(|(i, [sum])| out[(t + i) * stride + k] = *sum);
                    k += 1;
                }
            }
            t += 2;
        }
        for (t, x) in x.iter().enumerate().skip(t) {
            let out = &mut out[t * stride..][..rank];
            let mut k = 0;
            while wide && k + 4 <= rank {
                let rows = [row(k), row(k + 1), row(k + 2), row(k + 3)];
                let [sums] = tile::<S, E, 4, 1>(rows, [x.as_ptr()], cols);
                out[k..k + 4].copy_from_slice(&sums);
                k += 4;
            }
            for (k, out) in out.iter_mut().enumerate().skip(k) {
                let [[sum]] = tile::<S, E, 1, 1>([row(k)], [x.as_ptr()], cols);
                *out = sum;
            }
        }
    }
}

/// Sums of `R` rows and `T` tokens, in lanes.
type Sums<S, const R: usize, const T: usize> = [[[<S as Lanes>::V; SUMS / 8]; R]; T];

/// Adds the terms of the `len` numbers from `at` on to lanes of vector `j`. (A function, since a closure has no SIMD level.)
#[inline(always)]
unsafe fn add_terms<S: Lanes, E: Element, const R: usize, const T: usize>(
    (rows, tokens): (&[*const E::Stored; R], &[*const f32; T]),
    (at, len): (usize, usize),
    j: usize,
    sums: &mut Sums<S, R, T>,
) {
    // SAFETY: the caller's.
    unsafe {
        let mut x = [S::splat(0.0); T];
        for (x, token) in x.iter_mut().zip(tokens) {
            *x = lanes::load_up_to::<S>(token.add(at), len);
        }
        for (r, row) in rows.iter().enumerate() {
            let a = E::load::<S>(row.add(at), len);
            for (sums, x) in sums.iter_mut().zip(x) {
                sums[r][j] = S::fma(a, x, sums[r][j]);
            }
        }
    }
}

/// The products of `R` rows of `n` numbers with `T` tokens, in the order of [`lanes::total`].
#[inline(always)]
unsafe fn tile<S: Lanes, E: Element, const R: usize, const T: usize>(
    rows: [*const E::Stored; R],
    tokens: [*const f32; T],
    n: usize,
) -> [[f32; R]; T] {
    let (all, sixteen) = (SUMS / S::N, WIDEST / S::N);
    let (of, mut i) = ((&rows, &tokens), 0);
    let mut products = [[0.0; R]; T];
    // SAFETY: elements before `n`; the rest is the caller's.
    unsafe {
        let mut sums: Sums<S, R, T> = [[[S::splat(0.0); SUMS / 8]; R]; T];
        while i + SUMS <= n {
            for j in 0..all {
                add_terms::<S, E, R, T>(of, (i + j * S::N, S::N), j, &mut sums);
            }
            i += SUMS;
        }
        while i + WIDEST <= n {
            for j in 0..sixteen {
                add_terms::<S, E, R, T>(of, (i + j * S::N, S::N), j, &mut sums);
            }
            i += WIDEST;
        }
        for j in sixteen..2 * sixteen {
            if i < n {
                add_terms::<S, E, R, T>(of, (i, S::N.min(n - i)), j, &mut sums);
            }
            i += S::N;
        }
        for (sums, products) in sums.iter().zip(&mut products) {
            for (sums, product) in sums.iter().zip(products) {
                let mut joined = [S::splat(0.0); WIDEST / 8];
                for (j, joined) in joined[..sixteen].iter_mut().enumerate() {
                    let first = S::add(sums[j], sums[sixteen + j]);
                    let last = S::add(sums[2 * sixteen + j], sums[3 * sixteen + j]);
                    *joined = S::add(first, last);
                }
                *product = lanes::sum_widest::<S>(joined);
            }
        }
    }
    products
}

#[inline(always)]
unsafe fn add_lanes<S: Lanes>(b: Numbers<'_>, step: usize, ax: &[f32], s: f32, out: &mut [f32]) {
    // SAFETY: the caller vouches for the features and the lengths.
    unsafe {
        match b {
            Numbers::F32(b) => add_of::<S, StoredF32>(b, step, ax, s, out),
            Numbers::F16(b) => add_of::<S, StoredF16>(b, step, ax, s, out),
            Numbers::BF16(b) => add_of::<S, StoredBf16>(b, step, ax, s, out),
        }
    }
}

#[inline(always)]
unsafe fn add_of<S: Lanes, E: Element>(
    b: &[E::Stored],
    step: usize,
    ax: &[f32],
    s: f32,
    out: &mut [f32],
) {
    // SAFETY: the caller vouches for the features; rows are as long as `ax`.
    unsafe {
        match ax.len() {
            16 => add_short_rows::<S, E, 1>(b, step, ax, s, out),
            32 => add_short_rows::<S, E, 2>(b, step, ax, s, out),
            64 => add_short_rows::<S, E, 4>(b, step, ax, s, out),
            rank => {
                for (out, row) in out.iter_mut().zip(b.chunks_exact(rank).step_by(step)) {
                    let mut sums = [S::splat(0.0); WIDEST / 8];
                    for first in (0..rank).step_by(S::N) {
                        let n = S::N.min(rank - first);
                        let (b, x) = (row.as_ptr().add(first), ax.as_ptr().add(first));
                        let sum = &mut sums[first / S::N % (WIDEST / S::N)];
                        *sum = S::fma(E::load::<S>(b, n), lanes::load_up_to::<S>(x, n), *sum);
                    }
                    *out += s * lanes::sum_widest::<S>(sums);
                }
            }
        }
    }
}

/// Rows of `16 · C` elements; `ax` stays in registers.
#[inline(always)]
unsafe fn add_short_rows<S: Lanes, E: Element, const C: usize>(
    b: &[E::Stored],
    step: usize,
    ax: &[f32],
    s: f32,
    out: &mut [f32],
) {
    let vectors = WIDEST / S::N;
    // SAFETY: the caller vouches for the features, and rows have `16 · C` elements.
    unsafe {
        let mut xs = [[S::splat(0.0); WIDEST / 8]; C];
        for (c, xs) in xs.iter_mut().enumerate() {
            for (j, x_lanes) in xs[..vectors].iter_mut().enumerate() {
                *x_lanes = S::load(ax.as_ptr().add(c * WIDEST + j * S::N));
            }
        }
        for (out, row) in out.iter_mut().zip(b.chunks_exact(C * WIDEST).step_by(step)) {
            let mut sums = [S::splat(0.0); WIDEST / 8];
            for (j, sum) in sums[..vectors].iter_mut().enumerate() {
                for (c, xs) in xs.iter().enumerate() {
                    let b = E::load::<S>(row.as_ptr().add(c * WIDEST + j * S::N), S::N);
                    *sum = S::fma(b, xs[j], *sum);
                }
            }
            *out += s * lanes::sum_widest::<S>(sums);
        }
    }
}
