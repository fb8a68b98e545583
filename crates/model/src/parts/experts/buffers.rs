//! The buffers of mixtures of experts, and the sorting of tokens into slots.

use std::ops::Range;

use alight_kernels::matmul::{ActivationFormats, Activations, RowCounts};
use alight_kernels::parallel::{Place, Term};

use super::ExpertsSpec;
use crate::parts::routing::{Routing, sigmoid};
use crate::store::Chosen;

/// The quantities that determine the sizes of [`ExpertsBuffers`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExpertsWork {
    pub(super) experts: usize,
    pub(super) used: usize,
    pub(super) width: usize,
}

impl ExpertsWork {
    pub(crate) fn max(self, other: ExpertsWork) -> ExpertsWork {
        ExpertsWork {
            experts: self.experts.max(other.experts),
            used: self.used.max(other.used),
            width: self.width.max(other.width),
        }
    }

    /// Returns the maximum number of places that `batch` tokens need: chosen experts.
    pub(super) fn places(&self, batch: usize) -> usize {
        (2 * self.experts).min(batch * self.used)
    }

    /// Returns the maximum number of slots that they need: places begin at whole blocks of tokens.
    pub(crate) fn slots(&self, batch: usize) -> usize {
        batch * self.used + self.places(batch) * (ActivationFormats::MAX_BLOCK_TOKENS - 1)
    }
}

/// The buffers that mixtures of experts write to.
pub(crate) struct ExpertsBuffers {
    /// Logits of the router, then probabilities: `[batch, experts]`.
    pub(super) logits: Vec<f32>,
    /// The scores by which experts are chosen, `[batch, experts]`.
    pub(super) scores: Vec<f32>,
    /// Experts and weights of each token: `[batch, 2 · used]`.
    pub(super) chosen: Vec<f32>,
    /// Logits of the shared network's gate, `[batch]`.
    pub(super) shared: Vec<f32>,
    /// The chosen experts, by number.
    pub(super) places: Vec<Place>,
    /// The places that are computed now, and those whose experts are being read.
    pub(super) wave: Vec<Place>,
    pub(super) coming: Vec<Place>,
    /// By expert: its number of slots, then its next slot. `[experts]`
    pub(super) next: Vec<usize>,
    /// By slot: the token, `None` between places.
    pub(super) token_of: Vec<Option<usize>>,
    /// Slots and weights of each token, in the router's order, then the shared network's: `[batch, used + 1]` at most.
    pub(super) terms: Vec<Term>,
    /// For slots of 16 bits: `[slots, intermediate]`.
    pub(super) gate: Vec<f32>,
    /// The packed input of the experts' first matrices, a token for each slot.
    pub(super) packed: Activations,
    /// The packed input of their last matrices.
    pub(super) activated: Activations,
    /// If experts are read when they are chosen: the outputs of all slots, then of the shared network for each token,
    /// `[slots + batch, hidden]`.
    pub(super) apart: Option<Vec<f32>>,
}

impl ExpertsBuffers {
    /// Creates the buffers for experts that are `read` when they are chosen, or are all in memory.
    pub(crate) fn new(
        work: &ExpertsWork,
        batch: usize,
        hidden: usize,
        read: bool,
    ) -> ExpertsBuffers {
        let (slots, any) = (work.slots(batch), work.experts > 0);
        ExpertsBuffers {
            logits: vec![0.0; batch * work.experts],
            scores: vec![0.0; batch * work.experts],
            chosen: vec![0.0; batch * 2 * work.used],
            shared: vec![0.0; if any { batch } else { 0 }],
            places: Vec::with_capacity(work.places(batch)),
            wave: Vec::with_capacity(work.places(batch)),
            coming: Vec::with_capacity(work.places(batch)),
            next: vec![0; work.experts],
            token_of: vec![None; slots],
            terms: vec![Term::default(); batch * (work.used + 1)],
            gate: vec![0.0; batch * work.used * work.width],
            packed: Activations::new(slots, if any { hidden } else { 0 }),
            activated: Activations::new(slots, work.width),
            apart: (any && read).then(|| vec![0.0; (slots + batch) * hidden]),
        }
    }

    /// Copies what was chosen for row `from` to row `to`, where a row has `width` elements.
    pub(crate) fn copy_choice(&mut self, width: usize, from: usize, to: usize) {
        self.chosen.copy_within(from * width..(from + 1) * width, to * width);
    }

    /// Returns the approximate bytes in use once a batch has been full.
    pub(crate) fn bytes(&self) -> usize {
        let apart = self.apart.as_ref().map_or(0, Vec::len);
        let floats = [&self.logits, &self.scores, &self.gate].map(Vec::len);
        let floats = floats.iter().sum::<usize>() + apart;
        floats * size_of::<f32>() + self.packed.usual_bytes() + self.activated.usual_bytes()
    }

    /// Assigns a slot to each pair of a token and one of its experts: first those of tokens of 16 bits, then those of 8 bits,
    /// whose places begin at multiples of `block` among them. Returns the number of slots of each.
    pub(super) fn sort(&mut self, spec: &ExpertsSpec, rows: RowCounts, block: usize) -> RowCounts {
        let [bits16, bits8] = rows.ranges();
        self.places.clear();
        let wide = self.sort_some(spec, bits16, 0, 1);
        let end = self.sort_some(spec, bits8, wide, block);
        let per_token = spec.routing.used + usize::from(spec.shared.is_some());
        if let Some(shared) = &spec.shared {
            let terms = self.terms.chunks_exact_mut(per_token).take(rows.all());
            for (token, (terms, gate)) in terms.zip(&self.shared).enumerate() {
                let gate = if shared.gated { sigmoid(*gate) } else { 1.0 };
                let weight = shared.scale * gate;
                terms[per_token - 1] = Term { slot: end + token, weight };
            }
        }
        RowCounts { bits16: wide, bits8: end - wide }
    }

    /// Begins with the places whose experts are in memory; the others follow when they are loaded.
    pub(super) fn begin_waves(&mut self, chosen: &Chosen<'_>) {
        self.coming.clone_from(&self.places);
        self.next_wave(chosen);
    }

    /// Moves the places whose experts have been loaded from `coming` to `wave`.
    pub(super) fn next_wave(&mut self, chosen: &Chosen<'_>) {
        self.wave.clear();
        self.wave.extend(self.coming.extract_if(.., |place| chosen.is_here(place.matrix)));
    }

    /// Does [`ExpertsBuffers::sort`] for the pairs of some tokens, sorted by expert, from slot `start` on. Returns the end.
    pub(super) fn sort_some(
        &mut self,
        spec: &ExpertsSpec,
        tokens: Range<usize>,
        start: usize,
        block: usize,
    ) -> usize {
        let Routing { experts, used, .. } = spec.routing;
        let rows = self.chosen.chunks_exact(2 * used).take(tokens.end).skip(tokens.start);
        let chosen = rows.map(|row| row.split_at(used));
        let next = &mut self.next[..experts];
        next.fill(0);
        for (chosen, _) in chosen.clone() {
            chosen.iter().for_each(|expert| next[*expert as usize] += 1);
        }
        let mut end = start;
        for (matrix, next) in next.iter_mut().enumerate().filter(|(_, slots)| **slots > 0) {
            let first = start + (end - start).next_multiple_of(block);
            let place = Place { matrix, first, slots: *next };
            self.token_of[end..place.first].fill(None);
            (*next, end) = (place.first, place.range().end);
            self.places.push(place);
        }
        let per_token = used + usize::from(spec.shared.is_some());
        let terms = self.terms.chunks_exact_mut(per_token).skip(tokens.start);
        for (token, ((chosen, weights), terms)) in tokens.zip(chosen.zip(terms)) {
            for ((expert, &weight), term) in chosen.iter().zip(weights).zip(terms) {
                let slot = &mut next[*expert as usize];
                self.token_of[*slot] = Some(token);
                let weight = if spec.weighs_input { 1.0 } else { weight };
                *term = Term { slot: *slot, weight };
                *slot += 1;
            }
        }
        end
    }
}

/// Returns the weight of an expert that was chosen for a token, from `chosen` `[tokens, 2 · used]`.
pub(super) fn weight_of(
    routing: &Routing,
    chosen: &[f32],
    token: Option<usize>,
    expert: usize,
) -> f32 {
    let Some(token) = token else { return 0.0 };
    let (experts, weights) = chosen[2 * token * routing.used..].split_at(routing.used);
    let found = experts.iter().zip(weights).find(|(other, _)| **other as usize == expert);
    found.map_or(0.0, |(_, weight)| *weight)
}
