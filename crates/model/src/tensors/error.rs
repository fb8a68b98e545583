//! The errors of tensors that cannot be used.

use thiserror::Error;

/// The tensor, what was found, and what was expected.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum WeightError {
    /// The tensor is missing.
    #[error("tensor \"{name}\" is missing, expected {expected}")]
    Missing {
        /// Its name.
        name: String,
        /// Its shape, innermost first.
        expected: String,
    },
    /// The tensor has the wrong shape.
    #[error("tensor \"{name}\" has shape {found}, expected {expected}")]
    Shape {
        /// Its name.
        name: String,
        /// The shape in the file, innermost first.
        found: String,
        /// The shape that the hyper-parameters require.
        expected: String,
    },
    /// There are no kernels for its type.
    #[error("tensor \"{name}\" has type {found}, expected {expected}")]
    Type {
        /// Its name.
        name: String,
        /// The type in the file.
        found: &'static str,
        /// The supported types.
        expected: String,
    },
    /// The network has no use for the tensor.
    #[error(
        "tensor \"{}\" has no place in architecture \"{architecture}\": the network that it is of \
         computes something else, for which there is no code",
        name.escape_debug()
    )]
    Stray {
        /// Its name.
        name: String,
        /// The architecture that the file declares.
        architecture: &'static str,
    },
    /// Experts in an old format.
    #[error(
        "tensor \"{name}\" is one expert by itself, as in files that were made before April 2024; convert the model again, \
         or fetch a newer file of it, in which all experts of a layer are one tensor"
    )]
    OneByOne {
        /// The name of the first expert's tensor.
        name: String,
    },
    /// A tensor that must be contiguous is not.
    #[error(
        "tensor \"{name}\" lies side by side with others, matrix by matrix, expected in one run: only experts lie so; pack the original \
         again"
    )]
    SideBySide {
        /// The tensor.
        name: String,
    },
    /// A tensor that cannot be in planes is.
    #[error(
        "tensor \"{name}\", of rows of {cols} weights, is in planes, expected of the output matrix alone, with rows of up to {}; pack the original \
         again",
        alight_kernels::planes::MAX_COLS
    )]
    Planes {
        /// The tensor.
        name: String,
        /// Weights of a row.
        cols: usize,
    },
    /// The embedding and the vocabulary disagree.
    #[error(
        "tensor \"{name}\" has rows for {rows} tokens, expected {tokens}, the length of \
         \"tokenizer.ggml.tokens\""
    )]
    Vocabulary {
        /// The tensor.
        name: String,
        /// Its rows.
        rows: u64,
        /// Tokens in the vocabulary.
        tokens: usize,
    },
    /// A norm's, bias's or factor's value is not a number that can be computed with.
    #[error("tensor \"{name}\" has the value {found} at index {index}, expected {expected}")]
    Value {
        /// The tensor.
        name: String,
        /// The index of the element.
        index: usize,
        /// Its value.
        found: f32,
        /// The allowed values.
        expected: &'static str,
    },
}
