//! Tensors of a model's files, found by name and checked for shape and type: matrices are references into the files, vectors are
//! copies.

mod error;
mod find;
mod input_sums;
mod linear;
mod matrix;

pub use self::error::WeightError;
pub(crate) use self::find::{Finder, LayerFinder};
pub(crate) use self::input_sums::InputSums;
pub(crate) use self::linear::{Linear, LinearView, Projection};
pub(crate) use self::matrix::MatrixRef;
