//! Work whose results all units of a region need: threads do it together when the first of them needs it, without a region of its own.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How often a thread looks for the results of others before it leaves its core to them.
const SPINS: u32 = 1 << 12;

/// A buffer in pieces, each of which one thread computes.
///
/// A thread that needs the results computes pieces that have not been begun, and then waits for those that others have begun. It never waits for a thread
/// that does not compute one, so threads may come in any order, and one alone as well.
#[derive(Debug)]
pub struct SharedWork {
    /// The parts of a vector that is this value's: its first element, its length and its capacity.
    values: *mut f32,
    len: usize,
    capacity: usize,
    /// Elements of each piece.
    piece: usize,
    pieces: usize,
    /// The first piece that has not been begun, and the number of those that are computed.
    next: AtomicUsize,
    done: AtomicUsize,
    owns: PhantomData<Vec<f32>>,
}

// SAFETY: pieces are written to by one thread each, and read when all have been written.
unsafe impl Send for SharedWork {}
// SAFETY: as above.
unsafe impl Sync for SharedWork {}

/// Counts a piece as computed, also if computing it panics, so that no thread waits for ever.
struct Done<'a>(&'a AtomicUsize);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

impl SharedWork {
    /// Begins the work of computing the first elements of a buffer, in pieces of `piece` elements.
    ///
    /// # Panics
    /// If the buffer is shorter than all pieces.
    pub fn new(buffer: Vec<f32>, pieces: usize, piece: usize) -> SharedWork {
        assert!(pieces * piece <= buffer.len(), "a buffer for all pieces");
        let mut buffer = ManuallyDrop::new(buffer);
        let (len, capacity) = (buffer.len(), buffer.capacity());
        SharedWork {
            values: buffer.as_mut_ptr(),
            len,
            capacity,
            piece,
            pieces,
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            owns: PhantomData,
        }
    }

    /// Returns the results, after `compute(i, piece i)` has been called for all pieces, by this thread or by others.
    pub fn get(&self, compute: &dyn Fn(usize, &mut [f32])) -> &[f32] {
        if self.done.load(Ordering::Acquire) < self.pieces {
            self.finish(compute);
        }
        // SAFETY: all pieces are computed, which the counter has made visible, and nothing writes any more.
        unsafe { std::slice::from_raw_parts(self.values, self.pieces * self.piece) }
    }

    #[cold]
    fn finish(&self, compute: &dyn Fn(usize, &mut [f32])) {
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= self.pieces {
                break;
            }
            let _done = Done(&self.done);
            // SAFETY: a piece is within the buffer, and this thread alone has its number.
            let piece = unsafe {
                std::slice::from_raw_parts_mut(self.values.add(i * self.piece), self.piece)
            };
            compute(i, piece);
        }
        let mut waited = 0u32;
        while self.done.load(Ordering::Acquire) < self.pieces {
            waited += 1;
            match waited < SPINS {
                true => std::hint::spin_loop(),
                // Another thread may need this core to compute its piece.
                false => std::thread::yield_now(),
            }
        }
    }

    /// Ends the work, and returns the buffer.
    pub fn into_buffer(self) -> Vec<f32> {
        let this = ManuallyDrop::new(self);
        // SAFETY: the parts are those of the vector that this value was made of.
        unsafe { Vec::from_raw_parts(this.values, this.len, this.capacity) }
    }
}

impl Drop for SharedWork {
    fn drop(&mut self) {
        // SAFETY: as in `into_buffer`, which does not come here.
        drop(unsafe { Vec::from_raw_parts(self.values, self.len, self.capacity) });
    }
}
