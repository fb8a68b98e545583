//! A weight matrix as the products read it, and the output of a product.

use crate::Isa;
use crate::blocks::{BlockFormat, MAX_BYTES, WeightType, with_block};
use crate::dequant::{self, dequantize_row};
use crate::fields;
use crate::half::{bf16_to_f32, f16_to_f32};
use crate::planes;
use crate::tiles::{Layout, TILE_ROWS, packable};
use crate::vec;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

/// A weight matrix `[rows, cols]` in GGUF blocks along `cols`, or in tiles of such rows; or some columns of one.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    layout: Layout,
    ty: WeightType,
    /// From the first byte of the first row (tile) to the last of the last one.
    pub(super) data: &'a [u8],
    rows: usize,
    cols: usize,
    /// Bytes of the columns of a row.
    pub(super) row_bytes: usize,
    /// Bytes from a row to the next, at least `row_bytes`; 16 times that from a tile to the next.
    pub(super) stride: usize,
    /// Factor of the products.
    pub(super) scale: f32,
}

/// The reason why bytes cannot be a matrix.
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
    /// The columns are not in the matrix, are empty, or begin or end within a block.
    Columns {
        /// The weight type.
        ty: WeightType,
        /// Columns of the matrix.
        cols: usize,
        /// Columns requested.
        found: Range<usize>,
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
            MatrixError::Columns { ty, cols, found } => write!(
                f,
                "columns {}..{} of {cols} are no whole blocks of {ty}, which has {} weights in one",
                found.start,
                found.end,
                ty.block_len()
            ),
        }
    }
}

impl std::error::Error for MatrixError {}

impl<'a> Matrix<'a> {
    /// A view of `data` as `rows` × `cols` weights of type `ty` in GGUF's layout.
    ///
    /// # Errors
    /// If a row is not a whole number of blocks, or `data` does not have the length of all rows.
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
    /// As [`Matrix::new`], and if the matrix has no packed form but `layout` requests it.
    pub fn with_layout(
        layout: Layout,
        ty: WeightType,
        data: &'a [u8],
        rows: usize,
        cols: usize,
    ) -> Result<Matrix<'a>, MatrixError> {
        let possible = match layout {
            Layout::Rows => true,
            Layout::Tiles => packable(ty, rows, ty.block_len()),
            Layout::Planes => planes::has_planes_for(ty, rows, cols),
        };
        if !possible {
            return Err(MatrixError::NotPackable { ty, rows });
        }
        let row_bytes = ty.row_bytes(cols).ok_or(MatrixError::RaggedRow { ty, cols })?;
        let expected = row_bytes.checked_mul(rows);
        if expected != Some(data.len()) {
            return Err(MatrixError::Size { expected, found: data.len() });
        }
        Ok(Matrix { layout, ty, data, rows, cols, row_bytes, stride: row_bytes, scale: 1.0 })
    }

    /// The same matrix, with finished products multiplied by `scale`: the blocks of some types (NVFP4) leave the magnitude of
    /// their weights to such a number. Rows as floats are not scaled.
    pub fn scaled(self, scale: f32) -> Matrix<'a> {
        Matrix { scale, ..self }
    }

    /// A view of some columns of all rows, in place.
    ///
    /// # Errors
    /// If they are not in the matrix, are empty, or begin or end within a block; if the matrix is in planes and they are not all of them.
    pub fn columns(&self, columns: Range<usize>) -> Result<Matrix<'a>, MatrixError> {
        let (ty, cols) = (self.ty, self.cols);
        if self.layout == Layout::Planes && columns == (0..cols) {
            return Ok(*self);
        }
        let inside = columns.start < columns.end && columns.end <= cols;
        let inside = inside && self.layout != Layout::Planes;
        let bytes = |n| ty.row_bytes(n).filter(|_| inside);
        let (Some(skipped), Some(row_bytes)) =
            (bytes(columns.start), bytes(columns.end.wrapping_sub(columns.start)))
        else {
            return Err(MatrixError::Columns { ty, cols, found: columns });
        };
        // Rows stored together: skipped bytes, columns and distances apply to all of them.
        let together = if self.layout == Layout::Tiles { TILE_ROWS } else { 1 };
        let data = match self.rows / together {
            0 => &[],
            n => &self.data[together * skipped..][..together * ((n - 1) * self.stride + row_bytes)],
        };
        Ok(Matrix { data, cols: columns.len(), row_bytes, ..*self })
    }

    /// A view of some rows, in place.
    ///
    /// # Panics
    /// If they are not in the matrix, or begin or end within a tile, or a group of planes.
    pub fn rows_in(&self, rows: Range<usize>) -> Matrix<'a> {
        let together = self.layout.rows_together(self.ty, self.cols);
        let whole = |row: usize| row.is_multiple_of(together) || row == self.rows;
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows outside of the matrix");
        assert!(whole(rows.start) && whole(rows.end), "rows that begin or end within a tile");
        let (start, end) = (rows.start * self.stride, rows.end * self.stride);
        Matrix { data: &self.data[start..end.min(self.data.len())], rows: rows.len(), ..*self }
    }

    /// A view of every second row from row `first` on, in place.
    ///
    /// # Panics
    /// If the rows are in tiles, or their number is odd.
    pub fn every_second_row(&self, first: usize) -> Matrix<'a> {
        let rows = self.rows / 2;
        assert!(self.layout == Layout::Rows && 2 * rows == self.rows && first < 2, "rows in pairs");
        let start = first * self.stride;
        let len = rows.saturating_sub(1) * 2 * self.stride + self.row_bytes;
        let data = if rows == 0 { &[] } else { &self.data[start..start + len] };
        Matrix { data, rows, stride: 2 * self.stride, ..*self }
    }

    /// The weight type.
    pub fn weight_type(&self) -> WeightType {
        self.ty
    }

    /// The arrangement of the weights.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The type and layout, which decide the activations that it needs.
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

    /// All bytes, from the first row to the last; for a view of some columns, including those of the others in between.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// Row `r` as floats; `out` is `[cols]`. An infinite weight is NaN, as a product that is not finite.
    ///
    /// # Panics
    /// If there is no such row, or `out` does not have length `cols`.
    pub fn dequantize_row(&self, r: usize, out: &mut [f32]) {
        assert!(r < self.rows && out.len() == self.cols, "no such row, or another length");
        match self.layout {
            Layout::Rows => dequantize_row(self.ty, self.row(r), out),
            Layout::Tiles | Layout::Planes => with_block!(
                self.ty,
                Q => self.dequantize_row_of_tile::<Q>(r, out),
                for (k, out) in out.iter_mut().enumerate() {
                    *out = self.tile_float(r, k);
                }
            ),
        }
        vec::infinite_to_nan(Isa::SCALAR, out);
    }

    #[inline(never)]
    fn dequantize_row_of_tile<Q: BlockFormat>(&self, r: usize, out: &mut [f32]) {
        let mut buffer = [0; MAX_BYTES];
        for (i, out) in out.chunks_exact_mut(Q::BLOCK).enumerate() {
            dequant::block::<Q>(self.block::<Q>(r, i, &mut buffer), out);
        }
    }

    /// Adds weights of row `r` of an F32 matrix to `x`: those of column `first` and of every `step`-th column after it.
    ///
    /// # Panics
    /// If the matrix is of another type or has no such row, or the row is too short.
    pub fn add_float_row(&self, r: usize, (first, step): (usize, usize), x: &mut [f32]) {
        assert!(self.ty == WeightType::F32, "a row of {}", self.ty);
        let row = &self.row(r).as_chunks().0[first..];
        assert!(x.is_empty() || (x.len() - 1) * step < row.len(), "a row that is too short");
        for (x, bytes) in x.iter_mut().zip(row.iter().step_by(step)) {
            *x += f32::from_le_bytes(*bytes);
        }
        // As a product that is not finite.
        vec::infinite_to_nan(Isa::SCALAR, x);
    }

    /// The bytes of one row, which must not be in a tile.
    pub(super) fn row(&self, r: usize) -> &'a [u8] {
        debug_assert!(self.layout == Layout::Rows);
        &self.data[r * self.stride..][..self.row_bytes]
    }

    /// Bytes from a row to the next.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// Bytes between the columns of a row and those of the next.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn gap(&self) -> usize {
        self.stride - self.row_bytes
    }

    /// For a tile: the bytes before columns `k`, those of the columns, and those from their end to the same columns of the next
    /// tile.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn in_tile(&self, k: &Range<usize>) -> [usize; 3] {
        let bytes = |cols: usize| TILE_ROWS * self.row_bytes * cols / self.cols;
        let len = bytes(k.len());
        [bytes(k.start), len, TILE_ROWS * self.stride - len]
    }

    /// The bytes of the tile of rows `16i .. 16i + 16`.
    pub(super) fn tile(&self, i: usize) -> &'a [u8] {
        debug_assert!(self.layout == Layout::Tiles);
        &self.data[TILE_ROWS * i * self.stride..][..TILE_ROWS * self.row_bytes]
    }

    /// Weight `k` of row `r` of a packed F16 or BF16 matrix.
    #[inline(always)]
    pub(super) fn tile_float(&self, r: usize, k: usize) -> f32 {
        self.tile_floats(r / TILE_ROWS, k)[r % TILE_ROWS]
    }

    /// Weight `k` of all rows of tile `i` of a packed F16 or BF16 matrix.
    #[inline(always)]
    pub(super) fn tile_floats(&self, i: usize, k: usize) -> [f32; TILE_ROWS] {
        let bits = self.tile(i).as_chunks::<2>().0.as_chunks::<TILE_ROWS>().0[k];
        match self.ty {
            WeightType::F16 => bits.map(|b| f16_to_f32(u16::from_le_bytes(b))),
            _ => bits.map(|b| bf16_to_f32(u16::from_le_bytes(b))),
        }
    }

    /// The `at`-th blocks, of `bytes` bytes, of the rows of tile `i`.
    pub(super) fn unit(&self, i: usize, at: usize, bytes: usize) -> &'a [u8] {
        let unit = TILE_ROWS * bytes;
        &self.tile(i)[at * unit..][..unit]
    }

    /// Block `i` of row `r`: in place, or extracted from a tile into `buffer`.
    #[inline(always)]
    pub(super) fn block<'b, Q: BlockFormat>(
        &'b self,
        r: usize,
        i: usize,
        buffer: &'b mut BlockBuffer,
    ) -> &'b [u8] {
        match self.layout {
            Layout::Rows => &self.row(r)[i * Q::BYTES..][..Q::BYTES],
            Layout::Tiles => {
                let unit = self.unit(r / TILE_ROWS, i, Q::BYTES);
                let block = &mut buffer[..Q::BYTES];
                fields::row(Q::FIELDS, unit, r % TILE_ROWS, block);
                block
            }
            Layout::Planes => {
                let (tile, low) = (self.high_tile(r / TILE_ROWS), self.low_rows(r..r + 1));
                let unit = &tile.as_chunks().0[i];
                let block = &mut buffer.as_chunks_mut().0[0];
                planes::put_block(unit, r % TILE_ROWS, &low.as_chunks().0[i], block);
                block
            }
        }
    }

    /// The group of rows in planes that has row `r`, and its number of rows.
    fn group(&self, r: usize) -> (usize, usize) {
        debug_assert!(self.layout == Layout::Planes);
        let together = planes::group_rows(self.ty, self.cols);
        let first = r / together * together;
        (first, together.min(self.rows - first))
    }

    /// The high bits of the group of rows that has row `r`, and the number of its first row.
    pub(super) fn high_of(&self, r: usize) -> (Matrix<'a>, usize) {
        let (first, rows) = self.group(r);
        let [high, _] = planes::sizes(rows, self.cols);
        let row_bytes = high / rows;
        let matrix = Matrix {
            layout: Layout::Tiles,
            ty: planes::HIGH_TYPE,
            data: &self.data[first * self.stride..][..high],
            rows,
            row_bytes,
            stride: row_bytes,
            ..*self
        };
        (matrix, first)
    }

    /// The high bits of rows `16i .. 16i + 16` of a matrix in planes.
    pub(super) fn high_tile(&self, i: usize) -> &'a [u8] {
        let (high, first) = self.high_of(TILE_ROWS * i);
        high.tile(i - first / TILE_ROWS)
    }

    /// The low bits of some rows of a group.
    pub(super) fn low_rows(&self, rows: Range<usize>) -> &'a [u8] {
        let (first, count) = self.group(rows.start);
        let [high, low] = planes::sizes(count, self.cols);
        let low = &self.data[first * self.stride + high..][..low];
        let row = low.len() / count;
        &low[(rows.start - first) * row..(rows.end - first) * row]
    }

    /// Rows in GGUF's layout as a matrix of this one's shape.
    pub(super) fn some_rows<'r>(&self, data: &'r [u8], rows: usize) -> Matrix<'r> {
        debug_assert!(data.len() == rows * self.row_bytes && self.stride == self.row_bytes);
        Matrix { layout: Layout::Rows, data, rows, ..*self }
    }

    /// Copies rows `rows`, at most 32 that begin and end with a tile, of a matrix in planes, and returns them in tiles.
    pub(super) fn as_tiles<'t>(
        &self,
        isa: Isa,
        rows: Range<usize>,
        to: &'t mut [u8],
    ) -> Matrix<'t> {
        let tile = TILE_ROWS * self.row_bytes;
        let to = &mut to[..rows.len() * self.row_bytes];
        for (n, to) in to.chunks_exact_mut(tile).enumerate() {
            let first = rows.start + TILE_ROWS * n;
            let low = self.low_rows(first..first + TILE_ROWS);
            planes::put_tile(isa, self.high_tile(first / TILE_ROWS), low, to);
        }
        Matrix { layout: Layout::Tiles, data: to, rows: rows.len(), ..*self }
    }
}

/// Memory for one block.
pub(super) type BlockBuffer = [u8; MAX_BYTES];

/// The destination of a product: element `[t, n]` is at `t · stride + n − first`, for `n` from `first` on. Several threads may
/// use copies of it at once, each writing its own rows `n`.
#[derive(Clone, Copy)]
pub struct Output<'a> {
    ptr: *mut f32,
    len: usize,
    stride: usize,
    first: usize,
    _buffer: PhantomData<&'a mut [f32]>,
}

// SAFETY: an Output only allows writes through `matmul`, whose callers promise disjoint rows.
unsafe impl Send for Output<'_> {}
// SAFETY: as above.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    /// A view of `buffer` as rows of `stride` elements, one row per token.
    pub fn new(buffer: &'a mut [f32], stride: usize) -> Output<'a> {
        Output::starting_at(0, buffer, stride)
    }

    /// As [`Output::new`], but the first element of each row belongs to row `first` of the matrix.
    pub fn starting_at(first: usize, buffer: &'a mut [f32], stride: usize) -> Output<'a> {
        Output { ptr: buffer.as_mut_ptr(), len: buffer.len(), stride, first, _buffer: PhantomData }
    }

    /// The output from row `t` on.
    ///
    /// # Panics
    /// If the buffer ends before row `t`.
    pub(crate) fn skipping(self, t: usize) -> Output<'a> {
        let skipped = t * self.stride;
        assert!(skipped <= self.len, "row {t} outside of the buffer");
        Output { ptr: self.ptr.wrapping_add(skipped), len: self.len - skipped, ..self }
    }

    /// The output from row `n` of the matrix on, which becomes its row 0.
    pub(super) fn beginning_at(self, n: usize) -> Output<'a> {
        let skipped = n.saturating_sub(self.first);
        let (len, first) = (self.len.saturating_sub(skipped), self.first.saturating_sub(n));
        Output { ptr: self.ptr.wrapping_add(skipped), len, first, ..self }
    }

    /// The address of element `n` of row `t`, which must be inside the buffer to be used.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn at(&self, t: usize, n: usize) -> *mut f32 {
        self.ptr.wrapping_add(t * self.stride).wrapping_add(n).wrapping_sub(self.first)
    }

    /// Bytes from an element to the same element of the next token.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn row_bytes(&self) -> usize {
        size_of::<f32>() * self.stride
    }

    /// True if elements `n` of `tokens` rows are inside the buffer.
    pub(super) fn covers(&self, tokens: usize, n: &Range<usize>) -> bool {
        let (Some(start), Some(end)) =
            (n.start.checked_sub(self.first), n.end.checked_sub(self.first))
        else {
            return false;
        };
        start <= end && end <= self.stride && (tokens - 1) * self.stride + end <= self.len
    }

    /// The elements `n` of row `t`.
    ///
    /// # Safety
    /// No other reference to these elements may exist.
    ///
    /// # Panics
    /// If they are outside the buffer.
    #[inline]
    pub unsafe fn row_mut(self, t: usize, n: Range<usize>) -> &'a mut [f32] {
        assert!(self.first <= n.start && n.start <= n.end);
        let start = t * self.stride + (n.start - self.first);
        assert!(start + n.len() <= self.len);
        // SAFETY: in bounds by the assertions, unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(start), n.len()) }
    }
}
