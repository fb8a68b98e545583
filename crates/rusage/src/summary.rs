//! Summaries of repeated measurements.

use serde::Serialize;

/// Median and spread of a few values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Number of values.
    pub runs: usize,
    /// The middle value (mean of the middle two).
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// Lower quartile, linear interpolation.
    pub q1: f64,
    /// Upper quartile, linear interpolation.
    pub q3: f64,
}

impl Summary {
    /// Summarises `values`; `None` if there are none or if any of them is not finite.
    pub fn of(values: &[f64]) -> Option<Summary> {
        if values.is_empty() || values.iter().any(|v| !v.is_finite()) {
            return None;
        }
        let mut v = values.to_vec();
        v.sort_by(f64::total_cmp);
        Some(Summary {
            runs: v.len(),
            median: quantile(&v, 0.5),
            min: v[0],
            max: v[v.len() - 1],
            q1: quantile(&v, 0.25),
            q3: quantile(&v, 0.75),
        })
    }
}

/// The value at fraction `q` of `sorted` (which is not empty), linearly interpolated between
/// neighbours.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = q.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let (low, part) = (at.floor() as usize, at.fract());
    let high = (low + 1).min(sorted.len() - 1);
    sorted[low] * (1.0 - part) + sorted[high] * part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quartiles() {
        let s = Summary::of(&[5.0, 1.0, 3.0]).unwrap();
        assert_eq!((s.runs, s.median, s.min, s.max, s.q1, s.q3), (3, 3.0, 1.0, 5.0, 2.0, 4.0));
        assert_eq!(Summary::of(&[1.0, 2.0, 10.0, 4.0]).unwrap().median, 3.0);
        assert_eq!(Summary::of(&[7.0]).unwrap().q3, 7.0);
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
    }
}
