//! Log probabilities of tokens: the logarithms of the softmax of the logits, before any sampling stage.

/// The log probability of a chosen token, and those of the most likely tokens in descending order.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The most likely tokens, in descending order.
    pub top: Vec<(u32, f32)>,
}

/// JSON has no −∞.
const MIN_LOGPROB: f32 = -9999.0;

impl Logprobs {
    /// Returns those of token `id` and of the `top` most likely tokens.
    pub fn of(logits: &[f32], id: u32, top: usize) -> Logprobs {
        let most = logits.iter().fold(f32::NEG_INFINITY, |most, logit| most.max(*logit));
        let sum: f64 = logits.iter().map(|logit| libm::exp(f64::from(logit - most))).sum();
        let base = most + libm::log(sum) as f32;
        let logprob = |logit: f32| (logit - base).max(MIN_LOGPROB);
        let mut best: Vec<(u32, f32)> = Vec::with_capacity(top + 1);
        for (id, &logit) in (0..).zip(logits) {
            if best.len() < top || best.last().is_some_and(|least| logit > least.1) {
                let at = best.partition_point(|other| other.1 >= logit);
                best.insert(at, (id, logit));
                best.truncate(top);
            }
        }
        let chosen = logits.get(id as usize).map_or(MIN_LOGPROB, |logit| logprob(*logit));
        Logprobs { chosen, top: best.into_iter().map(|(id, logit)| (id, logprob(logit))).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_those_of_the_softmax() {
        let logits = [0.0, 1000.0, 999.0, f32::NEG_INFINITY, 1000.0];
        let got = Logprobs::of(&logits, 2, 3);
        let sum = 2.0 + (-1f32).exp();
        assert!((got.chosen - (-1.0 - sum.ln())).abs() < 1e-4);
        assert_eq!(got.top.iter().map(|top| top.0).collect::<Vec<_>>(), [1, 4, 2]);
        assert!((got.top[0].1 + sum.ln()).abs() < 1e-4);
        assert_eq!(Logprobs::of(&logits, 3, 0), Logprobs { chosen: MIN_LOGPROB, top: vec![] });
    }
}
