//! The arithmetic: rows of operands into rows of results. docs/explanation/collective.md states where each number is rounded; every
//! SIMD level computes the same bits.

mod lanes;
#[cfg(target_arch = "x86_64")]
mod x86;

use alight_kernels::{Isa, SimdLevel};

use crate::spec::{Element, Spec};
use lanes::{LANES, Lanes, total};

/// The arrays of a call.
pub(crate) struct Arrays<'a> {
    /// Each rank's operand, `[rows, hidden]`.
    pub(crate) partials: &'a [*const u8],
    /// `[rows, hidden]`.
    pub(crate) residual: *const u8,
    /// `[hidden]`.
    pub(crate) weight: *const u8,
    /// `[hidden]`; null if there is no post-norm.
    pub(crate) post_weight: *const u8,
    /// `[rows, hidden]`.
    pub(crate) normed: *mut u8,
    /// `[rows, hidden]`.
    pub(crate) new_residual: *mut u8,
}

/// An element type of the arrays.
trait Cell {
    const SIZE: usize;
    unsafe fn load<L: Lanes>(p: *const u8) -> L::V;
    /// Stores numbers that this type represents exactly.
    unsafe fn keep<L: Lanes>(p: *mut u8, v: L::V);
    /// Stores, rounded.
    unsafe fn store<L: Lanes>(p: *mut u8, v: L::V);
    /// Rounds to this type and back.
    unsafe fn round<L: Lanes>(v: L::V) -> L::V;
}

macro_rules! cell {
    ($name:ident, $raw:ty, $load:ident, $keep:ident, $store:ident, $round:ident) => {
        struct $name;
        impl Cell for $name {
            const SIZE: usize = size_of::<$raw>();

            #[inline(always)]
            unsafe fn load<L: Lanes>(p: *const u8) -> L::V {
                // SAFETY: the contract of `Lanes`, passed on.
                unsafe { L::$load(p.cast::<$raw>()) }
            }

            #[inline(always)]
            unsafe fn keep<L: Lanes>(p: *mut u8, v: L::V) {
                // SAFETY: the contract of `Lanes`, passed on.
                unsafe { L::$keep(p.cast::<$raw>(), v) }
            }

            #[inline(always)]
            unsafe fn store<L: Lanes>(p: *mut u8, v: L::V) {
                // SAFETY: the contract of `Lanes`, passed on.
                unsafe { L::$store(p.cast::<$raw>(), v) }
            }

            #[inline(always)]
            unsafe fn round<L: Lanes>(v: L::V) -> L::V {
                // SAFETY: the contract of `Lanes`, passed on.
                unsafe { L::$round(v) }
            }
        }
    };
}
cell!(Bf16, u16, load_bf16, keep_bf16, store_bf16, round_bf16);
cell!(F16, u16, load_f16, store_f16, store_f16, round_f16);
cell!(F32, f32, load_f32, store_f32, store_f32, round_f32);

/// Loads the first `n` elements at `p`, with zeros after them.
#[inline(always)]
unsafe fn get<L: Lanes, C: Cell>(p: *const u8, n: usize) -> L::V {
    // SAFETY: `n` elements may be read, by the caller's contract; a partial vector is read from a copy that is long enough.
    unsafe {
        if n == LANES {
            return C::load::<L>(p);
        }
        let mut whole = [0u8; LANES * 4];
        std::ptr::copy_nonoverlapping(p, whole.as_mut_ptr(), n * C::SIZE);
        C::load::<L>(whole.as_ptr())
    }
}

/// Stores the first `n` elements, which are already rounded.
#[inline(always)]
unsafe fn keep<L: Lanes, C: Cell>(p: *mut u8, v: L::V, n: usize) {
    // SAFETY: as below.
    unsafe {
        match n {
            LANES => C::keep::<L>(p, v),
            _ => put::<L, C>(p, v, n),
        }
    }
}

/// Stores the first `n` elements.
#[inline(always)]
unsafe fn put<L: Lanes, C: Cell>(p: *mut u8, v: L::V, n: usize) {
    // SAFETY: `n` elements may be written, by the caller's contract; a partial vector goes through a copy that is long enough.
    unsafe {
        if n == LANES {
            return C::store::<L>(p, v);
        }
        let mut whole = [0u8; LANES * 4];
        C::store::<L>(whole.as_mut_ptr(), v);
        std::ptr::copy_nonoverlapping(whole.as_ptr(), p, n * C::SIZE);
    }
}

/// Returns 1 / sqrt(mean of squares + epsilon), in f64, rounded to f32 once.
#[inline(always)]
unsafe fn inverse<L: Lanes>(squares: L::Squares, spec: &Spec) -> L::V {
    // SAFETY: the contract of `Lanes`, passed on.
    unsafe {
        let mean = total(L::spread(squares)) / spec.hidden as f64;
        L::splat((1.0 / (mean + f64::from(spec.epsilon)).sqrt()) as f32)
    }
}

/// Runs `$body` over a row, with `$at` (offset in bytes) and `$n` (number of elements); `$n` is a constant except for the tail.
macro_rules! blocks {
    ($hidden:expr, |$at:ident, $n:ident| $body:block) => {{
        let whole = $hidden / LANES * LANES;
        let mut $at = 0;
        while $at < whole {
            let $n = LANES;
            $body
            $at += LANES;
        }
        if $at < $hidden {
            let $n = $hidden - $at;
            $body
        }
    }};
}

/// Computes all rows. See [`compute`] for the contract.
#[inline(always)]
unsafe fn rows<L: Lanes, C: Cell, W: Cell>(spec: &Spec, arrays: &Arrays<'_>) {
    let hidden = spec.hidden;
    // SAFETY: all arrays have the lengths that the spec gives (the contract of `compute`), and every access is of `n` elements at an
    // element `at` with at + n <= hidden, in a row below `rows`.
    unsafe {
        let bias = L::splat(f32::from(u8::from(spec.bias)));
        for row in 0..spec.rows {
            let start = row * hidden * C::SIZE;
            let residual = arrays.residual.add(start);
            let new = arrays.new_residual.add(start);
            let normed = arrays.normed.add(start);
            // With a post-norm the residual is needed again, and may be where the new one is written.
            let first = if spec.post_norm { normed } else { new };
            let mut squares = L::no_squares();
            blocks!(hidden, |at, n| {
                let here = start + at * C::SIZE;
                let mut sum = get::<L, C>(arrays.partials[0].add(here), n);
                for partial in &arrays.partials[1..] {
                    sum = L::add(sum, get::<L, C>(partial.add(here), n));
                }
                let mut sum = C::round::<L>(sum);
                if !spec.post_norm {
                    let old = get::<L, C>(residual.add(at * C::SIZE), n);
                    sum = C::round::<L>(L::add(old, sum));
                }
                squares = L::square(squares, sum);
                keep::<L, C>(first.add(at * C::SIZE), sum, n);
            });
            if spec.post_norm {
                let scale = inverse::<L>(squares, spec);
                squares = L::no_squares();
                blocks!(hidden, |at, n| {
                    let weight = get::<L, W>(arrays.post_weight.add(at * W::SIZE), n);
                    let sum = get::<L, C>(normed.add(at * C::SIZE), n);
                    let post = L::mul(L::mul(sum, scale), L::add(bias, weight));
                    let old = get::<L, C>(residual.add(at * C::SIZE), n);
                    let value = C::round::<L>(L::add(old, C::round::<L>(post)));
                    // The elements after a tail are zeros in all of them; a weight of 1 + 0 times them is zero too.
                    squares = L::square(squares, value);
                    keep::<L, C>(new.add(at * C::SIZE), value, n);
                });
            }
            let scale = inverse::<L>(squares, spec);
            blocks!(hidden, |at, n| {
                let weight = get::<L, W>(arrays.weight.add(at * W::SIZE), n);
                let value = get::<L, C>(new.add(at * C::SIZE), n);
                let value = L::mul(L::mul(value, scale), L::add(bias, weight));
                put::<L, C>(normed.add(at * C::SIZE), value, n);
            });
        }
    }
}

/// Selects the element types. See [`compute`] for the contract.
#[inline(always)]
unsafe fn typed<L: Lanes>(spec: &Spec, arrays: &Arrays<'_>) {
    // SAFETY: the contract is passed on.
    unsafe {
        match (spec.element, spec.weight) {
            (Element::Bf16, Element::F32) => rows::<L, Bf16, F32>(spec, arrays),
            (Element::Bf16, _) => rows::<L, Bf16, Bf16>(spec, arrays),
            (Element::F16, Element::F32) => rows::<L, F16, F32>(spec, arrays),
            (Element::F16, _) => rows::<L, F16, F16>(spec, arrays),
            (Element::F32, _) => rows::<L, F32, F32>(spec, arrays),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2(spec: &Spec, arrays: &Arrays<'_>) {
    // SAFETY: the contract is passed on; the features are enabled here.
    unsafe { typed::<x86::Avx2>(spec, arrays) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn avx512(spec: &Spec, arrays: &Arrays<'_>) {
    // SAFETY: the contract is passed on; the features are enabled here.
    unsafe { typed::<x86::Avx512>(spec, arrays) }
}

/// Computes both results.
///
/// # Safety
/// All arrays have the lengths that `spec` gives; there is at least one operand; nothing else accesses the results, and nothing writes
/// to the other arrays. The results overlap nothing, except that `normed` may be one of the operands, and `new_residual` the residual.
pub(crate) unsafe fn compute(isa: Isa, spec: &Spec, arrays: &Arrays<'_>) {
    // SAFETY: the contract is passed on.
    unsafe {
        match isa.base() {
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512 => avx512(spec, arrays),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2 => avx2(spec, arrays),
            _ => typed::<lanes::Portable>(spec, arrays),
        }
    }
}
