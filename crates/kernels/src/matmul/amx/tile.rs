//! The tile registers of AMX, and the six instructions on them that products need.
//!
//! They are written in assembly because the compiler's intrinsics are not stable. The compiler itself never uses these registers,
//! so nothing else changes their contents between two instructions.

use std::arch::asm;
use std::marker::PhantomData;

/// Rows of a tile register.
pub(crate) const TILE: usize = 16;

/// Bytes of a row.
pub(crate) const LINE: usize = 64;

/// The operand of `ldtilecfg`: the number of rows of each register and of bytes in a row.
#[repr(C, align(64))]
pub(crate) struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    line_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// Shapes of the eight registers, `[rows, bytes of a row]`.
    pub const fn new(of: [[usize; 2]; 8]) -> Shapes {
        let mut shapes = Shapes {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            line_bytes: [0; 16],
            rows: [0; 16],
        };
        let mut i = 0;
        while i < of.len() {
            let [rows, bytes] = of[i];
            assert!(rows >= 1 && rows <= TILE && bytes >= 4 && bytes <= LINE && bytes % 4 == 0);
            (shapes.rows[i], shapes.line_bytes[i]) = (rows as u8, bytes as u16);
            i += 1;
        }
        shapes
    }
}

/// This thread's tile registers during its lifetime. They are released at the end, because a context switch is faster for a
/// thread that has none in use.
pub(crate) struct Registers {
    _thread: PhantomData<*mut ()>,
}

/// A method that adds the products of two registers to a third, with an instruction.
macro_rules! products {
    ($(#[$doc:meta])* $name:ident, $instruction:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name<const SUMS: u8, const TOKENS: u8, const LINES: u8>(&self) {
            const { assert!(SUMS < 8 && TOKENS < 8 && LINES < 8) };
            const { assert!(SUMS != TOKENS && TOKENS != LINES && SUMS != LINES) };
            // SAFETY: the registers are ours, since `take`.
            unsafe {
                asm!(
                    concat!($instruction, " tmm{}, tmm{}, tmm{}"),
                    const SUMS, const TOKENS, const LINES,
                    options(nomem, nostack, preserves_flags)
                );
            }
        }
    };
}

impl Registers {
    /// # Safety
    /// The CPU has AMX, and the system lets the process use it (there is an [`Isa`](crate::Isa) of
    /// [`SimdLevel::AmxInt8`](crate::SimdLevel::AmxInt8) or of [`SimdLevel::Amx`](crate::SimdLevel::Amx)).
    pub unsafe fn take(shapes: &'static Shapes) -> Registers {
        // SAFETY: by the caller's promise; 64 bytes are read.
        unsafe { asm!("ldtilecfg [{}]", in(reg) shapes, options(nostack, preserves_flags)) };
        Registers { _thread: PhantomData }
    }

    /// Fills register `T` with zeros.
    #[inline(always)]
    pub fn zero<const T: u8>(&self) {
        const { assert!(T < 8) };
        // SAFETY: the registers are ours, since `take`.
        unsafe { asm!("tilezero tmm{}", const T, options(nomem, nostack, preserves_flags)) };
    }

    /// Loads register `T` from rows of memory that are `stride` bytes apart.
    ///
    /// # Safety
    /// The rows can be read.
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

    /// Writes register `T` to rows that are `stride` bytes apart.
    ///
    /// # Safety
    /// The rows can be written, and nothing else uses them meanwhile.
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

    products!(
        /// Adds to register `SUMS` `[T][16]` f32 the products of `TOKENS` `[T][32]` with `LINES` `[16 pairs][16][2]`, both bf16:
        /// each sum of 32 products is the sum of the first of all pairs plus that of the second, each accumulated in f32 from the
        /// first pair on. Subnormal numbers count as zero.
        multiply,
        "tdpbf16ps"
    );

    products!(
        /// Adds to register `SUMS` `[T][16]` i32 the products of `TOKENS` `[T][4·L]` with `LINES` `[L][16][4]`, both signed bytes.
        multiply_bytes,
        "tdpbssd"
    );
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: no part of the program expects anything in the registers.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }
}
