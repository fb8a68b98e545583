//! A reference to a matrix: its bytes in the files, and the memory that holds them.

use std::ops::Range;

use alight_kernels::matmul::Matrix;
use alight_kernels::{Layout, WeightType, tiles};

use crate::store::{Chosen, Storage, Store};

/// A matrix, or several of the same shape (experts), which are contiguous or alternate with those of other references: their
/// bytes in a file, and the memory that holds them.
#[derive(Clone, Debug)]
pub(crate) struct MatrixRef {
    pub(crate) shard: usize,
    /// From its first byte to its last. With a stride, bytes of other matrices are in between.
    pub(crate) bytes: Range<usize>,
    /// Bytes from an expert's matrices to the next expert's, and the number of experts, if other matrices are in between.
    pub(crate) stride: Option<Stride>,
    pub(crate) storage: Storage,
    /// The arrangement of the weights in that memory.
    pub(crate) layout: Layout,
    pub(crate) ty: WeightType,
    /// Rows of each matrix.
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// The number of matrices, and the number of them that a token reads.
    pub(crate) count: usize,
    pub(crate) used: usize,
    /// True if it is read as anything but contiguous rows, so that it is not packed into tiles.
    pub(crate) stays_rows: bool,
    /// True if it is brought into memory when its layer is computed, since the weights do not fit there.
    pub(crate) streamed: bool,
    /// Factors on products: one number, or one for each expert, whose matrices are contiguous; empty if the file has none.
    pub(crate) scales: Box<[f32]>,
}

/// See [`MatrixRef::stride`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stride {
    pub(crate) bytes: usize,
    pub(crate) experts: usize,
}

impl MatrixRef {
    /// One matrix `[rows, cols]`, in the map of a file.
    pub(crate) fn mapped(
        shard: usize,
        bytes: Range<usize>,
        layout: Layout,
        ty: WeightType,
        [cols, rows]: [usize; 2],
    ) -> MatrixRef {
        MatrixRef {
            shard,
            bytes,
            stride: None,
            storage: Storage::Map,
            layout,
            ty,
            rows,
            cols,
            count: 1,
            used: 1,
            stays_rows: false,
            streamed: false,
            scales: Box::default(),
        }
    }

    /// Borrowed view of matrix `index`.
    pub(crate) fn part<'m>(&self, index: usize, store: &'m Store) -> Matrix<'m> {
        let Some(Stride { experts, .. }) = self.stride else {
            let rows = index * self.rows..(index + 1) * self.rows;
            return self.scaled_part(index, self.view(store).rows_in(rows));
        };
        let per_expert = self.count / experts;
        let expert = self.expert_range(index / per_expert, experts);
        let one = expert.len() / per_expert;
        let start = expert.start + index % per_expert * one;
        let data = store.bytes(self.shard, start..start + one, self.storage);
        self.scaled_part(index, self.one(data))
    }

    /// The bytes of the file that hold the matrices of one of `experts` experts.
    pub(crate) fn expert_range(&self, expert: usize, experts: usize) -> Range<usize> {
        let one = self.bytes_of_matrices() / experts;
        let start = self.bytes.start + expert * self.stride.map_or(one, |stride| stride.bytes);
        start..start + one
    }

    /// Bytes of all matrices, without the bytes in between.
    fn bytes_of_matrices(&self) -> usize {
        match self.stride {
            None => self.bytes.len(),
            Some(Stride { bytes, experts }) => experts * (self.bytes.len() - (experts - 1) * bytes),
        }
    }

    /// One of the matrices.
    fn one<'m>(&self, data: &'m [u8]) -> Matrix<'m> {
        // The parser has checked that rows are whole blocks, and the length follows from the shape.
        Matrix::with_layout(self.layout, self.ty, data, self.rows, self.cols)
            .expect("a checked matrix")
    }

    /// [`MatrixRef::part`] of a chosen expert.
    pub(crate) fn chosen<'m>(&self, index: usize, chosen: &'m Chosen<'_>) -> Matrix<'m> {
        let Storage::Slots(place) = self.storage else { return self.part(index, chosen.store()) };
        let bytes = chosen.bytes(place, index, self.bytes_of_matrices() / self.count);
        self.scaled_part(index, self.one(bytes))
    }

    fn scaled_part<'m>(&self, index: usize, part: Matrix<'m>) -> Matrix<'m> {
        match self.scales.len() {
            0 => part,
            experts => part.scaled(self.scales[index / (self.count / experts)]),
        }
    }

    /// Asks the system to read the matrices of one of `experts` experts, if they are in the map; or asks for them if their file is still
    /// being received. Returns true if some of them may be missing.
    pub(crate) fn ask_ahead(&self, expert: usize, experts: usize, store: &Store) -> bool {
        (self.storage == Storage::Map || store.is_incoming())
            && store.ask_ahead(self.shard, self.expert_range(expert, experts))
    }

    /// Returns when the matrices of one of `experts` experts have been received, if their file still is, or when `give_up` returns
    /// true.
    pub(crate) fn wait_received(
        &self,
        expert: usize,
        experts: usize,
        store: &Store,
        give_up: &dyn Fn() -> bool,
    ) {
        store.wait_received(self.shard, self.expert_range(expert, experts), give_up);
    }

    /// True if its matrices may be in slots: a token reads only some of them, and each has more than one row, unlike biases.
    pub(crate) fn fits_slots(&self) -> bool {
        self.is_chosen_from() && self.rows > 1
    }

    /// True if it is not read ahead with the weights that every token reads: experts come when they are chosen, or after those weights; streamed
    /// layers when they are computed.
    pub(crate) fn comes_later(&self) -> bool {
        self.fits_slots() || self.streamed
    }

    /// True if other matrices are stored between those of its experts.
    pub(crate) fn is_side_by_side(&self) -> bool {
        self.stride.is_some()
    }

    /// The number of matrices.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Borrowed view of all rows, which are contiguous. The caller must have waited for the section of this matrix.
    pub(crate) fn view<'m>(&self, store: &'m Store) -> Matrix<'m> {
        assert!(self.stride.is_none(), "experts side by side are looked at one by one");
        let data = store.bytes(self.shard, self.bytes.clone(), self.storage);
        // The parser has checked that rows are whole blocks, and the length follows from the shape; an error here would be a bug,
        // not a fault of the file.
        Matrix::with_layout(self.layout, self.ty, data, self.all_rows(), self.cols)
            .expect("a checked matrix")
            .scaled(if self.count == 1 { self.scales.first().copied().unwrap_or(1.0) } else { 1.0 })
    }

    /// Contiguous matrices of Q8_0 at these bytes of the first file, of which a token reads `used`.
    #[cfg(test)]
    pub(crate) fn made_up(bytes: Range<usize>, count: usize, used: usize) -> MatrixRef {
        let rows = bytes.len() / count / 34;
        let one = MatrixRef::mapped(0, bytes, Layout::Rows, WeightType::Q8_0, [32, rows]);
        MatrixRef { count, used, ..one }
    }

    /// The same, with `bytes` bytes from one expert to the next.
    #[cfg(test)]
    pub(crate) fn with_stride(self, bytes: usize) -> MatrixRef {
        let stride = Some(Stride { bytes, experts: self.count });
        MatrixRef { stride, ..self }
    }

    /// Bytes of weights.
    pub(crate) fn len(&self) -> u64 {
        self.bytes_of_matrices() as u64
    }

    /// Bytes of weights that one token reads.
    pub(crate) fn bytes_per_token(&self) -> u64 {
        self.len() / self.count as u64 * self.used as u64
    }

    /// Multiply-accumulates per token.
    pub(crate) fn macs(&self) -> u64 {
        self.used as u64 * self.rows as u64 * self.cols as u64
    }

    /// True if it has a packed form.
    pub(crate) fn packable(&self) -> bool {
        self.layout == Layout::Rows
            && !self.stays_rows
            && self.stride.is_none()
            && tiles::packable(self.ty, self.rows, self.cols)
    }

    /// True if a token reads only some of the matrices.
    pub(crate) fn is_chosen_from(&self) -> bool {
        self.used < self.count
    }

    /// Type and layout, which decide the activation formats that its input needs.
    pub(crate) fn kind(&self) -> (WeightType, Layout) {
        (self.ty, self.layout)
    }

    /// Output features of all matrices.
    pub(crate) fn all_rows(&self) -> usize {
        self.count * self.rows
    }

    /// Rows of each matrix.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// The memory that holds its bytes, or will.
    pub(crate) fn storage(&self) -> Storage {
        self.storage
    }

    /// Records which memory will hold its bytes.
    pub(crate) fn set_storage(&mut self, storage: Storage) {
        self.storage = storage;
        if let Storage::Tiles(_) = storage {
            self.layout = Layout::Tiles;
        }
    }

    /// The file that it is in, and its first byte there.
    pub(crate) fn first_byte(&self) -> (usize, usize) {
        (self.shard, self.bytes.start)
    }

    /// Its bytes in the files: shard and range. Matrices in between are part of the range.
    pub(crate) fn file_range(&self) -> (usize, Range<usize>) {
        (self.shard, self.bytes.clone())
    }
}
