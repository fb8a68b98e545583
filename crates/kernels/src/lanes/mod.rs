//! Vectors of f32 lanes: one source for the portable, AVX2, AVX-512 and NEON versions of the float kernels.
//!
//! A kernel is an `#[inline(always)] unsafe fn` generic over [`Lanes`]; [`by_level!`] instantiates it inside functions that enable the
//! level's features and selects one of them. Invariant: functions of [`Lanes`] are called only from such a
//! function, so that everything is inlined into code that has the features.
//!
//! **Invariant:** every level yields the same bits (of a NaN, only that it is one). Each operation is rounded once, and no sum depends on
//! [`Lanes::N`]: sums over elements are kept in [`SUMS`] lanes, whichever vectors these are in.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
pub(crate) mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use math::{
    exp, exp_negative, exp_of_negative, gelu_erf, gelu_tanh, sigmoid, silu, softcap, times_sigmoid,
};
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use portable::Portable;

/// Lanes that sums over elements are kept in: four vectors of 16, or eight of 8.
pub(crate) const SUMS: usize = 64;

/// Lanes of the widest vector: the unit in which the rest of a sum is added.
pub(crate) const WIDEST: usize = 16;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
/// `#[inline(always)]` methods around expressions of intrinsics.
macro_rules! ops {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $body:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $ty),*) -> $ret {
            // SAFETY: the caller runs on a CPU with the level's features and vouches for pointers.
            unsafe { $body }
        }
    )*};
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use ops;

/// Operations on one vector of `N` f32.
///
/// # Safety
/// All of them need the CPU features of the level; loads and stores need `N` (with `_n`: `n`) elements at the pointer, without alignment.
pub(crate) trait Lanes {
    /// Lanes.
    const N: usize;
    /// A vector.
    type V: Copy;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    /// The first `n < N` elements, zeros beyond.
    unsafe fn load_n(p: *const f32, n: usize) -> Self::V;
    /// The first `n < N` elements, nothing beyond.
    unsafe fn store_n(p: *mut f32, v: Self::V, n: usize);
    /// Prefetches the line that has this byte, which need not exist, into the second-level cache: more lines can be on their way there than
    /// to the first level, where a core waits for some 12 to 24 at a time.
    unsafe fn prefetch(p: *const u8);
    /// f16 bits, widened.
    unsafe fn load_f16(p: *const u16) -> Self::V;
    unsafe fn load_f16_n(p: *const u16, n: usize) -> Self::V;
    /// Signed bytes, converted.
    unsafe fn load_i8(p: *const i8) -> Self::V;
    /// The levels of IQ4_NL ([`IQ4_LEVELS`](crate::fit::levels::IQ4_LEVELS)) whose codes are the low halves of `N` bytes, and those of the high halves.
    unsafe fn load_levels(p: *const u8) -> [Self::V; 2];
    /// Rounded to nearest even.
    unsafe fn store_f16(p: *mut u16, v: Self::V);
    unsafe fn store_f16_n(p: *mut u16, v: Self::V, n: usize);

    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`, rounded once.
    unsafe fn fnma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger; `b` if either is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// The smaller; `b` if either is NaN.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn abs(a: Self::V) -> Self::V;
    /// The magnitude of `a` with the sign of `sign`.
    unsafe fn copysign(a: Self::V, sign: Self::V) -> Self::V;
    /// Per lane `a < b ? x : y`; `y` if either is NaN.
    unsafe fn select_lt(a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// To the nearest integer, ties to even.
    unsafe fn round(a: Self::V) -> Self::V;
    /// `a · 2^n` for whole `n` in -160..=130, rounded once.
    unsafe fn ldexp(a: Self::V, n: Self::V) -> Self::V;
    /// [`Lanes::ldexp`] for `n` in -126..=127, which takes fewer steps on some levels.
    #[inline(always)]
    unsafe fn times_power(a: Self::V, n: Self::V) -> Self::V {
        // SAFETY: by the caller's promise.
        unsafe { Self::ldexp(a, n) }
    }
    /// The sum of all lanes, by halves: lane `i` and lane `i + N / 2`, until one is left.
    unsafe fn sum(a: Self::V) -> f32;
    /// The largest lane; unspecified if one is NaN.
    unsafe fn largest(a: Self::V) -> f32;

    /// Calls `f` in a separate function that has the features and is not inlined: keeps hot loops separate for the compiler's register
    /// allocation and the compile time.
    unsafe fn outline<F: Outlined>(f: F) -> F::Output;

    /// Rotates interleaved pairs: `(x0 c - x1 s, x0 s + x1 c)` with `N / 2` cosines and sines.
    unsafe fn rotate_pairs(x: Self::V, cos: *const f32, sin: *const f32) -> Self::V;
}

/// Code for [`Lanes::outline`].
pub(crate) trait Outlined {
    /// Its result.
    type Output;
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn run<S: Lanes>(self) -> Self::Output;
}

/// A function of one vector, for [`map`].
pub(crate) trait Unary: Copy {
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn apply<S: Lanes>(self, x: S::V) -> S::V;
}

/// A function of two vectors, for [`zip`].
pub(crate) trait Binary: Copy {
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn apply<S: Lanes>(self, x: S::V, y: S::V) -> S::V;
}

/// `x · s`.
#[derive(Clone, Copy)]
pub(crate) struct Times(pub f32);

impl Unary for Times {
    #[inline(always)]
    unsafe fn apply<S: Lanes>(self, x: S::V) -> S::V {
        // SAFETY: the caller vouches for the features.
        unsafe { S::mul(x, S::splat(self.0)) }
    }
}

/// `x + y · s`.
#[derive(Clone, Copy)]
pub(crate) struct AddTimes(pub f32);

impl Binary for AddTimes {
    #[inline(always)]
    unsafe fn apply<S: Lanes>(self, x: S::V, y: S::V) -> S::V {
        // SAFETY: the caller vouches for the features.
        unsafe { S::fma(y, S::splat(self.0), x) }
    }
}

/// `x = f(x)`, element by element.
#[inline(always)]
pub(crate) unsafe fn map<S: Lanes>(x: &mut [f32], f: impl Unary) {
    let (p, n) = (x.as_mut_ptr(), x.len());
    let mut i = 0;
    // SAFETY: pointers stay within the slice; the caller vouches for the features.
    unsafe {
        while i + S::N <= n {
            S::store(p.add(i), f.apply::<S>(S::load(p.add(i))));
            i += S::N;
        }
        if i < n {
            S::store_n(p.add(i), f.apply::<S>(S::load_n(p.add(i), n - i)), n - i);
        }
    }
}

/// `x = f(x, y)`, element by element; `y` must be as long as `x`.
#[inline(always)]
pub(crate) unsafe fn zip<S: Lanes>(x: &mut [f32], y: &[f32], f: impl Binary) {
    let (p, q, n) = (x.as_mut_ptr(), y.as_ptr(), x.len().min(y.len()));
    let mut i = 0;
    // SAFETY: pointers stay within both slices; the caller vouches for the features.
    unsafe {
        while i + S::N <= n {
            S::store(p.add(i), f.apply::<S>(S::load(p.add(i)), S::load(q.add(i))));
            i += S::N;
        }
        if i < n {
            let (a, b) = (S::load_n(p.add(i), n - i), S::load_n(q.add(i), n - i));
            S::store_n(p.add(i), f.apply::<S>(a, b), n - i);
        }
    }
}

/// The terms of [`total`].
pub(crate) trait Summand {
    /// Adds the `n` elements from `at` on to the lanes of `sum`, where `n` is `N` or, at the end, less.
    ///
    /// # Safety
    /// As for [`Lanes`]; the elements exist.
    unsafe fn add<S: Lanes>(&self, at: usize, n: usize, sum: S::V) -> S::V;
}

/// The sum of `n` elements. Element `i` is added to lane `i % 64` as long as 64 follow. Then come lanes 0 to 15, as long as 16 follow, and the
/// rest is added from lane 16 on. Of the four times 16 lanes the first and the second are added, the third and the fourth, and these sums; then
/// halves, as [`Lanes::sum`] has it.
///
/// # Safety
/// As for [`Summand::add`].
#[inline(always)]
pub(crate) unsafe fn total<S: Lanes>(n: usize, summand: impl Summand) -> f32 {
    const { assert!(S::N == WIDEST || 2 * S::N == WIDEST) };
    let (all, sixteen) = (SUMS / S::N, WIDEST / S::N);
    let mut i = 0;
    // SAFETY: elements before `n`; the rest is the caller's.
    unsafe {
        let mut sums = [S::splat(0.0); SUMS / 8];
        while i + SUMS <= n {
            for (j, sum) in sums[..all].iter_mut().enumerate() {
                *sum = summand.add::<S>(i + j * S::N, S::N, *sum);
            }
            i += SUMS;
        }
        while i + WIDEST <= n {
            for (j, sum) in sums[..sixteen].iter_mut().enumerate() {
                *sum = summand.add::<S>(i + j * S::N, S::N, *sum);
            }
            i += WIDEST;
        }
        for sum in &mut sums[sixteen..2 * sixteen] {
            if i < n {
                *sum = summand.add::<S>(i, S::N.min(n - i), *sum);
            }
            i += S::N;
        }
        let mut joined = [S::splat(0.0); WIDEST / 8];
        for (j, joined) in joined[..sixteen].iter_mut().enumerate() {
            let of = |k: usize| sums[k * sixteen + j];
            *joined = S::add(S::add(of(0), of(1)), S::add(of(2), of(3)));
        }
        sum_widest::<S>(joined)
    }
}

/// The sum of 16 lanes, which are those of the first vector or of both, by halves.
///
/// # Safety
/// As for [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn sum_widest<S: Lanes>(lanes: [S::V; WIDEST / 8]) -> f32 {
    // SAFETY: the caller's.
    unsafe { S::sum(if S::N == WIDEST { lanes[0] } else { S::add(lanes[0], lanes[1]) }) }
}

/// The `n` elements at `p`, at most `N`; zeros beyond.
///
/// # Safety
/// As for [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn load_up_to<S: Lanes>(p: *const f32, n: usize) -> S::V {
    // SAFETY: the caller's.
    unsafe { if n == S::N { S::load(p) } else { S::load_n(p, n) } }
}

/// `x[i] y[i]`
struct Products(*const f32, *const f32);

impl Summand for Products {
    #[inline(always)]
    unsafe fn add<S: Lanes>(&self, at: usize, n: usize, sum: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe {
            let (x, y) = (load_up_to::<S>(self.0.add(at), n), load_up_to::<S>(self.1.add(at), n));
            S::fma(x, y, sum)
        }
    }
}

/// `x[i]`
struct Elements(*const f32);

impl Summand for Elements {
    #[inline(always)]
    unsafe fn add<S: Lanes>(&self, at: usize, n: usize, sum: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::add(load_up_to::<S>(self.0.add(at), n), sum) }
    }
}

/// `Σ x[i] y[i]`, see [`total`]; `y` must be as long as `x`.
#[inline(always)]
pub(crate) unsafe fn dot<S: Lanes>(x: &[f32], y: &[f32]) -> f32 {
    // SAFETY: elements of both slices; the caller vouches for the features.
    unsafe { total::<S>(x.len().min(y.len()), Products(x.as_ptr(), y.as_ptr())) }
}

/// `Σ x[i]`, see [`total`].
#[inline(always)]
pub(crate) unsafe fn sum<S: Lanes>(x: &[f32]) -> f32 {
    // SAFETY: elements of the slice; the caller vouches for the features.
    unsafe { total::<S>(x.len(), Elements(x.as_ptr())) }
}

/// The largest element, ignoring NaN; -infinity if there is none.
#[inline(always)]
pub(crate) unsafe fn largest<S: Lanes>(x: &[f32]) -> f32 {
    let (p, n) = (x.as_ptr(), x.len());
    let mut i = 0;
    // SAFETY: pointers stay within the slice; the caller vouches for the features.
    unsafe {
        // With NaN as first operand the second is returned.
        let mut m = [S::splat(f32::NEG_INFINITY); 4];
        while i + 4 * S::N <= n {
            for (j, m) in m.iter_mut().enumerate() {
                *m = S::max(S::load(p.add(i + j * S::N)), *m);
            }
            i += 4 * S::N;
        }
        while i + S::N <= n {
            m[0] = S::max(S::load(p.add(i)), m[0]);
            i += S::N;
        }
        let mut max = S::largest(S::max(S::max(m[0], m[1]), S::max(m[2], m[3])));
        for &v in &x[i..] {
            max = max.max(v);
        }
        max
    }
}

/// Calls `$lanes::<level>` inside a function with the level's features.
macro_rules! by_level {
    ($isa:expr, ($($arg:ident: $ty:ty),*) -> $ret:ty, $lanes:ident) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        #[allow(clippy::too_many_arguments)]
        fn avx2($($arg: $ty),*) -> $ret {
            // SAFETY: this function has the features of the level; slices are checked by the caller.
            unsafe { $lanes::<$crate::lanes::Avx2>($($arg),*) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
        #[allow(clippy::too_many_arguments)]
        fn avx512($($arg: $ty),*) -> $ret {
            // SAFETY: as above.
            unsafe { $lanes::<$crate::lanes::Avx512>($($arg),*) }
        }
        #[cfg(target_arch = "aarch64")]
        #[target_feature(enable = "neon")]
        #[allow(clippy::too_many_arguments)]
        fn neon($($arg: $ty),*) -> $ret {
            // SAFETY: as above.
            unsafe { $lanes::<$crate::lanes::Neon>($($arg),*) }
        }
        let isa: $crate::Isa = $isa;
        match isa.base() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` can run here.
            $crate::SimdLevel::Avx2 => unsafe { avx2($($arg),*) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            $crate::SimdLevel::Avx512 => unsafe { avx512($($arg),*) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            $crate::SimdLevel::Neon => unsafe { neon($($arg),*) },
            // SAFETY: the portable level needs no features.
            _ => unsafe { $lanes::<$crate::lanes::Portable>($($arg),*) },
        }
    }};
}
pub(crate) use by_level;

/// Makes the compiler align the stack of the function that calls this to whole lines of the cache. Sums that no register is left for are kept there, and
/// LLVM aligns a stack for them only if something else has to be aligned: without it a kernel is up to a fifth slower, depending on its callers' frames.
#[inline(always)]
pub(crate) fn align_stack() {
    #[repr(align(64))]
    struct AlignedLine {
        _bytes: [u8; 64],
    }
    let line = std::mem::MaybeUninit::<AlignedLine>::uninit();
    std::hint::black_box(line.as_ptr());
}
