//! A mixture of experts: a router chooses a few of many small networks for each token, and their outputs are summed
//! by the router's weights, with that of a shared network that all tokens go through, where there is one.
//!
//! The pairs of a token and one of its experts are sorted by expert, into *slots*; each chosen expert's weights are read
//! once for all of its slots, and others are not touched. Every slot has an output of its own, and a token's are summed in
//! the order in which the router chose them: what comes out depends neither on threads nor on the tokens beside it.
//!
//! Three regions: the router; gate and up of all chosen experts; down and the sum. Where experts are read when they are chosen
//! ([`Chosen`]), those that are in memory are computed while the others are read, and these as they come. Then the outputs of all slots
//! are kept, and the sum is a region of its own. It has the same operations in the same order, so what comes out does not depend on what
//! was in memory, or on the order in which the others came. Experts that the next layer will choose may be read behind those of this one.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use alight_kernels::matmul::{ActivationFormats, Activations, Matrix, RowCounts};
use alight_kernels::parallel::{self, Bank, Packing, Place, Rows, Term};
use alight_kernels::{Layout, WeightType, vec};

use super::dense::{Activation, SHARED_NAMES};
use super::routing::{Routing, USED, sigmoid};
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::parts::buffers::WorkSize;
use crate::parts::step::Step;
use crate::parts::{FeedForwardSpec, Part, PartSpec};
use crate::store::{Chosen, First, Storage, Store, arrival};
use crate::tensors::{LayerFinder, Linear, MatrixRef, WeightError};
use crate::threads::Pool;

/// A mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsSpec {
    /// How many experts there are, and how a token's are chosen.
    pub routing: Routing,
    /// Width between an expert's two projections.
    pub intermediate_size: usize,
    /// Applied to the gate, or to what there is where there is none.
    pub activation: Activation,
    /// True if experts and the network for all tokens have a gate.
    pub gated: bool,
    /// A network for all tokens.
    pub shared: Option<SharedExpert>,
    /// Whether, where gate and up are one tensor, its rows are those of gate and up in turn.
    pub interleaved: bool,
    /// True if weights are on what experts take, and not on what they put out.
    pub weighs_input: bool,
}

/// A network of a mixture that all tokens go through.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedExpert {
    /// Width between its two projections.
    pub intermediate_size: usize,
    /// True if its output is multiplied by the sigmoid of a projection of the input.
    pub gated: bool,
}

/// So many tokens choose few enough experts that some can be guessed.
const MAX_GUESSING: usize = 4;

/// The key of an expert's width.
pub(crate) const EXPERT_WIDTH: &str = "expert_feed_forward_length";

/// The key of the width of the network that all tokens go through.
pub(crate) const SHARED_WIDTH: &str = "expert_shared_feed_forward_length";

impl SharedExpert {
    /// One that is as wide as some experts together, whose number is a key; none if there is no such number.
    ///
    /// # Errors
    /// A number that no model can have.
    pub(crate) fn as_wide_as(
        keys: &Keys<'_, '_>,
        width: usize,
    ) -> Result<Option<SharedExpert>, SpecError> {
        let count = keys.width_or_none("expert_shared_count")?;
        let shared =
            count.map(|count| SharedExpert { intermediate_size: count * width, gated: false });
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
    /// Reads its keys, with SiLU and without a shared network. `normalise` says whether weights are normalised where the
    /// file does not.
    ///
    /// # Errors
    /// A value that no model can have.
    pub(crate) fn read(keys: &Keys<'_, '_>, normalise: bool) -> Result<ExpertsSpec, SpecError> {
        // Families of which no model has dense layers too have no key of its own for an expert's width.
        let intermediate_size = match keys.optional_dimension(EXPERT_WIDTH, MAX_WIDTH)? {
            Some(width) => width,
            None => keys.dimension("feed_forward_length", MAX_WIDTH)?,
        };
        ExpertsSpec::new(keys, Routing::read(keys, normalise)?, intermediate_size)
    }

    /// Gated experts of that width, with SiLU and without a shared network.
    ///
    /// # Errors
    /// More of them for each token than any model has.
    pub(crate) fn new(
        keys: &Keys<'_, '_>,
        routing: Routing,
        intermediate_size: usize,
    ) -> Result<ExpertsSpec, SpecError> {
        // What a token's experts write is in memory for all tokens of a batch.
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

/// What the sizes of [`ExpertsBuffers`] follow from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExpertsWork {
    experts: usize,
    used: usize,
    width: usize,
}

impl ExpertsWork {
    pub(crate) fn max(self, other: ExpertsWork) -> ExpertsWork {
        ExpertsWork {
            experts: self.experts.max(other.experts),
            used: self.used.max(other.used),
            width: self.width.max(other.width),
        }
    }

    /// The most places that `batch` tokens need: chosen experts.
    fn places(&self, batch: usize) -> usize {
        (2 * self.experts).min(batch * self.used)
    }

    /// The most slots that they need: places begin at whole blocks of tokens.
    pub(crate) fn slots(&self, batch: usize) -> usize {
        batch * self.used + self.places(batch) * (ActivationFormats::LONGEST_BLOCK - 1)
    }
}

/// What mixtures of experts write to.
pub(crate) struct ExpertsBuffers {
    /// Logits of the router, then probabilities: `[batch, experts]`.
    logits: Vec<f32>,
    /// What experts are chosen by, `[batch, experts]`.
    scores: Vec<f32>,
    /// Experts and weights of each token: `[batch, 2 · used]`.
    chosen: Vec<f32>,
    /// Logits of the shared network's gate, `[batch]`.
    shared: Vec<f32>,
    /// The chosen experts, by number.
    places: Vec<Place>,
    /// Those of them that are computed now, and those that are being read.
    wave: Vec<Place>,
    coming: Vec<Place>,
    /// By expert: how many slots it has, then which is the next. `[experts]`
    next: Vec<usize>,
    /// By slot: the token, `None` between places.
    token_of: Vec<Option<usize>>,
    /// Slots and weights of each token, in the router's order, then the shared network's: `[batch, used + 1]` at most.
    terms: Vec<Term>,
    /// Of slots of 16 bits: `[slots, intermediate]`.
    gate: Vec<f32>,
    /// The packed input of the experts' first matrices, a token for each slot.
    packed: Activations,
    /// That of their last ones.
    activated: Activations,
    /// Where experts are read when they are chosen, what they put out, of all slots and then of the shared network for each token:
    /// `[slots + batch, hidden]`.
    apart: Option<Vec<f32>>,
}

impl ExpertsBuffers {
    /// For experts that are `read` when they are chosen, or are all in memory.
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

    /// Bytes that it takes, about, when there have been as many tokens as there is room for.
    pub(crate) fn bytes(&self) -> usize {
        let apart = self.apart.as_ref().map_or(0, Vec::len);
        let floats = [&self.logits, &self.scores, &self.gate].map(Vec::len);
        let floats = floats.iter().sum::<usize>() + apart;
        floats * size_of::<f32>() + self.packed.usual_bytes() + self.activated.usual_bytes()
    }

    /// Gives each pair of a token and one of its experts a slot: those of tokens of 16 bits first, then those of 8 bits, whose
    /// places begin at multiples of `block` among them. Returns how many slots there are of each.
    fn sort(&mut self, spec: &ExpertsSpec, rows: RowCounts, block: usize) -> RowCounts {
        let [bits16, bits8] = rows.ranges();
        self.places.clear();
        let wide = self.sort_some(spec, bits16, 0, 1);
        let end = self.sort_some(spec, bits8, wide, block);
        let per_token = spec.routing.used + usize::from(spec.shared.is_some());
        if let Some(shared) = &spec.shared {
            let terms = self.terms.chunks_exact_mut(per_token).take(rows.all());
            for (token, (terms, gate)) in terms.zip(&self.shared).enumerate() {
                let weight = if shared.gated { sigmoid(*gate) } else { 1.0 };
                terms[per_token - 1] = Term { slot: end + token, weight };
            }
        }
        RowCounts { bits16: wide, bits8: end - wide }
    }

    /// Takes the places whose experts have come from those that are coming.
    fn next_wave(&mut self, chosen: &Chosen<'_>) {
        self.wave.clear();
        self.wave.extend(self.coming.extract_if(.., |place| chosen.is_here(place.matrix)));
    }

    /// [`ExpertsBuffers::sort`] of the pairs of some tokens, sorted by expert, from slot `start` on. Returns the end.
    fn sort_some(
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

/// The weight that a token gives an expert which was chosen for it, in `chosen` `[tokens, 2 · used]`.
fn weight_of(routing: &Routing, chosen: &[f32], token: Option<usize>, expert: usize) -> f32 {
    let Some(token) = token else { return 0.0 };
    let (experts, weights) = chosen[2 * token * routing.used..].split_at(routing.used);
    let found = experts.iter().zip(weights).find(|(other, _)| **other as usize == expert);
    found.map_or(0.0, |(_, weight)| *weight)
}

/// Its tensors. `width` is the length of what the experts take in and put out: the hidden size, but for those of
/// [`LatentExpertsSpec`](super::latent_experts::LatentExpertsSpec).
#[derive(Debug)]
pub(crate) struct Experts {
    spec: ExpertsSpec,
    /// `[experts, hidden]`
    router: Linear,
    /// `[experts]`, for the choice alone.
    selection_bias: Option<Vec<f32>>,
    gate_up: GateUp,
    /// `[experts][width, intermediate]`
    down: MatrixRef,
    /// `[experts][1, width]`
    down_bias: Option<MatrixRef>,
    shared: Option<SharedWeights>,
}

/// The two projections that make a gate and what it is multiplied with, and their biases; or the one where there is no gate.
// There is one for each layer, so its size is of no account.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
enum GateUp {
    /// `[experts][intermediate, width]` each; biases `[experts][1, intermediate]`.
    Apart([MatrixRef; 2], [Option<MatrixRef>; 2]),
    /// `[experts · 2][intermediate, width]`: an expert's gate, then its up; bias `[experts][1, 2 · intermediate]`.
    Fused(MatrixRef, Option<MatrixRef>),
    /// `[experts][2 · intermediate, width]`: a row of gate, then one of up; bias `[experts][1, 2 · intermediate]`.
    Interleaved(MatrixRef, Option<MatrixRef>),
    /// `[experts][intermediate, width]`; bias `[experts][1, intermediate]`.
    Up(MatrixRef, Option<MatrixRef>),
}

/// Tensors of the shared network.
#[derive(Debug)]
struct SharedWeights {
    /// `[1, hidden]`
    gate_of_output: Option<Linear>,
    /// `[intermediate, hidden]`, where experts have a gate.
    gate: Option<MatrixRef>,
    /// `[intermediate, hidden]`
    up: MatrixRef,
    /// `[hidden, intermediate]`
    down: MatrixRef,
}

impl SharedWeights {
    /// Of a mixture whose experts are `gated`.
    fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &SharedExpert,
        gated: bool,
        hidden: usize,
    ) -> Result<SharedWeights, WeightError> {
        let width = spec.intermediate_size;
        let [gate, up, down] = SHARED_NAMES;
        let gate_of_output = spec.gated.then(|| find.linear("ffn_gate_inp_shexp", hidden, 1));
        Ok(SharedWeights {
            gate_of_output: gate_of_output.transpose()?,
            gate: gated.then(|| find.matrix(gate, hidden, width)).transpose()?,
            up: find.matrix(up, hidden, width)?,
            down: find.matrix(down, width, hidden)?,
        })
    }

    /// The matrices that the layer's input is multiplied with.
    fn inputs(&self) -> impl Iterator<Item = &MatrixRef> {
        self.gate.iter().chain([&self.up])
    }
}

impl GateUp {
    fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &ExpertsSpec,
        input: usize,
    ) -> Result<GateUp, WeightError> {
        let width = spec.intermediate_size;
        let Routing { experts, used, .. } = spec.routing;
        let fused = "ffn_gate_up_exps";
        if spec.gated && find.has(fused) {
            let shape = [input, 2 * width, experts];
            let bias = find.experts_bias(fused, 2 * width, experts, used)?;
            return Ok(match spec.interleaved {
                false => GateUp::Fused(find.experts(fused, shape, 2, used)?, bias),
                true => GateUp::Interleaved(find.interleaved(fused, shape, used)?, bias),
            });
        }
        let one = |name| find.experts(name, [input, width, experts], 1, used);
        let bias = |name| find.experts_bias(name, width, experts, used);
        let (gate, up) = ("ffn_gate_exps", "ffn_up_exps");
        if !spec.gated {
            return Ok(GateUp::Up(one(up)?, bias(up)?));
        }
        Ok(GateUp::Apart([one(gate)?, one(up)?], [bias(gate)?, bias(up)?]))
    }

    /// The matrices, then the biases.
    fn matrices(&self) -> impl Iterator<Item = &MatrixRef> {
        let (matrices, biases) = match self {
            GateUp::Apart(both, biases) => (&both[..], &biases[..]),
            GateUp::Fused(one, bias) | GateUp::Interleaved(one, bias) | GateUp::Up(one, bias) => {
                (std::slice::from_ref(one), std::slice::from_ref(bias))
            }
        };
        matrices.iter().chain(biases.iter().flatten())
    }

    fn matrices_mut(&mut self) -> impl Iterator<Item = &mut MatrixRef> {
        let (matrices, biases) = match self {
            GateUp::Apart(both, biases) => (&mut both[..], &mut biases[..]),
            GateUp::Fused(one, bias) | GateUp::Interleaved(one, bias) | GateUp::Up(one, bias) => {
                (std::slice::from_mut(one), std::slice::from_mut(bias))
            }
        };
        matrices.iter_mut().chain(biases.iter_mut().flatten())
    }

    fn kinds(&self) -> [(WeightType, Layout); 2] {
        match self {
            GateUp::Apart(both, _) => [both[0].kind(), both[1].kind()],
            GateUp::Fused(one, _) | GateUp::Interleaved(one, _) | GateUp::Up(one, _) => {
                [one.kind(); 2]
            }
        }
    }

    /// One of the matrices of an expert that was chosen: 0 is the gate, if there is one, and the last is up.
    fn view<'m>(&self, expert: usize, which: usize, chosen: &'m Chosen<'_>) -> Matrix<'m> {
        match self {
            GateUp::Apart(both, _) => both[which].chosen(expert, chosen),
            GateUp::Fused(both, _) => both.chosen(2 * expert + which, chosen),
            GateUp::Interleaved(both, _) => both.chosen(expert, chosen).every_second_row(which),
            GateUp::Up(up, _) => up.chosen(expert, chosen),
        }
    }

    /// Adds the bias of one of an expert's matrices to the columns from `first` on of its products.
    fn add_bias(
        &self,
        expert: usize,
        which: usize,
        store: &Store,
        first: usize,
        products: &mut [f32],
    ) {
        let (bias, at) = match self {
            GateUp::Apart(_, biases) => (&biases[which], (first, 1)),
            GateUp::Fused(_, bias) => {
                let half = bias.as_ref().map_or(0, |bias| bias.cols() / 2);
                (bias, (which * half + first, 1))
            }
            GateUp::Interleaved(_, bias) => (bias, (2 * first + which, 2)),
            GateUp::Up(_, bias) => (bias, (first, 1)),
        };
        if let Some(bias) = bias {
            bias.part(expert, store).add_float_row(0, at, products);
        }
    }
}

impl Experts {
    pub(super) fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &ExpertsSpec,
        hidden: usize,
    ) -> Result<Experts, WeightError> {
        Experts::find_of_width(find, spec, hidden, hidden)
    }

    /// Experts that take in and put out `width` elements, by a router that takes `hidden`.
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
            selection_bias: find.bias("exp_probs_b", experts)?,
            gate_up: GateUp::find(find, spec, width)?,
            down: find.experts("ffn_down_exps", [inner, width, experts], 1, used)?,
            down_bias: find.experts_bias("ffn_down_exps", width, experts, used)?,
            shared: shared.transpose()?,
        })
    }

    /// The projections that choose the experts, and that weigh the shared network's output.
    fn routing_linears(&self) -> impl Iterator<Item = &Linear> {
        [&self.router].into_iter().chain(self.gate_of_shared())
    }

    /// What makes the router's logits.
    pub(super) fn router(&self) -> &Linear {
        &self.router
    }

    /// The formats of the experts' input alone.
    pub(super) fn routed_formats(&self) -> ActivationFormats {
        ActivationFormats::of_parts(self.gate_up.kinds())
    }

    /// The formats of the input of their second matrices.
    fn down_formats(&self) -> ActivationFormats {
        ActivationFormats::of_parts([self.down.kind()])
    }

    /// Computes the experts that [`Experts::route`] has chosen on the step's packed input, into `y`.
    pub(super) fn compute_routed(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let (formats, down_formats) = (self.routed_formats(), self.down_formats());
        let isa = step.compute.isa;
        let block = formats.block(isa).max(down_formats.block(isa));
        let (rows, b) = (step.rows(), &mut *step.buffers);
        let slots = b.experts.sort(spec, rows, block);
        let threads = &mut step.compute.threads(&b.threads);
        let (packed, token_of) = (&mut b.experts.packed, &b.experts.token_of);
        parallel::gather(threads, &b.acts, (packed, formats), slots, &|slot| token_of[slot]);
        let store = step.store;
        let experts = &mut step.buffers.experts;
        let numbers = experts.places.iter().map(|place| place.matrix);
        let _first = store.asks_ahead().then(|| {
            if 2 * experts.places.len() > spec.routing.experts {
                // In the order of the file they come faster, in huge pages, and nothing is read twice. That the load has failed is seen
                // at the end of the step.
                let _ = store.arrival().wait_for_experts(step.layer);
            }
            self.ask_for_missing(&experts.places, step.compute.pool, store)
        });
        let mut chosen = store.choose(self.down.storage(), numbers.clone());
        store.recorder().add(self.down.first_byte(), numbers, chosen.found());
        experts.coming.clone_from(&experts.places);
        experts.next_wave(&chosen);
        self.look_ahead(step, &mut chosen);
        if chosen.all_here() {
            self.inputs(step, &chosen, true);
            self.down(step, &chosen);
            return;
        }
        let mut first = true;
        loop {
            self.inputs(step, &chosen, first);
            let last = step.buffers.experts.coming.is_empty();
            self.down_apart(step, &chosen);
            if last {
                break;
            }
            chosen.wait_for_more();
            step.buffers.experts.next_wave(&chosen);
            if step.buffers.experts.coming.is_empty() && step.rows().all() <= MAX_GUESSING {
                // The disk has nothing to do from now on.
                self.look_ahead(step, &mut chosen);
            }
            first = false;
        }
        self.shared_and_sum(step, slots.all());
    }

    /// Asks the system to read those of the chosen experts that are missing in the map. Until they are computed these reads come first:
    /// they come while they are.
    fn ask_for_missing<'s>(
        &self,
        places: &[Place],
        pool: &Pool,
        store: &'s Store,
    ) -> Option<First<'s>> {
        let first = store.priority().take();
        let missing = AtomicBool::new(false);
        pool.run_each(places.len(), &|place, _| {
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
    /// The tokens of a longer prompt choose most experts, so these are read behind those of this layer, each once. Of a few tokens'
    /// experts some are guessed while the disk has nothing else to do.
    ///
    /// What this layer has chosen is of no use any more, unless its inputs are weighed.
    fn look_ahead(&self, step: &mut Step<'_>, chosen: &mut Chosen<'_>) {
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

    /// What the output of the shared network is weighed by, if it is.
    fn gate_of_shared(&self) -> Option<&Linear> {
        self.shared.as_ref()?.gate_of_output.as_ref()
    }

    /// Chooses experts and weights of every token by the step's packed input.
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

    /// The places of the shared network: all tokens, in the order of the batch.
    fn shared_places(&self, rows: RowCounts) -> [Place; 2] {
        rows.ranges().map(|rows| Place { matrix: 0, first: rows.start, slots: rows.len() })
    }

    /// Multiplies the slots of a wave's experts, and with the first wave the shared network's rows, with the matrices that take them
    /// in, joins the products, and packs them.
    fn inputs(&self, step: &mut Step<'_>, chosen: &Chosen<'_>, first: bool) {
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

    /// [`Experts::inputs`] of `M` matrices.
    fn joined_inputs<const M: usize>(
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
                            // What is linear in the input is multiplied instead of it.
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

    /// Outputs of all slots and of the shared network, and their sums.
    fn down(&self, step: &mut Step<'_>, chosen: &Chosen<'_>) {
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

    /// Outputs of the wave's slots, which are kept until they are summed.
    fn down_apart(&self, step: &mut Step<'_>, chosen: &Chosen<'_>) {
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

    /// The output of the shared network, if there is one, and the sums of it and of what [`Experts::down_apart`] has kept of
    /// `slots` slots.
    fn shared_and_sum(&self, step: &mut Step<'_>, slots: usize) {
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

impl Part for Experts {
    fn linears(&self) -> Vec<&Linear> {
        self.routing_linears().collect()
    }

    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        let gate = self.shared.iter_mut().flat_map(|shared| &mut shared.gate_of_output);
        [&mut self.router].into_iter().chain(gate).collect()
    }

    fn matrices(&self) -> Vec<&MatrixRef> {
        let mut all: Vec<_> = self.routing_linears().map(|linear| &linear.matrix).collect();
        let shared = self.shared.as_ref();
        all.extend(self.gate_up.matrices());
        all.extend(shared.into_iter().flat_map(SharedWeights::inputs));
        all.push(&self.down);
        all.extend(shared.map(|shared| &shared.down));
        all.extend(&self.down_bias);
        all
    }

    fn matrices_mut(&mut self) -> Vec<&mut MatrixRef> {
        let mut all = vec![&mut self.router.matrix];
        let mut ends = Vec::new();
        all.extend(self.gate_up.matrices_mut());
        if let Some(shared) = &mut self.shared {
            all.extend(shared.gate_of_output.as_mut().map(|gate| &mut gate.matrix));
            all.extend(shared.gate.iter_mut().chain([&mut shared.up]));
            ends.push(&mut shared.down);
        }
        all.push(&mut self.down);
        all.append(&mut ends);
        all.extend(&mut self.down_bias);
        all
    }

    /// The formats of the input of all, where the router and the experts take the same.
    fn input_formats(&self) -> ActivationFormats {
        let shared = self.shared.iter().flat_map(SharedWeights::inputs).map(MatrixRef::kind);
        let routing = self.routing_linears().flat_map(Linear::kinds);
        ActivationFormats::of(routing.chain(shared)).and(self.routed_formats())
    }

    fn experts(&self) -> Option<&Experts> {
        Some(self)
    }

    fn forward(&self, step: &mut Step<'_>) {
        self.route(step);
        self.compute_routed(step);
    }
}
