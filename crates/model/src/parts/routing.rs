//! The choice of experts: the one function for all mixtures, from the router's logits to experts and weights.

use crate::keys::Keys;
use crate::keys::SpecError;

/// The function that turns a router's logits into probabilities. The numbers are those of the key `expert_gating_func`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// 1: softmax over all experts.
    Softmax,
    /// 2: each expert's sigmoid.
    Sigmoid,
    /// 3: experts are chosen by their logits, and their weights are a softmax over the chosen.
    SoftmaxOfChosen,
    /// 4: each expert's √(ln(1 + eˣ)).
    SqrtSoftplus,
}

/// How experts are chosen and weighted.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// The number of experts.
    pub experts: usize,
    /// The number of experts that each token goes through.
    pub used: usize,
    /// The function that turns logits into probabilities.
    pub gating: Gating,
    /// The number of groups of consecutive experts, all of the same size.
    pub groups: usize,
    /// The number of groups from which experts are chosen.
    pub groups_used: usize,
    /// True if the weights of the chosen experts are divided by their sum.
    pub normalise: bool,
    /// Factor on the weights.
    pub scale: f32,
}

/// Limit far above any model: DeepSeek-V3 has 256 experts, Qwen3-Next 512.
const MAX_EXPERTS: usize = 1 << 14;

/// The key of the function that turns a router's logits into probabilities.
const GATING: &str = "expert_gating_func";

/// The key of the number of experts that a token goes through.
pub(crate) const USED: &str = "expert_used_count";

/// The lower bound on sums of weights. (2⁻¹⁴, the smallest normal f16, as in llama.cpp.)
const MIN_SUM: f32 = 6.103_515_6e-5;

impl Routing {
    /// Reads its keys. The default is a softmax over all experts without groups; `normalise` is the default for normalising
    /// weights.
    ///
    /// # Errors
    /// A value that no model can have, or an unknown gating.
    pub(crate) fn read(keys: &Keys<'_, '_>, normalise: bool) -> Result<Routing, SpecError> {
        let experts = Routing::experts(keys)?;
        let used = keys.dimension(USED, experts)?;
        Routing::read_used(keys, used, normalise)
    }

    /// Reads the number of experts.
    ///
    /// # Errors
    /// A number that no model can have.
    pub(crate) fn experts(keys: &Keys<'_, '_>) -> Result<usize, SpecError> {
        keys.dimension("expert_count", MAX_EXPERTS)
    }

    /// As [`Routing::read`], for a layer whose tokens go through `used` experts, at most the number of experts.
    ///
    /// # Errors
    /// A value that no model can have, or an unknown gating.
    pub(crate) fn read_used(
        keys: &Keys<'_, '_>,
        used: usize,
        normalise: bool,
    ) -> Result<Routing, SpecError> {
        let experts = Routing::experts(keys)?;
        let gating = match keys.get::<u64>(GATING)?.unwrap_or(0) {
            0 | 1 => Gating::Softmax,
            2 => Gating::Sigmoid,
            3 => Gating::SoftmaxOfChosen,
            4 => Gating::SqrtSoftplus,
            other => {
                return Err(keys.unsupported(GATING, other, "this function of a router's logits"));
            }
        };
        let (groups, groups_used) = groups(keys, experts, used)?;
        Ok(Routing {
            experts,
            used,
            gating,
            groups,
            groups_used,
            normalise: keys.get::<bool>("expert_weights_norm")?.unwrap_or(normalise),
            scale: keys.factor("expert_weights_scale")?,
        })
    }

    /// Returns the same with the experts' sigmoids as probabilities, unless the file states another function.
    ///
    /// # Errors
    /// A key of the wrong type.
    pub(crate) fn sigmoid_unless_said(self, keys: &Keys<'_, '_>) -> Result<Routing, SpecError> {
        match keys.get::<u64>(GATING)?.unwrap_or(0) {
            0 => Ok(Routing { gating: Gating::Sigmoid, ..self }),
            _ => Ok(self),
        }
    }

    /// Chooses experts for one token. `logits` `[experts]` become probabilities; `scores`, of the same length, decide the choice;
    /// `bias` `[experts]` affects only the choice. `chosen` `[2 · used]` receives the experts, best first (the lower number first
    /// among equals), as whole numbers, and then their weights.
    pub(crate) fn choose(
        &self,
        logits: &mut [f32],
        bias: Option<&[f32]>,
        scores: &mut [f32],
        chosen: &mut [f32],
    ) {
        self.probabilities(logits);
        scores.copy_from_slice(logits);
        if let Some(bias) = bias {
            scores.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
        }
        // NaN would be neither better nor worse than another score.
        let mut unknown = false;
        for score in scores.iter_mut().filter(|score| score.is_nan()) {
            (*score, unknown) = (f32::NEG_INFINITY, true);
        }
        if self.groups > 1 {
            self.leave_groups_out(scores);
        }
        let (experts, weights) = chosen.split_at_mut(self.used);
        best(scores, experts);
        for (weight, expert) in weights.iter_mut().zip(&*experts) {
            *weight = logits[*expert as usize];
        }
        if self.gating == Gating::SoftmaxOfChosen {
            softmax(weights);
        }
        if self.normalise {
            let sum = weights.iter().sum::<f32>().max(MIN_SUM);
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
        if self.scale != 1.0 {
            weights.iter_mut().for_each(|weight| *weight *= self.scale);
        }
        if unknown {
            // An expert of which nothing is known may have been left out: the logits must show it.
            weights.fill(f32::NAN);
        }
    }

    /// Returns the experts that [`Routing::choose`] has chosen by these scores, and by how much the score of each exceeds the best that was not
    /// chosen, in classes: √2 times as much is one class more. An expert with a large margin is also chosen by slightly different scores.
    pub(crate) fn sureness<'s>(
        &self,
        scores: &'s [f32],
        chosen: &'s [f32],
    ) -> impl Iterator<Item = (usize, u8)> + 's {
        let chosen = &chosen[..self.used];
        let others = scores.iter().enumerate().filter(|(i, _)| !chosen.contains(&(*i as f32)));
        let next = others.map(|(_, score)| *score).fold(f32::NEG_INFINITY, f32::max);
        chosen.iter().map(move |expert| {
            let expert = *expert as usize;
            // A margin of at most 2⁻¹² is class 0: smaller ones do not matter between probabilities. So is NaN.
            let class = 2.0 * (scores[expert] - next).log2() + 24.0;
            (expert, class as u8)
        })
    }

    fn probabilities(&self, logits: &mut [f32]) {
        match self.gating {
            Gating::Softmax => softmax(logits),
            Gating::Sigmoid => logits.iter_mut().for_each(|x| *x = sigmoid(*x)),
            Gating::SoftmaxOfChosen => {}
            Gating::SqrtSoftplus => {
                logits.iter_mut().for_each(|x| *x = softplus(*x).sqrt());
            }
        }
    }

    /// Keeps only the experts of the best groups: those whose two best experts have the largest sum of scores.
    fn leave_groups_out(&self, scores: &mut [f32]) {
        let size = self.experts / self.groups;
        let value = |group: &[f32]| {
            let mut best = [f32::NEG_INFINITY; 2];
            for &score in group {
                if score > best[0] {
                    best = [score, best[0]];
                } else if score > best[1] {
                    best[1] = score;
                }
            }
            if size == 1 { best[0] } else { best[0] + best[1] }
        };
        // There are few groups: each counts those that are better than it. A removed group is no better than any
        // other afterwards, and the selected groups stay unchanged.
        for group in 0..self.groups {
            let own = value(&scores[group * size..][..size]);
            let before = (0..self.groups).filter(|&other| {
                let its = value(&scores[other * size..][..size]);
                its > own || its == own && other < group
            });
            if before.count() >= self.groups_used {
                scores[group * size..][..size].fill(f32::NEG_INFINITY);
            }
        }
    }
}

/// ln(1 + eˣ).
pub(crate) fn softplus(x: f32) -> f32 {
    x.max(0.0) + libm::log1pf(libm::expf(-x.abs()))
}

/// The weight of a shared expert that has its own gate.
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + libm::expf(-x))
}

fn groups(keys: &Keys<'_, '_>, experts: usize, used: usize) -> Result<(usize, usize), SpecError> {
    let count = |key| -> Result<usize, SpecError> {
        let found = keys.get::<u64>(key)?.unwrap_or(0).max(1);
        usize::try_from(found)
            .ok()
            .filter(|n| *n <= experts)
            .ok_or_else(|| keys.value(key, found, format!("at most the {experts} experts")))
    };
    let (key, key_used) = ("expert_group_count", "expert_group_used_count");
    let (groups, groups_used) = (count(key)?, count(key_used)?);
    if !experts.is_multiple_of(groups) {
        return Err(keys.value(key, groups, format!("a divisor of the {experts} experts")));
    }
    if groups > 1 && (groups_used > groups || experts / groups * groups_used < used) {
        let expected = format!("at most {groups} groups, and enough for {used} experts");
        return Err(keys.value(key_used, groups_used, expected));
    }
    Ok((groups, groups_used))
}

fn softmax(x: &mut [f32]) {
    let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let reference = if most == f32::NEG_INFINITY { 0.0 } else { most };
    let mut sum = 0.0;
    for x in &mut *x {
        *x = libm::expf(*x - reference);
        sum += *x;
    }
    x.iter_mut().for_each(|x| *x /= sum);
}

/// Finds the indices of the largest numbers, as many as fit in `found`, largest first.
fn best(scores: &[f32], found: &mut [f32]) {
    let mut count = 0;
    for (index, &score) in scores.iter().enumerate() {
        let worse = |at: &f32| scores[*at as usize] < score;
        let at = found[..count].iter().position(worse).unwrap_or(count);
        if at == found.len() {
            continue;
        }
        count = (count + 1).min(found.len());
        found[at..count].rotate_right(1);
        found[at] = index as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routing(experts: usize, used: usize, gating: Gating) -> Routing {
        Routing { experts, used, gating, groups: 1, groups_used: 1, normalise: false, scale: 1.0 }
    }

    fn choose(routing: &Routing, logits: &[f32], bias: Option<&[f32]>) -> (Vec<usize>, Vec<f32>) {
        let (mut logits, mut scores) = (logits.to_vec(), vec![0.0; logits.len()]);
        let mut chosen = vec![0.0; 2 * routing.used];
        routing.choose(&mut logits, bias, &mut scores, &mut chosen);
        let (experts, weights) = chosen.split_at(routing.used);
        (experts.iter().map(|e| *e as usize).collect(), weights.to_vec())
    }

    fn close(found: &[f32], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((*found as f64 - expected).abs() < 1e-6, "{found} is not {expected}");
        }
    }

    #[test]
    fn each_gating_by_its_definition() {
        let logits = [0.5, -1.0, 2.0, 1.0, 0.0];
        let e: Vec<f64> = logits.iter().map(|x| f64::from(*x).exp()).collect();
        let sum: f64 = e.iter().sum();
        let found = choose(&routing(5, 3, Gating::Softmax), &logits, None);
        assert_eq!(found.0, [2, 3, 0]);
        close(&found.1, &[e[2] / sum, e[3] / sum, e[0] / sum]);
        let found = choose(&routing(5, 2, Gating::Sigmoid), &logits, None);
        assert_eq!(found.0, [2, 3]);
        close(&found.1, &[e[2] / (1.0 + e[2]), e[3] / (1.0 + e[3])]);
        let found = choose(&routing(5, 2, Gating::SoftmaxOfChosen), &logits, None);
        close(&found.1, &[e[2] / (e[2] + e[3]), e[3] / (e[2] + e[3])]);
        let found = choose(&routing(5, 2, Gating::SqrtSoftplus), &logits, None);
        close(&found.1, &[(1.0 + e[2]).ln().sqrt(), (1.0 + e[3]).ln().sqrt()]);
    }

    #[test]
    fn equals_go_by_their_number_and_all_numbers_give_a_choice() {
        let even = choose(&routing(6, 3, Gating::Sigmoid), &[1.0; 6], None);
        assert_eq!(even.0, [0, 1, 2]);
        let late = choose(&routing(6, 4, Gating::Sigmoid), &[1.0, 3.0, 1.0, 3.0, 0.0, 1.0], None);
        assert_eq!(late.0, [1, 3, 0, 2]);
        for logits in [[f32::NAN; 4], [f32::NEG_INFINITY; 4], [f32::INFINITY; 4]] {
            for gating in [Gating::Softmax, Gating::Sigmoid, Gating::SoftmaxOfChosen] {
                assert_eq!(choose(&routing(4, 2, gating), &logits, None).0, [0, 1]);
            }
        }
    }

    #[test]
    fn with_an_unknown_score_no_weight_is_a_number() {
        for gating in
            [Gating::Softmax, Gating::Sigmoid, Gating::SoftmaxOfChosen, Gating::SqrtSoftplus]
        {
            let routing = Routing { normalise: true, ..routing(4, 2, gating) };
            let (_, weights) = choose(&routing, &[1.0, 2.0, f32::NAN, 3.0], None);
            assert!(weights.iter().all(|weight| weight.is_nan()), "{gating:?}: {weights:?}");
        }
    }

    #[test]
    fn the_further_a_score_is_above_those_not_chosen_the_surer() {
        let routing = routing(6, 3, Gating::SoftmaxOfChosen);
        let scores = [0.5, 4.25, 0.25, 0.75, 1.25, -1.0];
        let (mut logits, mut sorted, mut chosen) = (scores, [0.0; 6], [0.0; 6]);
        routing.choose(&mut logits, None, &mut sorted, &mut chosen);
        // Above 0.5, by 3.75, 0.75 and 0.25.
        let found: Vec<_> = routing.sureness(&sorted, &chosen).collect();
        assert_eq!(found, [(1, 27), (4, 23), (3, 20)]);
        // All are chosen; all are NaN; all are equal.
        let sure = |scores: &[f32], used| {
            let routing = Routing { experts: scores.len(), used, ..routing.clone() };
            let (mut logits, mut own) = (scores.to_vec(), scores.to_vec());
            let mut chosen = vec![0.0; 2 * used];
            routing.choose(&mut logits, None, &mut own, &mut chosen);
            routing.sureness(&own, &chosen).map(|(_, class)| class).collect::<Vec<_>>()
        };
        assert_eq!(sure(&[1.0, 2.0], 2), [u8::MAX; 2]);
        assert_eq!(sure(&[f32::NAN; 3], 1), [0]);
        assert_eq!(sure(&[1.0; 3], 2), [0, 0]);
    }

    #[test]
    fn a_bias_changes_the_choice_and_not_the_weights() {
        let logits = [2.0, 1.0, 0.0, -1.0];
        let bias = [0.0, 0.0, 1.0, 1.0];
        let found = choose(&routing(4, 2, Gating::Sigmoid), &logits, Some(&bias));
        assert_eq!(found.0, [2, 3]);
        close(&found.1, &[0.5, 1.0 / (1.0 + 1f64.exp())]);
    }

    #[test]
    fn weights_are_normalised_and_scaled_and_no_sum_is_too_small() {
        let plain = routing(4, 2, Gating::Sigmoid);
        let normed = Routing { normalise: true, scale: 2.5, ..plain.clone() };
        let found = choose(&normed, &[0.0, 0.0, -9.0, -9.0], None).1;
        close(&found, &[1.25, 1.25]);
        // Both weights are e^-20: their sum is far below the lower bound.
        let found = choose(&Routing { normalise: true, ..plain }, &[-20.0; 4], None).1;
        let one = (-20f64).exp() / f64::from(MIN_SUM);
        assert!((f64::from(found[0]) / one - 1.0).abs() < 1e-5, "{found:?}");
    }

    #[test]
    fn groups_go_by_the_sum_of_their_two_best() {
        // Group 0 has the best expert, group 2 the best two; groups 1 and 3 are equal, so 1 comes first.
        let scores = [0.9, 0.0, 0.0, 0.5, 0.5, 0.1, 0.8, 0.7, 0.0, 0.5, 0.5, 0.4];
        let logits = scores.map(|p: f32| (p / (1.0 - p)).max(1e-6).ln());
        let grouped = Routing { groups: 4, groups_used: 2, ..routing(12, 4, Gating::Sigmoid) };
        assert_eq!(choose(&grouped, &logits, None).0, [6, 7, 3, 4]);
        let one = Routing { groups_used: 1, used: 3, ..grouped.clone() };
        assert_eq!(choose(&one, &logits, None).0, [6, 7, 8]);
        let alone = Routing { groups: 12, groups_used: 3, used: 3, ..grouped };
        assert_eq!(choose(&alone, &logits, None).0, [0, 6, 7]);
    }
}
