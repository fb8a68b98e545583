//! Activations, packed once for all the matrices that read them.
//!
//! A set may hold tokens of both [`Precision`]s: the 16-bit tokens first, then the 8-bit ones ([`RowCounts`]).
//!
//! 16 bits, quantised weights — groups of 256 with one f32 scale `a` = max|x| / 32512 and
//! 16-bit integers `q` = round(x / a):
//! - scalar and AVX2: `q` as i16 `[K]`;
//! - AVX2: also `planes`, per 32 values 32 high bytes then 32 low bytes (both signed: q = 256·hi + lo);
//! - AVX-512: per 64 values 64 high bytes then 64 low bytes;
//! - NEON: the same per 32 values;
//! - all: `s16[K/16]` and `s32[K/32]`, the sums of 16 and 32 `q` as f32 (exact), and zeros past the last value: kernels multiply whole groups of 256.
//!
//! All of these start over for each token, padded to whole groups of 256.
//!
//! 8 bits, quantised weights — groups of 32 with one f32 scale `a` = max|x| / 127 and 8-bit integers: `q` `[T][K]` unsigned,
//! round(x / a) + 128, `scale` `[T][K/32]`, and `s32` = a·Σ round(x / a) `[T][K/32]` for the types with an offset (`s16`
//! `[T][K/16]` for those with two). (`vpdpbusd` needs one unsigned operand. Making it the activations costs one constant per row
//! and group of weights, −128·Σw, which is computed once with the panel and shared by all tokens.) With AVX2 the integers stay
//! signed, and `pairs` `[T][K/32][2]` i16 has their sums of 16. In portable code and with NEON they stay signed, too.
//!
//! The same for packed weights with AVX-512 ([`TileActs`]): there the weights are the unsigned operand and the integers stay
//! signed; twelve tokens are stored together, so that one address and constant offsets reach all of them.
//!
//! With AMX's tiles of bytes, many tokens ([`MANY`]) use the same packing for rows with one scale per 32 weights. With its tiles
//! of bf16 there is bf16 instead of 8-bit integers, for weights that are quantised or bf16: `[T/16][K/32][16][32]` (`bf16`).
//!
//! Float weights read the values themselves, `[T][K]` f32.
//!
//! The kernels read [`Tokens`]: consecutive tokens of a set, as if there were no others.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod formats;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
mod tokens;

use std::ops::{Deref, DerefMut, Range};

pub(in crate::matmul) use self::formats::MANY;
pub use self::formats::{ActivationFormats, Precision, RowCounts};
pub use self::pack::ActSlots;
use self::pack::TileSlots;
pub use self::tokens::Tokens;
use super::sizes::{TOKEN_BLOCK, WIDE_TOKEN_BLOCK};
use crate::isa::{Isa, SimdLevel};
use crate::{Layout, WeightType};

/// The largest 16-bit integer used: 127·256, so that its high byte stays a signed byte.
const WIDE: f32 = 32512.0;

/// Zero bytes that start at a cache line, whose pages stay untouched until they are used. The items are not aligned to a line:
/// for allocations with unusual alignment, the allocator writes the zeros itself instead of getting zero pages from the system.
pub(in crate::matmul) struct AlignedBytes {
    bytes: Vec<i8>,
    lines: Range<usize>,
}

impl AlignedBytes {
    pub(in crate::matmul) fn new(len: usize) -> AlignedBytes {
        const LINE: usize = 64;
        let bytes = vec![0; len + LINE - 1];
        let first = (bytes.as_ptr() as usize).wrapping_neg() % LINE;
        AlignedBytes { bytes, lines: first..first + len }
    }
}

impl Deref for AlignedBytes {
    type Target = [i8];

    fn deref(&self) -> &[i8] {
        &self.bytes[self.lines.clone()]
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [i8] {
        &mut self.bytes[self.lines.clone()]
    }
}

/// Packed activations `[tokens, cols]`. Allocated once; packing allocates nothing.
pub struct Activations {
    isa: Isa,
    max_tokens: usize,
    max_cols: usize,
    rows: RowCounts,
    cols: usize,
    formats: ActivationFormats,
    /// True if 8-bit tokens for rows with one scale per 32 weights are packed as for packed weights.
    rows_in_blocks: bool,
    /// Integers: 2 bytes per value of 16-bit tokens, then 1 byte.
    q: AlignedBytes,
    /// AVX2, 16 bits: 2 bytes per value.
    planes: AlignedBytes,
    /// 16 bits: one per 256. 8 bits: one per 32.
    scale: Vec<f32>,
    s32: Vec<f32>,
    s16: Vec<f32>,
    /// AVX2, 8 bits: Σ q of each 16 of a group, the first in the lower half.
    pairs: Vec<i32>,
    float: Vec<f32>,
    pub(in crate::matmul) tiles: TileActs,
    /// bf16 for AMX, in bytes, `[T/16][K/32][16][32]`.
    bf16: AlignedBytes,
}

/// Several tokens for packed weights, in blocks of [`TOKEN_BLOCK`] tokens.
pub(in crate::matmul) struct TileActs {
    /// `[T/TOKEN_BLOCK][K/32][TOKEN_BLOCK][32]` i8
    pub(in crate::matmul) q: AlignedBytes,
    /// `[T/TOKEN_BLOCK][K/32][TOKEN_BLOCK]`
    pub(in crate::matmul) scale: Vec<f32>,
    /// `[T/TOKEN_BLOCK][K/32][TOKEN_BLOCK]`, scale · Σ q
    pub(in crate::matmul) s32: Vec<f32>,
    /// `[T/TOKEN_BLOCK][K/32][TOKEN_BLOCK]`, −Σ q times the first of [`USUAL_ZEROS`]
    pub(in crate::matmul) z32: Vec<i32>,
    /// `[T/TOKEN_BLOCK][K/32][2][TOKEN_BLOCK]`, −Σ q of each 16 times the second
    pub(in crate::matmul) z16: Vec<i32>,
}

/// The zero points of the most frequent types with one scale (Q4_0) and with two scales (Q6_K) per 32 weights: products with them need no
/// multiplication by the zero point (a sixteenth of the time of Q4_0's products).
pub(in crate::matmul) const USUAL_ZEROS: [i32; 2] = [8, 32];

impl Activations {
    /// Allocates memory for `max_tokens` × `max_cols`. Its pages stay zero pages until they are used.
    pub fn new(max_tokens: usize, max_cols: usize) -> Activations {
        let (t, k) = (max_tokens.max(1), max_cols.next_multiple_of(256));
        Activations {
            isa: Isa::SCALAR,
            max_tokens: t,
            max_cols: k,
            rows: RowCounts::default(),
            cols: 0,
            formats: ActivationFormats::default(),
            rows_in_blocks: false,
            q: AlignedBytes::new(2 * t * k),
            planes: AlignedBytes::new(2 * t * k),
            scale: vec![0.0; t * k / 32],
            s32: vec![0.0; t * k / 32],
            s16: vec![0.0; t * k / 16],
            pairs: vec![0; t * k / 32],
            // Blocks of 8-bit tokens begin anywhere.
            float: vec![0.0; (t + TOKEN_BLOCK) * k],
            tiles: {
                let groups = t.next_multiple_of(TOKEN_BLOCK) * k / 32;
                TileActs {
                    q: AlignedBytes::new(32 * groups),
                    scale: vec![0.0; groups],
                    s32: vec![0.0; groups],
                    z32: vec![0; groups],
                    z16: vec![0; 2 * groups],
                }
            },
            bf16: AlignedBytes::new(2 * t.next_multiple_of(WIDE_TOKEN_BLOCK) * k),
        }
    }

    /// The approximate size in bytes of `max_tokens` tokens of prompts: a code for each element, and a scale and three sums for
    /// each 32 elements.
    pub fn usual_bytes(&self) -> usize {
        self.max_tokens * self.max_cols / 32 * (32 + 4 * 4)
    }

    /// Starts a new set of `rows` × `cols` for the given SIMD level and consumers. Tokens may be left out; the contents of a
    /// token are unspecified until it has been put.
    ///
    /// # Panics
    /// If `rows` × `cols` exceeds the capacity of the buffers.
    pub fn begin(&mut self, isa: Isa, rows: RowCounts, cols: usize, formats: ActivationFormats) {
        let tokens = rows.all();
        assert!(
            tokens >= 1 && tokens <= self.max_tokens && cols <= self.max_cols,
            "{tokens} × {cols} activations do not fit in {} × {}",
            self.max_tokens,
            self.max_cols
        );
        assert!(
            !formats.quantized() || cols.is_multiple_of(32),
            "quantised weights come in groups of 32"
        );
        (self.isa, self.rows, self.cols, self.formats) = (isa, rows, cols, formats);
        let many = isa.level() == SimdLevel::AmxInt8 && rows.bits8 >= MANY;
        self.rows_in_blocks = formats.rows && many;
    }

    /// As [`begin`](Self::begin), for copies of another set's tokens, which are packed in the same way.
    pub(crate) fn begin_copies(
        &mut self,
        of: &Activations,
        rows: RowCounts,
        formats: ActivationFormats,
    ) {
        self.begin(of.isa, rows, of.cols, formats);
        self.rows_in_blocks = formats.rows && of.rows_in_blocks;
    }

    /// Packs token `t`; `x` is `[cols]`.
    pub fn put(&mut self, t: usize, x: &[f32]) {
        // SAFETY: the exclusive borrow makes this the only thread.
        unsafe { self.slots().put(t, x) }
    }

    /// A handle through which several threads may pack different tokens.
    pub fn slots(&mut self) -> ActSlots<'_> {
        ActSlots {
            isa: self.isa,
            rows: self.rows,
            cols: self.cols,
            formats: self.formats,
            rows_in_blocks: self.rows_in_blocks,
            q: self.q.as_mut_ptr().cast(),
            planes: self.planes.as_mut_ptr().cast(),
            scale: self.scale.as_mut_ptr(),
            s32: self.s32.as_mut_ptr(),
            s16: self.s16.as_mut_ptr(),
            pairs: self.pairs.as_mut_ptr(),
            float: self.float.as_mut_ptr(),
            tiles: TileSlots {
                q: self.tiles.q.as_mut_ptr().cast(),
                scale: self.tiles.scale.as_mut_ptr(),
                s32: self.tiles.s32.as_mut_ptr(),
                z32: self.tiles.z32.as_mut_ptr(),
                z16: self.tiles.z16.as_mut_ptr(),
            },
            bf16: self.bf16.as_mut_ptr().cast(),
            _owner: std::marker::PhantomData,
        }
    }

    /// The SIMD level of the packing.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The values `[cols]` of token `t` of a set that has floats.
    pub fn float_row(&self, t: usize) -> &[f32] {
        self.tokens_in(t..t + 1).float(0)
    }

    /// The number of tokens of each precision.
    pub fn rows(&self) -> RowCounts {
        self.rows
    }

    /// Values per token.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The formats that the set was packed in.
    pub fn formats(&self) -> ActivationFormats {
        self.formats
    }

    /// Token `t` unrounded, `[cols]`.
    ///
    /// # Panics
    /// If the set was not packed for float weights too, or has no such token.
    pub fn float(&self, t: usize) -> &[f32] {
        assert!(self.formats.covers((WeightType::F32, Layout::Rows)), "tokens as floats");
        self.tokens_in(t..t + 1).float(0)
    }

    /// The tokens of each precision, if there are any, with the number of the first.
    pub fn parts(&self) -> impl Iterator<Item = (usize, Tokens<'_>)> + Clone {
        let ranges = self.rows.ranges().into_iter().filter(|range| !range.is_empty());
        ranges.map(|range| (range.start, self.tokens_in(range)))
    }

    /// Tokens `range`, which have one precision. For a matrix in tiles, a range of 8-bit tokens must begin at a multiple of
    /// [`TOKEN_BLOCK`], counted from the first 8-bit token.
    ///
    /// # Panics
    /// If the set has fewer tokens, or they have different precisions.
    pub fn tokens_in(&self, range: Range<usize>) -> Tokens<'_> {
        let RowCounts { bits16, .. } = self.rows;
        assert!(
            range.start <= range.end && range.end <= self.rows.all(),
            "tokens outside of the set"
        );
        assert!(range.end <= bits16 || range.start >= bits16, "tokens of both precisions");
        let precision = self.rows.precision(range.start);
        let first = match precision {
            Precision::Bits16 => range.start,
            Precision::Bits8 => range.start - bits16,
        };
        let at = TokenOffsets::of(self.rows, self.cols, precision, first);
        let q = &*self.q;
        Tokens {
            set: self,
            precision,
            first,
            tokens: range.len(),
            q: &q[at.bytes..],
            planes: &self.planes[at.bytes..],
            scale: &self.scale[at.scale..],
            s32: &self.s32[at.values / 32..],
            s16: &self.s16[at.values / 16..],
            pairs: &self.pairs[at.values / 32..],
            float: &self.float[range.start * self.cols..],
        }
    }
}

/// Positions at which a token begins in the data that rows are multiplied with.
#[derive(Clone, Copy)]
struct TokenOffsets {
    /// In the integers.
    bytes: usize,
    /// In the scales.
    scale: usize,
    /// In the sums of 32 and of 16: this divided by 32 and by 16.
    values: usize,
}

impl TokenOffsets {
    /// Offsets of the `t`-th token of a precision. The 8-bit tokens begin after the maximum number of groups of 32 of the 16-bit
    /// tokens, padded to 256 values.
    #[inline(always)]
    fn of(rows: RowCounts, cols: usize, precision: Precision, t: usize) -> TokenOffsets {
        let padded = cols.next_multiple_of(256);
        match precision {
            Precision::Bits16 => {
                let values = t * padded;
                TokenOffsets { bytes: 2 * values, scale: values / 256, values }
            }
            Precision::Bits8 => {
                let before = rows.bits16 * padded;
                let values = before + t * cols;
                TokenOffsets { bytes: before + values, scale: values / 32, values }
            }
        }
    }
}

/// Bytes of 32 columns as bf16.
const BF16_LINE: usize = 64;

/// The byte offset in `bf16` of columns `32·g .. 32·g + 32` of the `t`-th token of a prompt, if tokens have `cols` columns.
#[inline(always)]
fn bf16_line(t: usize, g: usize, cols: usize) -> usize {
    let block = t / WIDE_TOKEN_BLOCK * (cols / 32) + g;
    BF16_LINE * (block * WIDE_TOKEN_BLOCK + t % WIDE_TOKEN_BLOCK)
}
