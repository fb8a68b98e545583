//! Products of tokens with matrices that are in slots of a GPU, each with the one that was chosen for it: a launch for many pairs of both.
//!
//! The kernel finds a matrix by the table of a [`Stack`]. A pair has the bits of [`Blocks::product`] with the matrix anywhere else. A pair whose
//! matrix is in no slot gets NaN, so that a wrong table cannot go unseen.

use alight_collective::Element;

use super::blocks::{Blocks, Grid, Launch, Params, Variant};
use super::driver::{Driver, Function, Stream};
use super::error::CudaError;
use super::pool::Stack;

/// Pairs of a launch, as in the source.
const PAIRS: usize = 64;

/// A token and the piece whose matrix was chosen for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Pair {
    /// Of the table.
    pub piece: u32,
    /// Which row of x the token is.
    pub x: u32,
    /// Which row of the result is for the pair.
    pub y: u32,
}

/// The kernel's argument: `Chosen` of the source.
#[repr(C)]
struct Argument {
    dense: Params,
    table: u64,
    stride: u64,
    slots: u32,
    pieces: u32,
    pairs: [Pair; PAIRS],
}

/// Its size, for a test.
pub const BYTES: usize = size_of::<Argument>();

/// A call for matrices of one type and shape.
#[derive(Clone, Copy, Debug)]
pub struct Products {
    grid: Grid,
    params: Params,
}

impl Products {
    /// With matrices like `blocks`, and x of bf16 or f32.
    pub fn new(blocks: &Blocks, x: Element) -> Result<Products, CudaError> {
        let Launch { grid, params } = blocks.product(x, 1)?;
        let variant = Variant::Chosen { ty: blocks.ty, x };
        Ok(Products { grid: Grid { variant, ..grid }, params })
    }

    /// The kernel.
    pub fn variant(&self) -> Variant {
        self.grid.variant
    }

    /// Puts the products of `pairs` on a stream. It allocates nothing and waits for nothing.
    ///
    /// # Errors
    /// The stack is of other matrices, an array does not begin at a multiple of 16 bytes, or the driver refuses it.
    ///
    /// # Safety
    /// `function` is [`Products::variant`], loaded into the GPU whose context is current and whose stream that is. `stack` is of a visit on that
    /// stream that has not ended, and whose pieces of `pairs` are there. Until the call has ended there are `x`, with a row of the matrices'
    /// columns for each pair, and the result, `f32[_, rows]`, with one for each pair, which nobody else uses meanwhile.
    pub unsafe fn put(
        &self,
        driver: &Driver,
        function: Function,
        stack: &Stack,
        pairs: &[Pair],
        [x, y]: [u64; 2],
        stream: Stream,
    ) -> Result<(), CudaError> {
        let matrix = self.params.row_bytes * u64::from(self.params.rows);
        if matrix > stack.bytes {
            return Err(CudaError::Unsupported(format!(
                "a matrix of {matrix} bytes is to be in the {} bytes that slots have of it",
                stack.bytes
            )));
        }
        let addresses = stack.first | stack.stride | x | y;
        for pairs in pairs.chunks(PAIRS) {
            let mut argument = Argument {
                dense: Params { matrix: stack.first, x, y, ..self.params },
                table: stack.table,
                stride: stack.stride,
                slots: stack.slots,
                pieces: stack.pieces,
                pairs: [Pair::default(); PAIRS],
            };
            argument.pairs[..pairs.len()].copy_from_slice(pairs);
            // SAFETY: by the contract.
            unsafe {
                self.grid.put(driver, function, pairs.len(), addresses, stream, &argument)?;
            }
        }
        Ok(())
    }
}
