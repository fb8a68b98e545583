//! Computes the reported values from scored positions: means with their standard errors, and the
//! usual quantiles. Formulas are llama.cpp's `--kl-divergence`.

use serde::Serialize;

use super::score::Compared;

/// A value and its standard error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// Its standard error.
    pub error: f64,
}

/// Returns the perplexity exp(mean loss), with its standard error.
pub fn perplexity(losses: &[f32]) -> Estimate {
    exp(mean(losses.iter().map(|&x| f64::from(x))))
}

/// The distance of a model from a reference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distance {
    /// Scored positions.
    pub positions: usize,
    /// Perplexity of the model.
    pub perplexity: Estimate,
    /// Perplexity of the reference.
    pub base_perplexity: Estimate,
    /// Their ratio.
    pub perplexity_ratio: Estimate,
    /// ln of the ratio.
    pub ln_perplexity_ratio: Estimate,
    /// Correlation of the losses, 0 to 1.
    pub correlation: f64,
    /// Kullback–Leibler divergence of the model from the reference, in nats.
    pub kl: Spread,
    /// Change of the probability of the token that follows.
    pub p_diff: Spread,
    /// Root mean square of that change.
    pub p_diff_rms: Estimate,
    /// Share of positions where both rank the same token first.
    pub same_top: Estimate,
}

/// The distribution of a quantity over the positions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Mean and standard error.
    pub mean: Estimate,
    /// Smallest.
    pub min: f32,
    /// The value below which 0.1 % of the positions are; and so on.
    pub p00_1: f32,
    /// 1 %.
    pub p01: f32,
    /// 5 %.
    pub p05: f32,
    /// 10 %.
    pub p10: f32,
    /// Half.
    pub median: f32,
    /// 90 %.
    pub p90: f32,
    /// 95 %.
    pub p95: f32,
    /// 99 %.
    pub p99: f32,
    /// 99.9 %.
    pub p99_9: f32,
    /// Largest.
    pub max: f32,
}

/// Summarises compared positions; `None` if there are none.
pub fn distance(positions: &[Compared]) -> Option<Distance> {
    if positions.is_empty() {
        return None;
    }
    let n = positions.len() as f64;
    let loss = mean(positions.iter().map(|p| f64::from(p.loss)));
    let base = mean(positions.iter().map(|p| f64::from(p.loss_base)));
    let product: f64 =
        positions.iter().map(|p| f64::from(p.loss) * f64::from(p.loss_base)).sum::<f64>() / n;
    let covariance = if n < 10.0 { 0.0 } else { (product - loss.value * base.value) / (n - 1.0) };
    let ln_ratio = Estimate {
        value: loss.value - base.value,
        error: (loss.error.powi(2) + base.error.powi(2) - 2.0 * covariance).max(0.0).sqrt(),
    };
    let errors = loss.error * base.error;
    let square = mean(positions.iter().map(|p| f64::from(p.p_diff).powi(2)));
    let rms = square.value.sqrt();
    let same = positions.iter().filter(|p| p.same_top).count() as f64 / n;
    Some(Distance {
        positions: positions.len(),
        perplexity: exp(loss),
        base_perplexity: exp(base),
        perplexity_ratio: exp(ln_ratio),
        ln_perplexity_ratio: ln_ratio,
        correlation: if errors > 0.0 { covariance / errors } else { 0.0 },
        kl: spread(positions.iter().map(|p| p.divergence)),
        p_diff: spread(positions.iter().map(|p| f64::from(p.p_diff))),
        p_diff_rms: Estimate {
            value: rms,
            error: if rms > 0.0 { 0.5 / rms * square.error } else { 0.0 },
        },
        same_top: Estimate {
            value: same,
            error: if n > 1.0 { (same * (1.0 - same) / (n - 1.0)).sqrt() } else { 0.0 },
        },
    })
}

/// Returns the mean, and its standard error if there are more than ten values.
fn mean(values: impl Iterator<Item = f64>) -> Estimate {
    let (mut n, mut sum, mut squares) = (0f64, 0f64, 0f64);
    for v in values {
        n += 1.0;
        sum += v;
        squares += v * v;
    }
    if n == 0.0 {
        return Estimate { value: 0.0, error: 0.0 };
    }
    let value = sum / n;
    let variance = squares / n - value * value;
    let error = if variance > 0.0 && n > 10.0 { (variance / (n - 1.0)).sqrt() } else { 0.0 };
    Estimate { value, error }
}

/// Returns exp of an estimate, with the error propagated through its slope.
fn exp(e: Estimate) -> Estimate {
    Estimate { value: e.value.exp(), error: e.value.exp() * e.error }
}

fn spread(values: impl Iterator<Item = f64> + Clone) -> Spread {
    let mean = mean(values.clone());
    let mut sorted: Vec<f32> = values.map(|v| v as f32).collect();
    sorted.sort_by(f32::total_cmp);
    let at = |fraction: f32| {
        let p = fraction * (sorted.len() - 1) as f32;
        let (i, part) = (p as usize, p.fract());
        (1.0 - part) * sorted[i] + part * sorted[(i + 1).min(sorted.len() - 1)]
    };
    Spread {
        mean,
        min: sorted[0],
        p00_1: at(0.001),
        p01: at(0.01),
        p05: at(0.05),
        p10: at(0.10),
        median: at(0.5),
        p90: at(0.90),
        p95: at(0.95),
        p99: at(0.99),
        p99_9: at(0.999),
        max: sorted[sorted.len() - 1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-6 * b.abs().max(1e-3)
    }

    #[test]
    fn perplexity_and_its_error() {
        // 12 losses, alternately 1 and 3: mean 2, variance 1, standard error sqrt(1/11).
        let losses: Vec<f32> = (0..12).map(|i| if i % 2 == 0 { 1.0 } else { 3.0 }).collect();
        let p = perplexity(&losses);
        assert!(close(p.value, 2f64.exp()), "{p:?}");
        assert!(close(p.error, 2f64.exp() * (1f64 / 11.0).sqrt()), "{p:?}");
    }

    #[test]
    fn distances() {
        let positions: Vec<Compared> = (0..101)
            .map(|i| {
                let x = i as f32 / 100.0;
                Compared {
                    loss: 1.0 + x,
                    loss_base: 0.5 + x,
                    divergence: f64::from(x),
                    p_diff: if i % 2 == 0 { 0.1 } else { -0.1 },
                    same_top: i % 4 != 0,
                }
            })
            .collect();
        let d = distance(&positions).unwrap();
        assert_eq!(d.positions, 101);
        assert!(close(d.ln_perplexity_ratio.value, 0.5), "{d:?}");
        assert!(d.ln_perplexity_ratio.error < 1e-6, "the losses move together: {d:?}");
        assert!(close(d.correlation, 1.0), "{d:?}");
        assert!(close(d.kl.mean.value, 0.5) && d.kl.max == 1.0 && d.kl.median == 0.5);
        assert!((d.kl.p90 - 0.9).abs() < 1e-6 && (d.kl.p01 - 0.01).abs() < 1e-6);
        assert!(close(d.p_diff_rms.value, 0.1), "{d:?}");
        assert!(close(d.same_top.value, 75.0 / 101.0), "{d:?}");
        assert!(distance(&[]).is_none());
    }
}
