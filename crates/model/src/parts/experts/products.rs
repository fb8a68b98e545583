//! The products of chosen experts: of all of them at once, or of a wave of those that have been loaded.

use std::ops::Range;

use alight_kernels::matmul::{ActivationFormats, RowCounts};
use alight_kernels::parallel::{self, Bank, Packing, Place, Rows};
use alight_kernels::vec;

use super::Experts;
use super::buffers::weight_of;
use crate::parts::step::Step;
use crate::store::Chosen;

impl Experts {
    /// Returns the places of the shared network: all tokens, in the order of the batch.
    pub(super) fn shared_places(&self, rows: RowCounts) -> [Place; 2] {
        rows.ranges().map(|rows| Place { matrix: 0, first: rows.start, slots: rows.len() })
    }

    /// Multiplies the slots of a wave's experts, and with the first wave the shared network's rows, with their first matrices, joins
    /// the products, and packs them.
    pub(super) fn inputs(&self, step: &mut Step<'_>, chosen: &Chosen<'_>, first: bool) {
        let spec = &self.spec;
        let isa = step.compute.isa;
        match spec.gated {
            true => {
                let join = |[gate, up]: [&mut [f32]; 2]| spec.activation.apply(isa, gate, up);
                self.joined_inputs::<2>(step, chosen, first, &join);
            }
            false => {
                let join = |[up]: [&mut [f32]; 1]| spec.activation.apply_alone(isa, up);
                self.joined_inputs::<1>(step, chosen, first, &join);
            }
        }
    }

    /// Does [`Experts::inputs`] with `M` matrices.
    pub(super) fn joined_inputs<const M: usize>(
        &self,
        step: &mut Step<'_>,
        chosen: &Chosen<'_>,
        first: bool,
        join: &(dyn Fn([&mut [f32]; M]) + Sync),
    ) {
        let spec = &self.spec;
        let (isa, store, width) = (step.compute.isa, step.store, spec.intermediate_size);
        let all = self.shared_places(step.rows());
        let b = &mut *step.buffers;
        let e = &mut b.experts;
        let one = |expert| std::array::from_fn(|i| self.gate_up.view(expert, i, chosen));
        let to = (&mut e.activated, self.down_formats());
        let experts = (
            Bank::new(width, &one, &e.packed, &e.wave),
            Packing::new(&e.packed, width, to, &mut e.gate),
        );
        let shared = spec.shared.as_ref().zip(self.shared.as_ref()).filter(|_| first);
        let matrices = |_| {
            let (_, weights) = shared.expect("it has places");
            let mut matrices = weights.inputs();
            std::array::from_fn(|_| matrices.next().expect("as experts have").view(store))
        };
        let shared = shared.map(|(spec, weights)| {
            let width = spec.intermediate_size;
            let to = (&mut b.activated, ActivationFormats::of([weights.down.kind()]));
            let bank = Bank::new(width, &matrices, &b.acts, &all);
            (bank, Packing::new(&b.acts, width, to, &mut b.gate))
        });
        let threads = &mut step.compute.threads(&b.threads);
        let (weights, token_of) = (&e.chosen, &e.token_of);
        let join = |bank: usize,
                    place: &Place,
                    rows: Range<usize>,
                    mut products: [&mut [f32]; M]| {
            if bank == 0 {
                let expert = place.matrix;
                for (i, products) in products.iter_mut().enumerate() {
                    for (slot, products) in place.range().zip(products.chunks_exact_mut(rows.len()))
                    {
                        if spec.weighs_input {
                            // The products are weighted instead of the input, in which they are linear.
                            let weight = weight_of(&spec.routing, weights, token_of[slot], expert);
                            vec::scale(isa, products, weight);
                        }
                        self.gate_up.add_bias(expert, i, store, rows.start, products);
                    }
                }
            }
            join(products);
        };
        parallel::multiply_banks_and_pack(threads, [Some(experts), shared], &join);
    }

    /// Computes the outputs of all slots and of the shared network, and their sums.
    pub(super) fn down(&self, step: &mut Step<'_>, chosen: &Chosen<'_>) {
        let spec = &self.spec;
        let (isa, store, width) = (step.compute.isa, step.store, self.down.rows());
        let rows = step.rows();
        let all = self.shared_places(rows);
        let b = &mut *step.buffers;
        let e = &b.experts;
        let one = |expert| [self.down.chosen(expert, chosen)];
        let places = if self.shared.is_some() { &all[..] } else { &all[..0] };
        let shared = |_| match &self.shared {
            Some(shared) => [shared.down.view(store)],
            None => one(0),
        };
        let banks = [
            Bank::new(width, &one, &e.activated, &e.places),
            Bank::new(width, &shared, &b.activated, places),
        ];
        let bias = self.down_bias.as_ref();
        let then = |bank: usize, _: usize, expert, rows: Range<usize>, products: &mut [f32]| {
            if let (0, Some(bias)) = (bank, bias) {
                bias.part(expert, store).add_float_row(0, (rows.start, 1), products);
            }
        };
        let per_token = spec.routing.used + usize::from(spec.shared.is_some());
        let terms = (&e.terms[..rows.all() * per_token], per_token);
        let threads = &mut step.compute.threads(&b.threads);
        let out = Rows::new(&mut b.y, width);
        parallel::multiply_and_sum(threads, isa, banks, &then, terms, out);
    }

    /// Computes the outputs of the wave's slots, which are kept until they are summed.
    pub(super) fn down_apart(&self, step: &mut Step<'_>, chosen: &Chosen<'_>) {
        let (store, width) = (step.store, self.down.rows());
        let b = &mut *step.buffers;
        let e = &mut b.experts;
        let Some(products) = &mut e.apart else { return };
        let one = |expert| [self.down.chosen(expert, chosen)];
        let banks = [Bank::new(width, &one, &e.activated, &e.wave)];
        let bias = self.down_bias.as_ref();
        let threads = &mut step.compute.threads(&b.threads);
        let then = |_: usize, _: usize, expert, rows: Range<usize>, row: &mut [f32]| {
            if let Some(bias) = bias {
                bias.part(expert, store).add_float_row(0, (rows.start, 1), row);
            }
        };
        parallel::multiply_banks(threads, banks, [Rows::new(products, width)], &then);
    }

    /// Computes the output of the shared network, if there is one, and the sums of it and of the outputs that
    /// [`Experts::down_apart`] has kept for `slots` slots.
    pub(super) fn shared_and_sum(&self, step: &mut Step<'_>, slots: usize) {
        let spec = &self.spec;
        let (isa, store, width) = (step.compute.isa, step.store, self.down.rows());
        let rows = step.rows();
        let places = self.shared_places(rows);
        let b = &mut *step.buffers;
        let e = &mut b.experts;
        let Some(products) = &mut e.apart else { return };
        let threads = &mut step.compute.threads(&b.threads);
        if let Some(shared) = &self.shared {
            let one = |_| [shared.down.view(store)];
            let banks = [Bank::new(width, &one, &b.activated, &places)];
            let output = [Rows::starting_at(products, width, slots)];
            parallel::multiply_banks(threads, banks, output, &|_, _, _, _, _| {});
        }
        let per_token = spec.routing.used + usize::from(spec.shared.is_some());
        let terms = (&e.terms[..rows.all() * per_token], per_token);
        parallel::sum(threads, isa, products, terms, Rows::new(&mut b.y, width));
    }
}
