//! Products of tokens with matrices in slots of a GPU, each token with the matrix that was chosen for it, many pairs in one launch.
//!
//! A pair has the bits of [`Blocks::product`] with the matrix at any other address. [`Products`] are of pairs that the host lists;
//! the kernel finds a matrix through the table of a [`DeviceStack`](pool::DeviceStack). A pair whose matrix is in no slot gets NaN, so that a
//! wrong table cannot go unnoticed. [`CountedProducts`] are of pairs whose matrices are given by an array on the GPU, as written by
//! a router, so that router and products may be in one graph. There, a matrix that is in no slot belongs to another rank, and
//! yields zeros.

use alight_collective::Element;

use super::blocks::{Blocks, BlocksParams, BlocksVariant, Grid, Launch, Pairs};
use super::driver::{Driver, Function, Stream};
use super::error::CudaError;
use super::pool;

/// Maximum number of pairs of a launch that the host lists, as in the source.
const PAIRS: usize = 64;
/// Maximum number of pairs of any launch: the limit of a grid's second dimension.
pub const MAX_PAIRS: usize = 65535;

/// A token and the piece whose matrix was chosen for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Pair {
    /// The index of the piece in the table.
    pub piece: u32,
    /// The token's row of x.
    pub x: u32,
    /// The pair's row of the result.
    pub y: u32,
}

/// The locations of matrices: `Stack` of the source.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Slots {
    dense: BlocksParams,
    table: u64,
    stride: u64,
    slots: u32,
    pieces: u32,
}

/// The argument of the kernel for [`Products`]: `Listed` of the source.
#[repr(C)]
struct Listed {
    slots: Slots,
    pairs: [Pair; PAIRS],
}

/// The argument of the kernel for [`CountedProducts`]: `Counted` of the source.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Counted {
    slots: Slots,
    share: u32,
}

/// Their sizes, for a test.
pub const BYTES: [usize; 2] = [size_of::<Listed>(), size_of::<Counted>()];

/// A call for matrices of one type and shape.
#[derive(Clone, Copy, Debug)]
pub struct Products {
    grid: Grid,
    params: BlocksParams,
}

impl Products {
    /// Products with matrices like `blocks`, and x of bf16 or f32.
    pub fn new(blocks: &Blocks, x: Element) -> Result<Products, CudaError> {
        let Launch { grid, params } = blocks.product(x, 1)?;
        let variant = BlocksVariant::Chosen { ty: blocks.ty, x, pairs: Pairs::Listed };
        Ok(Products { grid: Grid { variant, ..grid }, params })
    }

    /// The kernel.
    pub fn variant(&self) -> BlocksVariant {
        self.grid.variant
    }

    /// Puts the products of `pairs` on a stream, without allocating memory or waiting.
    ///
    /// # Errors
    /// The stack is of other matrices, an array does not begin at a multiple of 16 bytes, or the driver refuses the launch.
    ///
    /// # Safety
    /// `function` is [`Products::variant`], loaded into the GPU whose context is current and to which the stream belongs. `stack`
    /// is of a visit on that stream that has not ended, and the pieces of `pairs` are resident in it. Until the call has ended,
    /// these are valid: `x`, with a row of the matrices' columns for each pair, and the result, `f32[_, rows]`, with one for each
    /// pair, which is not used elsewhere until then.
    pub unsafe fn put(
        &self,
        driver: &Driver,
        function: Function,
        stack: &pool::DeviceStack,
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
            let slots = Slots {
                dense: BlocksParams { matrix: stack.first, x, y, ..self.params },
                table: stack.table,
                stride: stack.stride,
                slots: stack.slots,
                pieces: stack.pieces,
            };
            let mut argument = Listed { slots, pairs: [Pair::default(); PAIRS] };
            argument.pairs[..pairs.len()].copy_from_slice(pairs);
            // SAFETY: by the contract.
            unsafe {
                self.grid.put(driver, function, pairs.len(), addresses, stream, &argument)?;
            }
        }
        Ok(())
    }
}

/// A call for pairs given by an array on the GPU: contiguous matrices of one type and shape, `u8[slots, rows, bytes of a row]`.
#[derive(Clone, Copy, Debug)]
pub struct CountedProducts {
    grid: Grid,
    argument: Counted,
}

impl CountedProducts {
    /// Products with `slots` matrices like `blocks`, for `pairs` pairs, where each `share` consecutive ones have one row of x, of
    /// bf16 or f32.
    ///
    /// # Errors
    /// There are more pairs than a launch may have, or their number is not a multiple of `share`.
    pub fn new(
        blocks: &Blocks,
        x: Element,
        slots: usize,
        pairs: usize,
        share: usize,
    ) -> Result<CountedProducts, CudaError> {
        let refuse = |text: String| Err(CudaError::Unsupported(text));
        if !(1..=MAX_PAIRS).contains(&pairs) {
            return refuse(format!(
                "{pairs} pairs of a token and a matrix, expected 1 to {MAX_PAIRS}"
            ));
        }
        if share == 0 || !pairs.is_multiple_of(share) {
            return refuse(format!(
                "{pairs} pairs of a token and a matrix, expected a multiple of {share}"
            ));
        }
        // The kernel reads numbers as unsigned, so negative ones are larger than any slot.
        if slots > i32::MAX as usize {
            return refuse(format!("{slots} matrices, expected at most {}", i32::MAX));
        }
        let Launch { grid, params } = blocks.product(x, 1)?;
        let variant = BlocksVariant::Chosen { ty: blocks.ty, x, pairs: Pairs::Counted };
        let slots = Slots {
            dense: params,
            table: 0,
            stride: params.row_bytes * u64::from(params.rows),
            slots: slots as u32,
            pieces: pairs as u32,
        };
        let argument = Counted { slots, share: share as u32 };
        Ok(CountedProducts { grid: Grid { variant, ..grid }, argument })
    }

    /// The kernel.
    pub fn variant(&self) -> BlocksVariant {
        self.grid.variant
    }

    /// Puts the call on a stream, without allocating memory or waiting.
    ///
    /// # Errors
    /// An array other than the numbers does not begin at a multiple of 16 bytes, or the driver refuses the launch.
    ///
    /// # Safety
    /// `function` is [`CountedProducts::variant`], loaded into the GPU whose context is current and to which the stream belongs.
    /// The arrays are valid until the call, or the graph that it is captured for, has ended: the matrices, `x` `[pairs / share,
    /// columns]`, the number of each pair's matrix `i32[pairs]`, and the result, `f32[pairs, rows]`, which is not used elsewhere
    /// until then.
    pub unsafe fn put(
        &self,
        driver: &Driver,
        function: Function,
        [matrices, x, numbers, y]: [u64; 4],
        stream: Stream,
    ) -> Result<(), CudaError> {
        let Slots { dense, pieces, .. } = self.argument.slots;
        let dense = BlocksParams { matrix: matrices, x, y, ..dense };
        let slots = Slots { dense, table: numbers, ..self.argument.slots };
        let argument = Counted { slots, ..self.argument };
        // SAFETY: by the contract.
        unsafe {
            self.grid.put(driver, function, pieces as usize, matrices | x | y, stream, &argument)
        }
    }
}

#[cfg(test)]
mod tests {
    use alight_kernels::WeightType;

    use super::*;

    #[test]
    fn pairs_that_are_refused() {
        let blocks = Blocks::new(WeightType::Q4_0, 1, 32).unwrap();
        let call =
            |slots, pairs, share| CountedProducts::new(&blocks, Element::F32, slots, pairs, share);
        assert!(call(8, MAX_PAIRS, 1).is_ok() && call(0, 6, 3).is_ok());
        for (slots, pairs, share, message) in [
            (8, 0, 1, "0 pairs of a token and a matrix, expected 1 to 65535"),
            (8, 65536, 1, "65536 pairs of a token and a matrix, expected 1 to 65535"),
            (8, 7, 2, "7 pairs of a token and a matrix, expected a multiple of 2"),
            (8, 7, 0, "expected a multiple of 0"),
            (1 << 31, 1, 1, "2147483648 matrices, expected at most 2147483647"),
        ] {
            let error = call(slots, pairs, share).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        assert!(CountedProducts::new(&blocks, Element::F16, 1, 1, 1).is_err());
    }
}
