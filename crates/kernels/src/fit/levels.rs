//! 32 weights with one scale and sixteen fixed levels, which are not evenly spaced: IQ4_NL and IQ4_XS.
//!
//! The scale is searched for as in [`search`](super::search): levels for a starting scale, then the scale that is
//! best for these levels. An error is weighted in proportion to the size of its weight plus the group's typical
//! size.

use std::ops::RangeInclusive;

use super::search::{importance, sum};

/// The codes of IQ4_NL and IQ4_XS: their values −127, −104, −83, −65, −49, −35, −22, −10, 1, 13, 25, 38,
/// 53, 69, 89 and 113, plus the zero point of 127.
pub(crate) const IQ4_CODES: [u8; 16] =
    [0, 23, 44, 62, 78, 92, 105, 117, 128, 140, 152, 165, 180, 196, 216, 240];

/// Levels, in increasing order.
pub(crate) const LEVELS: [f32; 16] = {
    let mut levels = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        levels[i] = IQ4_CODES[i] as f32 - 127.0;
        i += 1;
    }
    levels
};

/// The level of each code.
pub(crate) const IQ4_LEVELS: [i8; 16] = {
    let mut levels = [0; 16];
    let mut i = 0;
    while i < 16 {
        levels[i] = (IQ4_CODES[i] as i16 - 127) as i8;
        i += 1;
    }
    levels
};

/// Starting scales put the weight that is farthest from zero up to this many steps to each side of either end.
const STARTS: i32 = 8;

/// Returns the level nearest to a value.
#[inline(always)]
fn nearest(value: f32) -> f32 {
    let mut level = LEVELS[0];
    for i in 1..16 {
        let middle = (LEVELS[i - 1] + LEVELS[i]) / 2.0;
        level = if value > middle { LEVELS[i] } else { level };
    }
    level
}

/// Returns the level numbers of weights with this scale.
#[inline(always)]
pub(crate) fn codes(x: &[f32; 32], d: f32) -> [u8; 32] {
    let id = inverse(d);
    x.map(|x| {
        let above = |i: usize| u8::from(x * id > (LEVELS[i - 1] + LEVELS[i]) / 2.0);
        (1..16).fold(0, |code, i| code + above(i))
    })
}

#[inline(always)]
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Returns Σ w·(x − d·level)², with the nearest levels.
#[inline(always)]
fn error(x: &[f32; 32], w: &[f32; 32], d: f32) -> f32 {
    let id = inverse(d);
    let term = |i: usize| {
        let e = x[i] - d * nearest(x[i] * id);
        w[i] * e * e
    };
    sum(term, 32)
}

/// Returns the scale for which x ≈ d·level.
#[inline(always)]
pub(crate) fn fit(x: &[f32; 32], given: &[f32]) -> f32 {
    fit_from(x, &importance(x, given), -STARTS..=STARTS)
}

/// Returns the scale for which x ≈ d·level with the least Σ w·(x − d·level)², of those that these starting scales lead to.
#[inline(always)]
pub(crate) fn fit_from(x: &[f32; 32], w: &[f32; 32], starts: RangeInclusive<i32>) -> f32 {
    let far = x.iter().fold(0.0f32, |far, &x| if x.abs() > far.abs() { x } else { far });
    if far == 0.0 {
        return 0.0;
    }
    let (mut best, mut least) = (far / LEVELS[0], f32::INFINITY);
    for end in [LEVELS[0], LEVELS[15]] {
        for start in starts.clone() {
            let id = (end + start as f32) / far;
            let q: [f32; 32] = std::array::from_fn(|i| nearest(x[i] * id));
            let d = sum(|i| w[i] * x[i] * q[i], 32) / sum(|i| w[i] * q[i] * q[i], 32);
            if !(d.is_finite() && d != 0.0) {
                continue;
            }
            let error = error(x, w, d);
            if error < least {
                (least, best) = (error, d);
            }
        }
    }
    best
}

/// Returns the scale with the least error among those of `scales`, times `unit`, that fit six bits.
#[inline(always)]
pub(crate) fn best(x: &[f32; 32], given: &[f32], unit: f32, scales: [f32; 3]) -> f32 {
    let w = importance(x, given);
    let mut best = (f32::INFINITY, scales[0]);
    for s in scales {
        if (-32.0..=31.0).contains(&s) {
            let error = error(x, &w, unit * s);
            if error < best.0 {
                best = (error, s);
            }
        }
    }
    best.1
}
