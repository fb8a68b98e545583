//! A mixture of experts that work on a shorter row than the residual stream (Nemotron 3 Super), next to a network for all tokens
//! that works on the whole one.
//!
//! `y = latent_up(experts(latent_down(input))) + shared(input)`. The input of the router is the whole input.

use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::Rows;
use alight_kernels::vec;

use super::dense::{Dense, DenseSpec, SHARED_NAMES};
use super::experts::{Experts, ExpertsSpec};
use crate::parts::buffers::WorkSize;
use crate::parts::step::Step;
use crate::parts::{FeedForwardSpec, Part, PartSpec};
use crate::tensors::{LayerFinder, Linear, WeightError};

/// A mixture of experts on a shorter row.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentExpertsSpec {
    /// Length of the experts' inputs and outputs; at most the hidden size.
    pub latent_size: usize,
    /// The mixture, without a shared network.
    pub experts: ExpertsSpec,
    /// The network for all tokens.
    pub shared: Option<DenseSpec>,
}

impl PartSpec for LatentExpertsSpec {
    fn find(
        &self,
        find: &LayerFinder<'_, '_, '_>,
        hidden: usize,
    ) -> Result<Box<dyn Part>, WeightError> {
        Ok(Box::new(LatentExperts::find(find, self, hidden)?))
    }

    /// Returns the sizes of its buffers: the experts' input in `k`, the shared network's output in `q`.
    fn work(&self, hidden: usize) -> WorkSize {
        let own = WorkSize { q: hidden, k: self.latent_size, ..WorkSize::default() };
        let shared = self.shared.as_ref().map(|shared| shared.work(hidden)).unwrap_or_default();
        own.max(self.experts.work(hidden)).max(shared)
    }
}

impl FeedForwardSpec for LatentExpertsSpec {
    fn experts(&self) -> Option<&ExpertsSpec> {
        Some(&self.experts)
    }
}

/// The tensors of a mixture on a shorter row.
#[derive(Debug)]
pub(crate) struct LatentExperts {
    spec: LatentExpertsSpec,
    /// `[latent, hidden]`
    down: Linear,
    /// `[hidden, latent]`
    up: Linear,
    experts: Experts,
    shared: Option<Dense>,
}

impl LatentExperts {
    pub(super) fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &LatentExpertsSpec,
        hidden: usize,
    ) -> Result<LatentExperts, WeightError> {
        let latent = spec.latent_size;
        let shared = spec.shared.as_ref();
        let shared = shared.map(|s| Dense::find_named(find, s, hidden, SHARED_NAMES));
        Ok(LatentExperts {
            spec: spec.clone(),
            down: find.linear("ffn_latent_down", hidden, latent)?,
            up: find.linear("ffn_latent_up", latent, hidden)?,
            experts: Experts::find_of_width(find, &spec.experts, hidden, latent)?,
            shared: shared.transpose()?,
        })
    }
}

impl Part for LatentExperts {
    fn linears(&self) -> Vec<&Linear> {
        let shared = self.shared.iter().flat_map(|shared| shared.linears());
        let all = [&self.down].into_iter().chain(shared).chain(self.experts.linears());
        all.chain([&self.up]).collect()
    }

    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        let shared = self.shared.iter_mut().flat_map(|shared| shared.linears_mut());
        let all = [&mut self.down].into_iter().chain(shared).chain(self.experts.linears_mut());
        all.chain([&mut self.up]).collect()
    }

    fn input_formats(&self) -> ActivationFormats {
        let shared = self.shared.iter().flat_map(Dense::inputs);
        let all = [&self.down, self.experts.router()].into_iter().chain(shared);
        ActivationFormats::of(all.flat_map(Linear::kinds))
    }

    fn forward(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let (isa, hidden, latent) = (step.compute.isa, step.hidden, spec.latent_size);
        let n = step.rows();
        let [down, up] = [&self.down, &self.up].map(|matrix| matrix.view(step.store));
        self.experts.route(step);
        let b = &mut *step.buffers;
        step.compute.project(&down, Rows::new(&mut b.k, latent), &b.acts, &b.threads);
        if let Some(shared) = &self.shared {
            shared.forward(step);
            let b = &mut *step.buffers;
            let rows = [Rows::new(&mut b.q, hidden), Rows::new(&mut b.y, hidden)];
            step.compute.each_row(n.all(), rows, &b.threads, &|_, [kept, y], _| {
                kept.copy_from_slice(y);
            });
        }
        let b = &mut *step.buffers;
        let formats = self.experts.routed_formats();
        let input = Rows::new(&mut b.k, latent);
        step.compute.pack_rows(n, input, &mut b.acts, formats, &b.threads);
        self.experts.compute_routed(step);
        let b = &mut *step.buffers;
        let formats = ActivationFormats::of(self.up.kinds());
        let output = Rows::new(&mut b.y, latent);
        step.compute.pack_rows(n, output, &mut b.acts, formats, &b.threads);
        step.compute.project(&up, Rows::new(&mut b.y, hidden), &b.acts, &b.threads);
        if self.shared.is_some() {
            let rows = [Rows::new(&mut b.q, hidden), Rows::new(&mut b.y, hidden)];
            step.compute.each_row(n.all(), rows, &b.threads, &|_, [kept, y], _| {
                vec::add_assign(isa, y, kept);
            });
        }
    }
}
