//! LAuReL (Menghani, Kumar and Kumar 2024), as in Gemma 3n: in addition to the mixer's output, its normed input and a projection of
//! that through a short row are added to the residual stream, and the sum is divided by √2.
//!
//! `x = (x + mixer_output + n + norm(right · left · n)) / √2`, `n` being the mixer's input.

use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::Rows;
use alight_kernels::vec;

use crate::norm::Norm;
use crate::parts::buffers::WorkSize;
use crate::parts::step::{Order, Step};
use crate::tensors::{LayerFinder, Linear, MatrixRef, WeightError};

/// Returns the sizes of the buffers of a layer whose short row has `rank` elements; 0: it has none.
pub(crate) fn work(rank: usize) -> WorkSize {
    WorkSize { k: rank, widest_input: rank, ..WorkSize::default() }
}

/// The tensors of one layer.
#[derive(Debug)]
pub(crate) struct LaurelWeights {
    /// `[rank, hidden]`
    left: Linear,
    /// `[hidden, rank]`
    right: Linear,
    /// `[hidden]`, of the output.
    norm: Norm,
}

impl LaurelWeights {
    pub(crate) fn find(
        find: &LayerFinder<'_, '_, '_>,
        rank: usize,
        hidden: usize,
    ) -> Result<LaurelWeights, WeightError> {
        Ok(LaurelWeights {
            left: find.linear("laurel_l", hidden, rank)?,
            right: find.linear("laurel_r", rank, hidden)?,
            norm: find.norm("laurel_post_norm", hidden)?,
        })
    }

    fn linears(&self) -> [&Linear; 2] {
        [&self.left, &self.right]
    }

    pub(crate) fn matrices(&self) -> [&MatrixRef; 2] {
        self.linears().map(|linear| &linear.matrix)
    }

    pub(crate) fn matrices_mut(&mut self) -> [&mut MatrixRef; 2] {
        [&mut self.left.matrix, &mut self.right.matrix]
    }

    /// Packs the residual stream, normed by `input`, for the mixer's matrices, and adds the terms that bypass the mixer.
    pub(crate) fn forward(&self, input: &Norm, formats: ActivationFormats, step: &mut Step<'_>) {
        let [left, right] = self.linears().map(|matrix| matrix.view(step.store));
        let (isa, hidden, rank) = (step.compute.isa, step.hidden, self.left.rows());
        let (n, own) = (step.rows(), ActivationFormats::of(self.left.kinds()));
        step.pack_normed(None, Order::AddThenNorm, Some(input), own);
        let b = &mut *step.buffers;
        let short = Rows::new(&mut b.k, rank);
        step.compute.project(&left, short, &b.acts, &b.threads);
        let (short, own) = (Rows::new(&mut b.k, rank), ActivationFormats::of(self.right.kinds()));
        step.compute.pack_rows(n, short, &mut b.acts, own, &b.threads);
        step.compute.project(&right, Rows::new(&mut b.y, hidden), &b.acts, &b.threads);
        let rows = [Rows::new(&mut b.x, hidden), Rows::new(&mut b.y, hidden)];
        let (acts, threads) = (&mut b.acts, &b.threads);
        step.compute.pack(n, hidden, rows, acts, formats, threads, &|_, [x, y], scratch, put| {
            let normed = &mut scratch.row[..hidden];
            input.apply_to(isa, x, normed);
            self.norm.apply(isa, y);
            vec::add_assign(isa, x, y);
            vec::add_assign(isa, x, normed);
            put(normed);
        });
    }
}
