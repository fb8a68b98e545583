//! The tensors of experts, and of the shared network.

use alight_kernels::matmul::Matrix;
use alight_kernels::{Layout, WeightType};

use super::{ExpertsSpec, SharedExpert};
use crate::parts::dense::SHARED_NAMES;
use crate::parts::routing::Routing;
use crate::store::{Chosen, Store};
use crate::tensors::{LayerFinder, Linear, MatrixRef, WeightError};

/// The gate and up projections and their biases; or up alone, without a gate.
// There is one for each layer, so its size does not matter.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
pub(super) enum GateUp {
    /// `[experts][intermediate, width]` each; biases `[experts][1, intermediate]`.
    Apart([MatrixRef; 2], [Option<MatrixRef>; 2]),
    /// `[experts · 2][intermediate, width]`: an expert's gate, then its up; bias `[experts][1, 2 · intermediate]`.
    Fused(MatrixRef, Option<MatrixRef>),
    /// `[experts][2 · intermediate, width]`: a row of gate, then one of up; bias `[experts][1, 2 · intermediate]`.
    Interleaved(MatrixRef, Option<MatrixRef>),
    /// `[experts][intermediate, width]`; bias `[experts][1, intermediate]`.
    Up(MatrixRef, Option<MatrixRef>),
}

impl GateUp {
    pub(super) fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &ExpertsSpec,
        input: usize,
    ) -> Result<GateUp, WeightError> {
        let width = spec.intermediate_size;
        let Routing { experts, used, .. } = spec.routing;
        let fused = "ffn_gate_up_exps";
        if spec.gated && find.has(fused) {
            let shape = [input, 2 * width, experts];
            let bias = find.experts_bias(fused, 2 * width, experts, used)?;
            return Ok(match spec.interleaved {
                false => GateUp::Fused(find.experts(fused, shape, 2, used)?, bias),
                true => GateUp::Interleaved(find.interleaved(fused, shape, used)?, bias),
            });
        }
        let one = |name| find.experts(name, [input, width, experts], 1, used);
        let bias = |name| find.experts_bias(name, width, experts, used);
        let (gate, up) = ("ffn_gate_exps", "ffn_up_exps");
        if !spec.gated {
            return Ok(GateUp::Up(one(up)?, bias(up)?));
        }
        Ok(GateUp::Apart([one(gate)?, one(up)?], [bias(gate)?, bias(up)?]))
    }

    /// Returns the matrices, then the biases.
    pub(super) fn matrices(&self) -> impl Iterator<Item = &MatrixRef> {
        let (matrices, biases) = match self {
            GateUp::Apart(both, biases) => (&both[..], &biases[..]),
            GateUp::Fused(one, bias) | GateUp::Interleaved(one, bias) | GateUp::Up(one, bias) => {
                (std::slice::from_ref(one), std::slice::from_ref(bias))
            }
        };
        matrices.iter().chain(biases.iter().flatten())
    }

    pub(super) fn matrices_mut(&mut self) -> impl Iterator<Item = &mut MatrixRef> {
        let (matrices, biases) = match self {
            GateUp::Apart(both, biases) => (&mut both[..], &mut biases[..]),
            GateUp::Fused(one, bias) | GateUp::Interleaved(one, bias) | GateUp::Up(one, bias) => {
                (std::slice::from_mut(one), std::slice::from_mut(bias))
            }
        };
        matrices.iter_mut().chain(biases.iter_mut().flatten())
    }

    pub(super) fn kinds(&self) -> [(WeightType, Layout); 2] {
        match self {
            GateUp::Apart(both, _) => [both[0].kind(), both[1].kind()],
            GateUp::Fused(one, _) | GateUp::Interleaved(one, _) | GateUp::Up(one, _) => {
                [one.kind(); 2]
            }
        }
    }

    /// Returns one of the matrices of a chosen expert: 0 is the gate, if there is one, and the last is up.
    pub(super) fn view<'m>(
        &self,
        expert: usize,
        which: usize,
        chosen: &'m Chosen<'_>,
    ) -> Matrix<'m> {
        match self {
            GateUp::Apart(both, _) => both[which].chosen(expert, chosen),
            GateUp::Fused(both, _) => both.chosen(2 * expert + which, chosen),
            GateUp::Interleaved(both, _) => both.chosen(expert, chosen).every_second_row(which),
            GateUp::Up(up, _) => up.chosen(expert, chosen),
        }
    }

    /// Adds the bias of one of an expert's matrices to the columns of its products from `first` on.
    pub(super) fn add_bias(
        &self,
        expert: usize,
        which: usize,
        store: &Store,
        first: usize,
        products: &mut [f32],
    ) {
        let (bias, at) = match self {
            GateUp::Apart(_, biases) => (&biases[which], (first, 1)),
            GateUp::Fused(_, bias) => {
                let half = bias.as_ref().map_or(0, |bias| bias.cols() / 2);
                (bias, (which * half + first, 1))
            }
            GateUp::Interleaved(_, bias) => (bias, (2 * first + which, 2)),
            GateUp::Up(_, bias) => (bias, (first, 1)),
        };
        if let Some(bias) = bias {
            bias.part(expert, store).add_float_row(0, at, products);
        }
    }
}

/// Tensors of the shared network.
#[derive(Debug)]
pub(super) struct SharedWeights {
    /// `[1, hidden]`
    pub(super) gate_of_output: Option<Linear>,
    /// `[intermediate, hidden]`, where experts have a gate.
    pub(super) gate: Option<MatrixRef>,
    /// `[intermediate, hidden]`
    pub(super) up: MatrixRef,
    /// `[hidden, intermediate]`
    pub(super) down: MatrixRef,
}

impl SharedWeights {
    /// Finds them for a mixture whose experts are `gated`.
    pub(super) fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &SharedExpert,
        gated: bool,
        hidden: usize,
    ) -> Result<SharedWeights, WeightError> {
        let width = spec.intermediate_size;
        let [gate, up, down] = SHARED_NAMES;
        let gate_of_output = spec.gated.then(|| find.linear("ffn_gate_inp_shexp", hidden, 1));
        Ok(SharedWeights {
            gate_of_output: gate_of_output.transpose()?,
            gate: gated.then(|| find.matrix(gate, hidden, width)).transpose()?,
            up: find.matrix(up, hidden, width)?,
            down: find.matrix(down, width, hidden)?,
        })
    }

    /// Returns the matrices that the layer's input is multiplied with.
    pub(super) fn inputs(&self) -> impl Iterator<Item = &MatrixRef> {
        self.gate.iter().chain([&self.up])
    }
}
