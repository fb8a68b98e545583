//! The layer that predicts the token after the next one, which some files have (multi-token prediction, MTP): it proposes tokens from the model's own
//! states of a sequence.
//!
//! Its input at a position is the token there, joined with the final state of the model at the position before (see [`Join`](crate::weights::Join));
//! within a draft, with the final state of the layer itself. It has its own keys and values, of the positions that it was shown: where a sequence
//! begins with reused tokens, as when it shares a prompt, the layer lacks them. That costs proposals, but no exactness.

use super::net::Net;
use super::speculate::MAX_DRAFT;
use crate::cache::Cache;
use crate::cancel::Cancel;
use crate::error::{ModelError, StepError};
use crate::open::Model;
use crate::parts::batch::{LogitRows, Role, SequenceRows, Span};
use crate::parts::buffers::Buffers;
use alight_kernels::attention::KvType;
use alight_kernels::matmul::Precision;

/// Rows that are computed together.
const ROWS: usize = 64;
/// Number of latest states that are kept: that of a token and those of a whole draft, any of which may be the last accepted one.
const KEPT: usize = MAX_DRAFT + 1;

/// The state of such a layer for one sequence.
pub(super) struct MtpHead<'m> {
    net: Net<'m>,
    cache: Cache,
    buffers: Buffers,
    hidden: usize,
    context: usize,
    /// The position of the sequence that is the first one of the cache, the number of positions in it, and the number of draft tokens after them.
    start: usize,
    len: usize,
    drafted: usize,
    /// `[KEPT, hidden]`: the model's final states at the latest positions, each at its position modulo `KEPT`.
    states: Vec<f32>,
    /// The position after the latest of them, and the number kept.
    end: usize,
    kept: usize,
    /// `[hidden]`: the state that the next token of a draft is joined with.
    state: Vec<f32>,
    /// `[vocab]`
    logits: Vec<f32>,
}

impl<'m> MtpHead<'m> {
    /// Creates the layer for sequences of up to `context` tokens; `None` if the model has no such layer.
    ///
    /// # Errors
    /// The system does not provide the memory for its keys and values.
    pub(super) fn new(model: &'m Model, context: usize) -> Result<Option<MtpHead<'m>>, ModelError> {
        let Some(mtp) = &model.weights().mtp else { return Ok(None) };
        let threads = (model.pool(), model.isa());
        let net = Net::new(&mtp.spec, mtp.net(model.weights()), model.store(), threads);
        let (hidden, vocab) = (mtp.spec.hidden_size, mtp.spec.vocab);
        Ok(Some(MtpHead {
            cache: net.cache(context, 1, 0, KvType::F16)?,
            buffers: net.buffers(context, [ROWS, 1], Precision::Bits8),
            net,
            hidden,
            context,
            start: 0,
            len: 0,
            drafted: 0,
            states: vec![0.0; KEPT * hidden],
            end: 0,
            kept: 0,
            state: vec![0.0; hidden],
            logits: vec![0.0; vocab],
        }))
    }

    /// Lets `cancel` end its steps early.
    pub(super) fn cancel_by(&mut self, cancel: Cancel) {
        self.net.cancel_by(cancel);
    }

    /// Forgets the sequence.
    pub(super) fn clear(&mut self) {
        (self.start, self.len, self.drafted, self.end, self.kept) = (0, 0, 0, 0, 0);
        self.cache.clear(0);
    }

    /// Processes rows of the sequence that `model` has computed, all of which are in `b`.
    ///
    /// # Errors
    /// The weights cannot be loaded.
    pub(super) fn see(
        &mut self,
        model: &Net<'_>,
        b: &Buffers,
        span: &Span,
    ) -> Result<(), StepError> {
        let (position, n, hidden) = (span.position, span.rows.len(), self.hidden);
        if !(self.start..=self.start + self.len).contains(&position) {
            self.clear();
            (self.start, self.end) = (position, position);
        }
        // Positions from this one on were not accepted.
        let len = position - self.start;
        if self.cache.go_back(0, len) != len {
            self.clear();
            (self.start, self.end) = (position, position);
        }
        (self.len, self.drafted) = (position - self.start, 0);
        self.kept = self.kept.saturating_sub(self.end.saturating_sub(position));
        self.end = position;
        let tokens = &b.batch.tokens()[span.rows.clone()];
        for (part, tokens) in tokens.chunks(ROWS).enumerate() {
            for i in 0..tokens.len() {
                let state = &mut self.buffers.streams[i * hidden..][..hidden];
                match part * ROWS + i {
                    0 if self.kept > 0 => {
                        let at = (position - 1) % KEPT * hidden;
                        state.copy_from_slice(&self.states[at..][..hidden]);
                    }
                    0 => state.fill(0.0),
                    row => model.hidden(b, span.rows.start + row - 1, state),
                }
            }
            self.run(span.role, tokens, LogitRows::Nothing)?;
            self.len += tokens.len();
        }
        for row in n.saturating_sub(KEPT)..n {
            let at = (position + row) % KEPT * hidden;
            model.hidden(b, span.rows.start + row, &mut self.states[at..][..hidden]);
        }
        (self.end, self.kept) = (position + n, (self.kept + n).min(KEPT));
        Ok(())
    }

    /// Computes tokens that follow the contents of the cache. Their states are in the buffers.
    fn run(&mut self, role: Role, tokens: &[u32], want: LogitRows) -> Result<(), StepError> {
        let position = self.len + self.drafted;
        let of = SequenceRows { sequence: 0, role, long: false, second_segment: None };
        self.buffers.batch.clear();
        self.buffers.batch.push(of, position, tokens, want, false);
        let prepared = self.cache.prepare(0, position, position + tokens.len());
        assert!(prepared, "pages for the whole context");
        self.net.run(&mut self.buffers, &mut self.cache)
    }

    /// Returns true if the layer has seen exactly the positions before `position`.
    pub(super) fn has_seen(&self, position: usize) -> bool {
        self.kept > 0 && self.end == position && self.start + self.len == position
    }

    /// Begins a draft with the token after the positions that it [has seen](MtpHead::has_seen).
    ///
    /// # Errors
    /// The weights cannot be loaded.
    pub(super) fn begin(&mut self, token: u32) -> Result<(), ModelError> {
        let at = (self.end - 1) % KEPT * self.hidden;
        self.state.copy_from_slice(&self.states[at..][..self.hidden]);
        self.drafted = 0;
        self.decode(token)
    }

    /// Continues with a token of the draft.
    ///
    /// # Errors
    /// The weights cannot be loaded.
    pub(super) fn decode(&mut self, token: u32) -> Result<(), ModelError> {
        self.buffers.streams[..self.hidden].copy_from_slice(&self.state);
        self.run(Role::Decode, &[token], LogitRows::Last)?;
        self.drafted += 1;
        self.net.hidden(&self.buffers, 0, &mut self.state);
        let counts = self.buffers.batch.counts();
        self.net.logits(&mut self.buffers, 0, counts, &mut self.logits, None)?;
        Ok(())
    }

    /// The logits of the next token.
    pub(super) fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Returns true if another token fits.
    pub(super) fn has_room(&self) -> bool {
        self.len + self.drafted < self.context
    }
}

#[cfg(test)]
mod tests;
