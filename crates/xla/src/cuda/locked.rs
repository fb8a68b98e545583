//! Page-locked memory of the host, and copies from it that a GPU makes on its own.

use super::driver::{Driver, Memory, Stream, handle};
use super::error::CudaError;

/// `CU_MEMHOSTREGISTER_PORTABLE`.
const PORTABLE: std::ffi::c_uint = 1;
/// Maximum number of bytes locked by a call, so that a large store is not locked by a single one.
const PIECE: usize = 1 << 30;

/// Memory of the host that is page-locked until this is dropped.
pub struct LockedPages {
    driver: &'static Driver,
    /// The GPU in whose context it was locked.
    ordinal: i64,
    start: *mut u8,
    /// Each [`PIECE`] of them was locked by its own call.
    bytes: usize,
}

// SAFETY: the memory is not accessed through it.
unsafe impl Send for LockedPages {}
// SAFETY: as above.
unsafe impl Sync for LockedPages {}

impl Driver {
    /// Page-locks memory of the host, so that GPUs copy from it without the CPU. All of it is in physical memory from then on.
    ///
    /// It is locked for every GPU; `ordinal` selects the context for the calls: one that is used anyway, since a context uses
    /// memory of its GPU.
    ///
    /// # Safety
    /// The memory is valid until the returned value has been dropped.
    pub unsafe fn lock_pages(
        &'static self,
        ordinal: i64,
        start: *mut u8,
        bytes: usize,
    ) -> Result<LockedPages, CudaError> {
        // Pages that were locked are unlocked if the rest is refused.
        let mut locked = LockedPages { driver: self, ordinal, start, bytes: 0 };
        self.on(ordinal, || {
            while locked.bytes < bytes {
                let piece = PIECE.min(bytes - locked.bytes);
                let from = start.wrapping_add(locked.bytes).cast();
                // SAFETY: by the contract.
                let code = unsafe { (self.functions.cuMemHostRegister_v2)(from, piece, PORTABLE) };
                self.check("cuMemHostRegister", code)?;
                locked.bytes += piece;
            }
            Ok(())
        })?;
        Ok(locked)
    }
}

impl LockedPages {
    /// The offset of `bytes` in this memory.
    fn place(&self, bytes: &[u8]) -> Option<usize> {
        let at = bytes.as_ptr().addr().checked_sub(self.start.addr())?;
        (at.checked_add(bytes.len())? <= self.bytes).then_some(at)
    }
}

impl Drop for LockedPages {
    fn drop(&mut self) {
        let functions = &self.driver.functions;
        let _ = self.driver.on(self.ordinal, || {
            for at in (0..self.bytes).step_by(PIECE) {
                let from = self.start.wrapping_add(at).cast();
                // SAFETY: registered by `lock_pages`, and once.
                unsafe { (functions.cuMemHostUnregister)(from) };
            }
            Ok(())
        });
    }
}

impl Memory {
    /// Copies `bytes`, which are in `locked`, to an offset, in stream order. It does not wait.
    ///
    /// # Errors
    /// `bytes` are not in `locked`, the GPU's memory ends before they do, or the driver refuses the copy.
    ///
    /// # Safety
    /// `bytes` are not written to, and `locked` is not dropped, until the copy has run. The GPU's memory is not used elsewhere at
    /// that time.
    pub unsafe fn copy_locked_later(
        &self,
        offset: usize,
        locked: &LockedPages,
        bytes: &[u8],
        stream: Stream,
    ) -> Result<(), CudaError> {
        let refuse = |text: String| {
            let text =
                format!("GPU {}: {} bytes are to be copied {text}", self.ordinal, bytes.len());
            Err(CudaError::Unsupported(text))
        };
        let Some(from) = locked.place(bytes) else {
            return refuse("out of memory that is not page-locked".into());
        };
        if offset.checked_add(bytes.len()).is_none_or(|end| end > self.bytes()) {
            return refuse(format!("to byte {offset} of memory that has {}", self.bytes()));
        }
        self.driver.on(self.ordinal, || {
            let mut done = 0;
            while done < bytes.len() {
                // A copy may only read memory that was locked by one call.
                let count = (PIECE - (from + done) % PIECE).min(bytes.len() - done);
                let (to, copy) = (
                    self.address() + (offset + done) as u64,
                    self.driver.functions.cuMemcpyHtoDAsync_v2,
                );
                let source = bytes[done..].as_ptr().cast();
                // SAFETY: within both memories, which are valid by the contract; a valid stream.
                let code = unsafe { copy(to, source, count, handle(stream.0)) };
                self.driver.check("cuMemcpyHtoDAsync", code)?;
                done += count;
            }
            Ok(())
        })
    }
}
