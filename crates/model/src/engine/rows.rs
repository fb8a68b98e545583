//! Buffers of rows whose rows are written by several threads at the same time.

use alight_kernels::matmul::Output;

/// Rows of `width` elements in a buffer that is borrowed for writing: row `i` begins at `i · width`.
pub(crate) struct Rows<'a> {
    buffer: &'a mut [f32],
    width: usize,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(buffer: &'a mut [f32], width: usize) -> Rows<'a> {
        Rows { buffer, width }
    }

    /// The rows from row `first` on.
    pub(crate) fn starting_at(buffer: &'a mut [f32], width: usize, first: usize) -> Rows<'a> {
        Rows { buffer: &mut buffer[first * width..], width }
    }

    /// Copies row `from` to row `to`.
    pub(crate) fn copy(&mut self, from: usize, to: usize) {
        let width = self.width;
        self.buffer.copy_within(from * width..(from + 1) * width, to * width);
    }

    /// Elements of a row.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// What the kernels write through, and the width.
    pub(super) fn into_output(self) -> (Output<'a>, usize) {
        (Output::new(self.buffer, self.width), self.width)
    }
}
