//! The collective among GPUs, and products with blocks of weights: kernels, launched through CUDA's driver.
//! docs/explanation/cuda.md explains them.
//!
//! No part of CUDA is needed to build, and its absence is an ordinary error: the driver and the run-time compiler are opened when
//! they are first needed. For the collective, `kernel` contains the kernel and its variants, `communicator` the ranks with their
//! memory, `handler` the stages of the custom call, `probe` the trial at the start, `arena` the memory of GPUs of several
//! processes. `blocks` contains matrices in blocks and their kernels, `blocks_handler` the stages of their custom calls. `pool`
//! keeps pieces of files in slots of a GPU, filled from page-locked memory (`locked`), and `chosen` multiplies with the chosen
//! ones. `code` compiles and loads a kernel.

pub mod arena;
pub mod blocks;
pub(crate) mod blocks_handler;
pub mod chosen;
mod code;
mod communicator;
mod driver;
mod error;
pub(crate) mod handler;
pub mod kernel;
mod library;
mod locked;
pub mod nvrtc;
pub mod pool;
mod probe;

pub use communicator::{Account, Arrays, Communicator, accounts, errors};
pub use driver::{Driver, Event, Function, Graph, HostMemory, Memory, Shareable, Stream};
pub use error::CudaError;
pub use locked::LockedPages;
pub use probe::probe;
