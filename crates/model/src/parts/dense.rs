//! The dense gated feed-forward part: `down(activation(gate(x) + bias) ⊙ (up(x) + bias))`.

use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::Rows;
use alight_kernels::{Isa, gate, vec};

use crate::engine::{Step, WorkSize};
use crate::spec::SpecError;
use crate::spec::keys::{Keys, MAX_WIDTH};
use crate::weights::{LayerFinder, MatrixRef, WeightError};

/// The function that is applied to the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x · sigmoid(x).
    Silu,
    /// GELU in its tanh form.
    GeluTanh,
    /// x · sigmoid(1.702 x) of x that is at most 7, times what is gated plus 1, which is clamped to ±7 before.
    ClampedSilu,
}

/// A dense gated feed-forward part.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseSpec {
    /// Width between the two projections.
    pub intermediate_size: usize,
    /// Applied to the gate.
    pub activation: Activation,
    /// Whether the file has gate and up in one matrix, `ffn_up`, the gate's rows first.
    pub fused: bool,
}

impl Activation {
    /// `gate = activation(gate) ⊙ up`.
    pub(super) fn apply(self, isa: Isa, gate: &mut [f32], up: &[f32]) {
        match self {
            Activation::Silu => gate::silu_mul(isa, gate, up),
            Activation::GeluTanh => gate::gelu_tanh_mul(isa, gate, up),
            Activation::ClampedSilu => gate::clamped_silu_mul(isa, gate, up),
        }
    }
}

impl DenseSpec {
    /// Reads its keys, with SiLU.
    ///
    /// # Errors
    /// A size that no model can have, or a mixture of experts.
    pub(crate) fn read(keys: &Keys<'_, '_>) -> Result<DenseSpec, SpecError> {
        DenseSpec::refuse_experts(keys)?;
        DenseSpec::read_beside_experts(keys)
    }

    /// As [`DenseSpec::read`], for a network of which other layers are mixtures of experts.
    ///
    /// # Errors
    /// A size that no model can have.
    pub(crate) fn read_beside_experts(keys: &Keys<'_, '_>) -> Result<DenseSpec, SpecError> {
        let intermediate_size = keys.dimension("feed_forward_length", MAX_WIDTH)?;
        Ok(DenseSpec { intermediate_size, activation: Activation::Silu, fused: false })
    }

    /// Checks that the network is no mixture of experts.
    ///
    /// # Errors
    /// It is.
    pub(crate) fn refuse_experts(keys: &Keys<'_, '_>) -> Result<(), SpecError> {
        for key in ["expert_count", "expert_used_count"] {
            if let Some(found) = keys.get::<u64>(key)?.filter(|n| *n > 0) {
                return Err(keys.unsupported(key, found, "a mixture of experts"));
            }
        }
        Ok(())
    }

    /// What it writes to.
    pub(crate) fn work(&self) -> WorkSize {
        let width = self.intermediate_size;
        WorkSize { gate: width, widest_input: width, ..WorkSize::default() }
    }
}

/// Its tensors.
#[derive(Debug)]
pub(crate) struct DenseWeights {
    /// `[intermediate, hidden]`
    gate: MatrixRef,
    /// `[intermediate, hidden]`
    up: MatrixRef,
    /// `[hidden, intermediate]`
    down: MatrixRef,
    /// `[intermediate]`
    gate_bias: Option<Vec<f32>>,
    /// `[intermediate]`
    up_bias: Option<Vec<f32>>,
    /// `[hidden]`
    pub(super) down_bias: Option<Vec<f32>>,
}

impl DenseWeights {
    pub(super) fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &DenseSpec,
        hidden: usize,
    ) -> Result<DenseWeights, WeightError> {
        let width = spec.intermediate_size;
        let [gate, up] = match spec.fused {
            false => {
                [find.matrix("ffn_gate", hidden, width)?, find.matrix("ffn_up", hidden, width)?]
            }
            true => {
                let half = |rows| find.rows_of("ffn_up", [hidden, 2 * width], rows);
                [half(0..width)?, half(width..2 * width)?]
            }
        };
        Ok(DenseWeights {
            gate,
            up,
            down: find.matrix("ffn_down", width, hidden)?,
            gate_bias: find.bias("ffn_gate", width)?,
            up_bias: find.bias("ffn_up", width)?,
            down_bias: find.bias("ffn_down", hidden)?,
        })
    }

    pub(super) fn matrices(&self) -> [&MatrixRef; 3] {
        [&self.gate, &self.up, &self.down]
    }

    pub(super) fn matrices_mut(&mut self) -> [&mut MatrixRef; 3] {
        [&mut self.gate, &mut self.up, &mut self.down]
    }

    pub(super) fn input_formats(&self) -> ActivationFormats {
        ActivationFormats::of([self.gate.kind(), self.up.kind()])
    }

    pub(super) fn forward(&self, spec: &DenseSpec, step: &mut Step<'_>) {
        let (isa, width, hidden) = (step.compute.isa, spec.intermediate_size, step.hidden);
        let [gate, up, down] = self.matrices().map(|matrix| matrix.view(step.store));
        let b = &mut *step.buffers;
        // A unit computes both products for its columns and joins them while they are in the cache.
        let outputs = [Rows::new(&mut b.gate, width), Rows::new(&mut b.up, width)];
        step.compute.multiply(
            [[&gate, &up]],
            [outputs],
            &b.acts,
            &b.threads,
            Some(&|_, columns, [gate, up]| {
                if let Some(bias) = &self.gate_bias {
                    vec::add_assign(isa, gate, &bias[columns.clone()]);
                }
                if let Some(bias) = &self.up_bias {
                    vec::add_assign(isa, up, &bias[columns]);
                }
                spec.activation.apply(isa, gate, up);
            }),
        );
        let input = Rows::new(&mut b.gate, width);
        let formats = ActivationFormats::of([self.down.kind()]);
        step.compute.pack_rows(step.rows, input, &mut b.acts, formats, &b.threads);
        step.compute.project(&down, Rows::new(&mut b.y, hidden), &b.acts, &b.threads);
    }
}
