//! The values computed from one position's logits: the loss of the token that follows, and the
//! distance from a reference distribution. The arithmetic (single precision for the logits, double
//! for the sums) and the order of operations follow llama.cpp's, so that the results match digit by
//! digit.

use super::base::LogprobRow;

/// Returns −ln p of token `next` under `logits`.
pub fn loss(logits: &[f32], next: u32) -> f32 {
    let (max, log_sum) = normaliser(logits);
    max + log_sum - logits[next as usize]
}

/// Returns the largest logit, and ln Σ exp(logit − largest).
fn normaliser(logits: &[f32]) -> (f32, f32) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from((x - max).exp())).sum();
    (max, sum.ln() as f32)
}

/// One scored position, compared with the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// −ln p of the token that follows.
    pub loss: f32,
    /// The same under the reference.
    pub loss_base: f32,
    /// Σ p_base · (ln p_base − ln p), over tokens with ln p_base > −16.
    pub divergence: f64,
    /// p − p_base of the token that follows.
    pub p_diff: f32,
    /// True if both rank the same token first (the first of equals).
    pub same_top: bool,
}

/// Compares `logits` with a reference row, where token `next` follows.
pub fn compare(logits: &[f32], base: LogprobRow<'_>, next: u32) -> Compared {
    let (max, log_sum) = normaliser(logits);
    let next = next as usize;
    let loss = max + log_sum - logits[next];
    let loss_base = -base.get(next);

    let shift = max + log_sum;
    let mut divergence = 0f64;
    let mut best_base = (0, f32::NEG_INFINITY);
    let mut best = (0, f32::NEG_INFINITY);
    for (i, (ln_base, &logit)) in base.iter().zip(logits).enumerate() {
        if ln_base > best_base.1 {
            best_base = (i, ln_base);
        }
        if logit > best.1 {
            best = (i, logit);
        }
        if ln_base > -16.0 {
            divergence += f64::from(ln_base.exp() * (ln_base - logit + shift));
        }
    }
    Compared {
        loss,
        loss_base,
        divergence,
        p_diff: (-loss).exp() - (-loss_base).exp(),
        same_top: best.0 == best_base.0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::base::push_row;
    use super::*;

    fn row(logits: &[f32]) -> Vec<u8> {
        let mut bytes = Vec::new();
        push_row(logits, &mut bytes);
        bytes
    }

    #[test]
    fn losses() {
        assert!((loss(&[1.0, 1.0, 1.0, 1.0], 2) - 4f32.ln()).abs() < 1e-6);
        let expected = (1f64 + (-2f64).exp()).ln();
        assert!((f64::from(loss(&[1000.0, 998.0], 0)) - expected).abs() < 1e-4);
    }

    #[test]
    fn divergence_against_the_definition() {
        let base_logits = [2.0f32, 0.5, -1.0, 0.0, 1.9];
        let logits = [1.0f32, 0.7, -1.2, 0.4, 2.5];
        let softmax = |x: &[f32]| {
            let sum: f64 = x.iter().map(|&v| f64::from(v).exp()).sum();
            x.iter().map(|&v| f64::from(v).exp() / sum).collect::<Vec<_>>()
        };
        let (p, q) = (softmax(&base_logits), softmax(&logits));
        let expected: f64 = p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum();
        let bytes = row(&base_logits);
        let got = compare(&logits, LogprobRow::new(&bytes, 5), 3);
        assert!((got.divergence - expected).abs() < 1e-4, "{} {expected}", got.divergence);
        assert!((f64::from(got.loss) + q[3].ln()).abs() < 1e-5);
        assert!((f64::from(got.loss_base) + p[3].ln()).abs() < 1e-4);
        assert!((f64::from(got.p_diff) - (q[3] - p[3])).abs() < 1e-4);
        assert!(!got.same_top);
    }

    #[test]
    fn nothing_parts_a_distribution_from_itself() {
        let logits: Vec<f32> = (0..1000).map(|i| ((i * 37) % 101) as f32 * 0.1).collect();
        let got = compare(&logits, LogprobRow::new(&row(&logits), 1000), 10);
        assert!(got.divergence.abs() < 1e-4);
        assert!(got.same_top && got.p_diff.abs() < 1e-5);
    }
}
