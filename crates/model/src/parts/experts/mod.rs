//! A mixture of experts: a router chooses a few of many small networks for each token, and their outputs are summed with the
//! router's weights, together with that of a shared network for all tokens, if there is one.
//!
//! The pairs of a token and one of its experts are sorted by expert, into *slots*; each chosen expert's weights are read once for
//! all of its slots, and others are not touched. Every slot has its own output, and those of a token are summed in the order in
//! which the router chose them: the result depends neither on threads nor on the other tokens of the batch.
//!
//! Three regions: the router; gate and up of all chosen experts; down and the sum. If experts are read when they are chosen
//! ([`Chosen`]), those in memory are computed while the others are read, and these as they are loaded. The outputs of all slots are then
//! kept, and the sum is a region of its own. It has the same operations in the same order, so the result does not depend on which
//! experts were in memory, or on the order in which the others were loaded. Experts that the next layer will choose may be read after
//! those of this one.
//!
//! This file has the part and the order of its steps; `buffers` sorts tokens into slots, `products` computes, `ahead` requests experts that are
//! not in memory, `tensors` has the matrices.

mod ahead;
mod buffers;
mod products;
mod tensors;

use alight_kernels::matmul::{ActivationFormats, RowCounts};
use alight_kernels::parallel::{self, Rows};
use alight_kernels::vec;

pub(crate) use self::buffers::{ExpertsBuffers, ExpertsWork};
use self::tensors::{GateUp, SharedWeights};
use super::dense::Activation;
use super::routing::{Routing, USED};
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::parts::buffers::WorkSize;
use crate::parts::step::{Order, Step};
use crate::parts::{Contribution, FeedForwardSpec, Part, PartSpec};
use crate::store::Chosen;
use crate::tensors::{LayerFinder, Linear, WeightError};

/// A mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsSpec {
    /// The number of experts, and how those of a token are chosen.
    pub routing: Routing,
    /// Width between an expert's two projections.
    pub intermediate_size: usize,
    /// Applied to the gate, or to the only projection if there is no gate.
    pub activation: Activation,
    /// True if experts and the shared network have a gate.
    pub gated: bool,
    /// A network for all tokens.
    pub shared: Option<SharedExpert>,
    /// True if the rows of gate and up alternate, where both are one tensor.
    pub interleaved: bool,
    /// True if the weights apply to the experts' inputs, and not to their outputs.
    pub weighs_input: bool,
    /// True if they are chosen by the layer's input, before its mixer.
    pub routed_early: bool,
}

/// The shared network of a mixture, which all tokens go through.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedExpert {
    /// Width between its two projections.
    pub intermediate_size: usize,
    /// True if its output is multiplied by the sigmoid of a projection of the input.
    pub gated: bool,
    /// Factor on its output.
    pub scale: f32,
    /// Its activation, if it is not the experts'.
    pub activation: Option<Activation>,
}

/// The maximum number of tokens for which experts are guessed: they choose few enough.
const MAX_GUESSING: usize = 4;

/// The key of an expert's width.
pub(crate) const EXPERT_WIDTH: &str = "expert_feed_forward_length";

/// The key of the width of the shared network.
pub(crate) const SHARED_WIDTH: &str = "expert_shared_feed_forward_length";

impl SharedExpert {
    /// Returns one of this width, without a gate.
    pub(crate) fn new(intermediate_size: usize) -> SharedExpert {
        SharedExpert { intermediate_size, gated: false, scale: 1.0, activation: None }
    }

    /// Returns one as wide as its key states; none without that key.
    ///
    /// # Errors
    /// A width that no model can have.
    pub(crate) fn read(keys: &Keys<'_, '_>) -> Result<Option<SharedExpert>, SpecError> {
        let width = keys.width_or_none(SHARED_WIDTH)?;
        Ok(width.map(SharedExpert::new))
    }

    /// Returns one as wide as several experts together, whose number is a key; none without that key.
    ///
    /// # Errors
    /// A number that no model can have.
    pub(crate) fn as_wide_as(
        keys: &Keys<'_, '_>,
        width: usize,
    ) -> Result<Option<SharedExpert>, SpecError> {
        let count = keys.width_or_none("expert_shared_count")?;
        let shared = count.map(|count| SharedExpert::new(count * width));
        match shared.as_ref().filter(|shared| shared.intermediate_size > MAX_WIDTH) {
            None => Ok(shared),
            Some(_) => {
                let most = format!("at most {} experts of {width}", MAX_WIDTH / width);
                Err(keys.value("expert_shared_count", count.unwrap_or(0), most))
            }
        }
    }
}

impl ExpertsSpec {
    /// Reads its keys, with SiLU and without a shared network. `normalise`: whether weights are normalised if the file does not
    /// state it.
    ///
    /// # Errors
    /// A value that no model can have.
    pub(crate) fn read(keys: &Keys<'_, '_>, normalise: bool) -> Result<ExpertsSpec, SpecError> {
        // Families without dense layers have no separate key for an expert's width.
        let intermediate_size = match keys.optional_dimension(EXPERT_WIDTH, MAX_WIDTH)? {
            Some(width) => width,
            None => keys.dimension("feed_forward_length", MAX_WIDTH)?,
        };
        ExpertsSpec::new(keys, Routing::read(keys, normalise)?, intermediate_size)
    }

    /// Creates gated experts of this width, with SiLU and without a shared network.
    ///
    /// # Errors
    /// More experts for each token than any model has.
    pub(crate) fn new(
        keys: &Keys<'_, '_>,
        routing: Routing,
        intermediate_size: usize,
    ) -> Result<ExpertsSpec, SpecError> {
        // The intermediate results of a token's experts are in memory for all tokens of a batch.
        if intermediate_size.saturating_mul(routing.used) > MAX_WIDTH {
            let expected = format!("at most {MAX_WIDTH} for all experts of a token");
            return Err(keys.value(USED, routing.used, expected));
        }
        Ok(ExpertsSpec {
            routing,
            intermediate_size,
            activation: Activation::Silu,
            gated: true,
            shared: None,
            interleaved: false,
            weighs_input: false,
            routed_early: false,
        })
    }
}

impl PartSpec for ExpertsSpec {
    fn find(
        &self,
        find: &LayerFinder<'_, '_, '_>,
        hidden: usize,
    ) -> Result<Box<dyn Part>, WeightError> {
        Ok(Box::new(Experts::find(find, self, hidden)?))
    }

    fn work(&self, _hidden: usize) -> WorkSize {
        let shared = self.shared.as_ref().map_or(0, |shared| shared.intermediate_size);
        WorkSize {
            gate: shared,
            activated: shared,
            experts: ExpertsWork {
                experts: self.routing.experts,
                used: self.routing.used,
                width: self.intermediate_size,
            },
            ..WorkSize::default()
        }
    }
}

impl FeedForwardSpec for ExpertsSpec {
    fn experts(&self) -> Option<&ExpertsSpec> {
        Some(self)
    }
}

/// The tensors of a mixture. `width` is the length of the experts' inputs and outputs: the hidden size, except in
/// [`LatentExpertsSpec`](super::latent_experts::LatentExpertsSpec).
#[derive(Debug)]
pub(crate) struct Experts {
    spec: ExpertsSpec,
    /// `[experts, hidden]`
    router: Linear,
    /// `[experts]`, for the choice only.
    selection_bias: Option<Vec<f32>>,
    gate_up: GateUp,
    /// `[experts][width, intermediate]`
    down: Linear,
    shared: Option<SharedWeights>,
    /// `[width]`, added to the sum: Nomic's experts have it, under a name of our own.
    output_bias: Option<Vec<f32>>,
}

impl Experts {
    pub(super) fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &ExpertsSpec,
        hidden: usize,
    ) -> Result<Experts, WeightError> {
        Experts::find_of_width(find, spec, hidden, hidden)
    }

    /// Finds experts with inputs and outputs of `width` elements, and a router with inputs of `hidden`.
    pub(super) fn find_of_width(
        find: &LayerFinder<'_, '_, '_>,
        spec: &ExpertsSpec,
        hidden: usize,
        width: usize,
    ) -> Result<Experts, WeightError> {
        let inner = spec.intermediate_size;
        let Routing { experts, used, .. } = spec.routing;
        find.not_one_by_one()?;
        let shared = spec.shared.as_ref();
        let shared = shared.map(|shared| SharedWeights::find(find, shared, spec.gated, hidden));
        Ok(Experts {
            spec: spec.clone(),
            router: find.router("ffn_gate_inp", hidden, experts)?,
            selection_bias: match find.bias("exp_probs_b", experts)? {
                Some(bias) => Some(bias),
                None => find.optional("exp_probs_b", experts)?,
            },
            gate_up: GateUp::find(find, spec, width)?,
            down: Linear::from(find.experts("ffn_down_exps", [inner, width, experts], 1, used)?)
                .with_biases(find.experts_bias("ffn_down_exps", width, experts, used)?),
            shared: shared.transpose()?,
            output_bias: find.bias("ffn_moe_out", width)?,
        })
    }

    /// Returns the projections that choose the experts, and that weight the shared network's output.
    fn routing_linears(&self) -> impl Iterator<Item = &Linear> {
        [&self.router].into_iter().chain(self.gate_of_shared())
    }

    /// Returns the projection that computes the router's logits.
    pub(super) fn router(&self) -> &Linear {
        &self.router
    }

    /// Returns the formats of the experts' input alone.
    pub(super) fn routed_formats(&self) -> ActivationFormats {
        ActivationFormats::of_parts(self.gate_up.kinds())
    }

    /// Returns the formats of the input of their second matrices.
    fn down_formats(&self) -> ActivationFormats {
        ActivationFormats::of_parts(self.down.kinds())
    }

    /// Computes the experts that [`Experts::route`] has chosen on the step's packed input, into `y`.
    pub(super) fn compute_routed(&self, step: &mut Step<'_>) {
        let slots = self.gather(step);
        let store = step.store;
        let asks = store.asks_ahead() || store.is_incoming();
        let _first = asks.then(|| self.ask_for_chosen(step));
        let places = &step.buffers.experts.places;
        let numbers = places.iter().map(|place| place.matrix);
        let mut chosen = store.choose(self.down.matrix.storage(), numbers.clone());
        store.recorder().add(self.down.matrix.first_byte(), numbers, chosen.found());
        step.buffers.experts.begin_waves(&chosen);
        self.look_ahead(step, &mut chosen);
        if chosen.all_here() {
            self.inputs(step, &chosen, true);
            self.down(step, &chosen);
        } else {
            self.compute_in_waves(step, &mut chosen);
            self.shared_and_sum(step, slots.all());
        }
        if let Some(bias) = &self.output_bias {
            let (isa, n, b) = (step.compute.isa, step.rows().all(), &mut *step.buffers);
            let rows = [Rows::new(&mut b.y, bias.len())];
            step.compute.each_row(n, rows, &b.threads, &|_, [y], _| vec::add_assign(isa, y, bias));
        }
    }

    /// Sorts the tokens by their experts into slots, and fills each slot with the packed input of its token. Returns the number of slots.
    fn gather(&self, step: &mut Step<'_>) -> RowCounts {
        let (formats, down_formats) = (self.routed_formats(), self.down_formats());
        let isa = step.compute.isa;
        let block = formats.block(isa).max(down_formats.block(isa));
        let (rows, b) = (step.rows(), &mut *step.buffers);
        let slots = b.experts.sort(&self.spec, rows, block);
        let threads = &mut step.compute.threads(&b.threads);
        let (packed, token_of) = (&mut b.experts.packed, &b.experts.token_of);
        let into = (packed, step.compute.adapters.formats(formats));
        parallel::gather(threads, &b.acts, into, slots, &|slot| token_of[slot]);
        slots
    }

    /// Computes the experts that are in memory, then those loaded meanwhile, until all are done. Outputs of slots are kept.
    fn compute_in_waves(&self, step: &mut Step<'_>, chosen: &mut Chosen<'_>) {
        let mut first = true;
        loop {
            self.inputs(step, chosen, first);
            let last = step.buffers.experts.coming.is_empty();
            self.down_apart(step, chosen);
            if last {
                break;
            }
            chosen.wait_for_more();
            step.buffers.experts.next_wave(chosen);
            if step.buffers.experts.coming.is_empty() && step.rows().all() <= MAX_GUESSING {
                // The disk is idle from now on.
                self.look_ahead(step, chosen);
            }
            first = false;
        }
    }

    /// Returns the projection that weights the output of the shared network, if there is one.
    fn gate_of_shared(&self) -> Option<&Linear> {
        self.shared.as_ref()?.gate_of_output.as_ref()
    }

    /// Chooses experts and weights for every token by the step's packed input.
    pub(super) fn route(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let (routing, n) = (&spec.routing, step.rows().all());
        let router = self.router.view(step.store);
        let shared = self.gate_of_shared();
        let b = &mut *step.buffers;
        let e = &mut b.experts;
        let logits = [Rows::new(&mut e.logits, routing.experts)];
        match shared.map(|gate| gate.view(step.store)) {
            None => step.compute.multiply([[&router]], [logits], &b.acts, &b.threads, None),
            Some(gate) => {
                let outputs = [logits, [Rows::new(&mut e.shared, 1)]];
                step.compute.multiply([[&router], [&gate]], outputs, &b.acts, &b.threads, None);
            }
        }
        let rows = [
            Rows::new(&mut e.logits, routing.experts),
            Rows::new(&mut e.scores, routing.experts),
            Rows::new(&mut e.chosen, 2 * routing.used),
        ];
        step.compute.each_row(n, rows, &b.threads, &|_, [logits, scores, chosen], _| {
            routing.choose(logits, self.selection_bias.as_deref(), scores, chosen);
        });
    }
}

impl Part for Experts {
    fn linears(&self) -> Vec<&Linear> {
        let shared = self.shared.iter();
        let inputs = shared.clone().flat_map(SharedWeights::inputs);
        let all = self.routing_linears().chain(self.gate_up.linears()).chain(inputs);
        all.chain([&self.down]).chain(shared.map(|shared| &shared.down)).collect()
    }

    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        let (mut all, mut last) = (vec![&mut self.router], vec![&mut self.down]);
        let mut inputs = Vec::new();
        if let Some(shared) = &mut self.shared {
            all.extend(&mut shared.gate_of_output);
            inputs.extend(shared.gate.iter_mut().chain([&mut shared.up]));
            last.push(&mut shared.down);
        }
        all.into_iter().chain(self.gate_up.linears_mut()).chain(inputs).chain(last).collect()
    }

    /// Returns the formats of the input of all, where the router and the experts have the same input.
    fn input_formats(&self) -> ActivationFormats {
        let shared = self.shared.iter().flat_map(SharedWeights::inputs);
        let all = self.routing_linears().chain(shared).flat_map(Linear::kinds);
        ActivationFormats::of(all).and(self.routed_formats())
    }

    fn experts(&self) -> Option<&Experts> {
        Some(self)
    }

    fn route_early(&self, pending: Option<Contribution<'_>>, step: &mut Step<'_>) -> bool {
        if !self.spec.routed_early {
            return false;
        }
        let formats = ActivationFormats::of(self.routing_linears().flat_map(Linear::kinds));
        step.pack_normed(pending, Order::AddThenNorm, None, formats);
        self.route(step);
        // The choice of each row stays with it.
        step.buffers.choice_width = 2 * self.spec.routing.used;
        true
    }

    fn forward(&self, step: &mut Step<'_>) {
        step.buffers.choice_width = 0;
        if !self.spec.routed_early {
            self.route(step);
        }
        self.compute_routed(step);
    }
}
