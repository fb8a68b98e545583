//! Hooks that tests put into a group: delays, and removed parts. Not present in any other build.

/// A moment of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Before the operand is copied.
    Entered,
    /// Before arriving.
    Staged,
    /// Before a block is computed.
    Working,
    /// After all ranks have arrived, and all blocks are done.
    Passed,
    /// Before returning.
    Computed,
}

/// The part of the protocol that is removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Without {
    #[default]
    Nothing,
    Barrier,
    SecondBuffer,
    /// Waiting until the others' blocks are done.
    SecondBarrier,
}

type Pause = Box<dyn Fn(usize, u32, Phase) + Send + Sync>;

#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) without: Without,
    /// Called with rank, call and phase.
    pub(crate) pause: Option<Pause>,
}

impl Hooks {
    pub(crate) fn at(&self, rank: usize, call: u32, phase: Phase) {
        if let Some(pause) = &self.pause {
            pause(rank, call, phase);
        }
    }

    pub(crate) fn buffer(&self, buffer: usize) -> usize {
        if self.without == Without::SecondBuffer { 0 } else { buffer }
    }

    pub(crate) fn leaves_early(&self) -> bool {
        self.without == Without::SecondBarrier
    }

    pub(crate) fn no_barrier(&self) -> bool {
        self.without == Without::Barrier
    }
}
