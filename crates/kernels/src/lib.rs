//! Kernels: quantised blocks to numbers, matrix products, attention, norms, rotary embeddings and activations, portable, for AVX2, AVX-VNNI, AVX-512
//! (with VNNI) and NEON (with its dot products); and floats to blocks.
//!
//! A block type is one file in `blocks/` and one line of its registry; `docs/how-to/block-type.md` explains how to add one.
//!
//! **Invariant:** everything works on slices that the caller provides. No call allocates, does I/O or starts a thread; [`parallel`] cuts work into
//! units for the caller's threads.
//!
//! **Invariant:** blocks are read in place. No other copy of a weight exists, except in registers and in a panel that fits the cache (for batches of
//! canonical rows, and of [`planes`]). There are three layouts: GGUF's rows of blocks, and the [`tiles`] and [`planes`] of packed files, which are
//! permutations of the same bits, of the same size.
//!
//! **Invariant:** the SIMD level ([`Isa`]) is an argument of every kernel, and is chosen once, at run time.
//! Nothing depends on how the crate was compiled.
//!
//! **Invariant:** a weight is used only as a number to compute with: never as a length or an offset, and as an index only into a table that has an
//! entry for each value. If another process writes to the memory meanwhile (a shared map of a file), the numbers change, and nothing worse happens.
//!
//! **Invariant:** dequantising equals the reference (the `gguf` package), bit for bit, for every type. Every SIMD level and both layouts yield the same
//! bits, those of the portable code, in the order that `docs/reference/arithmetic.md` states (except for prompts with [`SimdLevel::Amx`], which are
//! multiplied in bf16). The portable code is tested against a 64-bit oracle, on shapes with tails.
//!
//! **Invariant:** attention streams over the cache in blocks with an online softmax (FlashAttention); the
//! partial results of one token are merged as in Flash-Decoding. Scores for a whole context are never
//! stored.

/// The version of these kernels' arithmetic, which `docs/reference/arithmetic.md` states. Prompt files and records have it, so that results of two
/// versions are not mixed. Raise it when you change a bit of any result.
pub const ARITHMETIC: u32 = 4;

pub mod attention;
mod blocks;
pub mod dequant;
mod fields;
mod fit;
pub mod gate;
pub mod half;
#[doc(hidden)]
pub mod internals;
pub mod isa;
mod lanes;
pub mod low_rank;
pub mod matmul;
pub mod norm;
pub mod parallel;
pub mod peak;
pub mod planes;
pub mod quantize;
pub mod recurrent;
pub mod rope;
#[cfg(target_arch = "aarch64")]
mod sdot;
pub mod softmax;
pub mod tiles;
pub mod vec;

pub use blocks::{ScaleField, WeightType};
pub use dequant::dequantize_row;
pub use isa::{Isa, SimdLevel};
pub use matmul::{
    ActivationFormats, Activations, MatmulScratch, Matrix, Output, Precision, RowCounts, matmul,
    piece_rows,
};
pub use quantize::{quantize_row, quantize_row_weighted};
pub use tiles::Layout;
