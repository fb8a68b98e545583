//! Threads that the system may refuse (`ulimit -u`, the limit of a control group): work continues with the
//! available ones, and the caller can report it.

/// The number of threads requested for a piece of work, and the number that the system provided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads {
    /// The number of threads that the work could use.
    pub wanted: usize,
    /// The number of threads that worked, including the caller's own. At least 1.
    pub had: usize,
}

impl Threads {
    /// Work on the caller's thread alone.
    pub const ONE: Threads = Threads { wanted: 1, had: 1 };

    /// True if the system refused some threads.
    pub fn is_short(self) -> bool {
        self.had < self.wanted
    }

    /// Returns the one of two pieces of work that lacked more threads, or the one that requested more if
    /// both lacked the same.
    #[must_use]
    pub fn or(self, other: Threads) -> Threads {
        let key = |threads: Threads| (threads.wanted.saturating_sub(threads.had), threads.wanted);
        if key(other) > key(self) { other } else { self }
    }
}
