//! Kernels: quantised blocks into numbers.
//!
//! Everything here works on slices that it is handed: no call allocates, does I/O or starts a
//! thread. Each kernel exists as portable scalar code and, where it pays, for AVX2 and for AVX-512
//! (with VNNI); the caller passes the [`Isa`] that was chosen once at run time.
//!
//! Matrices are read in place, in GGUF's own blocks or in the packed layout of [`tiles`].

pub mod attention;
mod blocks;
pub mod dequant;
pub mod gate;
pub mod half;
pub mod isa;
mod lanes;
pub mod matmul;
pub mod norm;
pub mod parallel;
pub mod peak;
pub mod quantize;
pub mod rope;
pub mod softmax;
pub mod tiles;
pub mod vec;

pub use blocks::{ScaleField, WeightType};
pub use dequant::dequantize_row;
pub use isa::Isa;
pub use matmul::{
    ActivationFormats, Activations, MatmulScratch, Matrix, Output, Precision, matmul, piece_rows,
};
pub use quantize::quantize_row;
pub use tiles::Layout;
