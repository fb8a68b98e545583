//! The collective of tensor-parallel inference in one call: all-reduce, optional post-norm, residual, RMSNorm.
//!
//! Ranks are threads of one process ([`ThreadGroup`]), or of several on one host ([`ProcessGroup`]). Each contributes a part of a sum; each gets the
//! new residual and its norm, with the same bits on every rank, every SIMD level and every algorithm. The ranks of a call meet once, at a barrier
//! with a limit on waiting: a rank that never arrives is an error on all others, and a rank that arrives later gets that error at once.
//!
//! **Invariant:** every wait has a limit, and a rank that gives up wakes all others: all ranks pass a call, or none does. All later calls report the
//! first failure.
//!
//! **Invariant:** results do not depend on the SIMD level, the algorithm or the order of arrival, to the bit.
//!
//! **Invariant:** memory that processes share cannot be opened by another user, has no name once all ranks have it, and is reserved before it is
//! accessed.
//!
//! The protocol, the argument for its memory order, and the roundings are in `docs/explanation/collective.md`. The protocol is generic over its word,
//! so that loom runs the same code.
//!
//! ```
//! use alight_collective::{Args, ThreadGroup, Element, Options, Spec};
//!
//! let spec = Spec {
//!     rows: 1, hidden: 2, element: Element::F32, weight: Element::F32, bias: false, epsilon: 0.0, post_norm: false,
//! };
//! let group = ThreadGroup::new(Options::new(2, 8))?;
//! let bytes = |x: [f32; 2]| x.map(f32::to_ne_bytes).concat();
//! let run = |rank| {
//!     let (mut normed, mut new_residual) = ([0; 8], [0; 8]);
//!     let args = Args {
//!         partial: Some(&bytes([1.0, 2.0])), residual: Some(&bytes([1.0, 3.0])), weight: &bytes([1.0, 1.0]), post_weight: None,
//!         normed: &mut normed, new_residual: &mut new_residual,
//!     };
//!     group.allreduce_norm(rank, 0, &spec, args).map(|()| new_residual.to_vec())
//! };
//! let results = std::thread::scope(|s| [0, 1].map(|rank| s.spawn(move || run(rank))).map(|t| t.join().unwrap()));
//! for result in results {
//!     assert_eq!(result?, bytes([3.0, 7.0]));
//! }
//! # Ok::<(), alight_collective::CollectiveError>(())
//! ```

mod barrier;
mod call;
mod choose;
mod error;
mod process_group;
mod region;
mod rows;
mod segment;
mod shared_segment;
mod spec;
#[cfg(test)]
mod tests;
mod thread_group;
mod word;

pub use choose::Algorithm;
pub use error::CollectiveError;
pub use process_group::{ProcessGroup, ProcessGroupOptions};
pub use shared_segment::{Key, SharedSegment};
pub use spec::{Args, Element, Spec};
pub use thread_group::{Options, ThreadGroup};
