//! Numbers that are added to the scores of attention by the distance of two positions.

use alight_kernels::attention::RelativeBias;

use crate::tensors::{LayerFinder, WeightError};

/// Biases of scores, in networks that see positions by them alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreBias {
    /// A distance times a negative slope, which each head has its own of (ALiBi: Press et al. 2022).
    Slopes,
    /// A learned number for each head and each of this many buckets of distances, which all layers share (T5: Raffel et al. 2020).
    Buckets(usize),
}

/// The exponent of the largest slopes' denominator: with eight heads they are 2⁻¹ to 2⁻⁸.
const STEEPEST: f64 = 8.0;

/// The distance from which on all distances are in T5's last bucket.
const LAST_DISTANCE: f32 = 128.0;

/// The numbers of all heads.
#[derive(Debug)]
pub(crate) struct ScoreBiases {
    bias: ScoreBias,
    heads: usize,
    reach: usize,
    /// See [`RelativeBias::values`].
    values: Vec<f32>,
}

impl ScoreBiases {
    /// Makes the numbers of `heads` heads for texts of up to `reach` positions, or finds the file's.
    ///
    /// # Errors
    /// T5's table is missing, or of the wrong shape or type.
    pub(super) fn find(
        find: &LayerFinder<'_, '_, '_>,
        bias: ScoreBias,
        [heads, reach]: [usize; 2],
    ) -> Result<ScoreBiases, WeightError> {
        let of: Box<dyn Fn(usize, isize) -> f32> = match bias {
            ScoreBias::Slopes => {
                let slopes: Vec<f32> = (0..heads).map(|head| slope(head, heads)).collect();
                Box::new(move |head, distance| -slopes[head] * distance.unsigned_abs() as f32)
            }
            ScoreBias::Buckets(buckets) => {
                // The first layer has it for all.
                let name = "attn_rel_b.weight";
                let table = find.first_layer().table(name, [heads, buckets])?;
                find.ignore(name);
                Box::new(move |head, distance| table[bucket(distance, buckets) * heads + head])
            }
        };
        let len = RelativeBias::len_for(reach);
        let mut values = vec![0.0; heads * len];
        for (head, values) in values.chunks_exact_mut(len).enumerate() {
            for (i, value) in values[..2 * reach - 1].iter_mut().enumerate() {
                *value = of(head, i as isize - (reach as isize - 1));
            }
        }
        Ok(ScoreBiases { bias, heads, reach, values })
    }

    /// Returns true if [`ScoreBiases::find`] would find these.
    pub(super) fn are_of(&self, bias: ScoreBias, [heads, reach]: [usize; 2]) -> bool {
        (self.bias, self.heads, self.reach) == (bias, heads, reach)
    }

    pub(crate) fn view(&self) -> RelativeBias<'_> {
        RelativeBias { values: &self.values, reach: self.reach }
    }
}

/// The slope of a head: powers of `2^(-8/n)`, `n` being the largest power of two up to `heads`; then every second one of `2n` heads.
fn slope(head: usize, heads: usize) -> f32 {
    let n = 1 << heads.ilog2();
    let steps = match head < n {
        true => (head + 1) as f64,
        false => (head - n) as f64 + 0.5,
    };
    libm::exp2(-STEEPEST / f64::from(n as u32) * steps) as f32
}

/// The bucket of a distance from a query to a key: half of them are for keys after it. The first half of these are one distance each, and the
/// others are as wide as their distances are large.
fn bucket(distance: isize, buckets: usize) -> usize {
    let half = buckets / 2;
    let (after, away) = (if distance > 0 { half } else { 0 }, distance.unsigned_abs());
    let exact = half / 2;
    if away < exact {
        return after + away;
    }
    // In f32, as by its authors: a distance may be at the edge of a bucket.
    let ratio = libm::logf(away as f32 / exact as f32) / libm::logf(LAST_DISTANCE / exact as f32);
    let further = (ratio * (half - exact) as f32) as usize;
    after + (exact + further).min(half - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_those_of_the_paper() {
        let slopes = |heads: usize| (0..heads).map(|head| slope(head, heads)).collect::<Vec<_>>();
        assert_eq!(slopes(8), [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]);
        // Those of four heads, and the first and the third of eight.
        assert_eq!(slopes(6), [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]);
    }

    #[test]
    fn buckets_are_those_of_t5() {
        let of = |distances: &[isize]| distances.iter().map(|d| bucket(*d, 32)).collect::<Vec<_>>();
        assert_eq!(of(&[0, -1, -7, -8, -11, -12, -16, -32, -64]), [0, 1, 7, 8, 8, 9, 10, 12, 14]);
        assert_eq!(of(&[-127, -128, -5000]), [15, 15, 15]);
        assert_eq!(of(&[1, 7, 8, 16, 127, 5000]), [17, 23, 24, 26, 31, 31]);
    }
}
