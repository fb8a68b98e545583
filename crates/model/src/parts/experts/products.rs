//! The products of chosen experts: of all of them at once, or of a wave of those that have been loaded.

use std::ops::Range;

use alight_kernels::matmul::{ActivationFormats, RowCounts};
use alight_kernels::parallel::{self, Bank, Packing, Place, Rows};
use alight_kernels::vec;

use super::Experts;
use super::buffers::weight_of;
use crate::parts::dense::Activation;
use crate::parts::step::Step;
use crate::store::Chosen;
use crate::tensors::Projection;

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
                let join = |activation: Activation, [gate, up]: [&mut [f32]; 2]| {
                    activation.apply(isa, gate, up);
                };
                self.joined_inputs::<2>(step, chosen, first, &join);
            }
            false => {
                let join = |activation: Activation, [up]: [&mut [f32]; 1]| {
                    activation.apply_alone(isa, up);
                };
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
        join: &(dyn Fn(Activation, [&mut [f32]; M]) + Sync),
    ) {
        let (spec, compute) = (&self.spec, step.compute);
        let (isa, store, width) = (compute.isa, step.store, spec.intermediate_size);
        let all = self.shared_places(step.rows());
        let b = &mut *step.buffers;
        let e = &mut b.experts;
        let rows_of = &e.token_of;
        let (row_of, own_row) = (|slot: usize| rows_of[slot], |token| Some(token));
        let of_experts = std::array::from_fn::<_, M, _>(|i| {
            move |expert: usize| self.gate_up.projection(expert, i)
        });
        let corrections = of_experts
            .each_ref()
            .map(|projection| compute.slot_corrections(projection, (&e.packed, &e.wave), &row_of));
        let one =
            |expert| std::array::from_fn(|i| self.gate_up.projection(expert, i).chosen(chosen));
        let to = (&mut e.activated, compute.adapters.formats(self.down_formats()));
        let experts = (
            Bank::new(width, &one, &e.packed, &e.wave),
            Packing::new(&e.packed, width, to, &mut e.gate),
        );
        let shared = spec.shared.as_ref().zip(self.shared.as_ref()).filter(|_| first);
        let linears = shared.map(|(_, weights)| {
            let mut linears = weights.inputs();
            std::array::from_fn::<_, M, _>(|_| linears.next().expect("as experts have"))
        });
        let of_shared = |i: usize| linears.expect("it has places")[i].projection(0);
        let shared_places = if linears.is_some() { &all[..] } else { &all[..0] };
        let each_shared = std::array::from_fn::<_, M, _>(|i| move |_: usize| of_shared(i));
        let shared_corrections = each_shared.each_ref().map(|projection| {
            compute.slot_corrections(projection, (&b.acts, shared_places), &own_row)
        });
        let matrices = |_| std::array::from_fn(|i| of_shared(i).matrix(store));
        let shared = shared.map(|(spec, weights)| {
            let width = spec.intermediate_size;
            let formats = ActivationFormats::of(weights.down.kinds());
            let to = (&mut b.activated, compute.adapters.formats(formats));
            let bank = Bank::new(width, &matrices, &b.acts, &all);
            (bank, Packing::new(&b.acts, width, to, &mut b.gate))
        });
        let threads = &mut compute.threads(&b.threads);
        let (weights, token_of) = (&e.chosen, &e.token_of);
        let own = spec.shared.as_ref().and_then(|shared| shared.activation);
        let of_shared_activation = own.unwrap_or(spec.activation);
        let join =
            |bank: usize, place: &Place, rows: Range<usize>, mut products: [&mut [f32]; M]| {
                let weighs = spec.weighs_input && bank == 0;
                for (i, products) in products.iter_mut().enumerate() {
                    let (projection, corrections) = match bank {
                        0 => (self.gate_up.projection(place.matrix, i), &corrections[i]),
                        _ => (of_shared(i), &shared_corrections[i]),
                    };
                    if projection.is_plain() && corrections.is_empty() && !weighs {
                        continue;
                    }
                    for (slot, products) in place.range().zip(products.chunks_exact_mut(rows.len()))
                    {
                        projection.correct(corrections, slot, rows.start, products);
                        if weighs {
                            // The products are weighted instead of the input, in which they are linear.
                            let routing = &spec.routing;
                            let weight = weight_of(routing, weights, token_of[slot], place.matrix);
                            vec::scale(isa, products, weight);
                        }
                        projection.add_bias(store, rows.start, products);
                    }
                }
                join(if bank == 0 { spec.activation } else { of_shared_activation }, products);
            };
        parallel::multiply_banks_and_pack(threads, [Some(experts), shared], &join);
    }

    /// Returns the last projection of the shared network, if there is one, for every place.
    fn shared_down(&self) -> Option<Projection<'_>> {
        self.shared.as_ref().map(|shared| shared.down.projection(0))
    }

    /// Computes the outputs of all slots and of the shared network, and their sums.
    pub(super) fn down(&self, step: &mut Step<'_>, chosen: &Chosen<'_>) {
        let (spec, compute) = (&self.spec, step.compute);
        let (isa, store, width) = (compute.isa, step.store, self.down.rows());
        let rows = step.rows();
        let all = self.shared_places(rows);
        let b = &mut *step.buffers;
        let e = &b.experts;
        let of_experts = |expert| self.down.projection(expert);
        let of_shared = self.shared_down();
        let places = if of_shared.is_some() { &all[..] } else { &all[..0] };
        let of_shared = |_| of_shared.unwrap_or_else(|| of_experts(0));
        let rows_of = &e.token_of;
        let (row_of, own_row) = (|slot: usize| rows_of[slot], |token| Some(token));
        let corrections = [
            compute.slot_corrections(&of_experts, (&e.activated, &e.places), &row_of),
            compute.slot_corrections(&of_shared, (&b.activated, places), &own_row),
        ];
        let one = |expert| [of_experts(expert).chosen(chosen)];
        let shared = |place| [of_shared(place).matrix(store)];
        let banks = [
            Bank::new(width, &one, &e.activated, &e.places),
            Bank::new(width, &shared, &b.activated, places),
        ];
        let then = |bank: usize, slot: usize, place, rows: Range<usize>, products: &mut [f32]| {
            let projection = if bank == 0 { of_experts(place) } else { of_shared(place) };
            projection.correct(&corrections[bank], slot, rows.start, products);
            projection.add_bias(store, rows.start, products);
        };
        let per_token = spec.routing.used + usize::from(spec.shared.is_some());
        let terms = (&e.terms[..rows.all() * per_token], per_token);
        let threads = &mut compute.threads(&b.threads);
        let out = Rows::new(&mut b.y, width);
        parallel::multiply_and_sum(threads, isa, banks, &then, terms, out);
    }

    /// Computes the outputs of the wave's slots, which are kept until they are summed.
    pub(super) fn down_apart(&self, step: &mut Step<'_>, chosen: &Chosen<'_>) {
        let (compute, store, width) = (step.compute, step.store, self.down.rows());
        let b = &mut *step.buffers;
        let e = &mut b.experts;
        let Some(products) = &mut e.apart else { return };
        let projection = |expert| self.down.projection(expert);
        let slots = (&e.activated, &e.wave[..]);
        let rows_of = &e.token_of;
        let row_of = |slot: usize| rows_of[slot];
        let corrections = compute.slot_corrections(&projection, slots, &row_of);
        let one = |expert| [projection(expert).chosen(chosen)];
        let banks = [Bank::new(width, &one, &e.activated, &e.wave)];
        let threads = &mut compute.threads(&b.threads);
        let then = |_: usize, slot, expert, rows: Range<usize>, products: &mut [f32]| {
            let projection = projection(expert);
            projection.correct(&corrections, slot, rows.start, products);
            projection.add_bias(store, rows.start, products);
        };
        parallel::multiply_banks(threads, banks, [Rows::new(products, width)], &then);
    }

    /// Computes the output of the shared network, if there is one, and the sums of it and of the outputs that
    /// [`Experts::down_apart`] has kept for `slots` slots.
    pub(super) fn shared_and_sum(&self, step: &mut Step<'_>, slots: usize) {
        let (spec, compute) = (&self.spec, step.compute);
        let (isa, store, width) = (compute.isa, step.store, self.down.rows());
        let rows = step.rows();
        let places = self.shared_places(rows);
        let b = &mut *step.buffers;
        let e = &mut b.experts;
        let Some(products) = &mut e.apart else { return };
        let threads = &mut compute.threads(&b.threads);
        if let Some(projection) = self.shared_down() {
            let tokens = (&b.activated, &places[..]);
            let own_row = |token| Some(token);
            let of_shared = |_| projection;
            let corrections = compute.slot_corrections(&of_shared, tokens, &own_row);
            let one = |_| [projection.matrix(store)];
            let banks = [Bank::new(width, &one, &b.activated, &places)];
            let output = [Rows::starting_at(products, width, slots)];
            let then = |_: usize, token, _: usize, rows: Range<usize>, products: &mut [f32]| {
                projection.correct(&corrections, token, rows.start, products);
                projection.add_bias(store, rows.start, products);
            };
            parallel::multiply_banks(threads, banks, output, &then);
        }
        let per_token = spec.routing.used + usize::from(spec.shared.is_some());
        let terms = (&e.terms[..rows.all() * per_token], per_token);
        parallel::sum(threads, isa, products, terms, Rows::new(&mut b.y, width));
    }
}
