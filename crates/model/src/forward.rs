//! The forward pass: one block structure for all architectures, which differ by data.
//!
//! For `T` tokens a block is this (regions of the pool in brackets; with one token the steps in
//! between run on the caller's thread, with several they are spread over the tokens):
//! ```text
//!          x += norm?(down + bias?) of the block before; pack(norm(x))
//! [q k v]  one region over the rows of three matrices
//!          biases, norms of q and k, rotation, store k and v in the cache
//! [attend] pieces = tokens × key/value head × range of positions, then merge; pack
//! [o]
//!          x += norm?(o + bias?); pack(norm(x))
//! [gate·up] a piece computes both for its rows and applies the activation; pack
//! [down]
//! ```
//! In the last block only the positions whose logits are asked for go on after the cache is
//! filled. Logits are computed for those positions alone.
//!
//! Invariants: nothing here allocates; how work is cut follows from shapes and positions and never
//! from the number of threads, so neither do the results.

mod attention;
mod buffers;

use alight_kernels::attention::AttentionParams;
use alight_kernels::matmul::{Activations, Kinds, Matrix, Output, matmul};
use alight_kernels::norm::{rms_norm, rms_norm_in_place};
use alight_kernels::rope::{RopeTable, rope_apply};
use alight_kernels::{Isa, gate, vec};

pub(crate) use self::buffers::Buffers;
use self::buffers::{Angles, Scratch};
use crate::config::{Config, Gate};
use crate::error::ModelError;
use crate::kv::Kv;
use crate::load::{Store, arrival};
use crate::open::Model;
use crate::pool::{PerThread, Pool};
use crate::weights::{LayerRef, MatrixRef};

/// Rows of a matrix in one unit of work: what the kernels unpack at a time.
const UNIT_ROWS: usize = 32;
/// Tokens that a thread takes at once in the steps that go token by token.
const TOKENS_PER_TAKE: usize = 16;

/// Makes the row of a token on a thread and hands it to what packs it.
type MakeRow<'a> = dyn Fn(usize, usize, &dyn Fn(&[f32])) + Sync + 'a;

/// The positions of a batch whose logits will be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Nothing,
    Last,
    All,
}

/// A block: what is known of it before its matrices are there.
struct Block<'m> {
    w: &'m LayerRef,
    /// Which packings the consumers of qkv's, o's, gate and up's, and down's input need.
    kinds: [Kinds; 4],
    local: bool,
    attention: AttentionParams,
}

/// The matrices of a block at hand.
struct Layer<'m> {
    w: &'m LayerRef,
    q: Matrix<'m>,
    k: Matrix<'m>,
    v: Matrix<'m>,
    o: Matrix<'m>,
    gate: Matrix<'m>,
    up: Matrix<'m>,
    down: Matrix<'m>,
}

/// A network ready to run: where the weights are, tables, and the threads.
pub(crate) struct Net<'m> {
    config: &'m Config,
    pool: &'m Pool,
    isa: Isa,
    store: &'m Store,
    /// `[vocab, embedding]`.
    embed: &'m MatrixRef,
    blocks: Vec<Block<'m>>,
    output_norm: &'m [f32],
    /// `[vocab, embedding]`.
    output: &'m MatrixRef,
    output_bias: Option<&'m [f32]>,
    /// Behind which gate the output is.
    output_section: usize,
    /// Frequencies of the global layers, and of the local ones.
    ropes: [Option<RopeTable>; 2],
}

impl<'m> Net<'m> {
    pub(crate) fn new(model: &'m Model) -> Net<'m> {
        let config = model.config();
        let weights = model.weights();
        let kinds = |ms: &[&MatrixRef]| Kinds::of(ms.iter().map(|m| m.kind()));
        let blocks = weights.layers.iter().enumerate().map(|(i, w)| {
            let local = config.is_local(i);
            Block {
                w,
                kinds: [
                    kinds(&[&w.q, &w.k, &w.v]),
                    kinds(&[&w.o]),
                    kinds(&[&w.gate, &w.up]),
                    kinds(&[&w.down]),
                ],
                local,
                attention: AttentionParams {
                    scale: config.attention_scale,
                    softcap: config.attention_softcap,
                    window: config.local.as_ref().filter(|_| local).map(|l| l.window),
                },
            }
        });
        Net {
            config,
            pool: model.pool(),
            isa: model.isa(),
            store: model.store(),
            embed: &weights.embed,
            blocks: blocks.collect(),
            output_norm: &weights.output_norm,
            output: &weights.output,
            output_bias: weights.output_bias.as_deref(),
            output_section: model.store().output_section(),
            ropes: [
                Some(RopeTable::new(&config.rope)),
                config.local.as_ref().map(|local| RopeTable::new(&local.rope)),
            ],
        }
    }

    /// The matrices of block `index`, as soon as they are there.
    fn layer(&self, index: usize) -> Result<Layer<'m>, ModelError> {
        self.store.arrival().wait(arrival::layer(index))?;
        let w = self.blocks[index].w;
        let [q, k, v, o, gate, up, down] = w.matrices().map(|m| m.view(self.store));
        Ok(Layer { w, q, k, v, o, gate, up, down })
    }

    /// Runs `tokens`, which follow the `pos` positions in the cache. Afterwards the cache holds
    /// them, and row `i` of `b.x` is the residual stream after the last block of the `i`-th token
    /// that was wanted.
    ///
    /// The caller has checked that ids are in the vocabulary, that there are tokens, no more than
    /// the buffers' batch, and that the cache has room.
    ///
    /// # Errors
    /// The weights do not come. What the cache holds from `pos` on is worthless then.
    pub(crate) fn run(
        &self,
        b: &mut Buffers,
        kv: &mut Kv,
        tokens: &[u32],
        mut pos: usize,
        want: Want,
    ) -> Result<(), ModelError> {
        let (isa, c) = (self.isa, self.config);
        let (d, ff, eps) = (c.embedding, c.feed_forward, c.rms_eps);
        let (qd, kd, vd) = (c.heads * c.key_dim, c.kv_heads * c.key_dim, c.kv_heads * c.value_dim);
        let od = c.heads * c.value_dim;
        let mut n = tokens.len();
        let Buffers { x, y, q, k, v, att, gate, up, acts, angles, partials, threads, .. } = b;
        // All rows below are taken as `row_mut(token, columns)` by the unit that owns the token,
        // or written by `matmul` in disjoint columns.
        let x = Output::new(x, d);
        let y = Output::new(y, d);
        let q = Output::new(q, qd);
        let k = Output::new(k, kd);
        let v = Output::new(v, vd);
        let att = Output::new(att, od);
        let gate = Output::new(gate, ff);
        let up = Output::new(up, ff);
        let threads = &*threads;

        self.store.arrival().wait(arrival::EMBEDDING)?;
        {
            let embed = self.embed.view(self.store);
            let angles = angles.each_mut().map(Angles::rows);
            self.each_token(n, &|i, _| {
                // SAFETY: each token is one unit's.
                let row = unsafe { x.row_mut(i, 0..d) };
                embed.dequantize_row(tokens[i] as usize, row);
                if c.embedding_scale != 1.0 {
                    vec::scale(isa, row, c.embedding_scale);
                }
                for (table, angles) in self.ropes.iter().zip(&angles) {
                    if let Some(table) = table {
                        // SAFETY: as above.
                        let (cos, sin) = unsafe { angles.row_mut(i) };
                        table.fill(pos + i, cos, sin);
                    }
                }
            });
        }

        for (index, block) in self.blocks.iter().enumerate() {
            let layer = &self.layer(index)?;
            let w = block.w;
            let before = index.checked_sub(1).map(|i| self.blocks[i].w);
            self.pack(acts, n, d, block.kinds[0], &|i, thread, put| {
                // SAFETY: each token is one unit's, each thread's scratch one unit's at a time.
                let (x, y, s) =
                    unsafe { (x.row_mut(i, 0..d), y.row_mut(i, 0..d), threads.get(thread)) };
                if let Some(w) = before {
                    self.residual(x, y, &w.down_bias, &w.post_ffn_norm);
                }
                rms_norm(isa, x, &w.attn_norm, eps, &mut s.row);
                put(&s.row);
            });
            self.project(&[(&layer.q, q), (&layer.k, k), (&layer.v, v)], acts, threads);
            self.place(block, angles, kv, index, pos, n, [q, k, v]);

            if index + 1 == self.blocks.len() {
                match want {
                    Want::Nothing => return Ok(()),
                    Want::All => {}
                    Want::Last if n == 1 => {}
                    Want::Last => {
                        // SAFETY: no region is in flight, and the rows are different ones.
                        unsafe {
                            x.row_mut(0, 0..d).copy_from_slice(x.row_mut(n - 1, 0..d));
                            q.row_mut(0, 0..qd).copy_from_slice(q.row_mut(n - 1, 0..qd));
                        }
                        pos += n - 1;
                        n = 1;
                    }
                }
            }

            let cache = kv.layer(index);
            self.attend(&block.attention, &cache, pos, n, q, att, partials, threads);
            self.pack(acts, n, od, block.kinds[1], &|i, _, put| {
                // SAFETY: each token is one unit's.
                put(unsafe { att.row_mut(i, 0..od) });
            });
            self.project(&[(&layer.o, y)], acts, threads);
            self.pack(acts, n, d, block.kinds[2], &|i, thread, put| {
                // SAFETY: each token is one unit's, each thread's scratch one unit's at a time.
                let (x, y, s) =
                    unsafe { (x.row_mut(i, 0..d), y.row_mut(i, 0..d), threads.get(thread)) };
                self.residual(x, y, &w.o_bias, &w.post_attn_norm);
                rms_norm(isa, x, &w.ffn_norm, eps, &mut s.row);
                put(&s.row);
            });
            self.gate_up(layer, acts, threads, gate, up, n);
            self.pack(acts, n, ff, block.kinds[3], &|i, _, put| {
                // SAFETY: each token is one unit's.
                put(unsafe { gate.row_mut(i, 0..ff) });
            });
            self.project(&[(&layer.down, y)], acts, threads);
        }

        if let Some(block) = self.blocks.last() {
            self.each_token(n, &|i, _| {
                // SAFETY: each token is one unit's.
                let (x, y) = unsafe { (x.row_mut(i, 0..d), y.row_mut(i, 0..d)) };
                self.residual(x, y, &block.w.down_bias, &block.w.post_ffn_norm);
            });
        }
        Ok(())
    }

    /// Computes the logits of the rows `first..first + n` of the residual stream into `logits`
    /// `[n, vocab]`.
    ///
    /// # Errors
    /// The output matrix does not come.
    pub(crate) fn logits(
        &self,
        b: &mut Buffers,
        first: usize,
        n: usize,
        logits: &mut [f32],
    ) -> Result<(), ModelError> {
        let (isa, c) = (self.isa, self.config);
        let (d, vocab) = (c.embedding, c.vocab);
        let Buffers { x, acts, threads, .. } = b;
        let x = Output::new(x, d);
        let threads = &*threads;
        let kinds = Kinds::of([self.output.kind()]);
        self.pack(acts, n, d, kinds, &|i, thread, put| {
            // SAFETY: each token is one unit's, each thread's scratch one unit's at a time.
            let (x, s) = unsafe { (x.row_mut(first + i, 0..d), threads.get(thread)) };
            rms_norm(isa, x, self.output_norm, c.rms_eps, &mut s.row);
            put(&s.row);
        });
        let out = Output::new(logits, vocab);
        let acts = &*acts;
        self.store.arrival().wait(self.output_section)?;
        let output = self.output.view(self.store);
        self.pool.run(vocab.div_ceil(UNIT_ROWS), usize::MAX, &|units, thread| {
            let rows = units.start * UNIT_ROWS..(units.end * UNIT_ROWS).min(vocab);
            // SAFETY: the units of a region are disjoint, so are their rows; scratch as above.
            unsafe {
                matmul(&output, rows.clone(), acts, out, &mut threads.get(thread).matmul);
                if let Some(bias) = self.output_bias {
                    let bias = &bias[rows.clone()];
                    (0..n).for_each(|t| vec::add_assign(isa, out.row_mut(t, rows.clone()), bias));
                }
                if let Some(cap) = c.logit_softcap {
                    (0..n).for_each(|t| vec::softcap(isa, out.row_mut(t, rows.clone()), cap));
                }
            }
        });
        Ok(())
    }

    /// Runs `f(token, thread)` for every token.
    fn each_token(&self, n: usize, f: &(dyn Fn(usize, usize) + Sync)) {
        self.pool.run(n, TOKENS_PER_TAKE, &|tokens, thread| tokens.for_each(|i| f(i, thread)));
    }

    /// Packs one row of `cols` activations per token: `f(token, thread, put)` makes the row and
    /// hands it to `put`.
    fn pack(&self, acts: &mut Activations, n: usize, cols: usize, kinds: Kinds, f: &MakeRow<'_>) {
        acts.begin(self.isa, n, cols, kinds);
        let slots = acts.slots();
        self.each_token(n, &|i, thread| {
            // SAFETY: each token is one unit's.
            f(i, thread, &|row| unsafe { slots.put(i, row) });
        });
    }

    /// `x += norm?(y + bias?)`; `y` is used up.
    fn residual(
        &self,
        x: &mut [f32],
        y: &mut [f32],
        bias: &Option<Vec<f32>>,
        norm: &Option<Vec<f32>>,
    ) {
        if let Some(bias) = bias {
            vec::add_assign(self.isa, y, bias);
        }
        if let Some(norm) = norm {
            rms_norm_in_place(self.isa, y, norm, self.config.rms_eps);
        }
        vec::add_assign(self.isa, x, y);
    }

    /// Multiplies the packed activations with several matrices in one region.
    fn project(
        &self,
        jobs: &[(&Matrix<'_>, Output<'_>)],
        acts: &Activations,
        threads: &PerThread<Scratch>,
    ) {
        let units = |w: &Matrix<'_>| w.rows().div_ceil(UNIT_ROWS);
        let total = jobs.iter().map(|(w, _)| units(w)).sum();
        self.pool.run(total, usize::MAX, &|range, thread| {
            // SAFETY: each thread's scratch is one unit's at a time.
            let scratch = unsafe { threads.get(thread) };
            let mut base = 0;
            for (w, out) in jobs {
                let end = base + units(w);
                let (from, to) = (range.start.max(base), range.end.min(end));
                if from < to {
                    let rows = (from - base) * UNIT_ROWS..((to - base) * UNIT_ROWS).min(w.rows());
                    // SAFETY: the units of a region are disjoint, so are their rows.
                    unsafe { matmul(w, rows, acts, *out, &mut scratch.matmul) };
                }
                base = end;
            }
        });
    }

    /// `gate = activation(gate) · up` for every token.
    fn gate_up(
        &self,
        layer: &Layer<'_>,
        acts: &Activations,
        threads: &PerThread<Scratch>,
        gate: Output<'_>,
        up: Output<'_>,
        n: usize,
    ) {
        let (isa, ff) = (self.isa, self.config.feed_forward);
        let activate = match self.config.gate {
            Gate::Silu => gate::silu_mul,
            Gate::GeluTanh => gate::gelu_tanh_mul,
        };
        self.pool.run(ff.div_ceil(UNIT_ROWS), usize::MAX, &|units, thread| {
            let rows = units.start * UNIT_ROWS..(units.end * UNIT_ROWS).min(ff);
            // SAFETY: the units of a region are disjoint, so are their rows; each thread's scratch
            // is one unit's at a time.
            unsafe {
                let scratch = &mut threads.get(thread).matmul;
                matmul(&layer.gate, rows.clone(), acts, gate, scratch);
                matmul(&layer.up, rows.clone(), acts, up, scratch);
                for t in 0..n {
                    let (g, u) = (gate.row_mut(t, rows.clone()), up.row_mut(t, rows.clone()));
                    if let Some(bias) = &layer.w.gate_bias {
                        vec::add_assign(isa, g, &bias[rows.clone()]);
                    }
                    if let Some(bias) = &layer.w.up_bias {
                        vec::add_assign(isa, u, &bias[rows.clone()]);
                    }
                    activate(isa, g, u);
                }
            }
        });
    }

    /// Biases, norms and rotation of queries and keys; keys and values go into the cache.
    #[allow(clippy::too_many_arguments)]
    fn place(
        &self,
        block: &Block<'_>,
        angles: &mut [Angles; 2],
        kv: &mut Kv,
        index: usize,
        pos: usize,
        n: usize,
        [q, k, v]: [Output<'_>; 3],
    ) {
        let (isa, c, w) = (self.isa, self.config, block.w);
        let angles = angles[usize::from(block.local)].rows();
        let writer = kv.writer(index);
        let one = |i: usize| {
            // SAFETY: each token is one unit's; angles are only read here.
            let (q, k, v, (cos, sin)) = unsafe {
                (
                    q.row_mut(i, 0..c.heads * c.key_dim),
                    k.row_mut(i, 0..c.kv_heads * c.key_dim),
                    v.row_mut(i, 0..c.kv_heads * c.value_dim),
                    angles.row_mut(i),
                )
            };
            let biases = [(&mut *q, &w.q_bias), (&mut *k, &w.k_bias), (&mut *v, &w.v_bias)];
            for (row, bias) in biases {
                if let Some(bias) = bias {
                    vec::add_assign(isa, row, bias);
                }
            }
            for (row, norm) in [(&mut *q, &w.q_norm), (&mut *k, &w.k_norm)] {
                for head in row.chunks_exact_mut(c.key_dim) {
                    if let Some(norm) = norm {
                        rms_norm_in_place(isa, head, norm, c.rms_eps);
                    }
                    rope_apply(isa, head, cos, sin, c.rope_pairing);
                }
            }
            // SAFETY: each position is one unit's.
            unsafe { writer.store(isa, pos + i, k, v) };
        };
        // Positions of one line of the key cache go to one thread.
        const LINE: usize = alight_kernels::attention::LINE;
        let (first, last) = (pos / LINE, (pos + n - 1) / LINE);
        self.pool.run(last - first + 1, 4, &|lines, _| {
            let from = ((first + lines.start) * LINE).max(pos);
            let to = ((first + lines.end) * LINE).min(pos + n);
            (from..to).for_each(|p| one(p - pos));
        });
    }
}
