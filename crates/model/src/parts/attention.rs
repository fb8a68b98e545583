//! Softmax attention with grouped queries: biases, norms per head, rotary positions, sliding windows, soft caps.
//!
//! Few tokens (a decode step) are split along the positions, as in Flash-Decoding, so that one token of a model with one
//! key/value head still occupies all threads; partial results are merged. Many tokens are split into tiles of tokens, as in
//! FlashAttention. Neither split depends on the number of threads.

use std::ops::Range;
use std::sync::Arc;

use alight_formats::gguf::Value;
use alight_kernels::attention::{AttentionParams, KvShape, KvType, Window, tile_tokens};
use alight_kernels::gate::sigmoid_mul;
use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::{AttendRows, Rows};
use alight_kernels::rope::{RopePairing, rope_apply};
use alight_kernels::{Isa, vec};

use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::norm::Norm;
use crate::parts::buffers::{Angles, Buffers, WorkSize};
use crate::parts::routing::softplus;
use crate::parts::score_bias::{ScoreBias, ScoreBiases};
use crate::parts::step::{QueryHeads, Step};
use crate::parts::{Attended, MixerSpec, Part, PartSpec};
use crate::positions::POSITIONS;
use crate::tensors::{LayerFinder, Linear, WeightError};

/// An attention part.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Length of a query or key.
    pub key_dim: usize,
    /// Length of a value.
    pub value_dim: usize,
    /// Factor on q·k.
    pub scale: f32,
    /// Soft cap of the scores.
    pub softcap: Option<f32>,
    /// The positions that a token sees.
    pub mask: Mask,
    /// The index of the model's rotary embedding that rotates queries and keys; `None`: they are not rotated.
    pub rope: Option<usize>,
    /// The elements of a head that are rotated together.
    pub pairing: RopePairing,
    /// Biases of scores by the distance of two positions.
    pub bias: Option<ScoreBias>,
    /// The number of positions of the longest text, where scores have biases, which are made in advance, or where tokens of longer texts choose
    /// the positions that they see.
    pub reach: Option<usize>,
    /// The elements of queries and keys that are normed together.
    pub qk_norm: QkNorm,
    /// True if the norm is applied after the rotation, and not before.
    pub norm_after_rope: bool,
    /// The file's name for the sink of each query head, if they have one: a score that belongs to no position, so that weights
    /// sum to less than 1.
    pub sinks: Option<&'static str>,
    /// The file's name for the output projection.
    pub output: &'static str,
    /// A factor on queries at distant positions.
    pub temperature: Option<Temperature>,
    /// True if values are normed per head, without weights.
    pub value_norm: bool,
    /// True if the keys, before their norm and rotation, are also the values where the file has no `attn_v`.
    pub keys_as_values: bool,
    /// The layer whose keys and values it uses; `None`: its own.
    pub kv_layer: Option<usize>,
    /// The gate of the outputs of heads, before the output projection.
    pub output_gate: OutputGate,
    /// The function of that gate's projection.
    pub gate_function: GateFunction,
    /// The file's name for the norm of the outputs of all heads together, before the output projection.
    pub output_norm: Option<&'static str>,
    /// Queries, keys and values are at most this far from 0: those further away are set to it.
    pub clamp: Option<f32>,
    /// Factor on values.
    pub value_scale: f32,
}

/// The function of the projection that makes the gate of the outputs of heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GateFunction {
    /// 1 / (1 + e⁻ˣ).
    #[default]
    Sigmoid,
    /// ln(1 + eˣ).
    Softplus,
}

/// The gate of the outputs of heads: a function of a projection of the part's input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputGate {
    /// There is none.
    #[default]
    None,
    /// `attn_q` computes it in addition to the query of each head; values then have the length of keys.
    InQueries,
    /// `attn_gate` computes it: a number for each element of the outputs, `[heads, value_dim]`, or, if the file's matrix has as many
    /// rows, `OfHeads`.
    Own,
    /// `attn_gate` computes a number for each head, `[heads]`.
    OfHeads,
}

/// The positions that a token of a layer sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mask {
    /// All positions up to its own.
    #[default]
    Causal,
    /// Its own position and those before it, this number in all.
    Window(usize),
    /// The positions up to its own, within its chunk of this length.
    Chunk(usize),
    /// All positions of its sequence.
    Bidirectional,
    /// The positions of its sequence that are at most this number away, on either side.
    Around(usize),
}

impl Mask {
    /// Returns this mask with a window, if there is one: of positions up to a token's own, or half of it on either side.
    pub(crate) fn with_window(self, window: Option<usize>) -> Mask {
        match (self.is_bidirectional(), window) {
            (_, None) => self,
            (false, Some(positions)) => Mask::Window(positions),
            (true, Some(positions)) => Mask::Around(positions / 2),
        }
    }

    /// Returns the maximum number of positions up to its own that a token sees, if that is fewer than all.
    pub fn window(self) -> Option<usize> {
        match self {
            Mask::Causal | Mask::Bidirectional => None,
            Mask::Window(positions) | Mask::Chunk(positions) => Some(positions),
            Mask::Around(away) => Some(away + 1),
        }
    }

    /// Returns the window of a causal mask, if it has one: what lies before that of a token no later token sees either.
    pub(crate) fn causal_window(self) -> Option<Window> {
        if self.is_bidirectional() { None } else { self.kernel() }
    }

    /// Returns true if a token sees positions after its own.
    pub fn is_bidirectional(self) -> bool {
        matches!(self, Mask::Bidirectional | Mask::Around(_))
    }

    /// Returns the window for the kernels, which are given the positions ahead as [`Ahead`](alight_kernels::attention::Ahead).
    fn kernel(self) -> Option<Window> {
        match self {
            Mask::Causal | Mask::Bidirectional => None,
            Mask::Window(positions) => Some(Window::Sliding(positions)),
            Mask::Chunk(positions) => Some(Window::Chunk(positions)),
            Mask::Around(away) => Some(Window::Around(away)),
        }
    }
}

/// A factor on queries that grows with their position: `1 + scale · ln(1 + ⌊(position + offset) / length⌋)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// The rate of growth.
    pub scale: f32,
    /// The number of positions over which it is constant.
    pub length: usize,
    /// Added to positions.
    pub offset: usize,
}

impl Temperature {
    pub(super) fn at(&self, position: usize) -> f32 {
        1.0 + self.scale * libm::log1pf(((position + self.offset) / self.length) as f32)
    }
}

/// The elements of queries and keys that are normed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// They are not normed.
    None,
    /// The elements of a head. All heads have the same weights, `[key_dim]`.
    Heads,
    /// The elements of a head, without weights.
    Unweighted,
    /// As `Heads` if the file has the weights; otherwise none.
    HeadsIfThere,
    /// The elements of a head, if the file has the weights. Each head has its own, `[heads, key_dim]`.
    OwnHeadsIfThere,
    /// The elements of all heads: the weights are `[heads · key_dim]`, and `[kv_heads · key_dim]` for keys.
    Whole,
    /// As `Whole` if the file has the weights; otherwise none.
    WholeIfThere,
}

/// The keys of the numbers of query heads and of key/value heads.
const HEADS: &str = "attention.head_count";
const KV_HEADS: &str = "attention.head_count_kv";

/// Returns the length of a head: the value of `key`, or the hidden size divided by the heads of the first layer that has any.
pub(super) fn head_dim(keys: &Keys<'_, '_>, key: &str) -> Result<usize, SpecError> {
    if let Some(dim) = keys.optional_dimension(key, MAX_WIDTH)? {
        return Ok(dim);
    }
    let hidden = keys.dimension("embedding_length", MAX_WIDTH)?;
    let heads = match keys.find(HEADS) {
        Some(Value::Array(array)) => {
            let first = array.iter_int().into_iter().flatten().find(|heads| *heads != 0);
            usize::try_from(first.unwrap_or(0)).unwrap_or(0)
        }
        _ => keys.dimension(HEADS, MAX_WIDTH)?,
    };
    if heads == 0 || !hidden.is_multiple_of(heads) {
        let expected = format!("a divisor of the embedding length {hidden}");
        return Err(keys.value(HEADS, heads, expected));
    }
    Ok(hidden / heads)
}

impl AttentionSpec {
    /// The key that is false if tokens also see those after them.
    pub(crate) const CAUSAL: &'static str = "attention.causal";

    /// Reads its keys: full attention with the model's first rotary embedding, interleaved pairs, and a scale of `1/√key_dim`.
    ///
    /// # Errors
    /// A size that no model can have.
    pub(crate) fn read(keys: &Keys<'_, '_>) -> Result<AttentionSpec, SpecError> {
        let heads = keys.dimension(HEADS, MAX_WIDTH)?;
        let kv_heads = keys.optional_dimension(KV_HEADS, MAX_WIDTH)?;
        AttentionSpec::read_with(keys, heads, kv_heads.unwrap_or(heads))
    }

    /// As [`AttentionSpec::read`], for each layer of a network in which only layers with key/value heads have attention. Layers may
    /// have different numbers of heads.
    ///
    /// # Errors
    /// A size that no model can have.
    pub(crate) fn read_where_there(
        keys: &Keys<'_, '_>,
        layers: usize,
    ) -> Result<Vec<Option<AttentionSpec>>, SpecError> {
        let counts = |key| {
            let found = keys.per_layer_in(key, layers, 0..=MAX_WIDTH)?;
            found.ok_or_else(|| keys.missing(key))
        };
        let each = counts(HEADS)?.into_iter().zip(counts(KV_HEADS)?);
        let each = each.map(|(heads, kv_heads)| match kv_heads {
            0 => Ok(None),
            some => AttentionSpec::read_with(keys, heads, some).map(Some),
        });
        each.collect()
    }

    /// As [`AttentionSpec::read`], for each layer of a network whose layers may have different numbers of heads.
    ///
    /// # Errors
    /// A size that no model can have, or a layer without heads.
    pub(crate) fn read_each(
        keys: &Keys<'_, '_>,
        layers: usize,
    ) -> Result<Vec<AttentionSpec>, SpecError> {
        let each = AttentionSpec::read_where_there(keys, layers)?.into_iter();
        let none = || keys.value(KV_HEADS, 0, "at least 1 in every layer".into());
        each.map(|attention| attention.ok_or_else(none)).collect()
    }

    /// Reads the length of a key.
    ///
    /// # Errors
    /// A length that no model can have.
    pub(crate) fn key_dim(keys: &Keys<'_, '_>) -> Result<usize, SpecError> {
        head_dim(keys, "attention.key_length")
    }

    fn read_with(
        keys: &Keys<'_, '_>,
        heads: usize,
        kv_heads: usize,
    ) -> Result<AttentionSpec, SpecError> {
        if heads == 0 || !heads.is_multiple_of(kv_heads) {
            let expected = format!("a divisor of the {heads} query heads");
            return Err(keys.value(KV_HEADS, kv_heads, expected));
        }
        let key_dim = head_dim(keys, "attention.key_length")?;
        let value_dim = head_dim(keys, "attention.value_length")?;
        for (key, dim) in [("attention.key_length", key_dim), ("attention.value_length", value_dim)]
        {
            if heads * dim > MAX_WIDTH {
                let most = MAX_WIDTH / heads;
                return Err(keys.value(key, dim, format!("at most {most} for {heads} heads")));
            }
        }
        // A file with this flag set to false holds a causal network that was turned into an encoder.
        let mask = match keys.get::<bool>(AttentionSpec::CAUSAL)? {
            Some(false) => Mask::Bidirectional,
            Some(true) | None => Mask::Causal,
        };
        Ok(AttentionSpec { mask, ..AttentionSpec::new([heads, kv_heads], [key_dim, value_dim]) })
    }

    /// Returns full attention with these heads, query heads first, and these lengths of keys and values, as
    /// [`AttentionSpec::read`] does.
    pub(crate) fn new([heads, kv_heads]: [usize; 2], [key_dim, value_dim]: [usize; 2]) -> Self {
        AttentionSpec {
            heads,
            kv_heads,
            key_dim,
            value_dim,
            scale: 1.0 / (key_dim as f32).sqrt(),
            softcap: None,
            mask: Mask::Causal,
            rope: Some(0),
            pairing: RopePairing::Interleaved,
            bias: None,
            reach: None,
            qk_norm: QkNorm::None,
            norm_after_rope: false,
            sinks: None,
            output: "attn_output",
            temperature: None,
            value_norm: false,
            keys_as_values: false,
            kv_layer: None,
            output_gate: OutputGate::None,
            gate_function: GateFunction::Sigmoid,
            output_norm: None,
            clamp: None,
            value_scale: 1.0,
        }
    }

    /// Returns the number of query heads per key/value head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Returns the widths of queries, keys, values and outputs of all heads.
    fn widths(&self) -> [usize; 4] {
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        [
            heads * self.key_dim,
            kv_heads * self.key_dim,
            kv_heads * self.value_dim,
            heads * self.value_dim,
        ]
    }

    /// Returns the width of the rows in the buffer of gates.
    fn gate_width(&self) -> usize {
        match self.output_gate {
            OutputGate::None => 0,
            OutputGate::InQueries => 2 * self.heads * self.key_dim,
            OutputGate::Own => self.heads * self.value_dim,
            OutputGate::OfHeads => self.heads,
        }
    }

    /// Returns the shape of a page of its keys and values.
    pub(crate) fn page_shape(&self) -> KvShape {
        let (kv_heads, k_dim, v_dim) = (self.kv_heads, self.key_dim, self.value_dim);
        KvShape { kv_heads, k_dim, v_dim, capacity: POSITIONS, shared: false, ty: KvType::F16 }
    }

    /// Copies row `from` of the data that is needed after the cache is filled to row `to`.
    fn keep_row(&self, b: &mut Buffers, from: usize, to: usize) {
        let [q, ..] = self.widths();
        Rows::new(&mut b.q, q).copy(from, to);
        let gate = self.gate_width();
        if gate > 0 {
            Rows::new(&mut b.gate, gate).copy(from, to);
        }
    }

    fn params(&self) -> AttentionParams {
        AttentionParams { scale: self.scale, softcap: self.softcap, window: self.mask.kernel() }
    }
}

impl PartSpec for AttentionSpec {
    fn find(
        &self,
        find: &LayerFinder<'_, '_, '_>,
        hidden: usize,
    ) -> Result<Box<dyn Part>, WeightError> {
        Ok(Box::new(Attention::find(find, self, hidden)?))
    }

    fn work(&self, _hidden: usize) -> WorkSize {
        let [q, k, v, out] = self.widths();
        WorkSize {
            q,
            k,
            v,
            gate: self.gate_width(),
            heads_out: out,
            widest_input: out,
            attention_rows: self.group() * tile_tokens(self.group()).max(1),
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            ..WorkSize::default()
        }
    }
}

impl MixerSpec for AttentionSpec {
    fn kv_shape(&self) -> Option<KvShape> {
        self.kv_layer.is_none().then(|| self.page_shape())
    }

    fn most_partials(&self, context: usize) -> usize {
        AttendRows::most_partials(&self.page_shape(), self.group(), context)
    }

    fn attended(&self) -> Option<Attended> {
        let elements = self.key_dim + self.value_dim;
        let (bytes, macs) = (2 * self.kv_heads * elements, self.heads * elements);
        Some(Attended { window: self.mask.window(), bytes, macs })
    }
}

/// The tensors of an attention part.
#[derive(Debug)]
pub(crate) struct Attention {
    spec: AttentionSpec,
    /// `[heads · key_dim, hidden]`; with a gate `[heads · 2 · key_dim, hidden]`: a head's query, then its gate.
    q: Linear,
    /// `[kv_heads · key_dim, hidden]`
    k: Option<Linear>,
    /// `[kv_heads · value_dim, hidden]`
    v: Option<Linear>,
    /// `[hidden, heads · value_dim]`
    o: Linear,
    /// `[heads · value_dim, hidden]`, or `[heads, hidden]`
    gate: Option<Linear>,
    /// One `[key_dim]` for all heads, one for each head, or one `[heads · key_dim]`; or none.
    q_norm: Vec<Norm>,
    /// Likewise; `[kv_heads · key_dim]`.
    k_norm: Vec<Norm>,
    /// `[value_dim]`: ones.
    v_norm: Option<Norm>,
    /// `[heads]`
    sinks: Option<Vec<f32>>,
    /// `[heads · value_dim]`
    output_norm: Option<Norm>,
    biases: Option<Arc<ScoreBiases>>,
}

/// Finds queries, keys and values, which are separate in the file or the rows of one matrix; `None`: another layer's keys or
/// values are used, or keys as values.
fn qkv(
    find: &LayerFinder<'_, '_, '_>,
    spec: &AttentionSpec,
    hidden: usize,
) -> Result<(Linear, Option<Linear>, Option<Linear>), WeightError> {
    let [q, k, v, _] = spec.widths();
    let one = |name, width| find.linear(name, hidden, width);
    if spec.kv_layer.is_some() {
        // Some files contain them nevertheless.
        for what in ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"] {
            find.ignore(what);
        }
        return Ok((one("attn_q", q)?, None, None));
    }
    if !find.has("attn_qkv") {
        let in_queries = spec.output_gate == OutputGate::InQueries;
        let query = one("attn_q", if in_queries { 2 * q } else { q })?;
        let has_values = !spec.keys_as_values || find.has("attn_v");
        let value = has_values.then(|| one("attn_v", v)).transpose()?;
        return Ok((query, Some(one("attn_k", k)?), value));
    }
    let all = q + k + v;
    let bias = find.bias("attn_qkv", all)?;
    let part = |rows: Range<usize>| {
        let matrix = find.rows_of("attn_qkv", [hidden, all], rows.clone())?;
        Ok(Linear::from(matrix).with_bias(bias.as_ref().map(|bias| bias[rows].to_vec())))
    };
    Ok((part(0..q)?, Some(part(q..q + k)?), Some(part(q + k..all)?)))
}

/// Marks what chooses the positions that a token sees as unused: in texts as short as are computed it chooses all.
pub(super) fn ignore_indexer(find: &LayerFinder<'_, '_, '_>) {
    for what in ["q_proj", "k_proj", "q_norm", "k_norm", "attn_q_b", "attn_k", "proj"] {
        find.ignore(&format!("indexer.{what}.weight"));
    }
    find.ignore("indexer.k_norm.bias");
}

/// Finds the gate that has a projection of its own.
fn own_gate(
    find: &LayerFinder<'_, '_, '_>,
    spec: &AttentionSpec,
    hidden: usize,
) -> Result<Option<Linear>, WeightError> {
    match spec.output_gate {
        OutputGate::None | OutputGate::InQueries => Ok(None),
        OutputGate::Own | OutputGate::OfHeads => {
            find.linear("attn_gate", hidden, spec.gate_width()).map(Some)
        }
    }
}

/// Finds the biases of scores, which all layers share.
fn shared_biases(
    find: &LayerFinder<'_, '_, '_>,
    spec: &AttentionSpec,
    bias: ScoreBias,
) -> Result<Arc<ScoreBiases>, WeightError> {
    let sizes = [spec.heads, spec.reach.unwrap_or(1)];
    let mut shared = find.all.shared.borrow_mut();
    let known = shared.iter().filter_map(|shared| Arc::clone(shared).downcast().ok());
    let mut known = known.filter(|biases: &Arc<ScoreBiases>| biases.are_of(bias, sizes));
    if let Some(biases) = known.next() {
        return Ok(biases);
    }
    drop(known);
    let biases = Arc::new(ScoreBiases::find(find, bias, sizes)?);
    shared.push(Arc::clone(&biases) as _);
    Ok(biases)
}

impl Attention {
    pub(super) fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &AttentionSpec,
        hidden: usize,
    ) -> Result<Attention, WeightError> {
        let mut spec = spec.clone();
        if spec.output_gate == OutputGate::Own && find.rows("attn_gate.weight") == Some(spec.heads)
        {
            spec.output_gate = OutputGate::OfHeads;
        }
        let [.., out_width] = spec.widths();
        let own = spec.kv_layer.is_none();
        let norm = |name, heads| match spec.qk_norm {
            QkNorm::None => Ok(Vec::new()),
            QkNorm::Unweighted => Ok(vec![find.unweighted_norm(spec.key_dim)]),
            QkNorm::HeadsIfThere | QkNorm::OwnHeadsIfThere | QkNorm::WholeIfThere
                if !find.has(name) =>
            {
                Ok(Vec::new())
            }
            QkNorm::HeadsIfThere | QkNorm::Heads => Ok(vec![find.norm(name, spec.key_dim)?]),
            QkNorm::OwnHeadsIfThere => find.norms(name, [spec.key_dim, heads]),
            QkNorm::Whole | QkNorm::WholeIfThere => {
                Ok(vec![find.norm(name, heads * spec.key_dim)?])
            }
        };
        let (q, k, v) = qkv(find, &spec, hidden)?;
        if spec.reach.is_some() {
            ignore_indexer(find);
        }
        Ok(Attention {
            q,
            k,
            v,
            o: find.linear(spec.output, out_width, hidden)?,
            gate: own_gate(find, &spec, hidden)?,
            q_norm: norm("attn_q_norm", spec.heads)?,
            k_norm: if own { norm("attn_k_norm", spec.kv_heads)? } else { Vec::new() },
            v_norm: spec.value_norm.then(|| find.unweighted_norm(spec.value_dim)),
            sinks: spec.sinks.map(|name| find.vector(name, spec.heads)).transpose()?,
            output_norm: spec.output_norm.map(|name| find.norm(name, out_width)).transpose()?,
            biases: spec.bias.map(|bias| shared_biases(find, &spec, bias)).transpose()?,
            spec,
        })
    }

    /// Norms and rotates queries and keys, and stores keys and values in the cache.
    fn rope_and_store_kv(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let isa = step.compute.isa;
        let [q_width, k_width, v_width, _] = spec.widths();
        let b = &mut *step.buffers;
        let (batch, angles) = (&b.batch, &b.angles);
        let rows = [
            Rows::new(&mut b.q, q_width),
            Rows::new(&mut b.k, k_width),
            Rows::new(&mut b.v, v_width),
        ];
        let (cache, layer) = (&mut *step.cache, step.layer);
        step.compute.store_rows(cache, layer, batch, rows, &b.threads, &|i, [q, k, v]| {
            if let Some(most) = spec.clamp {
                [&mut *q, &mut *k, &mut *v].into_iter().for_each(|row| clamp(row, most));
            }
            if self.v.is_none() {
                v.copy_from_slice(k);
            }
            if spec.value_scale != 1.0 {
                vec::scale(isa, v, spec.value_scale);
            }
            if let Some(norm) = &self.v_norm {
                v.chunks_exact_mut(spec.value_dim).for_each(|head| norm.apply(isa, head));
            }
            self.finish_query(isa, angles, [i, batch.place(i).1], q);
            finish(isa, spec, angles, i, &self.k_norm, k);
        });
    }

    /// Norms and rotates only queries, where keys and values belong to another layer.
    fn finish_queries(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let isa = step.compute.isa;
        let [q_width, ..] = spec.widths();
        let b = &mut *step.buffers;
        let (batch, n) = (&b.batch, b.batch.counts().all());
        let (angles, rows) = (&b.angles, [Rows::new(&mut b.q, q_width)]);
        step.compute.each_row(n, rows, &b.threads, &|i, [q], _| {
            self.finish_query(isa, angles, [i, batch.place(i).1], q);
        });
    }

    /// Applies norm, rotation and temperature to row `row` of the queries, which is at `position`.
    fn finish_query(&self, isa: Isa, angles: &Angles, [row, position]: [usize; 2], q: &mut [f32]) {
        let spec = &self.spec;
        finish(isa, spec, angles, row, &self.q_norm, q);
        if let Some(temperature) = &spec.temperature {
            vec::scale(isa, q, temperature.at(position));
        }
    }

    /// Computes attention of the step's rows, whose keys and values are in the cache: `q` `[rows, heads, key_dim]` yields
    /// `heads_out` `[rows, heads, value_dim]`.
    fn attend(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let layer = spec.kv_layer.unwrap_or(step.layer);
        let widths = [spec.key_dim, spec.value_dim].map(|dim| spec.heads * dim);
        let (params, group, sinks) = (spec.params(), spec.group(), self.sinks.as_deref());
        let bidirectional = spec.mask.is_bidirectional();
        let bias = self.biases.as_ref().map(|biases| biases.view());
        step.attend(layer, &QueryHeads { params, group, sinks, bias, widths, bidirectional });
    }
}

impl Part for Attention {
    fn linears(&self) -> Vec<&Linear> {
        let kv = self.k.iter().chain(&self.v);
        [&self.q].into_iter().chain(kv).chain(&self.gate).chain([&self.o]).collect()
    }

    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        let kv = self.k.iter_mut().chain(&mut self.v);
        [&mut self.q].into_iter().chain(kv).chain(&mut self.gate).chain([&mut self.o]).collect()
    }

    fn input_formats(&self) -> ActivationFormats {
        let kv = self.k.iter().chain(&self.v);
        let inputs = [&self.q].into_iter().chain(kv).chain(&self.gate);
        ActivationFormats::of(inputs.flat_map(Linear::kinds))
    }

    fn forward(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let [q_width, k_width, v_width, out_width] = spec.widths();
        let b = &mut *step.buffers;
        let in_queries = spec.output_gate == OutputGate::InQueries;
        let (k_rows, v_rows) = (Rows::new(&mut b.k, k_width), Rows::new(&mut b.v, v_width));
        let (compute, acts, threads) = (step.compute, &b.acts, &b.threads);
        let store = step.store;
        let (q, o) = (self.q.view(store), self.o.view(store));
        let [k, v, gate] =
            [&self.k, &self.v, &self.gate].map(|linear| linear.as_ref().map(|l| l.view(store)));
        if let (Some(k), Some(v), Some(gate)) = (&k, &v, &gate) {
            let gates = Rows::new(&mut b.gate, spec.gate_width());
            let outputs = [[Rows::new(&mut b.q, q_width)], [k_rows], [v_rows], [gates]];
            compute.multiply([[&q], [k], [v], [gate]], outputs, acts, threads, None);
        } else {
            let q_rows = match in_queries {
                false => Rows::new(&mut b.q, q_width),
                true => Rows::new(&mut b.gate, spec.gate_width()),
            };
            match (&k, &v) {
                (Some(k), Some(v)) => {
                    let outputs = [[q_rows], [k_rows], [v_rows]];
                    compute.multiply([[&q], [k], [v]], outputs, acts, threads, None);
                }
                (Some(k), None) => {
                    compute.multiply([[&q], [k]], [[q_rows], [k_rows]], acts, threads, None);
                }
                _ => compute.multiply([[&q]], [[q_rows]], acts, threads, None),
            }
            if let Some(gate) = &gate {
                let gates = Rows::new(&mut b.gate, spec.gate_width());
                compute.multiply([[gate]], [[gates]], acts, threads, None);
            }
        }
        if in_queries {
            split_gate(spec, step);
        }
        match spec.kv_layer {
            None => self.rope_and_store_kv(step),
            Some(_) => self.finish_queries(step),
        }
        if !step.keep_wanted_rows(|b, from, to| spec.keep_row(b, from, to)) {
            return;
        }
        self.attend(step);
        let b = &mut *step.buffers;
        let (isa, formats) = (step.compute.isa, ActivationFormats::of(self.o.kinds()));
        let input = Rows::new(&mut b.heads_out, out_width);
        let (n, acts, threads) = (b.batch.counts(), &mut b.acts, &b.threads);
        match spec.output_gate {
            OutputGate::None => {
                step.compute.pack(
                    n,
                    out_width,
                    [input],
                    acts,
                    formats,
                    threads,
                    &|_, [y], _, put| {
                        if let Some(norm) = &self.output_norm {
                            norm.apply(isa, y);
                        }
                        put(y);
                    },
                );
            }
            OutputGate::InQueries | OutputGate::Own | OutputGate::OfHeads => {
                let rows = [Rows::new(&mut b.gate, spec.gate_width()), input];
                step.compute.pack(
                    n,
                    out_width,
                    rows,
                    acts,
                    formats,
                    threads,
                    &|_, [gate, y], scratch, put| {
                        let each = spec.output_gate.each(gate, &mut scratch.row[..out_width]);
                        match spec.gate_function {
                            GateFunction::Sigmoid => sigmoid_mul(isa, each, y),
                            GateFunction::Softplus => {
                                each.iter_mut().zip(y).for_each(|(g, y)| *g = softplus(*g) * *y);
                            }
                        }
                        put(each);
                    },
                );
            }
        }
        step.compute.project(&o, Rows::new(&mut b.y, step.hidden), &b.acts, &b.threads);
    }
}

/// Sets numbers that are more than `most` away from 0 to ±`most`. NaN stays NaN.
fn clamp(x: &mut [f32], most: f32) {
    x.iter_mut().for_each(|x| *x = x.clamp(-most, most));
}

impl OutputGate {
    /// Returns the gates of all elements of the outputs, `[heads, value_dim]`: the first of these, or, in this memory, that of a head (`[heads]`) for all
    /// elements of its output.
    pub(super) fn each<'a>(self, gates: &'a mut [f32], memory: &'a mut [f32]) -> &'a mut [f32] {
        if self != OutputGate::OfHeads {
            return &mut gates[..memory.len()];
        }
        let value_dim = memory.len() / gates.len();
        memory.chunks_exact_mut(value_dim).zip(gates).for_each(|(each, gate)| each.fill(*gate));
        memory
    }
}

/// Splits `[rows, heads, 2, key_dim]` in the buffer `gate` into queries in `q` and gates, which are contiguous at the beginning
/// of their rows.
fn split_gate(spec: &AttentionSpec, step: &mut Step<'_>) {
    let ([width, ..], dim) = (spec.widths(), spec.key_dim);
    let b = &mut *step.buffers;
    let rows = [Rows::new(&mut b.q, width), Rows::new(&mut b.gate, 2 * width)];
    let n = b.batch.counts().all();
    step.compute.each_row(n, rows, &b.threads, &|_, [q, both], _| {
        for (head, q) in q.chunks_exact_mut(dim).enumerate() {
            let at = 2 * head * dim;
            q.copy_from_slice(&both[at..at + dim]);
            // The target holds no gate that is still to be moved.
            both.copy_within(at + dim..at + 2 * dim, head * dim);
        }
    });
}

/// Applies norm and rotation to all heads of a row of queries or keys.
fn finish(
    isa: Isa,
    spec: &AttentionSpec,
    angles: &Angles,
    row: usize,
    norms: &[Norm],
    x: &mut [f32],
) {
    let norm = |x: &mut [f32]| {
        if let Some(first) = norms.first() {
            // Each part has as many elements as there are weights: a head, or the whole row.
            let parts = x.chunks_exact_mut(first.weight.len());
            parts.zip(norms.iter().cycle()).for_each(|(part, norm)| norm.apply(isa, part));
        }
    };
    if !spec.norm_after_rope {
        norm(x);
    }
    if let Some(rope) = spec.rope {
        let (cos, sin) = angles.of(row, rope);
        for head in x.chunks_exact_mut(spec.key_dim) {
            rope_apply(isa, head, cos, sin, spec.pairing);
        }
    }
    if spec.norm_after_rope {
        norm(x);
    }
}
