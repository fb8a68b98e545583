//! Reads into slots, by threads or by a visit itself.

use std::sync::PoisonError;

use super::state::{Shared, SlotRead, State};
use crate::transfer::TransferError;
use crate::transfer::blocks::Block;

impl Shared {
    /// The loop of a reader, until the end.
    pub(super) fn read(&self) {
        let mut state = self.state();
        loop {
            if state.stop {
                return;
            }
            let Some(job) = state.queue.pop_front() else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let read = self.read_block(job, self.block(job));
            state = self.state();
            state.ended(job.slot, read);
            if state.slots[job.slot].left == 0 {
                self.arrived.notify_all();
            }
        }
    }

    /// Returns the block that a job reads, with its target.
    pub(super) fn block(&self, job: SlotRead) -> Block {
        let read = self.layout.read(job);
        Block::new(read.offset, read.len, read.need, self.region.as_mut_ptr().wrapping_add(read.to))
    }

    /// Reads the part of a job's block that has not arrived yet.
    fn read_block(&self, job: SlotRead, block: Block) -> Result<(), TransferError> {
        self.watch.written(job.slot, job.span);
        let file = &self.files[self.layout.spans[job.span].span.file];
        #[cfg(test)]
        let (at, to) = (block.offset, block.to);
        // SAFETY: the block is within the job's slot, which belongs to the readers until all of its piece has arrived; each read of it
        // is another part. The region lives as long as `self`.
        let done = unsafe { file.read(block) };
        #[cfg(test)]
        let done = done.and_then(|()| match &self.interpose {
            Some(interpose) if interpose(0, to) < 0 => Err(file.failed(at, -interpose(0, to))),
            _ => Ok(()),
        });
        done
    }

    /// [`Shared::read_block`] by the visiting thread, with the bookkeeping that follows.
    #[cfg(target_os = "linux")]
    pub(super) fn read_alone(&self, state: &mut State, job: SlotRead, block: Block) {
        let read = self.read_block(job, block);
        state.ended(job.slot, read);
    }

    /// The result of a read through the ring.
    #[cfg(target_os = "linux")]
    pub(super) fn seen(&self, result: i32, to: *mut u8) -> i32 {
        #[cfg(test)]
        if let Some(interpose) = &self.interpose {
            return interpose(result, to);
        }
        let _ = to;
        result
    }
}
