//! The tile registers of AMX, and the five instructions on them that products need.
//!
//! They are written in assembly, as the compiler's intrinsics are not stable. The compiler itself never uses these registers, so
//! that nothing else changes what is in them between two instructions.

use std::arch::asm;
use std::marker::PhantomData;

/// Rows of a tile register.
pub(crate) const TILE: usize = 16;

/// Bytes of a row.
pub(crate) const LINE: usize = 64;

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    line_bytes: [u16; 16],
    rows: [u8; 16],
}

/// All eight registers as large as they get.
static WHOLE: Shapes = {
    let mut shapes =
        Shapes { palette: 1, start_row: 0, reserved: [0; 14], line_bytes: [0; 16], rows: [0; 16] };
    let mut i = 0;
    while i < 8 {
        shapes.line_bytes[i] = LINE as u16;
        shapes.rows[i] = TILE as u8;
        i += 1;
    }
    shapes
};

/// This thread's tile registers, eight of 16 rows × 64 bytes, while it lives. Given back at the end, since a thread that has none
/// in use is switched away from sooner.
pub(crate) struct Registers {
    _thread: PhantomData<*mut ()>,
}

impl Registers {
    /// # Safety
    /// The CPU has AMX, and the system lets the process use it (there is an [`Isa`](crate::Isa) of [`SimdLevel::Amx`](crate::SimdLevel::Amx)).
    pub unsafe fn take() -> Registers {
        // SAFETY: by the caller's promise; 64 bytes are read.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &WHOLE, options(nostack, preserves_flags)) };
        Registers { _thread: PhantomData }
    }

    /// Register `T` becomes zeros.
    #[inline(always)]
    pub fn zero<const T: u8>(&self) {
        const { assert!(T < 8) };
        // SAFETY: the registers are ours, since `take`.
        unsafe { asm!("tilezero tmm{}", const T, options(nomem, nostack, preserves_flags)) };
    }

    /// Register `T` becomes 16 rows of 64 bytes that are `stride` bytes apart.
    ///
    /// # Safety
    /// They can be read.
    #[inline(always)]
    pub unsafe fn load<const T: u8>(&self, from: *const u8, stride: usize) {
        const { assert!(T < 8) };
        // SAFETY: the registers are ours; the memory by the caller's promise.
        unsafe {
            asm!(
                "tileloadd tmm{}, [{} + {}]",
                const T, in(reg) from, in(reg) stride,
                options(readonly, nostack, preserves_flags)
            );
        }
    }

    /// Writes register `T` to 16 rows of 64 bytes that are `stride` bytes apart.
    ///
    /// # Safety
    /// They can be written, and nobody else uses them meanwhile.
    #[inline(always)]
    pub unsafe fn store<const T: u8>(&self, to: *mut u8, stride: usize) {
        const { assert!(T < 8) };
        // SAFETY: as for `load`.
        unsafe {
            asm!(
                "tilestored [{} + {}], tmm{}",
                in(reg) to, in(reg) stride, const T,
                options(nostack, preserves_flags)
            );
        }
    }

    /// Adds to register `SUMS` `[16][16]` f32 the products of `ROWS` `[16][32]` with `COLUMNS` `[16 pairs][16][2]`, both bf16: each
    /// sum of 32 products is that of the first of all pairs plus that of the second, added up in f32 from the first pair
    /// on. Subnormal numbers count as zero.
    #[inline(always)]
    pub fn multiply<const SUMS: u8, const ROWS: u8, const COLUMNS: u8>(&self) {
        const { assert!(SUMS < 8 && ROWS < 8 && COLUMNS < 8) };
        const { assert!(SUMS != ROWS && ROWS != COLUMNS && SUMS != COLUMNS) };
        // SAFETY: the registers are ours, since `take`.
        unsafe {
            asm!(
                "tdpbf16ps tmm{}, tmm{}, tmm{}",
                const SUMS, const ROWS, const COLUMNS,
                options(nomem, nostack, preserves_flags)
            );
        }
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: no part of the program expects anything in the registers.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }
}
