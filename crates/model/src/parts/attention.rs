//! Softmax attention with grouped queries: biases, norms per head, rotary positions, sliding windows, soft caps.
//!
//! Few tokens (a decode step) are cut along the positions, as Flash-Decoding does, so that one token of a model with one
//! key/value head still occupies all threads; partial results are merged. Many tokens are cut into tiles of tokens, as in
//! FlashAttention. Neither cut depends on the number of threads.

use std::ops::Range;

use alight_kernels::attention::{AttentionParams, KvShape, tile_tokens};
use alight_kernels::matmul::ActivationFormats;
use alight_kernels::norm::rms_norm_in_place;
use alight_kernels::parallel::{Attend, Rows, store_rows};
use alight_kernels::rope::{RopePairing, rope_apply};
use alight_kernels::vec;

use crate::engine::{Step, WorkSize};
use crate::spec::SpecError;
use crate::spec::keys::{Keys, MAX_WIDTH};
use crate::weights::{LayerFinder, MatrixRef, WeightError};

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
    /// A token sees itself and the `window − 1` positions before it.
    pub window: Option<usize>,
    /// Which of the model's rotary embeddings turns queries and keys; `None`: they are not turned.
    pub rope: Option<usize>,
    /// Which elements of a head rotate together.
    pub pairing: RopePairing,
    /// Which elements of queries and keys are normed together.
    pub qk_norm: QkNorm,
    /// What the file calls the sink of each query head, if they have one: a score of its own that is of no position, so
    /// that weights sum to less than 1.
    pub sinks: Option<&'static str>,
    /// What the file calls the output projection.
    pub output: &'static str,
}

/// Which elements of queries and of keys an RMSNorm works on together, before they are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// They are not normed.
    None,
    /// Those of a head. All heads have the same weights, `[key_dim]`.
    Heads,
    /// Those of all heads: the weights are `[heads · key_dim]`, and `[kv_heads · key_dim]` of keys.
    Whole,
}

impl AttentionSpec {
    /// Reads its keys: full attention with the model's first rotary embedding, interleaved pairs, and `1/√key_dim`.
    ///
    /// # Errors
    /// A size that no model can have.
    pub(crate) fn read(keys: &Keys<'_, '_>) -> Result<AttentionSpec, SpecError> {
        let hidden = keys.dimension("embedding_length", MAX_WIDTH)?;
        let heads = keys.dimension("attention.head_count", MAX_WIDTH)?;
        let kv_heads =
            keys.optional_dimension("attention.head_count_kv", MAX_WIDTH)?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            let expected = format!("a divisor of the {heads} query heads");
            return Err(keys.value("attention.head_count_kv", kv_heads, expected));
        }
        let head_dim = |key| match keys.optional_dimension(key, MAX_WIDTH)? {
            Some(dim) => Ok(dim),
            None if hidden.is_multiple_of(heads) => Ok(hidden / heads),
            None => {
                let expected = format!("a divisor of the embedding length {hidden}");
                Err(keys.value("attention.head_count", heads, expected))
            }
        };
        let key_dim = head_dim("attention.key_length")?;
        let value_dim = head_dim("attention.value_length")?;
        for (key, dim) in [("attention.key_length", key_dim), ("attention.value_length", value_dim)]
        {
            if heads * dim > MAX_WIDTH {
                let most = MAX_WIDTH / heads;
                return Err(keys.value(key, dim, format!("at most {most} for {heads} heads")));
            }
        }
        Ok(AttentionSpec {
            heads,
            kv_heads,
            key_dim,
            value_dim,
            scale: 1.0 / (key_dim as f32).sqrt(),
            softcap: None,
            window: None,
            rope: Some(0),
            pairing: RopePairing::Interleaved,
            qk_norm: QkNorm::None,
            sinks: None,
            output: "attn_output",
        })
    }

    /// Query heads per key/value head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Widths of queries, keys, values and outputs of all heads.
    fn widths(&self) -> [usize; 4] {
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        [
            heads * self.key_dim,
            kv_heads * self.key_dim,
            kv_heads * self.value_dim,
            heads * self.value_dim,
        ]
    }

    /// What it writes to.
    pub(crate) fn work(&self) -> WorkSize {
        let [q, k, v, out] = self.widths();
        WorkSize {
            q,
            k,
            v,
            heads_out: out,
            widest_input: out,
            attention_rows: self.group() * tile_tokens(self.group()).max(1),
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            ..WorkSize::default()
        }
    }

    /// f32 elements that the partial results of `tokens` tokens can take, with a cache of `capacity` positions.
    pub(crate) fn most_partials(&self, capacity: usize, tokens: usize) -> usize {
        Attend::most_partials(&self.kv_shape(capacity), self.group(), tokens)
    }

    /// The shape of its cache of `capacity` positions.
    pub(crate) fn kv_shape(&self, capacity: usize) -> KvShape {
        KvShape { kv_heads: self.kv_heads, k_dim: self.key_dim, v_dim: self.value_dim, capacity }
    }

    fn params(&self) -> AttentionParams {
        AttentionParams { scale: self.scale, softcap: self.softcap, window: self.window }
    }
}

/// Its tensors.
#[derive(Debug)]
pub(crate) struct AttentionWeights {
    /// `[heads · key_dim, hidden]`
    q: MatrixRef,
    /// `[kv_heads · key_dim, hidden]`
    k: MatrixRef,
    /// `[kv_heads · value_dim, hidden]`
    v: MatrixRef,
    /// `[hidden, heads · value_dim]`
    o: MatrixRef,
    q_bias: Option<Vec<f32>>,
    k_bias: Option<Vec<f32>>,
    v_bias: Option<Vec<f32>>,
    /// `[hidden]`
    pub(super) o_bias: Option<Vec<f32>>,
    /// `[key_dim]`, or `[heads · key_dim]`
    q_norm: Option<Vec<f32>>,
    /// `[key_dim]`, or `[kv_heads · key_dim]`
    k_norm: Option<Vec<f32>>,
    /// `[heads]`
    sinks: Option<Vec<f32>>,
}

/// A matrix and its bias.
type Projection = (MatrixRef, Option<Vec<f32>>);

/// The projections of queries, keys and values: a tensor each, or one whose rows follow one another.
fn qkv(
    find: &LayerFinder<'_, '_, '_>,
    widths: [usize; 3],
    hidden: usize,
) -> Result<[Projection; 3], WeightError> {
    let [q, k, v] = widths;
    if !find.has("attn_qkv") {
        let one = |name, width| Ok((find.matrix(name, hidden, width)?, find.bias(name, width)?));
        return Ok([one("attn_q", q)?, one("attn_k", k)?, one("attn_v", v)?]);
    }
    let all = q + k + v;
    let bias = find.bias("attn_qkv", all)?;
    let part = |rows: Range<usize>| {
        let matrix = find.rows_of("attn_qkv", [hidden, all], rows.clone())?;
        Ok((matrix, bias.as_ref().map(|bias| bias[rows].to_vec())))
    };
    Ok([part(0..q)?, part(q..q + k)?, part(q + k..all)?])
}

impl AttentionWeights {
    pub(super) fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &AttentionSpec,
        hidden: usize,
    ) -> Result<AttentionWeights, WeightError> {
        let [q, k, v, out] = spec.widths();
        let norm = |name, whole| match spec.qk_norm {
            QkNorm::None => Ok(None),
            QkNorm::Heads => find.norm(name, spec.key_dim).map(Some),
            QkNorm::Whole => find.norm(name, whole).map(Some),
        };
        let [query, key, value] = qkv(find, [q, k, v], hidden)?;
        let (q_bias, k_bias, v_bias) = (query.1, key.1, value.1);
        Ok(AttentionWeights {
            q: query.0,
            k: key.0,
            v: value.0,
            o: find.matrix(spec.output, out, hidden)?,
            q_bias,
            k_bias,
            v_bias,
            o_bias: find.bias(spec.output, hidden)?,
            q_norm: norm("attn_q_norm", q)?,
            k_norm: norm("attn_k_norm", k)?,
            sinks: spec.sinks.map(|name| find.vector(name, spec.heads)).transpose()?,
        })
    }

    pub(super) fn matrices(&self) -> [&MatrixRef; 4] {
        [&self.q, &self.k, &self.v, &self.o]
    }

    pub(super) fn matrices_mut(&mut self) -> [&mut MatrixRef; 4] {
        [&mut self.q, &mut self.k, &mut self.v, &mut self.o]
    }

    pub(super) fn input_formats(&self) -> ActivationFormats {
        ActivationFormats::of([self.q.kind(), self.k.kind(), self.v.kind()])
    }

    pub(super) fn forward(&self, spec: &AttentionSpec, step: &mut Step<'_>) {
        let [q, k, v, o] = self.matrices().map(|matrix| matrix.view(step.store));
        let [q_width, k_width, v_width, out_width] = spec.widths();
        let b = &mut *step.buffers;
        let outputs = [
            [Rows::new(&mut b.q, q_width)],
            [Rows::new(&mut b.k, k_width)],
            [Rows::new(&mut b.v, v_width)],
        ];
        step.compute.multiply([[&q], [&k], [&v]], outputs, &b.acts, &b.threads, None);
        self.rope_and_store_kv(spec, step);
        if !step.keep_wanted_rows(q_width) {
            return;
        }
        self.attend(spec, step);
        let b = &mut *step.buffers;
        let input = Rows::new(&mut b.heads_out, out_width);
        let formats = ActivationFormats::of([self.o.kind()]);
        step.compute.pack_rows(step.rows, input, &mut b.acts, formats, &b.threads);
        step.compute.project(&o, Rows::new(&mut b.y, step.hidden), &b.acts, &b.threads);
    }

    /// Biases, norms and rotation of queries and keys; keys and values go into the cache.
    fn rope_and_store_kv(&self, spec: &AttentionSpec, step: &mut Step<'_>) {
        let (isa, pos, n, eps) = (step.compute.isa, step.position, step.rows, step.norm_eps);
        let [q_width, k_width, v_width, _] = spec.widths();
        let b = &mut *step.buffers;
        let angles = &b.angles;
        let writer = step.kv.writer(step.layer);
        let rows = [
            Rows::new(&mut b.q, q_width),
            Rows::new(&mut b.k, k_width),
            Rows::new(&mut b.v, v_width),
        ];
        let threads = &mut step.compute.threads(&b.threads);
        store_rows(threads, isa, writer, [pos, n], rows, &|i, [q, k, v]| {
            let biases =
                [(&mut *q, &self.q_bias), (&mut *k, &self.k_bias), (&mut *v, &self.v_bias)];
            for (row, bias) in biases {
                if let Some(bias) = bias {
                    vec::add_assign(isa, row, bias);
                }
            }
            for (row, norm) in [(&mut *q, &self.q_norm), (&mut *k, &self.k_norm)] {
                if let Some(norm) = norm {
                    // As many elements as there are weights: a head, or the whole row.
                    for part in row.chunks_exact_mut(norm.len()) {
                        rms_norm_in_place(isa, part, norm, eps);
                    }
                }
                for head in row.chunks_exact_mut(spec.key_dim) {
                    if let Some(rope) = spec.rope {
                        let (cos, sin) = angles.of(i, rope);
                        rope_apply(isa, head, cos, sin, spec.pairing);
                    }
                }
            }
        });
    }

    /// Attends the step's rows, whose keys and values are in the cache: `q` `[rows, heads, key_dim]` gives `heads_out`
    /// `[rows, heads, value_dim]`.
    fn attend(&self, spec: &AttentionSpec, step: &mut Step<'_>) {
        let (isa, params, group) = (step.compute.isa, spec.params(), spec.group());
        let (cache, pos, tokens) = (step.kv.layer(step.layer), step.position, step.rows);
        let b = &mut *step.buffers;
        let threads = &mut step.compute.threads(&b.threads);
        let sinks = self.sinks.as_deref();
        let attend = Attend { isa, params, cache, group, sinks, pos, tokens };
        attend.run(threads, &b.q, &mut b.heads_out, &mut b.partials);
    }
}
