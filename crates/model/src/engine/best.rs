//! Which logits of a step are needed: those of all tokens, or, where the output matrix is in planes, those that the samplers may choose from. The others
//! are then [`NOT_COMPUTED`](alight_kernels::matmul::best::NOT_COMPUTED), and no sampler sees a difference.
//!
//! No answer depends on how many are computed. So that is decided by what it has saved so far.

use alight_kernels::matmul::RowCounts;
use alight_kernels::matmul::best::{Greatest, MAX_TOKENS};
use alight_kernels::{Layout, planes};

use super::sampler::Sampler;
use crate::open::Model;

/// Maximum number of greatest logits, and of tokens whose logits a sampler changes. Beyond them all are computed.
pub(super) const MAX_GREATEST: usize = 1024;
const MAX_CHANGED: usize = 2048;

/// The share of the rows of the output matrix that are read whole, for all tokens of a step together, up to which that is faster than to read all: such a row
/// takes about three times as long as one among others.
const MAX_SHARE: f64 = 0.15;

/// The number of steps in which all logits are computed before few are tried again.
const TRY_AGAIN: u32 = 64;

/// How the output matrix was read for the tokens of answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputCounts {
    /// Tokens for which the high bits of all rows were read, and some rows whole.
    pub by_high_bits: u64,
    /// Rows that were read whole for these tokens.
    pub rows: u64,
    /// Tokens for which all rows were read whole.
    pub whole: u64,
    /// Rows of the matrix, and its bytes.
    pub all_rows: u64,
    /// See above.
    pub bytes: u64,
    /// The bytes of the high bits of all rows.
    pub high_bytes: u64,
}

impl OutputCounts {
    /// Bytes of the matrix that were read for a token, on average.
    pub fn bytes_per_token(&self) -> f64 {
        let low = (self.bytes - self.high_bytes) as f64;
        let rows = self.rows as f64 / self.all_rows as f64;
        let few = self.by_high_bits as f64 * self.high_bytes as f64 + rows * low;
        let tokens = self.by_high_bits + self.whole;
        (few + self.whole as f64 * self.bytes as f64) / tokens.max(1) as f64
    }
}

/// The logits that are needed of the rows of a step.
pub(super) struct Best {
    /// One for each row; none if the output matrix is not in planes.
    greatest: Vec<Greatest>,
    /// The rows of the step so far; `None` if all logits of one of them are needed.
    rows: Option<usize>,
    /// Mean share of the rows of the output matrix that a token reads whole.
    share: f64,
    vocab: usize,
    /// Steps since few logits were computed.
    skipped: u32,
    counts: OutputCounts,
}

impl Best {
    pub(super) fn new(model: &Model) -> Best {
        let output = model.weights().output.as_ref().map(|output| &output.matrix);
        let matrix = output.filter(|matrix| matrix.kind().1 == Layout::Planes);
        let one = |cols| Greatest::new(cols, MAX_GREATEST, MAX_CHANGED);
        let greatest = matrix.map(|matrix| (0..MAX_TOKENS).map(|_| one(matrix.cols())).collect());
        Best {
            greatest: greatest.unwrap_or_default(),
            rows: Some(0),
            share: 0.0,
            vocab: model.spec().vocab,
            skipped: 0,
            counts: matrix.map_or_else(OutputCounts::default, |matrix| OutputCounts {
                all_rows: matrix.rows() as u64,
                bytes: matrix.len(),
                high_bytes: planes::high_bytes(matrix.rows(), matrix.cols()) as u64,
                ..OutputCounts::default()
            }),
        }
    }

    /// Returns how the output matrix was read, if it is in planes.
    pub(super) fn counts(&self) -> Option<OutputCounts> {
        (!self.greatest.is_empty()).then_some(self.counts)
    }

    /// Begins a step.
    pub(super) fn begin(&mut self) {
        self.rows = Some(0);
    }

    /// Adds rows of a sequence: its pending token and a draft. `sampler` chooses by their logits, and nothing else looks at them; `None` if something does.
    pub(super) fn add(&mut self, rows: usize, sampler: Option<&mut Sampler>) {
        let before = self.rows.take();
        let (Some(before), Some(sampler)) = (before, sampler) else { return };
        let Some(some) = self.greatest.get_mut(before..before + rows) else { return };
        if rows == 1 || !sampler.remembers() {
            let few = some.iter_mut().all(|one| sampler.request([MAX_GREATEST, MAX_CHANGED], one));
            self.rows = few.then_some(before + rows);
        }
    }

    /// Returns what is needed of the first `rows` rows of a step; `None`: all logits.
    pub(super) fn of(&mut self, rows: RowCounts) -> Option<&mut [Greatest]> {
        let n = rows.all();
        if rows.bits8 > 0 || self.rows != Some(n) || n == 0 {
            return None;
        }
        self.skipped += 1;
        let pays = self.share * n as f64 <= MAX_SHARE || self.skipped > TRY_AGAIN;
        self.greatest.get_mut(..n).filter(|_| pays)
    }

    /// Counts the rows of a step that has been computed; `few` tells whether only some of the logits were.
    pub(super) fn count(&mut self, rows: RowCounts, few: bool) {
        if !few {
            self.counts.whole += rows.bits16 as u64;
            return;
        }
        self.skipped = 0;
        for one in &self.greatest[..rows.all()] {
            let read = one.rows_read();
            self.share += (read as f64 / self.vocab as f64 - self.share) / 8.0;
            self.counts.by_high_bits += 1;
            self.counts.rows += read as u64;
        }
    }
}
