//! A reference to a matrix: its bytes in the files, and the memory that holds them.

use std::ops::Range;

use alight_kernels::matmul::Matrix;
use alight_kernels::{Layout, WeightType, tiles};

use crate::load::{Chosen, Storage, Store};

/// A matrix, or several of the same shape that follow one another (experts): which bytes of which file, and which memory
/// holds them.
#[derive(Clone, Debug)]
pub(crate) struct MatrixRef {
    pub(super) shard: usize,
    pub(super) bytes: Range<usize>,
    pub(super) storage: Storage,
    /// How the weights are arranged in that memory.
    pub(super) layout: Layout,
    pub(super) ty: WeightType,
    /// Of each.
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// How many matrices there are, and how many of them a token reads.
    pub(super) count: usize,
    pub(super) used: usize,
    /// Whether it is read in another way than as rows that follow one another, so that it is not packed into tiles.
    pub(super) stays_rows: bool,
    /// What products are multiplied with: one number, or one for each expert, whose matrices follow one another; none
    /// where the file has none.
    pub(super) scales: Box<[f32]>,
}

impl MatrixRef {
    /// Borrowed view of one of several matrices.
    pub(crate) fn part<'m>(&self, index: usize, store: &'m Store) -> Matrix<'m> {
        self.scaled_part(
            index,
            self.view(store).rows_in(index * self.rows..(index + 1) * self.rows),
        )
    }

    /// [`MatrixRef::part`] of one that was chosen.
    pub(crate) fn chosen<'m>(&self, index: usize, chosen: &'m Chosen<'_>) -> Matrix<'m> {
        let Storage::Slots(place) = self.storage else { return self.part(index, chosen.store()) };
        let bytes = chosen.bytes(place, index);
        let part = Matrix::with_layout(self.layout, self.ty, bytes, self.rows, self.cols);
        self.scaled_part(index, part.expect("a checked matrix"))
    }

    fn scaled_part<'m>(&self, index: usize, part: Matrix<'m>) -> Matrix<'m> {
        match self.scales.len() {
            0 => part,
            experts => part.scaled(self.scales[index / (self.count / experts)]),
        }
    }

    /// Asks the system to read, of `experts` that follow one another, the matrices of one, if they are in the map.
    pub(crate) fn ask_ahead(&self, expert: usize, experts: usize, store: &Store) {
        if self.storage == Storage::Map {
            let one = self.bytes.len() / experts;
            let start = self.bytes.start + expert * one;
            store.ask_ahead(self.shard, start..start + one);
        }
    }

    /// Whether its matrices may be in slots: a token reads some of them, and they are more than a row, which biases are.
    pub(crate) fn fits_slots(&self) -> bool {
        self.is_chosen_from() && self.rows > 1
    }

    /// How many matrices there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Borrowed view of all rows. The caller must have waited for the section of this matrix.
    pub(crate) fn view<'m>(&self, store: &'m Store) -> Matrix<'m> {
        let data = store.bytes(self.shard, self.bytes.clone(), self.storage);
        // The parser has checked that rows are whole blocks, and the length follows from the
        // shape; a mistake here would be ours, not the file's.
        Matrix::with_layout(self.layout, self.ty, data, self.all_rows(), self.cols)
            .expect("a checked matrix")
            .scaled(if self.count == 1 { self.scales.first().copied().unwrap_or(1.0) } else { 1.0 })
    }

    /// Matrices of Q8_0 that follow one another at these bytes of the first file, of which a token reads `used`.
    #[cfg(test)]
    pub(crate) fn made_up(bytes: Range<usize>, count: usize, used: usize) -> MatrixRef {
        let (storage, layout, ty) = (Storage::Map, Layout::Rows, WeightType::Q8_0);
        let rows = bytes.len() / count / 34;
        let (shard, cols, stays_rows, scales) = (0, 32, false, Box::default());
        MatrixRef { shard, bytes, storage, layout, ty, rows, cols, count, used, stays_rows, scales }
    }

    /// Bytes of weights.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Bytes of weights that one token reads.
    pub(crate) fn bytes_per_token(&self) -> u64 {
        self.len() / self.count as u64 * self.used as u64
    }

    /// Multiply-accumulates per token.
    pub(crate) fn macs(&self) -> u64 {
        self.used as u64 * self.rows as u64 * self.cols as u64
    }

    /// Whether it has a packed form.
    pub(crate) fn packable(&self) -> bool {
        self.layout == Layout::Rows
            && !self.stays_rows
            && tiles::packable(self.ty, self.rows, self.cols)
    }

    /// Whether a token reads only some of it.
    pub(crate) fn is_chosen_from(&self) -> bool {
        self.used < self.count
    }

    /// Type and layout, which decide the activation formats that it needs.
    pub(crate) fn kind(&self) -> (WeightType, Layout) {
        (self.ty, self.layout)
    }

    /// Output features of all matrices.
    pub(crate) fn all_rows(&self) -> usize {
        self.count * self.rows
    }

    /// Rows of each.
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

    /// Its bytes in the files: shard and range.
    pub(crate) fn file_range(&self) -> (usize, Range<usize>) {
        (self.shard, self.bytes.clone())
    }
}
