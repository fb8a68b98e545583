//! The cut of matrix products, attention and the filling of the cache into units of work, in one place for every set of threads:
//! the native engine's pool and XLA's threads are two [`Threads`].
//!
//! The cut depends on shapes and positions and never on the number of threads, so neither do the results. Units write to
//! [`Rows`], which are borrowed exclusively: concurrent access by several threads is proved safe here, and callers need no
//! `unsafe`.

mod attend;
mod experts;
mod pack_products;
mod products;
mod recurrent;
mod rows;
mod shared_work;

pub use attend::{Attend, AttendRows, TargetFn, store, store_rows};
pub use experts::{
    Bank, Place, PlaceFn, SlotFn, Term, multiply_and_sum, multiply_banks, multiply_banks_and_pack,
    sum,
};
pub use pack_products::{JoinFn, Packing, multiply_and_pack};
pub use products::{
    ColumnsFn, CorrectFn, Extras, Product, UNIT_ROWS, multiply, multiply_greatest,
    room_for_products,
};
pub use recurrent::{DeltaRule, HeadRows, LinearAttention, SelectiveScan, StateSpace};
pub use rows::{Cut, PackFn, RowFn, Rows, cut_rows, each_row, gather, pack};
pub use shared_work::SharedWork;

use crate::attention::{AttentionLimits, AttentionScratch};
use crate::matmul::MatmulScratch;
use std::ops::Range;

/// The amount of work, which determines how many threads are worth using.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// The approximate time of all of it on one thread.
    pub nanoseconds: usize,
    /// Maximum number of units that a thread should take at once.
    pub take: usize,
    /// True if the caller should do all of it: waking other threads would take longer.
    pub alone: bool,
}

impl Cost {
    /// Work that takes `nanoseconds`, in parts of any length.
    pub const fn of(nanoseconds: usize) -> Cost {
        Cost { nanoseconds, take: usize::MAX, alone: false }
    }
}

/// Threads that share work.
///
/// # Safety
/// [`run`](Threads::run) passes every unit to at most one call, and returns when all calls have returned. Callers write to memory
/// by the numbers of their units.
pub unsafe trait Threads {
    /// The memory that one thread may write to.
    type Scratch: Scratch;

    /// Calls `f(range, scratch)` with disjoint ranges that together are `0..units`, on any threads.
    fn run(
        &mut self,
        units: usize,
        cost: Cost,
        f: &(dyn Fn(Range<usize>, &mut Self::Scratch) + Sync),
    );
}

/// The memory of one thread, for kernels that need some.
pub trait Scratch {
    /// Calls `f` with the thread's panels, and with a buffer for `count` products, with arbitrary contents.
    fn with_products(&mut self, count: usize, f: impl FnOnce(&mut MatmulScratch, &mut [f32]));

    /// Calls `f` with memory for attention within `limits`.
    fn with_attention(&mut self, limits: AttentionLimits, f: impl FnOnce(&mut AttentionScratch));
}
