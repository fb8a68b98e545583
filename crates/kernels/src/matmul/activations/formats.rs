//! The rounding of activations, and the packings that the matrices need.

use std::ops::Range;

use super::{TOKEN_BLOCK, WIDE_TOKEN_BLOCK};
use crate::blocks::{BlockFormat, WeightType, with_block};
use crate::isa::{Isa, SimdLevel};
use crate::tiles::Layout;

/// The rounding of activations for quantised weights, and the order of the sums in products with weights of any type. The result
/// of a token depends on its own precision, not on the other tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// 16-bit integers, one scale per 256 values.
    Bits16,
    /// 8-bit integers, one scale per 32 values. With AMX, bf16 instead, whose errors are smaller.
    Bits8,
}

/// The number of 8-bit tokens from which AMX's tiles of bytes are used, even if the last block is not full. With fewer, they can
/// be slower than `vpdpbusd`.
pub(in crate::matmul) const MANY: usize = 8 * TOKEN_BLOCK;

/// The number of tokens of each [`Precision`] in a set. The 16-bit tokens come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowCounts {
    /// 16-bit tokens.
    pub bits16: usize,
    /// 8-bit tokens.
    pub bits8: usize,
}

impl RowCounts {
    /// Counts of `tokens` tokens of one precision.
    pub const fn new(precision: Precision, tokens: usize) -> RowCounts {
        match precision {
            Precision::Bits16 => RowCounts { bits16: tokens, bits8: 0 },
            Precision::Bits8 => RowCounts { bits16: 0, bits8: tokens },
        }
    }

    /// The counts of a call with one token of an answer or several of a prompt, if the caller does not distinguish them.
    pub const fn of_call(tokens: usize) -> RowCounts {
        RowCounts::new(if tokens == 1 { Precision::Bits16 } else { Precision::Bits8 }, tokens)
    }

    /// Number of all tokens.
    pub const fn all(self) -> usize {
        self.bits16 + self.bits8
    }

    /// The precision of token `t`.
    pub const fn precision(self, t: usize) -> Precision {
        if t < self.bits16 { Precision::Bits16 } else { Precision::Bits8 }
    }

    /// The tokens of each precision; a range may be empty.
    pub const fn ranges(self) -> [Range<usize>; 2] {
        [0..self.bits16, self.bits16..self.bits16 + self.bits8]
    }
}

/// The packings that the consumers of a set of activations need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActivationFormats {
    pub(super) float: bool,
    /// Some matrices in rows have one scale per 32 weights. AMX's tiles of bytes are for these.
    pub(super) rows: bool,
    /// Some matrices in rows have one scale per 16 weights, or are multiplied with a few tokens each.
    pub(super) rows_in_order: bool,
    pub(super) tiles: bool,
    /// Sums of 16 values too, for types with an offset per 16.
    pub(super) sums_of_16: bool,
    /// Some weights are bf16.
    pub(super) bf16: bool,
}

impl ActivationFormats {
    /// The formats for these matrices, given the [`kind`](super::Matrix::kind) of each.
    pub fn of(matrices: impl IntoIterator<Item = (WeightType, Layout)>) -> ActivationFormats {
        let one = |(ty, layout): (WeightType, Layout)| ActivationFormats {
            float: ty.is_float(),
            rows: layout == Layout::Rows && scales(ty) == 1,
            rows_in_order: layout == Layout::Rows && scales(ty) == 2,
            tiles: layout != Layout::Rows && !ty.is_float(),
            sums_of_16: needs_sums_of_16(ty),
            bf16: ty == WeightType::BF16,
        };
        matrices.into_iter().map(one).fold(ActivationFormats::default(), ActivationFormats::and)
    }

    /// The formats for matrices that are each multiplied with some of the tokens, usually a few, as experts are.
    pub fn of_parts(matrices: impl IntoIterator<Item = (WeightType, Layout)>) -> ActivationFormats {
        let all = ActivationFormats::of(matrices);
        ActivationFormats { rows: false, rows_in_order: all.rows_in_order || all.rows, ..all }
    }

    /// The union of both formats.
    pub fn and(self, other: ActivationFormats) -> ActivationFormats {
        ActivationFormats {
            float: self.float || other.float,
            rows: self.rows || other.rows,
            rows_in_order: self.rows_in_order || other.rows_in_order,
            tiles: self.tiles || other.tiles,
            sums_of_16: self.sums_of_16 || other.sums_of_16,
            bf16: self.bf16 || other.bf16,
        }
    }

    /// True if activations in these formats can be multiplied with a matrix of this kind.
    pub fn covers(self, (ty, layout): (WeightType, Layout)) -> bool {
        let packed = match layout {
            _ if ty.is_float() => self.float,
            Layout::Rows => self.rows_in_order || self.rows && scales(ty) == 1,
            Layout::Tiles | Layout::Planes => self.tiles,
        };
        packed
            && (self.sums_of_16 || !needs_sums_of_16(ty))
            && (self.bf16 || ty != WeightType::BF16)
    }

    /// The largest [`block`](ActivationFormats::block).
    pub const MAX_BLOCK_TOKENS: usize = WIDE_TOKEN_BLOCK;

    /// A group of tokens that is multiplied together but is only part of a set begins at a multiple of this
    /// ([`Activations::tokens_in`]).
    pub fn block(self, isa: Isa) -> usize {
        match isa.level() {
            SimdLevel::Amx if self.quantized() || self.bf16 => WIDE_TOKEN_BLOCK,
            SimdLevel::AmxInt8 if self.rows => TOKEN_BLOCK,
            _ if self.tiles => TOKEN_BLOCK,
            _ => 1,
        }
    }

    /// True if a prompt's tokens of `cols` columns are packed as bf16.
    pub(super) fn as_bf16(self, isa: Isa, cols: usize) -> bool {
        isa.level() == SimdLevel::Amx && cols.is_multiple_of(32) && (self.quantized() || self.bf16)
    }

    /// True if any of the matrices is quantised.
    pub(super) fn quantized(self) -> bool {
        self.rows || self.rows_in_order || self.tiles
    }
}

/// Scales per 32 weights.
fn scales(ty: WeightType) -> usize {
    with_block!(ty, Q => Q::SCALES, 0)
}

fn needs_sums_of_16(ty: WeightType) -> bool {
    with_block!(ty, Q => Q::OFFSETS == 2, false)
}
