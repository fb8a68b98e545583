//! Latent attention (MLA: DeepSeek-V2, 2024): keys and values of all heads are projections of one short row per token, and the
//! cache keeps only that row, `[latent | rotated]`: `rank` elements that are normed, and `rotated` ones that carry the position
//! and are the same for all heads.
//!
//! Keys and values are never computed from it. Instead, each head's query goes through the transpose of its key projection (it is
//! *absorbed*), so that it can be multiplied with the row directly; a head's result is a sum of latent rows, which its value
//! projection shortens. So this is attention with one key head of `rank + rotated` elements, whose beginning is the value, for
//! single tokens and for prompts alike:
//! ```text
//! score(h, j) = scale · (Kₕᵀ qₕ · latent_j + rotated qₕ · rotated_j)
//! out(h)      = Vₕ Σⱼ softmax(score)ⱼ latent_j
//! ```
//! For a token and an earlier position this takes `2 · rank + rotated` products per head, while keys and values computed from the
//! rows would take `key_dim + value_dim`: 1088 against 320 for DeepSeek. But computing them takes
//! `rank · (unrotated + value_dim)` products for each position and head, 131072, and again in each batch, unless they are kept,
//! which takes nine times the memory. A batch of 512 rows would gain by it (557 thousand products against 295), but the last row
//! of a cached prompt would have to wait for the keys and values of everything before it (232 billion products at position 4096
//! of DeepSeek-V2-Lite, half a second). Choosing by the number of rows is not possible: the result for a row must not depend on
//! how the prompt was split, or the contents of the cache would change answers.

use alight_kernels::attention::{AttentionParams, KvShape, KvType, tile_tokens};
use alight_kernels::gate::sigmoid_mul;
use alight_kernels::matmul::{ActivationFormats, Activations, RowCounts};
use alight_kernels::parallel::{self, AttendRows, Bank, Cut, Place, Rows};
use alight_kernels::rope::{RopePairing, rope_apply};
use alight_kernels::vec;

use super::attention::{OutputGate, Temperature, head_dim, ignore_indexer};
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::norm::Norm;
use crate::parts::buffers::WorkSize;
use crate::parts::step::{QueryHeads, Step};
use crate::parts::{Attended, MixerSpec, Part, PartSpec};
use crate::positions::POSITIONS;
use crate::tensors::{LayerFinder, Linear, Projection, WeightError};

/// Approximate number of products that a thread adds per nanosecond, if rows of weights are dequantised first.
const PRODUCTS_PER_NS: usize = 2;

/// Attention over latent rows.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentAttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Width between the two projections for queries; `None`: there is only one projection.
    pub query_rank: Option<usize>,
    /// Elements of a latent row.
    pub rank: usize,
    /// Elements of a query that are rotated, and that follow the latent row in the cache.
    pub rotated: usize,
    /// Elements of a query that are not rotated; they come first.
    pub unrotated: usize,
    /// Length of a head's output.
    pub value_dim: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// A factor on queries at distant positions.
    pub temperature: Option<Temperature>,
    /// The elements that are rotated together.
    pub pairing: RopePairing,
    /// False if the elements that would be rotated are left as they are.
    pub rotates: bool,
    /// The gate of the outputs of heads, before the output projection.
    pub output_gate: OutputGate,
    /// The number of positions of the longest text, where tokens of longer texts choose the positions that they see.
    pub reach: Option<usize>,
}

impl LatentAttentionSpec {
    /// Reads its keys, in the form that files have since April 2025 (`key_length_mla`) or the earlier one.
    ///
    /// # Errors
    /// A size that no model can have.
    pub(crate) fn read(keys: &Keys<'_, '_>) -> Result<LatentAttentionSpec, SpecError> {
        let heads = keys.dimension("attention.head_count", MAX_WIDTH)?;
        let query_rank = keys.width_or_none("attention.q_lora_rank")?;
        let rank = keys.dimension("attention.kv_lora_rank", MAX_WIDTH)?;
        let rotated = keys.dimension("rope.dimension_count", MAX_WIDTH)?;
        // All heads have the same latent rows.
        keys.do_not_apply(&["attention.head_count_kv"]);
        // In newer files the plain keys are the lengths in the cache.
        let length = |of_heads, plain| -> Result<(&str, usize), SpecError> {
            match keys.optional_dimension(of_heads, MAX_WIDTH)? {
                Some(found) => {
                    keys.do_not_apply(&[plain]);
                    Ok((of_heads, found))
                }
                None => Ok((plain, head_dim(keys, plain)?)),
            }
        };
        let (key, key_dim) = length("attention.key_length_mla", "attention.key_length")?;
        let (value, value_dim) = length("attention.value_length_mla", "attention.value_length")?;
        if key_dim <= rotated {
            let expected = format!("more than the {rotated} elements that are rotated");
            return Err(keys.value(key, key_dim, expected));
        }
        let of_latent = "attention.kv_lora_rank";
        for (key, width, more) in
            [(key, key_dim, 0), (value, value_dim, 0), (of_latent, rank, rotated)]
        {
            if heads.saturating_mul(width + more) > MAX_WIDTH {
                let most = (MAX_WIDTH / heads).saturating_sub(more);
                return Err(keys.value(key, width, format!("at most {most} for {heads} heads")));
            }
        }
        Ok(LatentAttentionSpec {
            heads,
            query_rank,
            rank,
            rotated,
            unrotated: key_dim - rotated,
            value_dim,
            scale: 1.0 / (key_dim as f32).sqrt(),
            temperature: None,
            pairing: RopePairing::Interleaved,
            rotates: true,
            output_gate: OutputGate::None,
            reach: None,
        })
    }

    /// Returns the length of a query before it is absorbed.
    fn key_dim(&self) -> usize {
        self.unrotated + self.rotated
    }

    /// Returns the width of the rows in the buffer of gates.
    fn gate_width(&self) -> usize {
        match self.output_gate {
            OutputGate::None | OutputGate::InQueries => 0,
            OutputGate::Own => self.heads * self.value_dim,
            OutputGate::OfHeads => self.heads,
        }
    }

    /// Returns the number of elements that the cache keeps of a token.
    fn row(&self) -> usize {
        self.rank + self.rotated
    }

    /// Returns the shape of a page of its keys and values.
    pub(crate) fn page_shape(&self) -> KvShape {
        let (k_dim, v_dim) = (self.row(), self.rank);
        KvShape { kv_heads: 1, k_dim, v_dim, capacity: POSITIONS, shared: true, ty: KvType::F16 }
    }
}

impl PartSpec for LatentAttentionSpec {
    fn find(
        &self,
        find: &LayerFinder<'_, '_, '_>,
        hidden: usize,
    ) -> Result<Box<dyn Part>, WeightError> {
        Ok(Box::new(LatentAttention::find(find, self, hidden)?))
    }

    /// Returns the sizes of its buffers: queries in `mixed`, and absorbed in `q`; the rows of the cache in `k`; the result of the
    /// first projection for queries, if there are two, in `v`; sums of latent rows and then the heads' outputs in `heads_out`.
    fn work(&self, _hidden: usize) -> WorkSize {
        let heads = self.heads;
        WorkSize {
            mixed: heads * self.key_dim(),
            q: heads * self.row(),
            k: self.row(),
            v: self.query_rank.unwrap_or(0),
            gate: self.gate_width(),
            heads_out: heads * self.rank.max(self.value_dim),
            widest_input: (heads * self.value_dim).max(self.query_rank.unwrap_or(0)),
            attention_rows: heads * tile_tokens(heads).max(1),
            key_dim: self.row(),
            value_dim: self.rank,
            latent: LatentWork {
                heads,
                input: self.unrotated.max(self.rank),
                output: self.rank.max(self.value_dim),
            },
            ..WorkSize::default()
        }
    }
}

impl MixerSpec for LatentAttentionSpec {
    fn kv_shape(&self) -> Option<KvShape> {
        Some(self.page_shape())
    }

    fn most_partials(&self, context: usize) -> usize {
        AttendRows::most_partials(&self.page_shape(), self.heads, context)
    }

    fn attended(&self) -> Option<Attended> {
        let macs = self.heads * (self.row() + self.rank);
        Some(Attended { window: None, bytes: 2 * self.row(), macs })
    }
}

/// The quantities that determine the sizes of [`LatentBuffers`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LatentWork {
    heads: usize,
    /// The longest input of a matrix of one head, and its longest output.
    input: usize,
    output: usize,
}

impl LatentWork {
    /// Returns the number of slots of the heads of up to `batch` tokens.
    pub(crate) fn slots(&self, batch: usize) -> usize {
        self.heads * (batch + ActivationFormats::MAX_BLOCK_TOKENS)
    }

    /// Returns the longest row of a head's matrix.
    pub(crate) fn longest(&self) -> usize {
        self.input
    }

    pub(crate) fn max(self, other: LatentWork) -> LatentWork {
        LatentWork {
            heads: self.heads.max(other.heads),
            input: self.input.max(other.input),
            output: self.output.max(other.output),
        }
    }
}

/// The buffers for products with a matrix for each head: a slot for each head and token ([`HeadSlots`]).
pub(crate) struct LatentBuffers {
    /// The heads.
    places: Vec<Place>,
    /// Their input, a token for each slot.
    packed: Activations,
    /// Their output, `[slots, output]`.
    out: Vec<f32>,
}

impl LatentBuffers {
    pub(crate) fn new(work: &LatentWork, batch: usize) -> LatentBuffers {
        let slots = work.slots(batch);
        LatentBuffers {
            places: Vec::with_capacity(2 * work.heads),
            packed: Activations::new(slots, work.input),
            out: vec![0.0; slots * work.output],
        }
    }
}

/// The tensors of latent attention.
#[derive(Debug)]
pub(crate) struct LatentAttention {
    spec: LatentAttentionSpec,
    queries: Queries,
    /// `[rank + rotated, hidden]`
    rows: Linear,
    /// `[rank]`
    norm: Norm,
    heads: Heads,
    /// `[heads · value_dim, hidden]`, or `[heads, hidden]`
    gate: Option<Linear>,
    /// `[hidden, heads · value_dim]`
    o: Linear,
}

/// The projections for the queries of all heads, `[heads · key_dim]`.
#[derive(Debug)]
enum Queries {
    /// `[heads · key_dim, hidden]`
    Plain(Linear),
    /// `[query_rank, hidden]`, its norm, and `[heads · key_dim, query_rank]`.
    Normed(Box<(Linear, Norm, Linear)>),
}

/// The projections of each head.
#[derive(Debug)]
enum Heads {
    /// `[heads][rank, unrotated]` for keys, which is their transpose, and `[heads][value_dim, rank]` for values.
    Apart { keys: Linear, values: Linear },
    /// `[heads][unrotated + value_dim, rank]`, as in files before April 2025.
    Together(Linear),
}

impl LatentAttention {
    pub(super) fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &LatentAttentionSpec,
        hidden: usize,
    ) -> Result<LatentAttention, WeightError> {
        let LatentAttentionSpec { heads, rank, unrotated, value_dim, .. } = *spec;
        let width = heads * spec.key_dim();
        let queries = match spec.query_rank {
            None => Queries::Plain(find.linear("attn_q", hidden, width)?),
            Some(query_rank) => Queries::Normed(Box::new((
                find.linear("attn_q_a", hidden, query_rank)?,
                find.norm("attn_q_a_norm", query_rank)?,
                find.linear("attn_q_b", query_rank, width)?,
            ))),
        };
        if spec.reach.is_some() {
            ignore_indexer(find);
        }
        let together = "attn_kv_b";
        let heads_of = if find.has(together) && !find.has("attn_k_b") {
            let rows = unrotated + value_dim;
            let matrix = find.parts_of_rows(together, [rank, rows], [unrotated, heads])?;
            Heads::Together(Linear::from(matrix))
        } else {
            // Some files contain both forms.
            find.ignore(&format!("{together}.weight"));
            Heads::Apart {
                keys: find.experts("attn_k_b", [unrotated, rank, heads], 1, heads)?.into(),
                values: find.experts("attn_v_b", [rank, value_dim, heads], 1, heads)?.into(),
            }
        };
        Ok(LatentAttention {
            spec: spec.clone(),
            queries,
            rows: find.linear("attn_kv_a_mqa", hidden, spec.row())?,
            norm: find.norm("attn_kv_a_norm", rank)?,
            heads: heads_of,
            gate: match spec.gate_width() {
                0 => None,
                width => Some(find.linear("attn_gate", hidden, width)?),
            },
            o: find.linear("attn_output", heads * value_dim, hidden)?,
        })
    }

    /// Computes queries into `mixed`, and the rows of the cache into `k`.
    fn project(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let width = spec.heads * spec.key_dim();
        let (isa, compute, store, n) = (step.compute.isa, step.compute, step.store, step.rows());
        let b = &mut *step.buffers;
        let (acts, threads) = (&mut b.acts, &b.threads);
        let made = self.rows.view(store);
        let made_rows = Rows::new(&mut b.k, spec.row());
        if let Some(gate) = &self.gate {
            let gates = Rows::new(&mut b.gate, spec.gate_width());
            compute.project(&gate.view(store), gates, acts, threads);
        }
        match &self.queries {
            Queries::Plain(q) => {
                let outputs = [[Rows::new(&mut b.mixed, width)], [made_rows]];
                compute.multiply([[&q.view(store)], [&made]], outputs, acts, threads, None);
            }
            Queries::Normed(parts) => {
                let (first, norm, second) = &**parts;
                let rank = first.rows();
                let outputs = [[Rows::new(&mut b.v, rank)], [made_rows]];
                compute.multiply([[&first.view(store)], [&made]], outputs, acts, threads, None);
                let formats = ActivationFormats::of(second.kinds());
                let rows = [Rows::new(&mut b.v, rank)];
                compute.pack(n, rank, rows, acts, formats, threads, &|_, [row], _, put| {
                    norm.apply(isa, row);
                    put(row);
                });
                let out = Rows::new(&mut b.mixed, width);
                compute.project(&second.view(store), out, acts, threads);
            }
        }
    }

    /// Applies the norm of the latent rows, rotation and temperature, and stores the rows in the cache.
    fn rotate_and_store(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let isa = step.compute.isa;
        let b = &mut *step.buffers;
        let (batch, angles) = (&b.batch, &b.angles);
        let rows = [
            Rows::new(&mut b.mixed, spec.heads * spec.key_dim()),
            Rows::new(&mut b.k, spec.row()),
            Rows::new(&mut b.v, 0),
        ];
        let (cache, layer) = (&mut *step.cache, step.layer);
        step.compute.store_rows(cache, layer, batch, rows, &b.threads, &|i, [q, row, _]| {
            let (cos, sin) = if spec.rotates { angles.of(i, 0) } else { (&[][..], &[][..]) };
            let (latent, rotated) = row.split_at_mut(spec.rank);
            self.norm.apply(isa, latent);
            if spec.rotates {
                rope_apply(isa, rotated, cos, sin, spec.pairing);
            }
            for head in q.chunks_exact_mut(spec.key_dim()).filter(|_| spec.rotates) {
                rope_apply(isa, &mut head[spec.unrotated..], cos, sin, spec.pairing);
            }
            if let Some(temperature) = &spec.temperature {
                vec::scale(isa, q, temperature.at(batch.place(i).1));
            }
        });
    }

    /// Turns queries `[rows, heads, key_dim]` in `mixed` into `[rows, heads, rank + rotated]` in `q`.
    fn absorb(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let LatentAttentionSpec { heads, rank, unrotated, .. } = *spec;
        let (key_dim, row) = (spec.key_dim(), spec.row());
        let n = step.rows().all();
        let slot_of = match &self.heads {
            Heads::Apart { keys, .. } => {
                let queries = std::mem::take(&mut step.buffers.mixed);
                let shape = [heads, unrotated, rank];
                let one = |head| keys.projection(head);
                let slots = multiply_heads(step, (&queries, key_dim), keys, &one, shape);
                step.buffers.mixed = queries;
                slots
            }
            Heads::Together(both) => self.multiply_transposed(both, step),
        };
        let b = &mut *step.buffers;
        let (mixed, slots) = (&b.mixed, &b.latent.out);
        let rows = [Rows::new(&mut b.q, heads * row)];
        step.compute.each_row(n, rows, &b.threads, &|token, [q], _| {
            for (head, q) in q.chunks_exact_mut(row).enumerate() {
                let (latent, rotated) = q.split_at_mut(rank);
                latent.copy_from_slice(&slots[slot_of.slot(head, token) * rank..][..rank]);
                let query = &mixed[(token * heads + head) * key_dim..][..key_dim];
                rotated.copy_from_slice(&query[unrotated..]);
            }
        });
    }

    /// Multiplies each head's query with the transpose of its key projection: the sum of its rows, each times an element of the
    /// query. Returns the slots of the products.
    fn multiply_transposed(&self, both: &Linear, step: &mut Step<'_>) -> HeadSlots {
        let spec = &self.spec;
        let LatentAttentionSpec { heads, rank, unrotated, .. } = *spec;
        let (isa, n, store) = (step.compute.isa, step.rows().all(), step.store);
        let b = &mut *step.buffers;
        let queries = &b.mixed;
        let rows = [Rows::new(&mut b.latent.out, n * rank)];
        let cut = Cut { take: 1, ..Cut::default() };
        let threads = &mut step.compute.threads(&b.threads);
        let adapters = step.compute.adapters;
        let cost = heads * unrotated * rank * (n + 1) / PRODUCTS_PER_NS;
        parallel::cut_rows(threads, heads, cut, cost, rows, &|head, [out], scratch| {
            let matrix = both.projection(head).matrix(store);
            out.fill(0.0);
            let row = &mut scratch.row[..rank];
            for i in 0..unrotated {
                matrix.dequantize_row(i, row);
                for (token, out) in out.chunks_exact_mut(rank).enumerate() {
                    let query = &queries[(token * heads + head) * spec.key_dim()..];
                    vec::add_times(isa, out, row, query[i]);
                }
            }
            for (token, out) in out.chunks_exact_mut(rank).enumerate() {
                let query = &queries[(token * heads + head) * spec.key_dim()..][..unrotated];
                adapters.add_transposed(isa, (token, both.number, head), query, out);
            }
        });
        HeadSlots { heads, bits16: n, bits8: 0 }
    }

    /// Turns sums of latent rows `[rows, heads, rank]` in `heads_out` into values `[rows, heads, value_dim]` there.
    fn make_values(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let LatentAttentionSpec { heads, rank, unrotated, value_dim, .. } = *spec;
        let (of, first) = match &self.heads {
            Heads::Apart { values, .. } => (values, 0),
            Heads::Together(both) => (both, unrotated),
        };
        let one = |head| of.projection(head).some_rows(first, value_dim);
        let sums = std::mem::take(&mut step.buffers.heads_out);
        let slot_of = multiply_heads(step, (&sums, rank), of, &one, [heads, rank, value_dim]);
        step.buffers.heads_out = sums;
        let n = step.rows().all();
        let b = &mut *step.buffers;
        let slots = &b.latent.out;
        let rows = [Rows::new(&mut b.heads_out, heads * value_dim)];
        step.compute.each_row(n, rows, &b.threads, &|token, [out], _| {
            for (head, out) in out.chunks_exact_mut(value_dim).enumerate() {
                let at = slot_of.slot(head, token) * value_dim;
                out.copy_from_slice(&slots[at..at + value_dim]);
            }
        });
    }
}

impl Part for LatentAttention {
    fn linears(&self) -> Vec<&Linear> {
        let mut all = match &self.queries {
            Queries::Plain(q) => vec![q, &self.rows],
            Queries::Normed(parts) => vec![&parts.0, &self.rows, &parts.2],
        };
        match &self.heads {
            Heads::Apart { keys, values } => all.extend([keys, values]),
            Heads::Together(both) => all.push(both),
        }
        all.extend(&self.gate);
        all.push(&self.o);
        all
    }

    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        let mut all = match &mut self.queries {
            Queries::Plain(q) => vec![q, &mut self.rows],
            Queries::Normed(parts) => vec![&mut parts.0, &mut self.rows, &mut parts.2],
        };
        match &mut self.heads {
            Heads::Apart { keys, values } => all.extend([keys, values]),
            Heads::Together(both) => all.push(both),
        }
        all.extend(&mut self.gate);
        all.push(&mut self.o);
        all
    }

    fn input_formats(&self) -> ActivationFormats {
        let first = match &self.queries {
            Queries::Plain(q) => q,
            Queries::Normed(parts) => &parts.0,
        };
        let gate = self.gate.iter().flat_map(Linear::kinds);
        ActivationFormats::of(first.kinds().chain(self.rows.kinds()).chain(gate))
    }

    fn forward(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        self.project(step);
        self.rotate_and_store(step);
        let width = spec.heads * spec.key_dim();
        let some = step.keep_wanted_rows(|b, from, to| {
            Rows::new(&mut b.mixed, width).copy(from, to);
            Rows::new(&mut b.gate, spec.gate_width()).copy(from, to);
        });
        if !some {
            return;
        }
        self.absorb(step);
        attend(spec, step);
        self.make_values(step);
        let formats = ActivationFormats::of(self.o.kinds());
        let o = self.o.view(step.store);
        let b = &mut *step.buffers;
        let input = Rows::new(&mut b.heads_out, spec.heads * spec.value_dim);
        let (n, isa) = (b.batch.counts(), step.compute.isa);
        let (acts, threads, width) = (&mut b.acts, &b.threads, spec.heads * spec.value_dim);
        match self.gate {
            None => step.compute.pack_rows(n, input, acts, formats, threads),
            Some(_) => {
                let rows = [Rows::new(&mut b.gate, spec.gate_width()), input];
                step.compute.pack(
                    n,
                    width,
                    rows,
                    acts,
                    formats,
                    threads,
                    &|_, [gate, y], scratch, put| {
                        let each = spec.output_gate.each(gate, &mut scratch.row[..width]);
                        sigmoid_mul(isa, each, y);
                        put(each);
                    },
                );
            }
        }
        step.compute.project(&o, Rows::new(&mut b.y, step.hidden), &b.acts, &b.threads);
    }
}

/// The slots of heads and tokens: those of a head's tokens of 16 bits are contiguous, as are those of 8 bits, which follow the
/// 16-bit slots of all heads.
#[derive(Clone, Copy)]
struct HeadSlots {
    heads: usize,
    /// Slots of a head for tokens of 16 bits: one for each.
    bits16: usize,
    /// Slots of a head for tokens of 8 bits: whole blocks.
    bits8: usize,
}

impl HeadSlots {
    /// Returns the slot of a head and a token.
    fn slot(&self, head: usize, token: usize) -> usize {
        match token.checked_sub(self.bits16) {
            None => head * self.bits16 + token,
            Some(token) => (self.heads * self.bits16) + head * self.bits8 + token,
        }
    }

    /// Returns the head and the token of a slot; the token may not exist.
    fn of(&self, slot: usize) -> (usize, usize) {
        match slot.checked_sub(self.heads * self.bits16) {
            None => (slot / self.bits16, slot % self.bits16),
            Some(slot) => (slot / self.bits8, self.bits16 + slot % self.bits8),
        }
    }
}

/// Multiplies each head's part of every row with the head's projection, of those of `of`: `input` `[rows, heads, distance]`, of which the first
/// `cols` elements are used, into slots of `rows` elements. Returns the slots.
fn multiply_heads<'l>(
    step: &mut Step<'_>,
    (input, distance): (&[f32], usize),
    of: &Linear,
    projection: &(dyn Fn(usize) -> Projection<'l> + Sync),
    [heads, cols, rows]: [usize; 3],
) -> HeadSlots {
    let (compute, store, counts) = (step.compute, step.store, step.rows());
    let isa = compute.isa;
    let (n, formats) = (counts.all(), ActivationFormats::of(of.kinds()));
    let bits8 = counts.bits8.next_multiple_of(formats.block(isa));
    let slot_of = HeadSlots { heads, bits16: counts.bits16, bits8 };
    let b = &mut *step.buffers;
    let LatentBuffers { places, packed, out } = &mut b.latent;
    places.clear();
    for tokens in counts.ranges().into_iter().filter(|tokens| !tokens.is_empty()) {
        places.extend((0..heads).map(|head| Place {
            matrix: head,
            first: slot_of.slot(head, tokens.start),
            slots: tokens.len(),
        }));
    }
    let threads = &mut compute.threads(&b.threads);
    let slots = RowCounts { bits16: heads * counts.bits16, bits8: heads * bits8 };
    let into = (&mut *packed, compute.adapters.formats(formats));
    parallel::pack(threads, isa, (slots, cols), [], into, &|slot, [], _, put| {
        let (head, token) = slot_of.of(slot);
        if token < n {
            put(&input[(token * heads + head) * distance..][..cols]);
        }
    });
    let row_of = |slot| Some(slot_of.of(slot).1).filter(|token| *token < n);
    let corrections = compute.slot_corrections(projection, (packed, places), &row_of);
    let one = |head| [projection(head).matrix(store)];
    let bank = Bank::new(rows, &one, packed, places);
    let output = [Rows::new(out, rows)];
    parallel::multiply_banks(threads, [bank], output, &|_, slot, head, rows, products| {
        projection(head).correct(&corrections, slot, rows.start, products);
    });
    slot_of
}

/// Turns `q` `[rows, heads, rank + rotated]` into sums of latent rows, `[rows, heads, rank]`, in `heads_out`.
fn attend(spec: &LatentAttentionSpec, step: &mut Step<'_>) {
    let params = AttentionParams { scale: spec.scale, softcap: None, window: None };
    let widths = [spec.row(), spec.rank].map(|width| spec.heads * width);
    let heads = QueryHeads {
        params,
        group: spec.heads,
        sinks: None,
        bias: None,
        widths,
        bidirectional: false,
    };
    step.attend(step.layer, &heads);
}
