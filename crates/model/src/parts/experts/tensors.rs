//! The tensors of experts, and of the shared network.

use alight_kernels::{Layout, WeightType};

use super::{ExpertsSpec, SharedExpert};
use crate::parts::dense::SHARED_NAMES;
use crate::parts::routing::Routing;
use crate::tensors::{LayerFinder, Linear, Projection, WeightError};

/// The gate and up projections and their biases; or up alone, without a gate.
// There is one for each layer, so its size does not matter.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
pub(super) enum GateUp {
    /// `[experts][intermediate, width]` each.
    Apart([Linear; 2]),
    /// `[experts · 2][intermediate, width]`: an expert's gate, then its up.
    Fused(Linear),
    /// `[experts][2 · intermediate, width]`: a row of gate, then one of up.
    Interleaved(Linear),
    /// `[experts][intermediate, width]`
    Up(Linear),
}

impl GateUp {
    pub(super) fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &ExpertsSpec,
        input: usize,
    ) -> Result<GateUp, WeightError> {
        let width = spec.intermediate_size;
        let Routing { experts, used, .. } = spec.routing;
        let biased = |matrix, name, rows| {
            let biases = find.experts_bias(name, rows, experts, used)?;
            Ok::<_, WeightError>(Linear::from(matrix).with_biases(biases))
        };
        let fused = "ffn_gate_up_exps";
        if spec.gated && find.has(fused) {
            let shape = [input, 2 * width, experts];
            return Ok(match spec.interleaved {
                false => {
                    GateUp::Fused(biased(find.experts(fused, shape, 2, used)?, fused, 2 * width)?)
                }
                true => {
                    let matrix = find.interleaved(fused, shape, used)?;
                    GateUp::Interleaved(biased(matrix, fused, 2 * width)?)
                }
            });
        }
        let one = |name| {
            let matrix = find.experts(name, [input, width, experts], 1, used)?;
            biased(matrix, name, width)
        };
        let (gate, up) = ("ffn_gate_exps", "ffn_up_exps");
        if !spec.gated {
            return Ok(GateUp::Up(one(up)?));
        }
        Ok(GateUp::Apart([one(gate)?, one(up)?]))
    }

    /// Returns the stacks of projections.
    pub(super) fn linears(&self) -> std::slice::Iter<'_, Linear> {
        match self {
            GateUp::Apart(both) => both.iter(),
            GateUp::Fused(one) | GateUp::Interleaved(one) | GateUp::Up(one) => {
                std::slice::from_ref(one).iter()
            }
        }
    }

    /// Returns the same for modification.
    pub(super) fn linears_mut(&mut self) -> std::slice::IterMut<'_, Linear> {
        match self {
            GateUp::Apart(both) => both.iter_mut(),
            GateUp::Fused(one) | GateUp::Interleaved(one) | GateUp::Up(one) => {
                std::slice::from_mut(one).iter_mut()
            }
        }
    }

    pub(super) fn kinds(&self) -> impl Iterator<Item = (WeightType, Layout)> {
        self.linears().flat_map(Linear::kinds)
    }

    /// Returns one of the projections of an expert: 0 is the gate, if there is one, and the last is up.
    pub(super) fn projection(&self, expert: usize, which: usize) -> Projection<'_> {
        match self {
            GateUp::Apart(both) => both[which].projection(expert),
            GateUp::Fused(both) => both.projection(2 * expert + which),
            GateUp::Interleaved(both) => both.projection(expert).every_second_row(which),
            GateUp::Up(up) => up.projection(expert),
        }
    }
}

/// Tensors of the shared network.
#[derive(Debug)]
pub(super) struct SharedWeights {
    /// `[1, hidden]`
    pub(super) gate_of_output: Option<Linear>,
    /// `[intermediate, hidden]`, where experts have a gate.
    pub(super) gate: Option<Linear>,
    /// `[intermediate, hidden]`
    pub(super) up: Linear,
    /// `[hidden, intermediate]`
    pub(super) down: Linear,
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
        let one = |name, cols, rows| find.matrix(name, cols, rows).map(Linear::from);
        let half = |rows| find.rows_of(up, [hidden, 2 * width], rows).map(Linear::from);
        let apart = find.has(gate) || !find.has_rows(up, 2 * width);
        let (gate, up) = match (gated, apart) {
            (true, true) => (Some(one(gate, hidden, width)?), one(up, hidden, width)?),
            // Both are in one tensor, the gate's rows first.
            (true, false) => (Some(half(0..width)?), half(width..2 * width)?),
            (false, _) => (None, one(up, hidden, width)?),
        };
        Ok(SharedWeights {
            gate_of_output: gate_of_output.transpose()?,
            gate,
            up,
            down: one(down, width, hidden)?,
        })
    }

    /// Returns the projections that the layer's input is multiplied with.
    pub(super) fn inputs(&self) -> impl Iterator<Item = &Linear> {
        self.gate.iter().chain([&self.up])
    }
}
