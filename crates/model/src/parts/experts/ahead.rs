//! Requests experts before they are needed: chosen ones that are missing, and those that the next layer may choose.

use std::sync::atomic::{AtomicBool, Ordering};

use alight_kernels::matmul::ActivationFormats;

use super::{Experts, MAX_GUESSING};
use crate::parts::routing::Routing;
use crate::parts::step::Step;
use crate::store::{Chosen, First, Storage, Store, arrival};
use crate::tensors::{Linear, MatrixRef};

impl Experts {
    /// Requests reads of the chosen experts in the map that are not in memory. Until these experts are computed, their reads have
    /// priority: they complete meanwhile.
    pub(super) fn ask_for_chosen<'s>(&self, step: &Step<'s>) -> Option<First<'s>> {
        let (store, places) = (step.store, &step.buffers.experts.places);
        let give_up = || step.compute.cancel.is_cancelled();
        let is_incoming = store.is_incoming();
        if !is_incoming {
            // If a file was received meanwhile, nothing delays the answer any longer.
            store.priority().release();
        }
        if 2 * places.len() > self.spec.routing.experts && !is_incoming {
            // In file order they are read faster, in huge pages, and nothing is read twice. A failed load is detected at the end of
            // the step.
            let _ = store.arrival().wait_for_experts(step.layer, &give_up);
        }
        let first = store.priority().take();
        let missing = AtomicBool::new(false);
        step.compute.pool.run_each(places.len(), &|place, _| {
            if self.ask_ahead(places[place].matrix, store) {
                missing.store(true, Ordering::Relaxed);
            }
        });
        let missing = missing.into_inner();
        if missing && is_incoming {
            // A page that has not been received holds zeros. A failure is detected at the end of the step, as of a load.
            let experts = self.spec.routing.experts;
            for place in places {
                for matrix in self.chosen_matrices() {
                    matrix.wait_received(place.matrix, experts, store, &give_up);
                }
            }
        }
        missing.then_some(first)
    }

    /// The stacks of matrices of which a token reads those of the chosen experts.
    fn chosen_matrices(&self) -> impl Iterator<Item = &MatrixRef> {
        let matrices = self.gate_up.linears().chain([&self.down]).flat_map(Linear::matrices);
        matrices.filter(|matrix| matrix.fits_slots())
    }

    /// Requests reads of an expert that is in the map but not in memory: page faults would read it in small pieces, along with
    /// its neighbours. Returns true if some of it may be missing.
    fn ask_ahead(&self, expert: usize, store: &Store) -> bool {
        let experts = self.spec.routing.experts;
        let asked = self.chosen_matrices().map(|matrix| matrix.ask_ahead(expert, experts, store));
        // No short circuit: every matrix is requested.
        asked.fold(false, |some, missing| some | missing)
    }

    /// Requests experts that the next layer may choose: those that its router chooses on this layer's input, which is similar to its
    /// own. The tokens of a longer prompt choose most experts, so these are read after those of this layer, each once. For a few tokens,
    /// some experts are guessed while the disk is idle.
    ///
    /// Overwrites this layer's choice. Does nothing if the inputs are weighted, which needs that choice later.
    pub(super) fn look_ahead(&self, step: &mut Step<'_>, chosen: &mut Chosen<'_>) {
        let spec = &self.spec;
        let Some((layer, next)) = step.next_experts else { return };
        let Storage::Slots(place) = next.down.matrix.storage() else { return };
        if step.store.is_incoming() {
            // They may not be there to be read.
            return;
        }
        let rows = step.rows().all();
        let kinds = |layer: &Experts| {
            ActivationFormats::of(layer.routing_linears().flat_map(Linear::kinds))
        };
        let alike = kinds(next) == kinds(self);
        let arrival = step.store.arrival();
        let few = rows <= MAX_GUESSING;
        let Routing { experts, used, .. } = next.spec.routing;
        // No guess if a wrong one would keep the disk from the chosen experts, or from weights that every token reads.
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
