//! Tensors of a model's files, each found by its name and checked for its shape and type: matrices as references into the files, vectors
//! as copies.

mod error;
mod find;
mod linear;
mod matrix;

pub use self::error::WeightError;
pub(crate) use self::find::{Finder, LayerFinder};
pub(crate) use self::linear::{Adapter, Linear, LinearView};
pub(crate) use self::matrix::MatrixRef;
