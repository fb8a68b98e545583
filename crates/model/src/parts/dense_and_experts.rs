//! A dense feed-forward part and a mixture of experts next to each other (Gemma 4's mixture): the output of each is normed by its
//! own norm, and both are added.
//!
//! `y = dense_norm(dense(input)) + experts_norm(experts(experts_input_norm(x)))`, with `rms(x) / √hidden ⊙ scale` as the router's
//! input. `input` is the residual stream `x`, normed by the layer's norm.

use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::Rows;
use alight_kernels::vec;

use super::dense::{Dense, DenseSpec};
use super::experts::{Experts, ExpertsSpec};
use crate::norm::Norm;
use crate::parts::buffers::WorkSize;
use crate::parts::step::{Order, Step};
use crate::parts::{FeedForwardSpec, Part, PartSpec};
use crate::tensors::{LayerFinder, Linear, WeightError};

/// A dense part and a mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseAndExpertsSpec {
    /// The dense part.
    pub dense: DenseSpec,
    /// The mixture, without a shared network.
    pub experts: ExpertsSpec,
}

impl PartSpec for DenseAndExpertsSpec {
    fn find(
        &self,
        find: &LayerFinder<'_, '_, '_>,
        hidden: usize,
    ) -> Result<Box<dyn Part>, WeightError> {
        Ok(Box::new(DenseAndExperts::find(find, self, hidden)?))
    }

    /// Returns the sizes of its buffers: the dense part's output is kept in `q`.
    fn work(&self, hidden: usize) -> WorkSize {
        let kept = WorkSize { q: hidden, ..WorkSize::default() };
        kept.max(self.dense.work(hidden)).max(self.experts.work(hidden))
    }
}

impl FeedForwardSpec for DenseAndExpertsSpec {
    fn dense(&self) -> Option<&DenseSpec> {
        Some(&self.dense)
    }

    fn experts(&self) -> Option<&ExpertsSpec> {
        Some(&self.experts)
    }
}

/// The tensors of both.
#[derive(Debug)]
pub(crate) struct DenseAndExperts {
    dense: Dense,
    experts: Experts,
    /// `[hidden]`, of the dense part's output.
    dense_norm: Norm,
    /// `[hidden]`, of the router's input: the scale, divided by `√hidden`.
    router_norm: Norm,
    /// `[hidden]`
    experts_input_norm: Norm,
    /// `[hidden]`, of the experts' output.
    experts_norm: Norm,
}

impl DenseAndExperts {
    pub(super) fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &DenseAndExpertsSpec,
        hidden: usize,
    ) -> Result<DenseAndExperts, WeightError> {
        let root = (hidden as f32).sqrt();
        let scale = find.vector("ffn_gate_inp.scale", hidden)?;
        let weight = scale.iter().map(|scale| scale / root).collect();
        Ok(DenseAndExperts {
            dense: Dense::find(find, &spec.dense, hidden)?,
            experts: Experts::find(find, &spec.experts, hidden)?,
            dense_norm: find.norm("post_ffw_norm_1", hidden)?,
            router_norm: Norm { weight, ..find.unweighted_norm(hidden) },
            experts_input_norm: find.norm("pre_ffw_norm_2", hidden)?,
            experts_norm: find.norm("post_ffw_norm_2", hidden)?,
        })
    }
}

impl Part for DenseAndExperts {
    fn linears(&self) -> Vec<&Linear> {
        self.dense.linears().into_iter().chain(self.experts.linears()).collect()
    }

    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        self.dense.linears_mut().into_iter().chain(self.experts.linears_mut()).collect()
    }

    fn input_formats(&self) -> ActivationFormats {
        self.dense.input_formats()
    }

    fn forward(&self, step: &mut Step<'_>) {
        let (isa, hidden, n) = (step.compute.isa, step.hidden, step.rows().all());
        self.dense.forward(step);
        let b = &mut *step.buffers;
        let rows = [Rows::new(&mut b.q, hidden), Rows::new(&mut b.y, hidden)];
        step.compute.each_row(n, rows, &b.threads, &|_, [kept, y], _| {
            self.dense_norm.apply(isa, y);
            kept.copy_from_slice(y);
        });
        let formats = ActivationFormats::of(self.experts.router().kinds());
        step.pack_normed(None, Order::AddThenNorm, Some(&self.router_norm), formats);
        self.experts.route(step);
        let formats = self.experts.routed_formats();
        step.pack_normed(None, Order::AddThenNorm, Some(&self.experts_input_norm), formats);
        self.experts.compute_routed(step);
        let b = &mut *step.buffers;
        let rows = [Rows::new(&mut b.q, hidden), Rows::new(&mut b.y, hidden)];
        step.compute.each_row(n, rows, &b.threads, &|_, [kept, y], _| {
            self.experts_norm.apply(isa, y);
            vec::add_assign(isa, y, kept);
        });
    }
}
