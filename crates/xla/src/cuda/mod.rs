//! The collective among the GPUs of one process: one kernel, launched through CUDA's driver. docs/explanation/cuda.md explains it.
//!
//! Nothing of CUDA is needed to build, and its absence is an error like any other: the driver and the run-time compiler are opened
//! when they are first needed. `kernel` is the kernel and its variants, `communicator` the ranks with their memory, `handler` the
//! stages of the custom call, `probe` the trial at the start.

mod communicator;
mod driver;
mod error;
mod handler;
pub mod kernel;
mod library;
pub mod nvrtc;
mod probe;

pub use communicator::{Account, Arrays, Communicator, accounts, errors};
pub use driver::{Driver, Event, Function, Graph, HostMemory, LockedPages, Memory, Stream};
pub use error::CudaError;
pub(crate) use handler::TARGETS;
pub use probe::probe;
