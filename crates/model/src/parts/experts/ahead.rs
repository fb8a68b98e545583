//! Experts that are asked for before they are needed: those that were chosen and are missing, and those that the next layer may choose.

use std::sync::atomic::{AtomicBool, Ordering};

use alight_kernels::matmul::ActivationFormats;

use super::{Experts, MAX_GUESSING};
use crate::parts::routing::Routing;
use crate::parts::step::Step;
use crate::store::{Chosen, First, Storage, Store, arrival};
use crate::tensors::Linear;

impl Experts {
    /// Asks the system to read those of the chosen experts that are missing in the map. Until they are computed these reads come first:
    /// they come while they are.
    pub(super) fn ask_for_chosen<'s>(&self, step: &Step<'s>) -> Option<First<'s>> {
        let (store, places) = (step.store, &step.buffers.experts.places);
        if 2 * places.len() > self.spec.routing.experts {
            // In the order of the file they come faster, in huge pages, and nothing is read twice. That the load has failed is seen
            // at the end of the step.
            let _ = store.arrival().wait_for_experts(step.layer);
        }
        let first = store.priority().take();
        let missing = AtomicBool::new(false);
        step.compute.pool.run_each(places.len(), &|place, _| {
            if self.ask_ahead(places[place].matrix, store) {
                missing.store(true, Ordering::Relaxed);
            }
        });
        missing.into_inner().then_some(first)
    }

    /// Asks the system to read an expert that is in the map, and not in memory: faults would bring it in small pieces, and its
    /// neighbours with it. Whether some of it may be missing.
    fn ask_ahead(&self, expert: usize, store: &Store) -> bool {
        let spec = &self.spec;
        let matrices = self.gate_up.matrices().chain([&self.down]);
        let asked = matrices
            .filter(|matrix| matrix.fits_slots())
            .map(|matrix| matrix.ask_ahead(expert, spec.routing.experts, store));
        // Every one is asked for.
        asked.fold(false, |some, missing| some | missing)
    }

    /// Has experts read that the next layer may choose: those that its router chooses on this layer's input, which is much like its own.
    /// The tokens of a longer prompt choose most experts, so these are read after those of this layer, each once. Of a few tokens'
    /// experts some are guessed while the disk has nothing else to do.
    ///
    /// What this layer has chosen is of no use any more, unless its inputs are weighed.
    pub(super) fn look_ahead(&self, step: &mut Step<'_>, chosen: &mut Chosen<'_>) {
        let spec = &self.spec;
        let Some((layer, next)) = step.next_experts else { return };
        let Storage::Slots(place) = next.down.storage() else { return };
        let rows = step.rows().all();
        let kinds = |layer: &Experts| {
            ActivationFormats::of(layer.routing_linears().flat_map(Linear::kinds))
        };
        let alike = kinds(next) == kinds(self);
        let arrival = step.store.arrival();
        let few = rows <= MAX_GUESSING;
        let Routing { experts, used, .. } = next.spec.routing;
        // Where a guess that is wrong would keep the disk from what is chosen, or from what every token reads, there is none.
        let suits = match few {
            true => arrival.is_complete() && chosen.may_guess(),
            false => arrival.is_ready(arrival::layer(layer)) && rows * used >= experts,
        };
        if spec.weighs_input || !alike || !suits {
            return;
        }
        next.route(step);
        let e = &mut step.buffers.experts;
        let tokens = e.chosen.chunks_exact(2 * used).take(rows);
        if few {
            let scores = e.scores.chunks_exact(experts);
            let routing = &next.spec.routing;
            let guesses =
                tokens.zip(scores).flat_map(|(row, scores)| routing.sureness(scores, row));
            chosen.guess(place, guesses);
            return;
        }
        let numbers = tokens.flat_map(|row| &row[..used]).map(|expert| *expert as usize);
        let wanted = &mut e.next[..experts];
        wanted.fill(0);
        numbers.for_each(|expert| wanted[expert] += 1);
        let wanted = &e.next[..experts];
        chosen.read_ahead(place, (0..experts).filter(|expert| wanted[*expert] > 0));
    }
}
