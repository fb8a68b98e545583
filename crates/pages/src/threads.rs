//! Threads that the system may refuse (`ulimit -u`, the limit of a control group): work continues with those
//! that there are, and whoever asked for it can tell.

/// How many threads a piece of work was to have, and how many the system gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads {
    /// As many as the work could use.
    pub wanted: usize,
    /// As many as worked, the caller's own among them. At least 1.
    pub had: usize,
}

impl Threads {
    /// Work for the caller's thread alone.
    pub const ONE: Threads = Threads { wanted: 1, had: 1 };

    /// True if the system refused some.
    pub fn is_short(self) -> bool {
        self.had < self.wanted
    }

    /// Of two pieces of work the one that lacked more threads, or wanted more if both had what they wanted.
    #[must_use]
    pub fn or(self, other: Threads) -> Threads {
        let key = |threads: Threads| (threads.wanted.saturating_sub(threads.had), threads.wanted);
        if key(other) > key(self) { other } else { self }
    }
}
