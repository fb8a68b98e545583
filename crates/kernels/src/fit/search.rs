//! 256 weights in groups, whose scales (and offsets) are integers too: shared by the K types and IQ4_XS.
//!
//! The search minimises the squared error, with each weight's error in proportion to the size of the weight (plus the group's
//! typical size): large weights meet large activations no more often than others, but they are the few that carry a group.
//! First each group gets the best real scale and offset that a search over starting scales finds, each corrected by least
//! squares; then the scales are rounded to the format's integers, and each group chooses, among the neighbours of these, the
//! pair that is best for the scales after rounding.
//!
//! Sums run in 16 lanes, which are added in one order, so that every SIMD level has the same bits; the levels are this source
//! compiled for their instructions.

use super::simple;
use crate::half::{f16_to_f32, f32_to_f16};

/// Partial sums.
const LANES: usize = 16;

/// Starting scales: this many to each side of the one that spans the group exactly.
const STARTS: i32 = 10;
/// Limit for errors that deserve a closer look, as a multiple of the least so far.
const CLOSE: f32 = 1.1;
/// Distance between two starting scales, in steps of the integers.
const STEP: f32 = 0.1;

/// Returns the weight of each error: by the size of the weight, and by `given`, if that is not empty.
#[inline(always)]
pub(crate) fn importance<const N: usize>(x: &[f32; N], given: &[f32]) -> [f32; N] {
    let typical = (sum(|i| x[i] * x[i], N) / N as f32).sqrt();
    let own = x.map(|x| typical + x.abs());
    match given.first_chunk::<N>() {
        Some(given) => std::array::from_fn(|i| own[i] * given[i]),
        None => own,
    }
}

/// Returns the given weights of a group of `N`; empty if none are given.
#[inline(always)]
pub(crate) fn group_of<const N: usize>(given: &[f32], g: usize) -> &[f32] {
    given.get(N * g..N * (g + 1)).unwrap_or_default()
}

/// As [`simple::symmetric`], but with given weights the scale is searched for.
#[inline(always)]
pub(crate) fn symmetric(x: &[f32], given: &[f32], half: f32, out: &mut [u8]) -> [u8; 32] {
    let Some(group) = x.first_chunk::<32>().filter(|_| !given.is_empty()) else {
        return simple::symmetric(x, half, out);
    };
    let codes = [-half, half - 1.0];
    let d = f32_to_f16(fit_signed(group, &importance(group, given), codes));
    out[..2].copy_from_slice(&d.to_le_bytes());
    let d = f16_to_f32(d);
    let id = if d == 0.0 { 0.0 } else { 1.0 / d };
    group.map(|x| (within(x * id, codes[0], codes[1]) + half) as u8)
}

/// As [`simple::affine`], but with given weights scale and offset are searched for; the offset is then at most 0.
#[inline(always)]
pub(crate) fn offset(x: &[f32], given: &[f32], most: u8, out: &mut [u8]) -> [u8; 32] {
    let Some(group) = x.first_chunk::<32>().filter(|_| !given.is_empty()) else {
        return simple::affine(x, most, out);
    };
    let most = f32::from(most);
    let (d, m) = fit_affine(group, &importance(group, given), most);
    let (d, m) = (f32_to_f16(d), f32_to_f16(m));
    out[..2].copy_from_slice(&d.to_le_bytes());
    // The bits of −m.
    out[2..4].copy_from_slice(&(m ^ 0x8000).to_le_bytes());
    let (d, m) = (f16_to_f32(d), f16_to_f32(m));
    let id = if d > 0.0 { 1.0 / d } else { 0.0 };
    group.map(|x| nearest((x + m) * id, most) as u8)
}

/// Sums `term` from 0 to `n` − 1, a multiple of [`LANES`].
#[inline(always)]
pub(crate) fn sum(term: impl Fn(usize) -> f32, n: usize) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for start in (0..n).step_by(LANES) {
        for (l, lane) in lanes.iter_mut().enumerate() {
            *lane += term(start + l);
        }
    }
    total(lanes)
}

#[inline(always)]
fn total(lanes: [f32; LANES]) -> f32 {
    let half: [f32; 8] = std::array::from_fn(|l| lanes[l] + lanes[l + 8]);
    let quarter: [f32; 4] = std::array::from_fn(|l| half[l] + half[l + 4]);
    (quarter[0] + quarter[2]) + (quarter[1] + quarter[3])
}

/// Rounds a value between −2²² and 2²² to the nearest integer, ties to even: beyond 1.5 · 2²³ an f32 has no fraction.
#[inline(always)]
fn round(value: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (value + SHIFT) - SHIFT
}

/// Returns the nearest integer from `least` to `most`; `least` for NaN.
#[inline(always)]
fn within(value: f32, least: f32, most: f32) -> f32 {
    let value = if value > least { value } else { least };
    round(if value < most { value } else { most })
}

#[inline(always)]
fn nearest(value: f32, most: f32) -> f32 {
    within(value, 0.0, most)
}

/// Returns Σ w·(x − (d·q − m))², with the best q of 0 to `most`.
#[inline(always)]
fn error_of<const N: usize>(x: &[f32; N], w: &[f32; N], d: f32, m: f32, most: f32) -> f32 {
    let id = if d > 0.0 { 1.0 / d } else { 0.0 };
    let term = |i: usize| {
        let q = nearest((x[i] + m) * id, most);
        let e = x[i] - (d * q - m);
        w[i] * e * e
    };
    sum(term, N)
}

/// Returns the scale d and the offset m, neither negative, for which x ≈ d·q − m with q of 0 to `most`.
#[inline(always)]
fn fit_affine<const N: usize>(x: &[f32; N], w: &[f32; N], most: f32) -> (f32, f32) {
    let low = x.iter().fold(0.0f32, |low, &x| low.min(x));
    let high = x.iter().fold(low, |high, &x| high.max(x));
    if high <= low {
        return (0.0, -low);
    }
    let sw = sum(|i| w[i], N);
    let (sx, sxx) = (sum(|i| w[i] * x[i], N), sum(|i| w[i] * x[i] * x[i], N));
    let mut best = ((high - low) / most, -low);
    let mut least = error_of(x, w, best.0, best.1, most);
    for start in -STARTS..=STARTS {
        // Integers for a scale, then the scale and the offset for these integers.
        let id = (most + STEP * start as f32) / (high - low);
        let q: [f32; N] = std::array::from_fn(|i| nearest((x[i] - low) * id, most));
        let sq = sum(|i| w[i] * q[i], N);
        let sqq = sum(|i| w[i] * q[i] * q[i], N);
        let sxq = sum(|i| w[i] * x[i] * q[i], N);
        let determinant = sw * sqq - sq * sq;
        if determinant <= 0.0 {
            continue;
        }
        let mut d = (sw * sxq - sx * sq) / determinant;
        let mut m = (sq * sxq - sqq * sx) / determinant;
        if m < 0.0 {
            // The offset cannot be on that side: use none.
            (d, m) = (sxq / sqq, 0.0);
        }
        if !(d.is_finite() && d > 0.0) {
            continue;
        }
        // The error with these integers; with the best ones for the new scale it is slightly smaller.
        let bound =
            sxx - 2.0 * d * sxq + 2.0 * m * sx + d * d * sqq - 2.0 * d * m * sq + m * m * sw;
        if bound > CLOSE * least {
            continue;
        }
        let error = error_of(x, w, d, m, most);
        if error < least {
            (least, best) = (error, (d, m));
        }
    }
    best
}

/// The parts of a block of `G` groups of `N` weights with scales and offsets.
pub(crate) struct Affine<const G: usize, const N: usize> {
    /// f16 bits of the factors of the scales and of the offsets.
    pub(crate) d: u16,
    pub(crate) dmin: u16,
    /// With as many bits each as the type has for them.
    pub(crate) scales: [u8; G],
    pub(crate) mins: [u8; G],
    /// 0 to `most`.
    pub(crate) q: [[u8; N]; G],
}

/// Fits a block: scales and offsets are integers up to `top`, codes up to `most`.
#[inline(always)]
pub(crate) fn affine<const G: usize, const N: usize>(
    x: &[f32],
    given: &[f32],
    most: u8,
    top: f32,
) -> Affine<G, N> {
    let most = f32::from(most);
    let (mut groups, mut weights) = ([[0.0f32; N]; G], [[0.0f32; N]; G]);
    let mut fits = [(0.0, 0.0); G];
    for g in 0..G {
        groups[g].copy_from_slice(&x[N * g..][..N]);
        weights[g] = importance(&groups[g], group_of::<N>(given, g));
        fits[g] = fit_affine(&groups[g], &weights[g], most);
    }
    let largest = |of: fn(&(f32, f32)) -> f32| fits.iter().map(of).fold(0.0f32, f32::max);
    // As stored, since weights are multiplied by the stored value.
    let d = f32_to_f16(largest(|fit| fit.0) / top);
    let dmin = f32_to_f16(largest(|fit| fit.1) / top);
    let (unit, unit_min) = (f16_to_f32(d), f16_to_f32(dmin));
    let mut block = Affine { d, dmin, scales: [0; G], mins: [0; G], q: [[0; N]; G] };
    for g in 0..G {
        let (x, w) = (&groups[g], &weights[g]);
        let of = |value: f32, unit: f32| if unit > 0.0 { nearest(value / unit, top) } else { 0.0 };
        let (scale, min) = (of(fits[g].0, unit), of(fits[g].1, unit_min));
        let mut best = (scale, min);
        let mut least = f32::INFINITY;
        for s in [scale, scale - 1.0, scale + 1.0] {
            for m in [min, min - 1.0, min + 1.0] {
                if !(0.0..=top).contains(&s) || !(0.0..=top).contains(&m) {
                    continue;
                }
                let error = error_of(x, w, unit * s, unit_min * m, most);
                if error < least {
                    (least, best) = (error, (s, m));
                }
            }
        }
        (block.scales[g], block.mins[g]) = (best.0 as u8, best.1 as u8);
        let (d, m) = (unit * best.0, unit_min * best.1);
        let id = if d > 0.0 { 1.0 / d } else { 0.0 };
        block.q[g] = x.map(|x| nearest((x + m) * id, most) as u8);
    }
    block
}

impl Affine<8, 32> {
    /// Writes the 16 bytes of scales: d, dmin, and 8 pairs of 6 bits, of which the upper two bits of the last four pairs are
    /// above the first four.
    #[inline(always)]
    pub(crate) fn put_scales(&self, out: &mut [u8]) {
        out[..2].copy_from_slice(&self.d.to_le_bytes());
        out[2..4].copy_from_slice(&self.dmin.to_le_bytes());
        for g in 0..4 {
            out[4 + g] = self.scales[g] | (self.scales[g + 4] >> 4) << 6;
            out[8 + g] = self.mins[g] | (self.mins[g + 4] >> 4) << 6;
            out[12 + g] = (self.scales[g + 4] & 15) | (self.mins[g + 4] & 15) << 4;
        }
    }

    /// Writes the fifth bits: bit `g` of byte `i` belongs to weight `i` of group `g`.
    #[inline(always)]
    pub(crate) fn put_fifth(&self, out: &mut [u8]) {
        for (i, out) in out.iter_mut().enumerate() {
            *out = (0..8).fold(0, |bits, g| bits | (self.q[g][i] >> 4) << g);
        }
    }

    /// Writes 32 bytes for two groups: the low four bits of the first are the low halves.
    #[inline(always)]
    pub(crate) fn put_nibbles(&self, out: &mut [u8]) {
        for (pair, out) in self.q.chunks_exact(2).zip(out.chunks_exact_mut(32)) {
            for (i, out) in out.iter_mut().enumerate() {
                *out = (pair[0][i] & 15) | (pair[1][i] & 15) << 4;
            }
        }
    }
}

/// The parts of a block of 16 groups of 16 weights with scales of either sign.
pub(crate) struct Signed {
    /// f16 bits.
    pub(crate) d: u16,
    pub(crate) scales: [i8; 16],
    pub(crate) q: [[i8; 16]; 16],
}

/// Fits a block: codes and scales are integers, each from the first to the second number.
#[inline(always)]
pub(crate) fn signed(x: &[f32], given: &[f32], codes: [f32; 2], [low, high]: [f32; 2]) -> Signed {
    let (mut groups, mut weights) = ([[0.0f32; 16]; 16], [[0.0f32; 16]; 16]);
    let mut fits = [0.0f32; 16];
    for g in 0..16 {
        groups[g].copy_from_slice(&x[16 * g..][..16]);
        let given = group_of::<16>(given, g);
        // With many code values the small weights are represented well: there in proportion to the weights' squares, or as
        // given alone.
        weights[g] = match given.first_chunk::<16>() {
            Some(given) if codes[1] > 16.0 => *given,
            None if codes[1] > 16.0 => groups[g].map(|x| x * x + f32::MIN_POSITIVE),
            _ => importance(&groups[g], given),
        };
        fits[g] = fit_signed(&groups[g], &weights[g], codes);
    }
    let far = fits.iter().fold(0.0f32, |far, &d| if d.abs() > far.abs() { d } else { far });
    let d = f32_to_f16(far / low);
    let unit = f16_to_f32(d);
    let mut block = Signed { d, scales: [0; 16], q: [[0; 16]; 16] };
    for g in 0..16 {
        if unit == 0.0 {
            break;
        }
        let scale = (fits[g] / unit).round().clamp(low, high);
        let mut best = (f32::INFINITY, scale);
        for s in [scale, scale - 1.0, scale + 1.0] {
            if (low..=high).contains(&s) {
                let error = error_signed(&groups[g], &weights[g], unit * s, codes);
                if error < best.0 {
                    best = (error, s);
                }
            }
        }
        block.scales[g] = best.1 as i8;
        let d = unit * best.1;
        let id = if d == 0.0 { 0.0 } else { 1.0 / d };
        block.q[g] = groups[g].map(|x| within(x * id, codes[0], codes[1]) as i8);
    }
    block
}

/// Returns Σ w·(x − d·q)², with the best q. The scale may be negative.
#[inline(always)]
fn error_signed<const N: usize>(x: &[f32; N], w: &[f32; N], d: f32, [low, high]: [f32; 2]) -> f32 {
    let id = if d == 0.0 { 0.0 } else { 1.0 / d };
    let term = |i: usize| {
        let e = x[i] - d * within(x[i] * id, low, high);
        w[i] * e * e
    };
    sum(term, N)
}

/// Returns the scale for which x ≈ d·q.
#[inline(always)]
fn fit_signed<const N: usize>(x: &[f32; N], w: &[f32; N], [low, high]: [f32; 2]) -> f32 {
    let far = x.iter().fold(0.0f32, |far, &x| if x.abs() > far.abs() { x } else { far });
    if far == 0.0 {
        return 0.0;
    }
    let sxx = sum(|i| w[i] * x[i] * x[i], N);
    let mut best = far / low;
    let mut least = error_signed(x, w, best, [low, high]);
    for start in -STARTS..=STARTS {
        let id = (low + STEP * start as f32) / far;
        let q: [f32; N] = std::array::from_fn(|i| within(x[i] * id, low, high));
        let sxq = sum(|i| w[i] * x[i] * q[i], N);
        let sqq = sum(|i| w[i] * q[i] * q[i], N);
        let d = sxq / sqq;
        if !(d.is_finite() && d != 0.0) || sxx - d * sxq > CLOSE * least {
            continue;
        }
        let error = error_signed(x, w, d, [low, high]);
        if error < least {
            (least, best) = (error, d);
        }
    }
    best
}
