//! `y[t, n] = Σ_k W[n, k] · x[t, k]` with `W` where it lies: in GGUF's blocks, or packed in tiles.
//!
//! Two ways, chosen by the number of tokens when the activations are packed:
//!
//! - **one token** ([`dot`]): rows of blocks are multiplied where they lie. The activations are
//!   rounded to 16-bit integers with one scale per 256, which costs no more than 8 bits would
//!   where memory is the limit, and is some hundred times more exact.
//! - **several tokens** ([`gemm`]): a panel of 32 rows is unpacked into a cache-sized buffer of
//!   interleaved bytes, then a register-blocked integer kernel runs over all tokens. Activations
//!   are 8-bit with one scale per 32.
//!
//! Packed matrices ([`tiles`]) need neither rows nor panels: a tile is multiplied as it lies, with
//! the same activations in both cases.
//!
//! Weights and their scales are used exactly as stored in both; sums are exact integers within a
//! group of 32 (16 for Q6_K) and f32 across groups. F32, F16 and BF16 weights are multiplied in
//! f32 with unrounded activations.
//!
//! A piece of work is a range of rows for all tokens; pieces write disjoint elements of the
//! output and are pure functions of their inputs.

// The kernels index several arrays with one counter; iterators over one of them would hide that.
#![allow(clippy::needless_range_loop)]

mod activations;
mod dot;
mod gemm;
#[cfg(target_arch = "x86_64")]
mod prefetch;
mod tiles;
mod unpack;

pub use activations::{ActSlots, Activations, Kinds};
pub use gemm::MatmulScratch;

use crate::dequant::{self, dequantize_row};
use crate::half::{bf16_to_f32, f16_to_f32};
use crate::quant::{Group32, with_quant};
use crate::tiles::{TILE_ROWS, Tiled, packable};
use crate::types::{Layout, WeightType};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

/// A weight matrix `[rows, cols]` in GGUF blocks along `cols`, or in tiles of such rows.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    layout: Layout,
    ty: WeightType,
    data: &'a [u8],
    rows: usize,
    cols: usize,
    row_bytes: usize,
}

/// Why bytes cannot be a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatrixError {
    /// A row is not a whole number of blocks.
    RaggedRow {
        /// The weight type.
        ty: WeightType,
        /// Weights per row.
        cols: usize,
    },
    /// The type or the number of rows has no packed form.
    NotPackable {
        /// The weight type.
        ty: WeightType,
        /// Rows of the matrix.
        rows: usize,
    },
    /// The bytes are not `rows` rows long.
    Size {
        /// Bytes needed, or `None` if the number overflows.
        expected: Option<usize>,
        /// Bytes given.
        found: usize,
    },
}

impl fmt::Display for MatrixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MatrixError::RaggedRow { ty, cols } => {
                write!(f, "a row of {cols} weights is not a whole number of {ty} blocks")
            }
            MatrixError::NotPackable { ty, rows } => {
                write!(f, "{rows} rows of {ty} have no packed form, which takes tiles of 16 rows")
            }
            MatrixError::Size { expected: Some(e), found } => {
                write!(f, "the matrix takes {e} bytes, found {found}")
            }
            MatrixError::Size { expected: None, found } => {
                write!(f, "the size of the matrix overflows, found {found} bytes")
            }
        }
    }
}

impl std::error::Error for MatrixError {}

impl<'a> Matrix<'a> {
    /// A view of `data` as `rows` × `cols` weights of type `ty` in GGUF's layout.
    ///
    /// # Errors
    /// If a row is not a whole number of blocks, or `data` is not as long as all rows.
    pub fn new(
        ty: WeightType,
        data: &'a [u8],
        rows: usize,
        cols: usize,
    ) -> Result<Matrix<'a>, MatrixError> {
        Matrix::with_layout(Layout::Rows, ty, data, rows, cols)
    }

    /// As [`Matrix::new`], in either layout.
    ///
    /// # Errors
    /// As [`Matrix::new`], and if the matrix has no packed form but should be in it.
    pub fn with_layout(
        layout: Layout,
        ty: WeightType,
        data: &'a [u8],
        rows: usize,
        cols: usize,
    ) -> Result<Matrix<'a>, MatrixError> {
        if layout == Layout::Tiles && !packable(ty, rows, ty.block_len()) {
            return Err(MatrixError::NotPackable { ty, rows });
        }
        let row_bytes = ty.row_bytes(cols).ok_or(MatrixError::RaggedRow { ty, cols })?;
        let expected = row_bytes.checked_mul(rows);
        if expected != Some(data.len()) {
            return Err(MatrixError::Size { expected, found: data.len() });
        }
        Ok(Matrix { layout, ty, data, rows, cols, row_bytes })
    }

    /// The weight type.
    pub fn weight_type(&self) -> WeightType {
        self.ty
    }

    /// How the weights are arranged.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// What decides which activations it needs.
    pub fn kind(&self) -> (WeightType, Layout) {
        (self.ty, self.layout)
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All bytes.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// Row `r` as floats; `out` is `[cols]`.
    ///
    /// # Panics
    /// If there is no such row, or `out` has another length.
    pub fn dequantize_row(&self, r: usize, out: &mut [f32]) {
        assert!(r < self.rows && out.len() == self.cols, "no such row, or another length");
        match self.layout {
            Layout::Rows => dequantize_row(self.ty, self.row(r), out),
            Layout::Tiles => with_quant!(
                self.ty,
                Q => {
                    for (b, out) in out.chunks_exact_mut(32).enumerate() {
                        dequant::put::<Q>(&self.group::<Q>(r, b), out);
                    }
                },
                for (k, out) in out.iter_mut().enumerate() {
                    *out = self.tile_float(r, k);
                }
            ),
        }
    }

    /// The bytes of one row, which must not be in a tile.
    fn row(&self, r: usize) -> &'a [u8] {
        debug_assert!(self.layout == Layout::Rows);
        &self.data[r * self.row_bytes..][..self.row_bytes]
    }

    /// The bytes of the tile of rows `16i .. 16i + 16`.
    fn tile(&self, i: usize) -> &'a [u8] {
        debug_assert!(self.layout == Layout::Tiles);
        &self.data[TILE_ROWS * i * self.row_bytes..][..TILE_ROWS * self.row_bytes]
    }

    /// Weight `k` of row `r` of a packed F16 or BF16 matrix.
    #[inline(always)]
    fn tile_float(&self, r: usize, k: usize) -> f32 {
        let at = 2 * (TILE_ROWS * k + r % TILE_ROWS);
        let tile = self.tile(r / TILE_ROWS);
        let bits = u16::from_le_bytes([tile[at], tile[at + 1]]);
        if self.ty == WeightType::F16 { f16_to_f32(bits) } else { bf16_to_f32(bits) }
    }

    /// Weights `32·b .. 32·b + 32` of row `r`, wherever they lie.
    #[inline(always)]
    fn group<Q: Tiled>(&self, r: usize, b: usize) -> Group32 {
        let (at, g) = (b / (Q::BLOCK / 32), b % (Q::BLOCK / 32));
        match self.layout {
            Layout::Rows => Q::group(&self.row(r)[at * Q::BYTES..][..Q::BYTES], g),
            Layout::Tiles => {
                let unit = TILE_ROWS * Q::BYTES;
                let unit = &self.tile(r / TILE_ROWS)[at * unit..][..unit];
                Q::tile_group(unit, r % TILE_ROWS, g)
            }
        }
    }
}

/// Where a product goes: element `[t, n]` is at `t · stride + n`. Copies of it may be used by
/// several threads at once, each writing its own rows `n`.
#[derive(Clone, Copy)]
pub struct Output<'a> {
    ptr: *mut f32,
    len: usize,
    stride: usize,
    _buffer: PhantomData<&'a mut [f32]>,
}

// SAFETY: an Output only allows writes through `matmul`, whose callers promise disjoint rows.
unsafe impl Send for Output<'_> {}
// SAFETY: as above.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    /// A view of `buffer` as rows of `stride` elements, one row per token.
    pub fn new(buffer: &'a mut [f32], stride: usize) -> Output<'a> {
        Output { ptr: buffer.as_mut_ptr(), len: buffer.len(), stride, _buffer: PhantomData }
    }

    /// The address of element `n` of row `t`, which must be inside the buffer.
    #[inline(always)]
    fn at(&self, t: usize, n: usize) -> *mut f32 {
        debug_assert!(t * self.stride + n < self.len);
        self.ptr.wrapping_add(t * self.stride + n)
    }

    /// The elements `n` of row `t`.
    ///
    /// # Safety
    /// No other reference to these elements may exist.
    ///
    /// # Panics
    /// If they lie outside the buffer.
    #[inline]
    pub unsafe fn row_mut(self, t: usize, n: Range<usize>) -> &'a mut [f32] {
        assert!(n.start <= n.end && t * self.stride + n.end <= self.len);
        // SAFETY: in bounds by the assertion, unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(t * self.stride + n.start), n.len()) }
    }
}

/// How many rows make a sensible piece of work: small enough to balance a slow thread, large
/// enough (some 64 KiB of weights) to amortise taking it. A multiple of 32.
pub fn piece_rows(w: &Matrix<'_>, tokens: usize) -> usize {
    if tokens > 1 {
        return gemm::PANEL_ROWS;
    }
    let rows = (64 * 1024 / w.row_bytes.max(1)).clamp(32, 1024);
    rows.next_multiple_of(32)
}

/// Computes `out[t, n]` for `n` in `rows` and every token `t` of `x`.
///
/// # Safety
/// While it runs, no other thread may access the elements `rows` of `out`.
///
/// # Panics
/// If `x` has not as many columns as `w`, was packed without the kind that `w` needs
/// ([`Kinds`]), `rows` exceeds the matrix, or `out` is too small.
pub unsafe fn matmul(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &Activations,
    out: Output<'_>,
    scratch: &mut MatmulScratch,
) {
    assert!(rows.start <= rows.end && rows.end <= w.rows, "rows outside the matrix");
    assert_eq!(w.cols, x.cols(), "the activations do not fit the matrix");
    assert!(x.kinds().covers(w.kind()), "the activations were not packed for {}", w.ty);
    assert!(rows.end <= out.stride && (x.tokens() - 1) * out.stride + rows.end <= out.len);
    if w.layout == Layout::Tiles {
        // SAFETY: sizes were checked above, the elements are ours by the caller's promise.
        unsafe { tiles::rows(w, rows, x, out, scratch) };
    } else if x.tokens() == 1 {
        // SAFETY: the elements are ours by the caller's promise.
        let out = unsafe { out.row_mut(0, rows.clone()) };
        dot::rows(w, rows, x, out);
    } else {
        // SAFETY: sizes were checked above, the elements are ours by the caller's promise.
        unsafe { gemm::rows(w, rows, x, out, scratch) };
    }
}
