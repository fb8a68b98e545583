//! Memory that calls write to and that is kept between them: as many sets as there were simultaneous calls, each as large as the
//! largest call needed, and per-thread memory, once for each thread.

use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

use alight_kernels::attention::{AttentionLimits, AttentionScratch};
use alight_kernels::{Activations, MatmulScratch};

/// The maximum number of tokens whose activations are held at a time; a call computes further tokens afterwards.
pub(crate) const MAX_TOKENS: usize = 512;

/// The maximum number of sets that are kept; further simultaneous calls allocate theirs each time.
const MAX_SETS: usize = 64;

/// Sets that are not in use.
struct Free<T>(Mutex<Vec<T>>);

impl<T> Free<T> {
    const fn new() -> Free<T> {
        Free(Mutex::new(Vec::new()))
    }

    fn take(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn give(&self, set: T) {
        let mut sets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if sets.len() < MAX_SETS {
            sets.push(set);
        }
    }
}

/// Calls `f` with space for `tokens`, at most [`MAX_TOKENS`], times `cols` activations.
pub(crate) fn with_activations<R>(
    tokens: usize,
    cols: usize,
    f: impl FnOnce(&mut Activations) -> R,
) -> R {
    struct Set {
        activations: Activations,
        tokens: usize,
        cols: usize,
    }
    static SETS: Free<Set> = Free::new();
    // Pages of a new set use no memory until they are written.
    let new = |tokens, cols| Set { activations: Activations::new(tokens, cols), tokens, cols };
    let mut set = match SETS.take() {
        Some(set) if set.tokens >= tokens && set.cols >= cols => set,
        Some(set) => new(set.tokens.max(tokens), set.cols.max(cols)),
        None => new(tokens, cols),
    };
    let result = f(&mut set.activations);
    SETS.give(set);
    result
}

/// Calls `f` with `length` floats of arbitrary value.
pub(crate) fn with_floats<R>(length: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    static SETS: Free<Vec<f32>> = Free::new();
    if length == 0 {
        return f(&mut []);
    }
    let mut floats = SETS.take().unwrap_or_default();
    if floats.len() < length {
        floats = vec![0.0; length];
    }
    let result = f(&mut floats[..length]);
    SETS.give(floats);
    result
}

/// Calls `f` with this thread's panel.
pub(crate) fn with_matmul<R>(f: impl FnOnce(&mut MatmulScratch) -> R) -> R {
    thread_local! {
        static SCRATCH: RefCell<MatmulScratch> = RefCell::new(MatmulScratch::new());
    }
    SCRATCH.with_borrow_mut(f)
}

/// Calls `f` with this thread's memory for attention within `limits`.
pub(crate) fn with_attention<R>(
    limits: AttentionLimits,
    f: impl FnOnce(&mut AttentionScratch) -> R,
) -> R {
    thread_local! {
        static SCRATCH: RefCell<Option<AttentionScratch>> = const { RefCell::new(None) };
    }
    SCRATCH.with_borrow_mut(|scratch| {
        let fits = scratch.as_ref().is_some_and(|scratch| {
            let has = scratch.limits();
            has.rows >= limits.rows && has.k_dim >= limits.k_dim && has.v_dim >= limits.v_dim
        });
        if !fits {
            *scratch = None;
        }
        f(scratch.get_or_insert_with(|| AttentionScratch::new(limits)))
    })
}
