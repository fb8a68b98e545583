//! A dense feed-forward part and a mixture of experts beside each other (Gemma 4's mixture): their outputs are normed, each by
//! its own norm, and added.
//!
//! `y = dense_norm(dense(input)) + experts_norm(experts(experts_input_norm(x)))`, where the router takes
//! `rms(x) / √hidden ⊙ scale`. `input` is what the layer's norm has made of the residual stream `x`.

use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::Rows;
use alight_kernels::vec;

use super::dense::{DenseSpec, DenseWeights};
use super::experts::{ExpertsSpec, ExpertsWeights};
use crate::norm::Norm;
use crate::parts::buffers::WorkSize;
use crate::parts::step::{Order, Step};
use crate::tensors::{LayerFinder, MatrixRef, WeightError};

/// A dense part and a mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseAndExpertsSpec {
    /// The dense part.
    pub dense: DenseSpec,
    /// The mixture, without a shared network.
    pub experts: ExpertsSpec,
}

impl DenseAndExpertsSpec {
    /// What it writes to: the dense part's output is kept in `q`.
    pub(crate) fn work(&self, hidden: usize) -> WorkSize {
        let kept = WorkSize { q: hidden, ..WorkSize::default() };
        kept.max(self.dense.work()).max(self.experts.work())
    }
}

/// Their tensors.
#[derive(Debug)]
pub(crate) struct DenseAndExpertsWeights {
    dense: DenseWeights,
    experts: ExpertsWeights,
    /// `[hidden]`, of the dense part's output.
    dense_norm: Norm,
    /// `[hidden]`, of the router's input: the scale, divided by `√hidden`.
    router_norm: Norm,
    /// `[hidden]`
    experts_input_norm: Norm,
    /// `[hidden]`, of the experts' output.
    experts_norm: Norm,
}

impl DenseAndExpertsWeights {
    pub(super) fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &DenseAndExpertsSpec,
        hidden: usize,
    ) -> Result<DenseAndExpertsWeights, WeightError> {
        let root = (hidden as f32).sqrt();
        let scale = find.vector("ffn_gate_inp.scale", hidden)?;
        let weight = scale.iter().map(|scale| scale / root).collect();
        Ok(DenseAndExpertsWeights {
            dense: DenseWeights::find(find, &spec.dense, hidden)?,
            experts: ExpertsWeights::find(find, &spec.experts, hidden)?,
            dense_norm: find.norm("post_ffw_norm_1", hidden)?,
            router_norm: Norm { weight, ..find.unweighted_norm(hidden) },
            experts_input_norm: find.norm("pre_ffw_norm_2", hidden)?,
            experts_norm: find.norm("post_ffw_norm_2", hidden)?,
        })
    }

    pub(super) fn matrices(&self) -> Vec<&MatrixRef> {
        let mut all = self.dense.matrices();
        all.append(&mut self.experts.matrices());
        all
    }

    pub(super) fn matrices_mut(&mut self) -> Vec<&mut MatrixRef> {
        let mut all = self.dense.matrices_mut();
        all.append(&mut self.experts.matrices_mut());
        all
    }

    pub(super) fn input_formats(&self) -> ActivationFormats {
        self.dense.input_formats()
    }

    pub(super) fn forward(&self, spec: &DenseAndExpertsSpec, step: &mut Step<'_>) {
        let (isa, hidden, n) = (step.compute.isa, step.hidden, step.rows().all());
        self.dense.forward(&spec.dense, step);
        let b = &mut *step.buffers;
        let rows = [Rows::new(&mut b.q, hidden), Rows::new(&mut b.y, hidden)];
        step.compute.each_row(n, rows, &b.threads, &|_, [kept, y], _| {
            if let Some(bias) = &self.dense.down_bias {
                vec::add_assign(isa, y, bias);
            }
            self.dense_norm.apply(isa, y);
            kept.copy_from_slice(y);
        });
        let formats = ActivationFormats::of([self.experts.router().kind()]);
        step.pack_normed(None, Order::AddThenNorm, Some(&self.router_norm), formats);
        self.experts.route(&spec.experts, step);
        let formats = self.experts.routed_formats();
        step.pack_normed(None, Order::AddThenNorm, Some(&self.experts_input_norm), formats);
        self.experts.compute_routed(&spec.experts, step);
        let b = &mut *step.buffers;
        let rows = [Rows::new(&mut b.q, hidden), Rows::new(&mut b.y, hidden)];
        step.compute.each_row(n, rows, &b.threads, &|_, [kept, y], _| {
            self.experts_norm.apply(isa, y);
            vec::add_assign(isa, y, kept);
        });
    }
}
