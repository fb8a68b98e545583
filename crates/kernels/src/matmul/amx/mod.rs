//! Tokens of a prompt with AMX, a unit that multiplies small matrices ("tiles") in one instruction: of bytes ([`bytes`]), with
//! results bit-identical to AVX-512, or of bf16 numbers ([`bf16`]), with results that are not.

pub(super) mod bf16;
mod bf16_panel;
pub(super) mod bytes;
mod tile;

use tile::{LINE, Registers, Shapes, TILE};

/// All registers at their maximum size.
static WHOLE: Shapes = Shapes::new([[TILE, LINE]; 8]);

/// Products of whole tiles, 12 in each of `rounds` rounds, of zeros: a CPU slows down as more bits change.
macro_rules! products {
    ($(#[$doc:meta])* $name:ident, $multiply:ident) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The CPU has the level.
        pub(crate) unsafe fn $name(rounds: usize) -> i32 {
            let mut sums = [[0i32; TILE]; TILE];
            // SAFETY: by the caller's promise; `sums` has the size of a register.
            unsafe {
                let registers = Registers::take(&WHOLE);
                for _ in 0..3 * rounds {
                    registers.$multiply::<0, 4, 6>();
                    registers.$multiply::<1, 4, 7>();
                    registers.$multiply::<2, 5, 6>();
                    registers.$multiply::<3, 5, 7>();
                }
                registers.store::<0>(sums.as_mut_ptr().cast(), LINE);
            }
            sums.as_flattened().iter().fold(0, |s, &a| s.wrapping_add(a))
        }
    };
}
products!(
    /// Products of bytes.
    products_of_bytes,
    multiply_bytes
);
products!(
    /// Products of bf16 numbers.
    products_of_bf16,
    multiply
);

/// Number of columns that share a scale in most types, and that one instruction multiplies.
const GROUP: usize = 32;
