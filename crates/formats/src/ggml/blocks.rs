//! Converts blocks of old eras to those of GGUF, row by row.
//!
//! | Type | from [`Era::Rows`], [`Era::Pairs`] | from [`Era::Halves`] | from [`Era::Current`] |
//! |---|---|---|---|
//! | F32, F16 | copied | copied | copied |
//! | Q4_0, Q4_1 | nibbles moved, scales to f16 | scales to f16 | copied |
//! | Q4_2, Q4_3 | values to F16 | | |
//! | Q5_0, Q5_1 | nibbles moved | copied | copied |
//! | Q8_0 | scales to f16 | scales to f16 | copied |
//! | K-quants | | | copied |
//!
//! Quants are always exact. Rounding a scale changes the decoded values of its block by at most one part in
//! 2048, unless the scale is so small that f16 has fewer bits for it; [`Losses`] counts these. A scale that is
//! too large for f16 is an error: its block has to be written as another type.

use std::ops::AddAssign;

use thiserror::Error;

use super::half::{f16_of, f32_of};
use super::{Era, LegacyType};

/// The conversion of the bytes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockUpgrade {
    /// None: the blocks are GGUF's.
    Copy,
    /// Bits are moved; every value stays the same.
    Move,
    /// Quants stay the same, scales are rounded from f32 to f16.
    Rescale,
    /// Values are decoded and rounded to f16.
    Decode,
}

/// Precision lost in a conversion. Counts numbers: scales and minima of blocks, or values of Q4_2 and Q4_3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Numbers that were converted to f16.
    pub numbers: u64,
    /// Those of them that f16 cannot represent and that were rounded; includes the next two.
    pub rounded: u64,
    /// Rounded numbers so small (below 2⁻¹⁴) that f16 holds fewer than 11 bits of them.
    pub subnormal: u64,
    /// Rounded numbers that became zero.
    pub vanished: u64,
    /// Numbers that were infinite or NaN before, and still are.
    pub not_finite: u64,
}

impl AddAssign for Losses {
    fn add_assign(&mut self, other: Self) {
        self.numbers += other.numbers;
        self.rounded += other.rounded;
        self.subnormal += other.subnormal;
        self.vanished += other.vanished;
        self.not_finite += other.not_finite;
    }
}

/// The reason why blocks cannot be converted.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages explain the fields
pub enum BlockError {
    #[error("there are no blocks of type {ty} that are {era}")]
    NoSuchType { ty: LegacyType, era: Era },

    #[error("{found} bytes of {ty} are not whole blocks of {block}")]
    PartialBlock { ty: LegacyType, found: usize, block: usize },

    #[error("an output of {found} bytes, expected {expected} for this many blocks of {ty}")]
    Length { ty: LegacyType, found: usize, expected: usize },

    #[error(
        "block {block} of a row of {ty} has the number {found}, which is larger than a 16-bit float \
         can be; the tensor has to be written as F32"
    )]
    TooLarge { ty: LegacyType, block: usize, found: f32 },
}

impl Era {
    /// The conversion of a tensor of this era, or `None` if the era does not have the type.
    pub const fn upgrade(self, ty: LegacyType) -> Option<BlockUpgrade> {
        use LegacyType as T;
        if self.block(ty).is_none() {
            return None;
        }
        Some(match (self, ty) {
            (Era::Current, _) | (_, T::F32 | T::F16) => BlockUpgrade::Copy,
            (_, T::Q4_2 | T::Q4_3) => BlockUpgrade::Decode,
            (Era::Pairs, T::Q5_0 | T::Q5_1) => BlockUpgrade::Move,
            (_, T::Q4_0 | T::Q4_1 | T::Q8_0) => BlockUpgrade::Rescale,
            _ => BlockUpgrade::Copy,
        })
    }

    /// The bytes of `elements` elements of `ty` before and after, or `None` if they are not whole blocks, or
    /// blocks that the era does not have.
    pub const fn sizes(self, ty: LegacyType, elements: u64) -> Option<(u64, u64)> {
        let Some((block, bytes)) = self.block(ty) else { return None };
        if !elements.is_multiple_of(block) {
            return None;
        }
        match ((elements / block).checked_mul(bytes), ty.current().row_bytes(elements)) {
            (Some(before), Some(after)) => Some((before, after)),
            _ => None,
        }
    }
}

/// Converts `source`, of type `ty` and the era `era`, to blocks of `ty.current()`, and adds the losses to
/// `losses`. In [`Era::Rows`] `source` is one whole row (of one part, if there are several), otherwise any
/// number of whole blocks.
///
/// # Errors
/// [`BlockError`]; the contents of `out` and `losses` are then undefined.
pub fn convert(
    era: Era,
    ty: LegacyType,
    source: &[u8],
    out: &mut [u8],
    losses: &mut Losses,
) -> Result<(), BlockError> {
    let no_such = BlockError::NoSuchType { ty, era };
    let (Some((elements, bytes)), Some(upgrade)) = (era.block(ty), era.upgrade(ty)) else {
        return Err(no_such);
    };
    let (found, block) = (source.len(), bytes as usize);
    if !found.is_multiple_of(block) {
        return Err(BlockError::PartialBlock { ty, found, block });
    }
    let blocks = found / block;
    let Some((_, expected)) = era.sizes(ty, blocks as u64 * elements) else { return Err(no_such) };
    if out.len() as u64 != expected {
        let (found, expected) = (out.len(), expected as usize);
        return Err(BlockError::Length { ty, found, expected });
    }
    if blocks == 0 {
        return Ok(());
    }
    if upgrade == BlockUpgrade::Copy {
        out.copy_from_slice(source);
        return Ok(());
    }
    let pieces = out.chunks_exact_mut(out.len() / blocks);
    for (index, to) in pieces.enumerate() {
        let whole = &source[index * block..][..block];
        let at = BlockNumber { ty, block: index };
        match (era, ty) {
            // All scales of the row, or all minima and then all scales, precede the first quant.
            (Era::Rows, LegacyType::Q4_0) => {
                let qs = &source[blocks * 4 + index * 16..][..16];
                narrow(&source[index * 4..][..4], &mut to[..2], at, losses)?;
                to[2..].copy_from_slice(&halves(qs));
            }
            (Era::Rows, _) => {
                let qs = &source[blocks * 8 + index * 16..][..16];
                narrow(&source[(blocks + index) * 4..][..4], &mut to[..2], at, losses)?;
                narrow(&source[index * 4..][..4], &mut to[2..4], at, losses)?;
                to[4..].copy_from_slice(&halves(qs));
            }
            (_, LegacyType::Q4_0 | LegacyType::Q4_1) => {
                let (scales, qs) = whole.split_at(block - 16);
                let (narrowed, to) = to.split_at_mut(scales.len() / 2);
                narrow(scales, narrowed, at, losses)?;
                match era {
                    Era::Pairs => to.copy_from_slice(&halves(qs)),
                    _ => to.copy_from_slice(qs),
                }
            }
            (_, LegacyType::Q8_0) => {
                narrow(&whole[..4], &mut to[..2], at, losses)?;
                to[2..].copy_from_slice(&whole[4..]);
            }
            (_, LegacyType::Q4_2 | LegacyType::Q4_3) => decode(whole, to, at, losses)?,
            // Q5_0 and Q5_1: the fifth bits are in the order of the elements before and after.
            _ => {
                let (head, qs) = whole.split_at(block - 16);
                to[..head.len()].copy_from_slice(head);
                to[head.len()..].copy_from_slice(&halves(qs));
            }
        }
    }
    Ok(())
}

/// The position of a number, for the error.
#[derive(Clone, Copy)]
struct BlockNumber {
    ty: LegacyType,
    block: usize,
}

/// Converts f32 numbers to f16.
fn narrow(
    from: &[u8],
    to: &mut [u8],
    at: BlockNumber,
    losses: &mut Losses,
) -> Result<(), BlockError> {
    for (from, to) in from.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
        *to = round(f32::from_le_bytes(*from), at, losses)?.to_le_bytes();
    }
    Ok(())
}

/// Returns the f16 nearest to `x`, and counts the losses.
fn round(x: f32, at: BlockNumber, losses: &mut Losses) -> Result<u16, BlockError> {
    let half = f16_of(x);
    losses.numbers += 1;
    if !x.is_finite() {
        losses.not_finite += 1;
        return Ok(half);
    }
    let back = f32_of(half);
    if back.is_infinite() {
        return Err(BlockError::TooLarge { ty: at.ty, block: at.block, found: x });
    }
    if back != x {
        losses.rounded += 1;
        losses.vanished += u64::from(back == 0.0);
        losses.subnormal += u64::from(x.abs() < f32_of(0x0400) && back != 0.0);
    }
    Ok(half)
}

/// Pairs to halves: 32 elements stored two by two become bytes `j` with elements `j` and `j + 16`.
fn halves(pairs: &[u8]) -> [u8; 16] {
    let nibble = |element: usize| pairs[element / 2] >> (element % 2 * 4) & 15;
    std::array::from_fn(|j| nibble(j) | nibble(j + 16) << 4)
}

/// Decodes a block of Q4_2 (f16 scale, 16 quants minus 8) or Q4_3 (f16 scale and minimum, 16 quants) to 16
/// values. They are computed in f32, as the programs of that time did, and rounded once more.
fn decode(
    from: &[u8],
    to: &mut [u8],
    at: BlockNumber,
    losses: &mut Losses,
) -> Result<(), BlockError> {
    let number = |i: usize| f32_of(u16::from_le_bytes([from[i], from[i + 1]]));
    let (d, qs) = (number(0), &from[from.len() - 8..]);
    for (element, to) in to.as_chunks_mut().0.iter_mut().enumerate() {
        let q = f32::from(qs[element / 2] >> (element % 2 * 4) & 15);
        let value = match at.ty {
            LegacyType::Q4_3 => q * d + number(2),
            _ => (q - 8.0) * d,
        };
        *to = round(value, at, losses)?.to_le_bytes();
    }
    Ok(())
}
