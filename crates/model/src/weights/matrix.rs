//! A reference to a matrix: its bytes in the files, and the memory that holds them.

use std::ops::Range;

use alight_kernels::matmul::Matrix;
use alight_kernels::{Layout, WeightType};

use crate::load::{Storage, Store};

/// A matrix: which bytes of which file, and which memory holds them.
#[derive(Clone, Debug)]
pub(crate) struct MatrixRef {
    pub(super) shard: usize,
    pub(super) bytes: Range<usize>,
    pub(super) storage: Storage,
    /// How the weights are arranged in that memory.
    pub(super) layout: Layout,
    pub(super) ty: WeightType,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl MatrixRef {
    /// Borrowed view. The caller must have waited for the section of this matrix.
    pub(crate) fn view<'m>(&self, store: &'m Store) -> Matrix<'m> {
        let data = store.bytes(self.shard, self.bytes.clone(), self.storage);
        // The parser has checked that rows are whole blocks, and the length follows from the
        // shape; a mistake here would be ours, not the file's.
        Matrix::with_layout(self.layout, self.ty, data, self.rows, self.cols)
            .expect("a checked matrix")
    }

    /// Bytes of weights.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Number of weights: multiply-accumulates per token.
    pub(crate) fn weights(&self) -> u64 {
        self.rows as u64 * self.cols as u64
    }

    /// Type and layout, which decide the activation formats that it needs.
    pub(crate) fn kind(&self) -> (WeightType, Layout) {
        (self.ty, self.layout)
    }

    /// Output features.
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
