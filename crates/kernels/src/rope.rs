//! Rotary position embedding (Su et al. 2021) and its context extensions.
//!
//! Pair `i` of a head's first `dims` elements is rotated by the angle `pos · f_i`, with `f_i = base^(-2i / dims)`
//! changed by the scaling. Formulas are those of ggml's `rope_yarn` and `ggml_rope_yarn_corr_dims`; but frequencies and
//! angles are f64 here, where ggml multiplies its f32 angle once per pair: an angle θ of pair `i` differs from ggml's
//! by up to about `θ · i · 6e-8`, and cosines and sines here are within 1 ulp at any position.

use std::f64::consts::PI;

use crate::Isa;
use crate::lanes::{Lanes, WIDEST, by_level};

/// How elements of a head form pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// `(2i, 2i + 1)`: the llama architecture in GGUF files.
    Interleaved,
    /// `(i, i + dims / 2)`: the "neox" order, Gemma, Qwen and most others.
    NeoX,
}

/// How the angles are stretched for contexts longer than those of the training.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// As trained.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// Factor by which the context grows.
        factor: f32,
    },
    /// YaRN (Peng et al. 2023): slow pairs interpolated, fast ones kept, a ramp between.
    Yarn {
        /// Factor by which the context grows.
        factor: f32,
        /// Context length of the training, in positions.
        orig_ctx: usize,
        /// Weight of the kept frequencies, 1 unless the file has another value; 0 turns YaRN into linear scaling.
        ext_factor: f32,
        /// Magnitude, multiplied by YaRN's own `1 + 0.1 ln(factor)` (1 for a factor below 1).
        attn_factor: f32,
        /// Number of turns over the training context from which on a pair is kept, usually 32.
        beta_fast: f32,
        /// Number of turns below which a pair is interpolated, usually 1.
        beta_slow: f32,
    },
    /// Pair `i` is slowed down by the `i`-th of `dims / 2` factors: the `rope_freqs` tensor of Llama 3 files, or one of
    /// LongRoPE's (Ding et al. 2024).
    Factors {
        /// `[dims / 2]`
        factors: Vec<f32>,
        /// Factor on cosines and sines.
        magnitude: f32,
    },
}

/// The parameters of the angles of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeParams {
    /// Rotated elements at the start of a head, even.
    pub dims: usize,
    /// Frequency base, for example 10000.
    pub base: f32,
    /// Scaling.
    pub scaling: RopeScaling,
}

/// Returns YaRN's factor on cosines and sines: scores grow by its square, because attention over a longer context is
/// flatter.
pub fn yarn_magnitude(factor: f64) -> f64 {
    1.0 + 0.1 * libm::log(factor).max(0.0)
}

/// Frequencies of the pairs, computed once.
#[derive(Clone, Debug)]
pub struct RopeTable {
    /// Radians per position of pair `i`.
    frequencies: Vec<f64>,
    magnitude: f64,
}

impl RopeTable {
    /// Panics if `dims` is odd or a factors tensor does not have `dims / 2` elements.
    pub fn new(params: &RopeParams) -> RopeTable {
        let RopeParams { dims, base, scaling } = params;
        let (dims, base) = (*dims, *base as f64);
        assert!(dims.is_multiple_of(2), "an odd number of rotated elements: {dims}");
        let mut magnitude = 1.0;
        let mut frequencies: Vec<f64> =
            (0..dims / 2).map(|i| libm::pow(base, -2.0 * i as f64 / dims as f64)).collect();
        match scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => {
                frequencies.iter_mut().for_each(|f| *f /= *factor as f64);
            }
            RopeScaling::Factors { factors, magnitude: of_factors } => {
                magnitude = f64::from(*of_factors);
                assert_eq!(factors.len(), dims / 2, "rope factors for {dims} elements");
                for (f, &factor) in frequencies.iter_mut().zip(factors) {
                    *f /= factor as f64;
                }
            }
            &RopeScaling::Yarn {
                factor,
                orig_ctx,
                ext_factor,
                attn_factor,
                beta_fast,
                beta_slow,
            } => {
                let (factor, ext) = (factor as f64, ext_factor as f64);
                magnitude = attn_factor as f64;
                if ext != 0.0 {
                    magnitude *= yarn_magnitude(factor);
                }
                // Returns the pair that makes this many turns over the training context.
                let pair = |turns: f32| {
                    dims as f64 * libm::log(orig_ctx as f64 / (turns as f64 * 2.0 * PI))
                        / (2.0 * libm::log(base))
                };
                let low = pair(beta_fast).floor().max(0.0);
                let high = pair(beta_slow).ceil().min(dims as f64 - 1.0);
                for (i, f) in frequencies.iter_mut().enumerate() {
                    let ramp = (i as f64 - low) / (high - low).max(0.001);
                    let kept = (1.0 - ramp.clamp(0.0, 1.0)) * ext;
                    *f = *f / factor * (1.0 - kept) + *f * kept;
                }
            }
        }
        RopeTable { frequencies, magnitude }
    }

    /// Number of pairs: the length of the slices that [`RopeTable::fill`] takes.
    pub fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// Returns the radians per position of each pair, scaled.
    pub fn frequencies(&self) -> &[f64] {
        &self.frequencies
    }

    /// Returns the factor on cosines and sines.
    pub fn magnitude(&self) -> f64 {
        self.magnitude
    }

    /// Computes cosines and sines of a position, times YaRN's magnitude. Panics unless both slices have one element per
    /// pair.
    pub fn fill(&self, pos: usize, cos: &mut [f32], sin: &mut [f32]) {
        assert_eq!(cos.len(), self.pairs(), "cosines");
        assert_eq!(sin.len(), self.pairs(), "sines");
        for ((f, c), s) in self.frequencies.iter().zip(cos).zip(sin) {
            let (sine, cosine) = libm::sincos(pos as f64 * f);
            *c = (cosine * self.magnitude) as f32;
            *s = (sine * self.magnitude) as f32;
        }
    }
}

/// Rotates the first `2 * cos.len()` elements of one head: `(a, b)` becomes
/// `(a cos - b sin, a sin + b cos)`. Panics if `sin` has another length or `x` is shorter.
pub fn rope_apply(isa: Isa, x: &mut [f32], cos: &[f32], sin: &[f32], pairing: RopePairing) {
    assert_eq!(cos.len(), sin.len(), "cosines and sines");
    assert!(x.len() >= 2 * cos.len(), "{} elements to rotate in {}", 2 * cos.len(), x.len());
    let x = &mut x[..2 * cos.len()];
    match pairing {
        RopePairing::Interleaved => by_level!(
            isa,
            (x: &mut [f32], cos: &[f32], sin: &[f32]) -> (),
            interleaved_lanes
        ),
        RopePairing::NeoX => by_level!(
            isa,
            (x: &mut [f32], cos: &[f32], sin: &[f32]) -> (),
            halves_lanes
        ),
    }
}

#[inline(always)]
unsafe fn interleaved_lanes<S: Lanes>(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let whole = x.len() / S::N * S::N;
    for i in (0..whole).step_by(S::N) {
        // SAFETY: N elements and N / 2 cosines and sines follow; the caller vouches for the
        // features and for cos and sin being half as long as x.
        unsafe {
            let p = x.as_mut_ptr().add(i);
            let (cos, sin) = (cos.as_ptr().add(i / 2), sin.as_ptr().add(i / 2));
            S::store(p, S::rotate_pairs(S::load(p), cos, sin));
        }
    }
    let (rest, cos, sin) = (&mut x[whole..], &cos[whole / 2..], &sin[whole / 2..]);
    if !rest.is_empty() {
        let (mut lanes, mut angles) = ([0.0; WIDEST], [[0.0; WIDEST / 2]; 2]);
        lanes[..rest.len()].copy_from_slice(rest);
        angles[0][..cos.len()].copy_from_slice(cos);
        angles[1][..sin.len()].copy_from_slice(sin);
        // SAFETY: no vector has more lanes; the caller vouches for the features.
        unsafe {
            let v = S::load(lanes.as_ptr());
            S::store(
                lanes.as_mut_ptr(),
                S::rotate_pairs(v, angles[0].as_ptr(), angles[1].as_ptr()),
            );
        }
        rest.copy_from_slice(&lanes[..rest.len()]);
    }
}

#[inline(always)]
unsafe fn halves_lanes<S: Lanes>(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = x.split_at_mut(cos.len());
    let mut i = 0;
    while i < cos.len() {
        let n = (cos.len() - i).min(S::N);
        // SAFETY: n elements follow in all four; the caller vouches for the features and for sin
        // being as long as cos, x twice as long.
        unsafe {
            let (p, q) = (first.as_mut_ptr().add(i), second.as_mut_ptr().add(i));
            let (c, s) = (cos.as_ptr().add(i), sin.as_ptr().add(i));
            if n == S::N {
                let (a, b) = rotate::<S>(S::load(p), S::load(q), S::load(c), S::load(s));
                S::store(p, a);
                S::store(q, b);
            } else {
                let (c, s) = (S::load_n(c, n), S::load_n(s, n));
                let (a, b) = rotate::<S>(S::load_n(p, n), S::load_n(q, n), c, s);
                S::store_n(p, a, n);
                S::store_n(q, b, n);
            }
        }
        i += n;
    }
}

#[inline(always)]
unsafe fn rotate<S: Lanes>(a: S::V, b: S::V, cos: S::V, sin: S::V) -> (S::V, S::V) {
    // SAFETY: the caller vouches for the features.
    unsafe { (S::fnma(b, sin, S::mul(a, cos)), S::fma(a, sin, S::mul(b, cos))) }
}
