//! The budget of a rendering: steps (time) and bytes held at one moment (memory).
//!
//! Every operation whose time or memory grows with its input is charged here *before* it is done.
//! One step is one instruction, one element processed, or [`BYTES_PER_STEP`] bytes processed.
//! Memory is counted as currently held, by leases that return their bytes when dropped.

use std::cell::Cell;
use std::rc::Rc;

/// The reason why a rendering ends early.
#[derive(Debug)]
pub(super) enum RenderStop {
    /// A limit on time or memory.
    Endless(&'static str),
    /// A limit on nesting.
    TooDeep(&'static str),
    /// `raise_exception`.
    Refused(String),
    /// The template attempts something impossible.
    Failed(String),
}

pub(super) type Result<T> = std::result::Result<T, RenderStop>;

/// Fails with the given message.
pub(super) fn fail<T>(message: impl Into<String>) -> Result<T> {
    Err(RenderStop::Failed(message.into()))
}

/// The number of bytes that may be copied, compared or searched for one step.
pub(super) const BYTES_PER_STEP: usize = 16;

pub(super) struct Budget {
    steps: Cell<u64>,
    held: Cell<usize>,
    most_held: usize,
}

impl Budget {
    pub(super) fn new(steps: u64, most_held: usize) -> Rc<Budget> {
        Rc::new(Budget { steps: Cell::new(steps), held: Cell::new(0), most_held })
    }

    /// Charges `n` steps.
    pub(super) fn steps(&self, n: usize) -> Result<()> {
        match self.steps.get().checked_sub(n as u64) {
            Some(left) => {
                self.steps.set(left);
                Ok(())
            }
            None => {
                // Nothing more is allowed after a refusal.
                self.steps.set(0);
                Err(RenderStop::Endless("it takes too many steps"))
            }
        }
    }

    /// Charges the processing of `n` bytes.
    pub(super) fn bytes(&self, n: usize) -> Result<()> {
        self.steps(1 + n / BYTES_PER_STEP)
    }

    /// Leases `bytes` bytes of memory, until the lease is dropped.
    pub(super) fn lease(self: &Rc<Self>, bytes: usize) -> Result<Lease> {
        let mut lease = Lease { bytes: 0, budget: Rc::clone(self) };
        lease.resize(bytes)?;
        Ok(lease)
    }
}

/// A part of the memory that a rendering may hold.
pub(super) struct Lease {
    bytes: usize,
    budget: Rc<Budget>,
}

impl Lease {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the memory held to `bytes`.
    pub(super) fn resize(&mut self, bytes: usize) -> Result<()> {
        let others = self.budget.held.get() - self.bytes;
        match others.checked_add(bytes).filter(|held| *held <= self.budget.most_held) {
            Some(held) => {
                self.budget.held.set(held);
                self.bytes = bytes;
                Ok(())
            }
            None => Err(RenderStop::Endless("it holds too much text and too many values at once")),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.budget.held.set(self.budget.held.get() - self.bytes);
    }
}
