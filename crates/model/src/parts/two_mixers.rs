//! Attention and Mamba-2 next to each other (Falcon-H1): both take what one norm puts out, and their outputs are added.
//!
//! `y = attention(norm(x)) + mamba(norm(x))`. The layer has no norm before its mixer: each of the two packs the residual stream in its own formats.

use alight_kernels::attention::KvShape;
use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::Rows;
use alight_kernels::vec;

use crate::norm::Norm;
use crate::parts::attention::AttentionSpec;
use crate::parts::buffers::WorkSize;
use crate::parts::mamba2::Mamba2Spec;
use crate::parts::step::{Order, Step};
use crate::parts::{Attended, MixerSpec, Part, PartSpec};
use crate::tensors::{LayerFinder, Linear, WeightError};

/// The two mixers.
#[derive(Clone, Debug, PartialEq)]
pub struct TwoMixersSpec {
    /// Softmax attention.
    pub attention: AttentionSpec,
    /// Mamba-2.
    pub mamba: Mamba2Spec,
    /// The file's name for the norm of their input.
    pub norm: &'static str,
}

impl PartSpec for TwoMixersSpec {
    fn find(
        &self,
        find: &LayerFinder<'_, '_, '_>,
        hidden: usize,
    ) -> Result<Box<dyn Part>, WeightError> {
        let norm = find.norm(self.norm, hidden)?;
        let parts = [self.mamba.find(find, hidden)?, self.attention.find(find, hidden)?];
        Ok(Box::new(TwoMixers { norm, parts }))
    }

    /// Returns the sizes of its buffers: the first output is kept in `up`.
    fn work(&self, hidden: usize) -> WorkSize {
        let kept = WorkSize { up: hidden, ..WorkSize::default() };
        kept.max(self.attention.work(hidden)).max(self.mamba.work(hidden))
    }
}

impl MixerSpec for TwoMixersSpec {
    fn kv_shape(&self) -> Option<KvShape> {
        self.attention.kv_shape()
    }

    fn state_len(&self) -> usize {
        self.mamba.state_len()
    }

    fn most_partials(&self, context: usize) -> usize {
        self.attention.most_partials(context)
    }

    fn attended(&self) -> Option<Attended> {
        self.attention.attended()
    }
}

/// Their tensors.
#[derive(Debug)]
struct TwoMixers {
    /// `[hidden]`
    norm: Norm,
    /// In the order in which they are computed.
    parts: [Box<dyn Part>; 2],
}

impl Part for TwoMixers {
    fn linears(&self) -> Vec<&Linear> {
        self.parts.iter().flat_map(|part| part.linears()).collect()
    }

    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        self.parts.iter_mut().flat_map(|part| part.linears_mut()).collect()
    }

    /// Returns none: it packs the residual stream itself.
    fn input_formats(&self) -> ActivationFormats {
        ActivationFormats::of([])
    }

    fn forward(&self, step: &mut Step<'_>) {
        let (isa, hidden, n) = (step.compute.isa, step.hidden, step.rows().all());
        let [first, second] = &self.parts;
        // Each needs all rows: those that are not wanted are left out at the end.
        let last = std::mem::take(&mut step.last);
        step.pack_normed(None, Order::AddThenNorm, Some(&self.norm), first.input_formats());
        first.forward(step);
        let b = &mut *step.buffers;
        let rows = [Rows::new(&mut b.up, hidden), Rows::new(&mut b.y, hidden)];
        step.compute.each_row(n, rows, &b.threads, &|_, [kept, y], _| kept.copy_from_slice(y));
        step.pack_normed(None, Order::AddThenNorm, Some(&self.norm), second.input_formats());
        second.forward(step);
        let b = &mut *step.buffers;
        let rows = [Rows::new(&mut b.up, hidden), Rows::new(&mut b.y, hidden)];
        step.compute.each_row(n, rows, &b.threads, &|_, [kept, y], _| {
            vec::add_assign(isa, y, kept);
        });
        step.last = last;
        step.keep_wanted_rows(|b, from, to| Rows::new(&mut b.y, hidden).copy(from, to));
    }
}
