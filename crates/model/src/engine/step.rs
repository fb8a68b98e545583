//! What a part of a layer reads and writes while it computes, except for its own weights.

use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::Rows;

use super::buffers::Buffers;
use super::compute::Compute;
use crate::cache::Cache;
use crate::load::Store;
use crate::parts::norm::Norm;

/// The rows of a call whose logits will be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Nothing,
    Last,
    All,
}

/// The rows that are computed now, and everything that a part reads and writes but its own weights.
pub(crate) struct Step<'s> {
    pub(crate) compute: Compute<'s>,
    pub(crate) store: &'s Store,
    pub(crate) hidden: usize,
    pub(crate) norm_eps: f32,
    /// Which layer it is.
    pub(crate) layer: usize,
    /// How many rows there are.
    pub(crate) rows: usize,
    /// The position of the first row; the others follow.
    pub(crate) position: usize,
    /// In the last layer that stores something: which rows are still needed when the cache is filled.
    pub(super) wanted: Option<Want>,
    pub(crate) buffers: &'s mut Buffers,
    pub(crate) cache: &'s mut Cache,
}

impl Step<'_> {
    /// Packs the residual stream, normed, for the next matrices.
    pub(crate) fn pack_normed(&mut self, norm: &Norm, formats: ActivationFormats) {
        let (isa, hidden) = (self.compute.isa, self.hidden);
        let b = &mut *self.buffers;
        let rows = [Rows::new(&mut b.x, hidden)];
        let (acts, threads) = (&mut b.acts, &b.threads);
        self.compute.pack(
            self.rows,
            hidden,
            rows,
            acts,
            formats,
            threads,
            &|_, [x], scratch, put| {
                let row = &mut scratch.row[..hidden];
                norm.apply_to(isa, x, row);
                put(row);
            },
        );
    }

    /// In the last layer that stores something, keeps only the wanted rows of `x` and of what the mixer still needs: `keep(buffers, row)` makes
    /// that row the first. A mixer calls it when the cache is filled. Returns whether there are any such rows.
    pub(crate) fn keep_wanted_rows(&mut self, keep: impl FnOnce(&mut Buffers, usize)) -> bool {
        match self.wanted {
            Some(Want::Nothing) => false,
            Some(Want::Last) if self.rows > 1 => {
                let last = self.rows - 1;
                Rows::new(&mut self.buffers.x, self.hidden).copy(last, 0);
                let width = self.buffers.token_input_width;
                Rows::new(&mut self.buffers.token_inputs, width).copy(last, 0);
                let width = self.buffers.angles.width;
                Rows::new(&mut self.buffers.angles.values, width).copy(last, 0);
                let width = self.buffers.stream_width;
                Rows::new(&mut self.buffers.streams, width).copy(last, 0);
                keep(self.buffers, last);
                self.position += last;
                self.rows = 1;
                true
            }
            _ => true,
        }
    }
}
