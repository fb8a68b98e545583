//! A projection in the place of a mixer (some layers of Llama Nemotron 51B): the output projection of attention, on the part's input. It looks at no other
//! position.

use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::Rows;

use crate::parts::buffers::WorkSize;
use crate::parts::step::Step;
use crate::parts::{MixerSpec, Part, PartSpec};
use crate::tensors::{LayerFinder, Linear, WeightError};

/// A projection from the hidden size to itself.
#[derive(Clone, Debug, PartialEq)]
pub struct ProjectionSpec {}

impl PartSpec for ProjectionSpec {
    fn find(
        &self,
        find: &LayerFinder<'_, '_, '_>,
        hidden: usize,
    ) -> Result<Box<dyn Part>, WeightError> {
        Ok(Box::new(Projected { matrix: find.linear("attn_output", hidden, hidden)? }))
    }

    fn work(&self, _hidden: usize) -> WorkSize {
        WorkSize::default()
    }
}

impl MixerSpec for ProjectionSpec {}

/// Its tensors.
#[derive(Debug)]
struct Projected {
    /// `[hidden, hidden]`
    matrix: Linear,
}

impl Part for Projected {
    fn linears(&self) -> Vec<&Linear> {
        vec![&self.matrix]
    }

    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        vec![&mut self.matrix]
    }

    fn input_formats(&self) -> ActivationFormats {
        ActivationFormats::of(self.matrix.kinds())
    }

    fn forward(&self, step: &mut Step<'_>) {
        let matrix = self.matrix.view(step.store);
        let b = &mut *step.buffers;
        step.compute.project(&matrix, Rows::new(&mut b.y, step.hidden), &b.acts, &b.threads);
    }
}
