//! Everything that a session's forward pass writes to, allocated once.
//!
//! Large buffers come from the allocator as zero pages, which take no memory until they are
//! touched: a batch of 512 that never comes is not paid for.

use alight_kernels::attention::{AttentionLimits, AttentionScratch, FEW_TOKENS, tile_tokens};
use alight_kernels::matmul::{Activations, MatmulScratch, Output};

use super::attention::most_partials;
use crate::config::Config;
use crate::kv::Kv;
use crate::pool::PerThread;

/// What one thread may write to.
pub(super) struct Scratch {
    /// A normed row, `[embedding]`.
    pub(super) row: Vec<f32>,
    pub(super) matmul: MatmulScratch,
    pub(super) attention: AttentionScratch,
}

/// Cosines and sines of a batch, `[batch, pairs]` each.
pub(super) struct Angles {
    pairs: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// [`Angles`] by token, for several threads.
pub(super) struct AngleRows<'a> {
    pairs: usize,
    cos: Output<'a>,
    sin: Output<'a>,
}

impl Angles {
    pub(super) fn rows(&mut self) -> AngleRows<'_> {
        let pairs = self.pairs;
        AngleRows {
            pairs,
            cos: Output::new(&mut self.cos, pairs),
            sin: Output::new(&mut self.sin, pairs),
        }
    }
}

impl AngleRows<'_> {
    /// Cosines and sines of a token.
    ///
    /// # Safety
    /// No other reference to this token's may exist.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn row_mut(&self, token: usize) -> (&mut [f32], &mut [f32]) {
        // SAFETY: as promised by the caller.
        unsafe { (self.cos.row_mut(token, 0..self.pairs), self.sin.row_mut(token, 0..self.pairs)) }
    }
}

/// The buffers of a session.
pub(crate) struct Buffers {
    /// The residual stream, `[batch, embedding]`.
    pub(super) x: Vec<f32>,
    /// What attention or feed-forward adds to it, `[batch, embedding]`.
    pub(super) y: Vec<f32>,
    /// `[batch, heads, key_dim]`.
    pub(super) q: Vec<f32>,
    /// `[batch, kv_heads, key_dim]`.
    pub(super) k: Vec<f32>,
    /// `[batch, kv_heads, value_dim]`.
    pub(super) v: Vec<f32>,
    /// `[batch, heads, value_dim]`.
    pub(super) att: Vec<f32>,
    /// `[batch, feed_forward]`.
    pub(super) gate: Vec<f32>,
    /// `[batch, feed_forward]`.
    pub(super) up: Vec<f32>,
    /// The packed input of the next matrices.
    pub(super) acts: Activations,
    /// Of the global and of the local layers.
    pub(super) angles: [Angles; 2],
    /// Partial results of attention.
    pub(super) partials: Vec<f32>,
    pub(super) threads: PerThread<Scratch>,
}

impl Buffers {
    /// For batches of up to `batch` tokens on `threads` threads.
    pub(crate) fn new(c: &Config, kv: &Kv, batch: usize, threads: usize) -> Buffers {
        let row = |width: usize| vec![0.0; batch * width];
        let (q, od) = (c.heads * c.key_dim, c.heads * c.value_dim);
        let tile = tile_tokens(c.group()) * c.group();
        let limits =
            AttentionLimits { rows: tile.max(c.group()), k_dim: c.key_dim, v_dim: c.value_dim };
        let widest = c.embedding.max(od).max(c.feed_forward);
        let angles = |dims: usize| {
            let pairs = dims / 2;
            Angles { pairs, cos: row(pairs), sin: row(pairs) }
        };
        Buffers {
            x: row(c.embedding),
            y: row(c.embedding),
            q: row(q),
            k: row(c.kv_heads * c.key_dim),
            v: row(c.kv_heads * c.value_dim),
            att: row(od),
            gate: row(c.feed_forward),
            up: row(c.feed_forward),
            acts: Activations::new(batch, widest),
            angles: [
                angles(c.rope.dims),
                angles(c.local.as_ref().map_or(0, |local| local.rope.dims)),
            ],
            partials: vec![0.0; most_partials(c, &kv.shape(), batch.min(FEW_TOKENS))],
            threads: PerThread::new(threads, || Scratch {
                row: vec![0.0; c.embedding],
                matmul: MatmulScratch::new(),
                attention: AttentionScratch::new(limits),
            }),
        }
    }
}
