//! How matrix products, attention and the filling of the cache are cut into units of work, once, for
//! every set of threads: the native engine's pool and XLA's threads are two [`Threads`].
//!
//! The cut follows from shapes and positions and never from the number of threads, so neither do the
//! results. Rows that units write to are [`Rows`], which are borrowed exclusively: what several
//! threads may do to them at the same time is proved here, and callers need no `unsafe`.

mod attend;
mod experts;
mod pack_products;
mod products;
mod recurrent;
mod rows;

pub use attend::{Attend, AttendRows, TargetFn, store, store_rows};
pub use experts::{
    Bank, Place, PlaceFn, SlotFn, Term, multiply_and_sum, multiply_banks, multiply_banks_and_pack,
    sum,
};
pub use pack_products::{JoinFn, Packing, multiply_and_pack};
pub use products::{
    ColumnsFn, Extras, LowRank, Product, UNIT_ROWS, multiply, multiply_low_rank, room_for_products,
};
pub use recurrent::{DeltaRule, StateSpace};
pub use rows::{Cut, PackFn, RowFn, Rows, cut_rows, each_row, gather, pack};

use crate::attention::{AttentionLimits, AttentionScratch};
use crate::matmul::MatmulScratch;
use std::ops::Range;

/// How much work there is, for the decision how many threads are worth it.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// What all of it takes on one thread, about.
    pub nanoseconds: usize,
    /// The most units that a thread should take at once.
    pub take: usize,
    /// True if the caller should do all of it: waking others would take longer.
    pub alone: bool,
}

impl Cost {
    /// Work of so many nanoseconds, in parts as long as the threads like.
    pub const fn of(nanoseconds: usize) -> Cost {
        Cost { nanoseconds, take: usize::MAX, alone: false }
    }
}

/// Threads that share work.
///
/// # Safety
/// [`run`](Threads::run) hands every unit to exactly one call, and returns when all calls have
/// returned. Callers write to memory by the numbers of their units.
pub unsafe trait Threads {
    /// What one thread may write to.
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
    /// Calls `f` with the thread's panels, and with a buffer for `count` products, which may hold anything.
    fn with_products(&mut self, count: usize, f: impl FnOnce(&mut MatmulScratch, &mut [f32]));

    /// Calls `f` with memory for attention within `limits`.
    fn with_attention(&mut self, limits: AttentionLimits, f: impl FnOnce(&mut AttentionScratch));
}
