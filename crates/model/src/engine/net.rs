//! A network that is ready to run, and its forward pass.
//!
//! For `n` rows a layer is computed as follows (regions of the pool in brackets; with one row the steps between regions run on the caller's thread,
//! with several they are spread over the rows):
//! ```text
//!               x += contribution of the layer before; pack(norm(x))
//! [mixer]       for attention: [q k v], biases, norms, rotation, keys and values into the cache, [attend], pack, [o]
//!               x += contribution of the mixer; pack(norm(x))
//! [feed forward] for a dense one: [gate·up], pack, [down]
//!               for experts: [router], choice, sorting, [gate·up of the chosen], pack, [down, sum]
//! ```
//! Networks whose tokens have several residual streams predict all of them before a layer and correct them after it
//! (`parts/alt_up.rs`).
//!
//! In the last layer that stores something for later tokens, only the rows whose logits are requested continue after the cache is filled. Logits are
//! computed for those rows.
//!
//! When a run is cancelled, regions end early, their results mean nothing, and the run ends with an error at the next part of a layer.
//!
//! Invariants: a run allocates nothing; the partitioning of work depends on shapes and positions and never on the number of threads, so neither do
//! the results.

use std::f32::consts::FRAC_1_SQRT_2;

use alight_kernels::Isa;
use alight_kernels::attention::{KvShape, KvType};
use alight_kernels::matmul::best::{self, Finish, Greatest};
use alight_kernels::matmul::{ActivationFormats, Precision, RowCounts};
use alight_kernels::parallel::{Rows, multiply_greatest};
use alight_kernels::rope::RopeTable;
use alight_kernels::{gate, vec};
use alight_pages::slots::HeldGroup;

use crate::cache::{Cache, CacheError, LayerCache, NeededFor};
use crate::cancel::Cancel;
use crate::error::{ModelError, StepError};
use crate::parts::Contribution;
use crate::parts::alt_up::{self, AltUpWeights};
use crate::parts::batch::{RowInput, Span};
use crate::parts::buffers::{BufferSizes, Buffers, WorkSize};
use crate::parts::compute::Compute;
use crate::parts::experts::Experts;
use crate::parts::row_adapters::{NO_ADAPTERS, RowAdapters};
use crate::parts::step::{Order, Step};
use crate::parts::token_input::TokenInputs;
use crate::spec::{HeadActivation, Mixer, ModelSpec};
use crate::store::{Store, arrival};
use crate::tensors::Linear;
use crate::threads::Pool;
use crate::weights::{Branch, Join, LayerWeights, NetWeights};

/// A network that is ready to run: its specification, its weights, tables, and the threads.
pub(crate) struct Net<'m> {
    spec: &'m ModelSpec,
    weights: NetWeights<'m>,
    store: &'m Store,
    pool: &'m Pool,
    isa: Isa,
    cancel: Cancel,
    /// Frequencies of each of the model's rotary embeddings.
    ropes: Vec<RopeTable>,
    /// The frequencies of the first one in long sequences, if the model treats them differently.
    long_rope: Option<RopeTable>,
}

impl<'m> Net<'m> {
    pub(crate) fn new(
        spec: &'m ModelSpec,
        weights: NetWeights<'m>,
        store: &'m Store,
        (pool, isa): (&'m Pool, Isa),
    ) -> Net<'m> {
        let ropes = spec.ropes.iter().map(RopeTable::new).collect();
        let long_rope = spec.long_context.rope.as_ref().map(RopeTable::new);
        let cancel = Cancel::default();
        Net { spec, weights, store, pool, isa, cancel, ropes, long_rope }
    }

    /// Lets `cancel` end a forward pass early.
    pub(crate) fn cancel_by(&mut self, cancel: Cancel) {
        self.cancel = cancel;
    }

    /// Returns the condition that ends a forward pass early.
    pub(crate) fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    fn compute<'s>(&'s self, adapters: &'s RowAdapters) -> Compute<'s> {
        Compute { pool: self.pool, isa: self.isa, cancel: &self.cancel, adapters }
    }

    /// Checks that the results of the regions before are complete.
    fn check_cancelled(&self) -> Result<(), StepError> {
        if self.cancel.is_cancelled() { Err(StepError::Cancelled) } else { Ok(()) }
    }

    /// Returns when a section of the weights is ready.
    fn wait(&self, section: usize) -> Result<(), StepError> {
        match self.store.arrival().wait(section, &|| self.cancel.is_cancelled())? {
            true => Ok(()),
            false => Err(StepError::Cancelled),
        }
    }

    /// Has the weights of a layer in memory until the result is dropped.
    fn hold(&self, layer: usize) -> Option<HeldGroup<'m>> {
        // The layers of a predictor are not among those that are streamed.
        let of_model = self.weights.join.is_none();
        of_model.then(|| self.store.hold_layer(layer, &|| self.cancel.is_cancelled())).flatten()
    }

    /// Checks that keys and values can be stored as `ty`.
    ///
    /// # Errors
    /// The keys or values of a layer are not a whole number of groups of that type.
    pub(crate) fn check_cache_type(&self, ty: KvType) -> Result<(), ModelError> {
        for (layer, mixer) in self.spec.mixers() {
            let Some(shape) = mixer.spec().kv_shape() else { continue };
            let mut lengths = KvShape { ty, ..shape }.grouped().into_iter();
            if let Some(found) = lengths.find(|length| !length.is_multiple_of(ty.multiple())) {
                return Err(ModelError::CacheType { ty, layer, found, expected: ty.multiple() });
            }
        }
        Ok(())
    }

    /// Creates an empty cache of several sequences, with pages for at least `positions` positions in total, and an index of prompts of up to `kept`
    /// bytes. Keys and values are stored as `ty`, which has been checked.
    ///
    /// # Errors
    /// The system does not provide the address space.
    pub(crate) fn cache(
        &self,
        positions: usize,
        sequences: usize,
        kept: usize,
        ty: KvType,
    ) -> Result<Cache, CacheError> {
        let layers = self.spec.layers.iter().enumerate().map(|(index, layer)| {
            let mixer = layer.mixer.as_ref().map(Mixer::spec);
            let shape = mixer.and_then(|mixer| mixer.kv_shape());
            LayerCache {
                shape: shape.map(|shape| KvShape { ty, ..shape }),
                window: shape.and_then(|_| self.spec.kept_window(index)),
                state: mixer.map_or(0, |mixer| mixer.state_len()),
            }
        });
        // No layer uses those of another where a text is read as a whole.
        let alone = self.spec.attention_layers().all(|attention| attention.kv_layer.is_none());
        let needed_for = match self.spec.is_bidirectional() && alone {
            true => NeededFor::Layer,
            false => NeededFor::Sequence,
        };
        let kept = if needed_for == NeededFor::Layer { 0 } else { kept };
        Cache::new(positions, sequences, kept, &layers.collect::<Vec<_>>(), needed_for)
    }

    /// Creates buffers for calls of up to `batch` rows, at most `decode` of them decoding, of sequences of up to `context` tokens; activations of
    /// prompts are rounded to `prompt`.
    pub(crate) fn buffers(
        &self,
        context: usize,
        [batch, decode]: [usize; 2],
        prompt: Precision,
    ) -> Buffers {
        let layers = self.spec.layers.iter();
        let work = layers.map(|layer| layer.work(self.spec.hidden_size));
        let mixers = self.spec.mixers();
        let partials = mixers.map(|(_, mixer)| mixer.spec().most_partials(context));
        let sizes = BufferSizes {
            batch,
            prompt,
            threads: self.pool.threads(),
            hidden_size: self.spec.hidden_size,
            ropes: &self.spec.ropes,
            work: work.fold(WorkSize::default(), WorkSize::max),
            experts_read: self.store.slots().is_some(),
            token_inputs: self.spec.layers.iter().map(|layer| layer.token_input).sum(),
            streams: match (self.weights.join, self.spec.alt_up) {
                (Some(_), _) => self.spec.hidden_size,
                (None, true) => alt_up::row_len(self.spec.hidden_size),
                (None, false) => {
                    self.spec.mixers().map(|(_, mixer)| mixer.spec().carried()).max().unwrap_or(0)
                }
            },
            joined: self.weights.join.map_or(0, |join| join.projection.cols()),
            head: self.weights.head.widest_input(),
            partials: decode * partials.max().unwrap_or(0),
        };
        Buffers::new(&sizes, self.store.nothing_taken())
    }

    /// Computes the rows of `b.batch`. Afterwards the cache holds them, row `i` of `b.x` is the residual stream of the `i`-th requested row after the
    /// last layer, and `b.batch` has only the requested rows left.
    ///
    /// The caller has checked that ids are in the vocabulary, that there are rows, and that the cache can hold them.
    ///
    /// # Errors
    /// The weights cannot be loaded, or the pass was cancelled. The cache contents for the rows are then invalid.
    pub(crate) fn run(&self, b: &mut Buffers, cache: &mut Cache) -> Result<(), StepError> {
        self.run_layers(b, cache, false)
    }

    /// Calls `f` with the adapters of the rows, which are not in the buffers meanwhile.
    fn with_adapters<T>(b: &mut Buffers, f: impl FnOnce(&mut Buffers, &RowAdapters) -> T) -> T {
        let adapters = std::mem::take(&mut b.adapters);
        let result = f(b, &adapters);
        b.adapters = adapters;
        result
    }

    /// As [`Net::run`], but all rows pass through all layers, and `show(buffers, span)` is called for each span while row `i` of `b.x` is that of row
    /// `i` of `b.batch`, requested or not.
    ///
    /// # Errors
    /// As [`Net::run`], and the first error of `show`.
    pub(crate) fn run_and_show(
        &self,
        b: &mut Buffers,
        cache: &mut Cache,
        mut show: impl FnMut(&Buffers, &Span) -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        self.run_layers(b, cache, true)?;
        b.batch.all_spans().iter().try_for_each(|span| show(b, span))?;
        b.keep_wanted(self.spec.hidden_size, |_, _, _| {});
        b.adapters.keep_wanted();
        Ok(())
    }

    fn run_layers(&self, b: &mut Buffers, cache: &mut Cache, all: bool) -> Result<(), StepError> {
        b.take(self.store, cache);
        Self::with_adapters(b, |b, adapters| self.run_adapted(b, adapters, cache, all))
    }

    fn run_adapted(
        &self,
        b: &mut Buffers,
        adapters: &RowAdapters,
        cache: &mut Cache,
        all: bool,
    ) -> Result<(), StepError> {
        self.embed(b, adapters)?;
        let mut step = Step {
            compute: self.compute(adapters),
            store: self.store,
            hidden: self.spec.hidden_size,
            norm_eps: self.spec.norm.eps,
            layer: 0,
            next_experts: None,
            last: false,
            buffers: b,
            cache,
        };
        if let Some(alt_up) = self.weights.alt_up {
            alt_up.begin(&mut step);
        }
        let mut pending = None;
        let last_filled = self.spec.mixers().rfind(|(_, mixer)| mixer.spec().fills_cache());
        for (index, (spec, w)) in self.spec.layers.iter().zip(self.weights.layers).enumerate() {
            self.check_cancelled()?;
            self.wait(arrival::layer(index))?;
            let _held = self.hold(index);
            step.layer = index;
            step.next_experts = self.store.slots().and_then(|_| self.experts_after(index));
            step.last = !all && last_filled.is_some_and(|(last, _)| last == index);
            let contribution = |branch: &'m Branch| Contribution {
                norm: branch.output_norm.as_ref(),
                scale: spec.residual_scale,
                output_scale: 1.0,
                sum_norm: branch.sum_norm.as_ref(),
                second_norm: branch.second_norm.as_ref(),
            };
            let laurel = w.laurel.as_ref();
            if let Some(alt_up) = &w.alt_up {
                alt_up.predict(&mut step);
            }
            if let Some(w) = &w.feed_forward
                && w.part.route_early(pending, &mut step)
            {
                pending = None;
            }
            if let Some(w) = &w.mixer {
                let (norm, formats) = (w.norm.as_ref(), w.part.input_formats());
                match (laurel, norm) {
                    (Some(laurel), Some(norm)) => laurel.forward(norm, formats, &mut step),
                    _ => step.pack_normed(pending, Order::AddThenNorm, norm, formats),
                }
                w.part.forward(&mut step);
                if step.rows().all() == 0 {
                    return Ok(());
                }
                let output_scale = if laurel.is_some() { FRAC_1_SQRT_2 } else { 1.0 };
                pending = Some(Contribution { output_scale, ..contribution(w) });
            }
            self.check_cancelled()?;
            if let Some(w) = &w.feed_forward {
                let (norm, formats) = (w.norm.as_ref(), w.part.input_formats());
                let order = if spec.parallel { Order::NormThenAdd } else { Order::AddThenNorm };
                step.pack_normed(pending, order, norm, formats);
                w.part.forward(&mut step);
                if step.rows().all() == 0 {
                    return Ok(());
                }
                pending = Some(contribution(w));
            }
            pending = end_layer(&mut step, w, pending);
            self.store.get_on();
        }
        if let Some(alt_up) = self.weights.alt_up {
            alt_up.end(&mut step);
        }
        if let Some(contribution) = pending {
            let (isa, n, hidden) = (self.isa, step.rows().all(), step.hidden);
            let rows = [Rows::new(&mut b.x, hidden), Rows::new(&mut b.y, hidden)];
            self.compute(adapters).each_row(n, rows, &b.threads, &|_, [x, y], _| {
                contribution.add_to(isa, x, y);
            });
        }
        self.check_cancelled()
    }

    /// Returns the next layer that has experts, and these experts.
    fn experts_after(&self, layer: usize) -> Option<(usize, &'m Experts)> {
        let mut layers = self.weights.layers.iter().enumerate().skip(layer + 1);
        layers
            .find_map(|(index, layer)| Some((index, layer.feed_forward.as_ref()?.part.experts()?)))
    }

    /// Fills the residual stream with the embeddings of the tokens, and computes the angles of their positions.
    fn embed(&self, b: &mut Buffers, adapters: &RowAdapters) -> Result<(), StepError> {
        let (isa, spec) = (self.isa, self.spec);
        self.wait(arrival::EMBEDDING)?;
        let embed = self.weights.embed.view(self.store);
        let n = b.batch.tokens().len();
        let rows = [Rows::new(&mut b.x, spec.hidden_size)];
        let tables = self.weights.tables.map(|tables| tables.view(self.store));
        let batch = &b.batch;
        self.compute(adapters).each_row(n, rows, &b.threads, &|i, [x], scratch| {
            match batch.input(i) {
                RowInput::Token(token) => {
                    embed.dequantize_row(token as usize, x);
                    adapters.change_embedding(isa, i, token as usize, x);
                    if spec.embedding_scale != 1.0 {
                        vec::scale(isa, x, spec.embedding_scale);
                    }
                }
                RowInput::Vector(vector) => x.copy_from_slice(vector),
            }
            if let Some(tables) = &tables {
                let place = [batch.segment(i), batch.place(i).1];
                adapters.change_segment(isa, i, place[0], x);
                tables.add_to(isa, place, x, &mut scratch.row[..spec.hidden_size]);
            }
        });
        if let Some(inputs) = self.weights.token_inputs {
            self.token_inputs(b, inputs);
        }
        if let Some(join) = self.weights.join {
            self.join(b, join);
        }
        let mut values = std::mem::take(&mut b.angles.values);
        let rows = [Rows::new(&mut values, b.angles.width)];
        let (angles, batch) = (&b.angles, &b.batch);
        self.compute(adapters).each_row(n, rows, &b.threads, &|i, [row], _| {
            let long = self.long_rope.as_ref().filter(|_| batch.is_long(i));
            for (rope, (table, [cos, sin])) in angles.places(&self.ropes).enumerate() {
                let table = long.filter(|_| rope == 0).unwrap_or(table);
                let (head, tail) = row.split_at_mut(sin.start);
                table.fill(batch.place(i).1, &mut head[cos], &mut tail[..sin.len()]);
            }
        });
        b.angles.values = values;
        Ok(())
    }

    /// Computes the per-layer inputs from the tokens, whose embeddings are in the residual stream: `(√width · table[token] + norm(projection(x) /
    /// √hidden)) / √2`, or without a table `norm(projection(x) / √hidden)`. A row that begins with a vector uses those of token 0, which pads texts.
    fn token_inputs(&self, b: &mut Buffers, inputs: &TokenInputs) {
        let (isa, spec, n) = (self.isa, self.spec, b.batch.counts());
        let (hidden, all) = (spec.hidden_size, b.token_input_width);
        let formats = ActivationFormats::of(inputs.projection.kinds());
        let x = Rows::new(&mut b.x, hidden);
        self.compute(&NO_ADAPTERS).pack_rows(n, x, &mut b.acts, formats, &b.threads);
        let projection = inputs.projection.view(self.store);
        let rows = Rows::new(&mut b.token_inputs, all);
        self.compute(&NO_ADAPTERS).project(&projection, rows, &b.acts, &b.threads);
        let table = inputs.table.as_ref().map(|table| table.view(self.store));
        let width = inputs.norm.weight.len();
        let rows = [Rows::new(&mut b.token_inputs, all)];
        let tokens = b.batch.tokens();
        self.compute(&NO_ADAPTERS).each_row(n.all(), rows, &b.threads, &|i, [row], scratch| {
            vec::scale(isa, row, 1.0 / (hidden as f32).sqrt());
            for slice in row.chunks_exact_mut(width) {
                inputs.norm.apply(isa, slice);
            }
            let Some(table) = &table else { return };
            let own = &mut scratch.row[..all];
            table.dequantize_row(tokens[i] as usize, own);
            vec::scale(isa, own, (width as f32).sqrt());
            vec::add_assign(isa, row, own);
            vec::scale(isa, row, FRAC_1_SQRT_2);
        });
    }

    /// Joins the embeddings in the residual stream with the states in `b.streams`.
    fn join(&self, b: &mut Buffers, join: &Join) {
        let (isa, hidden, n) = (self.isa, self.spec.hidden_size, b.batch.counts());
        let formats = ActivationFormats::of(join.projection.kinds());
        let rows = [Rows::new(&mut b.x, hidden), Rows::new(&mut b.streams, hidden)];
        let (acts, threads) = (&mut b.acts, &b.threads);
        self.compute(&NO_ADAPTERS).pack(
            n,
            2 * hidden,
            rows,
            acts,
            formats,
            threads,
            &|_, [x, h], scratch, put| {
                let row = &mut scratch.row[..2 * hidden];
                let (of_token, of_state) = row.split_at_mut(hidden);
                join.token_norm.apply_to(isa, x, of_token);
                join.state_norm.apply_to(isa, h, of_state);
                put(row);
            },
        );
        let projection = join.projection.view(self.store);
        self.compute(&NO_ADAPTERS).project(
            &projection,
            Rows::new(&mut b.x, hidden),
            &b.acts,
            &b.threads,
        );
    }

    /// Computes the final hidden state `[hidden]` of a row of the residual stream, after the output norm: the input of the logits.
    pub(crate) fn hidden(&self, b: &Buffers, row: usize, hidden: &mut [f32]) {
        let x = &b.x[row * hidden.len()..][..hidden.len()];
        match self.weights.output_norm {
            Some(norm) => norm.apply_to(self.isa, x, hidden),
            None => hidden.copy_from_slice(x),
        }
    }

    /// Makes of the pooled state `x` `[hidden]` the vector `[embedding_size]` of its text, or with `rank` the scores `[labels]` that the classifier
    /// gives it. `y` is scratch. The rounding of activations is that of rows that decode.
    ///
    /// # Panics
    /// If there is no classifier, and `rank` asks for its scores.
    pub(crate) fn apply_head(
        &self,
        b: &mut Buffers,
        rank: bool,
        x: &mut Vec<f32>,
        y: &mut Vec<f32>,
    ) {
        let (isa, head) = (self.isa, self.weights.head);
        let mut project = |linear: &Linear, x: &mut Vec<f32>| {
            let n = RowCounts::new(Precision::Bits16, 1);
            let formats = ActivationFormats::of(linear.kinds());
            let input = Rows::new(x, linear.cols());
            self.compute(&NO_ADAPTERS).pack_rows(n, input, &mut b.acts, formats, &b.threads);
            y.clear();
            y.resize(linear.rows(), 0.0);
            let output = Rows::new(y, linear.rows());
            self.compute(&NO_ADAPTERS).project(
                &linear.view(self.store),
                output,
                &b.acts,
                &b.threads,
            );
            std::mem::swap(x, y);
        };
        if !rank {
            head.projections.iter().for_each(|projection| project(projection, x));
            return;
        }
        let classifier = head.classifier.as_ref().expect("a classifier");
        if let Some(first) = &classifier.first {
            project(first, x);
            match classifier.activation {
                HeadActivation::Tanh => vec::softcap(isa, x, 1.0),
                HeadActivation::Gelu => gate::gelu_erf(isa, x),
                HeadActivation::Silu => gate::silu(isa, x),
                HeadActivation::Relu => gate::relu(isa, x),
            }
            if let Some(norm) = &classifier.norm {
                norm.apply(isa, x);
            }
        }
        project(&classifier.last, x);
    }

    /// Computes the logits of `n` rows of the residual stream, starting with `first`, into `logits` `[n, vocab]`. With `greatest`, which has an entry for
    /// each row, only those that it requests may be computed. Returns true if it was so.
    ///
    /// # Errors
    /// The output matrix cannot be loaded, or the pass was cancelled.
    ///
    /// # Panics
    /// If the network has no output matrix.
    pub(crate) fn logits(
        &self,
        b: &mut Buffers,
        first: usize,
        n: RowCounts,
        logits: &mut [f32],
        greatest: Option<&mut [Greatest]>,
    ) -> Result<bool, StepError> {
        Self::with_adapters(b, |b, adapters| {
            adapters.begin_at(first);
            self.adapted_logits(b, adapters, (first, n), logits, greatest)
        })
    }

    fn adapted_logits(
        &self,
        b: &mut Buffers,
        adapters: &RowAdapters,
        (first, n): (usize, RowCounts),
        logits: &mut [f32],
        greatest: Option<&mut [Greatest]>,
    ) -> Result<bool, StepError> {
        let (isa, spec, w) = (self.isa, self.spec, self.weights);
        let hidden = spec.hidden_size;
        let output = w.output.expect("a network with an output matrix");
        let formats = ActivationFormats::of(output.kinds());
        let rows = [Rows::starting_at(&mut b.x, hidden, first)];
        let (acts, threads) = (&mut b.acts, &b.threads);
        self.compute(adapters).pack(
            n,
            hidden,
            rows,
            acts,
            formats,
            threads,
            &|_, [x], scratch, put| {
                let row = &mut scratch.row[..hidden];
                match w.output_norm {
                    Some(norm) => norm.apply_to(isa, x, row),
                    None => row.copy_from_slice(x),
                }
                put(row);
            },
        );
        self.wait(self.store.output_section())?;
        let output = output.view(self.store);
        let rows = Rows::new(logits, spec.vocab);
        let finish = |row: &mut [f32]| {
            if spec.logit_scale != 1.0 {
                vec::scale(isa, row, spec.logit_scale);
            }
            if let Some(cap) = spec.logit_softcap {
                vec::softcap(isa, row, cap);
            }
        };
        let rises = spec.logit_scale > 0.0 && spec.logit_softcap.is_none_or(|cap| cap > 0.0);
        let plain = output.bias.is_none() && !adapters.changes(output.number().0);
        let greatest = greatest.filter(|_| rises && plain);
        let few = greatest.and_then(|greatest| {
            best::begin(&output.matrix, &*acts, greatest).then_some(&*greatest)
        });
        let is_few = few.is_some();
        match few {
            Some(greatest) => {
                // The soft cap is computed to a few units in the last place: 2⁻²⁰ of the cap are more.
                let slack = spec.logit_softcap.map_or(0.0, |cap| cap / (1 << 18) as f32);
                let to = (rows, Finish { apply: &finish, slack });
                let threads = &mut self.compute(adapters).threads(threads);
                multiply_greatest(threads, &output.matrix, acts, greatest, to);
            }
            None => {
                let finish =
                    |_: usize, _: std::ops::Range<usize>, [row]: [&mut [f32]; 1]| finish(row);
                self.compute(adapters).multiply(
                    [[&output]],
                    [[rows]],
                    acts,
                    threads,
                    Some(&finish),
                );
            }
        }
        self.store.priority().release();
        self.check_cancelled()?;
        Ok(is_few)
    }
}

/// Completes a layer after its feed-forward part: the correction of its streams, and its per-layer token input. Returns the contribution that is then
/// pending.
fn end_layer<'m>(
    step: &mut Step<'_>,
    w: &'m LayerWeights,
    pending: Option<Contribution<'m>>,
) -> Option<Contribution<'m>> {
    let last = match (&w.alt_up, &w.token_input) {
        (None, None) => pending,
        (None, Some(input)) => {
            step.pack_normed(pending, Order::AddThenNorm, None, input.input_formats());
            input.forward(step);
            let norm = Some(&input.norm);
            let (sum_norm, second_norm) = (None, None);
            Some(Contribution { norm, scale: 1.0, output_scale: 1.0, sum_norm, second_norm })
        }
        (Some(alt_up), input) => {
            alt_up.correct(pending, step);
            if let Some(input) = input {
                alt_up.pack_scaled(input.input_formats(), step);
                input.forward(step);
                AltUpWeights::add_to_others(&input.norm, step);
            }
            None
        }
    };
    last.map(|last| Contribution { output_scale: w.output_scale, ..last })
}
