//! Tensors into text: the model's file opened and checked, its forward pass, its tokenizer, its
//! sampler and the session that ties them together.
//!
//! Invariants of this room:
//! - Nothing here prints; every failure is a typed [`ModelError`] that names the file and what in
//!   it was found and expected.
//! - A matrix is in one place: in the mapped file, or in memory of this process, as it was or packed
//!   ([`load`]). The small vectors (norms, biases, RoPE factors) are copied as f32 when a model is
//!   opened.
//! - After [`Session::new`] the token loop (feed, sample, decode) allocates nothing.
//! - Results do not depend on the number of threads: the cut of the work into pieces follows from
//!   shapes and positions alone.
//! - `unsafe` is in the pool, where the forward pass shares buffers between its threads, around the
//!   cache's memory, and where a load fills regions piece by piece; nowhere else.

mod cache;
pub mod describe;
mod engine;
mod error;
mod load;
mod open;
mod parts;
pub mod spec;
mod weights;

pub use engine::{
    DEFAULT_CONTEXT, Finish, GenerateOptions, Generated, MAX_BATCH, Pool, Sampler, SamplerOptions, Session,
    SessionOptions, generate,
};
pub use error::ModelError;
pub use load::{FileReport, Load, LoadError, LoadReport, Repack};
pub use open::{Model, OpenOptions, OpenTimings};
pub use spec::ModelSpec;
pub use weights::WeightError;
