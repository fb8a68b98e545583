//! The input that a layer gets from the token itself, in addition to the residual stream (Gemma 3n and 4): a row of a table with
//! a slice for each layer, joined with a projection of the token's embedding; of EmbeddingGemma 2 the projection alone.
//!
//! `y = projection(gelu(gate(x)) ⊙ input)`. The table has several gigabytes: it stays in the map, and only the rows of tokens
//! that occur are read.

use alight_kernels::gate::gelu_tanh_mul;
use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::Rows;

use crate::norm::Norm;
use crate::parts::buffers::WorkSize;
use crate::parts::step::Step;
use crate::tensors::{Finder, LayerFinder, Linear, MatrixRef, WeightError};

/// The weights from which the inputs of all layers are computed.
#[derive(Debug)]
pub(crate) struct TokenInputs {
    /// `[vocab, layers · width]`
    pub(crate) table: Option<MatrixRef>,
    /// `[layers · width, hidden]`
    pub(crate) projection: Linear,
    /// `[width]`, of each layer's slice of the projection.
    pub(crate) norm: Norm,
}

impl TokenInputs {
    /// Finds them for this number of layers and tokens, with a table or without.
    ///
    /// # Errors
    /// A tensor is missing, or of the wrong shape or type.
    pub(crate) fn find(
        find: &Finder<'_, '_>,
        (width, has_table): (usize, bool),
        [layers, vocab, hidden]: [usize; 3],
    ) -> Result<TokenInputs, WeightError> {
        let all = layers * width;
        let table = || find.embedding("per_layer_token_embd.weight", all, vocab);
        Ok(TokenInputs {
            table: has_table.then(table).transpose()?,
            projection: find.matrix("per_layer_model_proj.weight", hidden, all)?.into(),
            norm: find.norm("per_layer_proj_norm", width)?,
        })
    }
}

/// Returns the sizes of the buffers of a layer with `width` inputs.
pub(crate) fn work(width: usize) -> WorkSize {
    WorkSize { gate: width, widest_input: width, ..WorkSize::default() }
}

/// The tensors of one layer.
#[derive(Debug)]
pub(crate) struct TokenInputWeights {
    /// `[width, hidden]`
    gate: Linear,
    /// `[hidden, width]`
    projection: Linear,
    /// `[hidden]`, of the output.
    pub(crate) norm: Norm,
}

impl TokenInputWeights {
    pub(crate) fn find(
        find: &LayerFinder<'_, '_, '_>,
        width: usize,
        hidden: usize,
    ) -> Result<TokenInputWeights, WeightError> {
        Ok(TokenInputWeights {
            gate: find.linear("inp_gate", hidden, width)?,
            projection: find.linear("proj", width, hidden)?,
            norm: find.norm("post_norm", hidden)?,
        })
    }

    /// Its projections.
    pub(crate) fn linears(&self) -> [&Linear; 2] {
        [&self.gate, &self.projection]
    }

    /// Its projections, for modification.
    pub(crate) fn linears_mut(&mut self) -> [&mut Linear; 2] {
        [&mut self.gate, &mut self.projection]
    }

    pub(crate) fn matrices(&self) -> [&MatrixRef; 2] {
        self.linears().map(|linear| &linear.matrix)
    }

    pub(crate) fn matrices_mut(&mut self) -> [&mut MatrixRef; 2] {
        self.linears_mut().map(|linear| &mut linear.matrix)
    }

    pub(crate) fn input_formats(&self) -> ActivationFormats {
        ActivationFormats::of(self.gate.kinds())
    }

    /// Computes it on the step's packed input, into `y`.
    pub(crate) fn forward(&self, step: &mut Step<'_>) {
        let [gate, projection] = self.linears().map(|matrix| matrix.view(step.store));
        let (isa, width, layer) = (step.compute.isa, self.gate.rows(), step.layer);
        let b = &mut *step.buffers;
        let rows = Rows::new(&mut b.gate, width);
        step.compute.project(&gate, rows, &b.acts, &b.threads);
        let formats = ActivationFormats::of(self.projection.kinds());
        let all = b.token_input_width;
        let inputs = &b.token_inputs;
        let rows = [Rows::new(&mut b.gate, width)];
        let (acts, threads) = (&mut b.acts, &b.threads);
        let n = b.batch.counts();
        step.compute.pack(n, width, rows, acts, formats, threads, &|i, [gate], _, put| {
            gelu_tanh_mul(isa, gate, &inputs[i * all + layer * width..][..width]);
            put(gate);
        });
        step.compute.project(&projection, Rows::new(&mut b.y, step.hidden), &b.acts, &b.threads);
    }
}
