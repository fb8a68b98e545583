//! Consecutive tokens of a set, as the kernels read them.

use super::{ActivationFormats, Activations, Precision, TokenOffsets};
#[cfg(target_arch = "x86_64")]
use super::{TOKEN_BLOCK, TileActs, WIDE_TOKEN_BLOCK, bf16_line};
use crate::blocks::WeightType;
use crate::isa::{Isa, SimdLevel};
use crate::tiles::Layout;

/// Some consecutive tokens of a set, the operand of a matrix product.
#[derive(Clone, Copy)]
pub struct Tokens<'a> {
    pub(super) set: &'a Activations,
    pub(super) precision: Precision,
    /// Number of the first among the tokens of this precision.
    pub(super) first: usize,
    pub(super) tokens: usize,
    // The data that rows are multiplied with, from the first token on.
    pub(super) q: &'a [i8],
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) planes: &'a [i8],
    pub(super) scale: &'a [f32],
    pub(super) s32: &'a [f32],
    pub(super) s16: &'a [f32],
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) pairs: &'a [i32],
    /// `[tokens, cols]` and more.
    pub(super) float: &'a [f32],
}

impl<'a> From<&'a Activations> for Tokens<'a> {
    /// All tokens.
    ///
    /// # Panics
    /// If they have different precisions.
    fn from(set: &'a Activations) -> Tokens<'a> {
        set.tokens_in(0..set.rows.all())
    }
}

impl<'a> Tokens<'a> {
    /// The SIMD level of the packing.
    pub fn isa(&self) -> Isa {
        self.set.isa
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Values per token.
    pub fn cols(&self) -> usize {
        self.set.cols
    }

    /// The rounding of the tokens for quantised weights.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The `t`-th token alone; the tokens must have 16 bits.
    pub(in crate::matmul) fn one(&self, t: usize) -> Tokens<'a> {
        debug_assert!(self.precision == Precision::Bits16 && t < self.tokens);
        let at = TokenOffsets::of(self.set.rows, self.set.cols, Precision::Bits16, t);
        Tokens {
            first: self.first + t,
            tokens: 1,
            q: &self.q[at.bytes..],
            planes: &self.planes[at.bytes..],
            scale: &self.scale[at.scale..],
            s32: &self.s32[at.values / 32..],
            s16: &self.s16[at.values / 16..],
            pairs: &self.pairs[at.values / 32..],
            float: &self.float[t * self.set.cols..],
            ..*self
        }
    }

    /// The formats that the set was packed in.
    pub fn formats(&self) -> ActivationFormats {
        self.set.formats
    }

    /// True if the kernels can multiply these tokens together with a matrix of this kind: tiles need blocks of tokens.
    pub(in crate::matmul) fn suit(&self, kind: (WeightType, Layout)) -> bool {
        match self.precision {
            Precision::Bits16 => true,
            Precision::Bits8 => {
                let formats = match self.set.formats.rows {
                    true => ActivationFormats::of([kind]),
                    false => ActivationFormats::of_parts([kind]),
                };
                self.first.is_multiple_of(formats.block(self.set.isa))
            }
        }
    }

    /// True if rows with one scale per 32 weights are multiplied with these tokens in blocks of [`TOKEN_BLOCK`], even if they are
    /// few.
    #[cfg(target_arch = "x86_64")]
    pub(in crate::matmul) fn rows_in_blocks(&self) -> bool {
        self.set.rows_in_blocks
    }

    /// True if a matrix of this kind is multiplied with these tokens as bf16.
    #[cfg(target_arch = "x86_64")]
    pub(in crate::matmul) fn as_bf16(&self, kind: (WeightType, Layout)) -> bool {
        let formats = ActivationFormats::of([kind]);
        self.precision == Precision::Bits8 && formats.as_bf16(self.set.isa, self.set.cols)
    }

    /// Columns from the `g`-th group of 32 on, of the `block`-th 16 tokens.
    #[cfg(target_arch = "x86_64")]
    pub(in crate::matmul) fn bf16_block(&self, block: usize, g: usize) -> *const u8 {
        let token = self.first + WIDE_TOKEN_BLOCK * block;
        self.set.bf16[bf16_line(token, g, self.set.cols)..].as_ptr().cast()
    }

    pub(in crate::matmul) fn q8(&self) -> *const i8 {
        self.q.as_ptr()
    }

    pub(in crate::matmul) fn q16(&self) -> &'a [i16] {
        assert!(2 * self.set.cols <= self.q.len());
        // SAFETY: in bounds; 16-bit tokens begin at multiples of 512 bytes of a buffer that is aligned to 64.
        unsafe { std::slice::from_raw_parts(self.q.as_ptr().cast(), self.set.cols) }
    }

    /// AVX2: 32 high and then 32 low bytes of group `g` of a 16-bit token.
    ///
    /// # Safety
    /// The token has group `g`.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(in crate::matmul) unsafe fn planes(&self, g: usize) -> *const i8 {
        debug_assert!(64 * (g + 1) <= self.planes.len());
        // SAFETY: by the caller's promise.
        unsafe { self.planes.as_ptr().add(64 * g) }
    }

    /// The sums `Σ q` and `Σ |q|` over group `b` of 32 of a 16-bit token.
    pub(in crate::matmul) fn sums_of_group(&self, b: usize) -> [i32; 2] {
        let mut sums = [0; 2];
        let mut add = |q: i32| {
            sums[0] += q;
            sums[1] += q.abs();
        };
        // The high and the low bytes, or whole words: see the module's documentation.
        let (high, low) = match self.set.isa.base() {
            SimdLevel::Avx512 => (128 * (b / 2) + 32 * (b % 2), 64),
            SimdLevel::Neon => (64 * b, 32),
            _ => {
                self.q16()[32 * b..][..32].iter().for_each(|q| add(i32::from(*q)));
                return sums;
            }
        };
        let bytes = self.q[high..][..32].iter().zip(&self.q[high + low..][..32]);
        bytes.for_each(|(high, low)| add(256 * i32::from(*high) + i32::from(*low)));
        sums
    }

    pub(in crate::matmul) fn scale(&self) -> &'a [f32] {
        self.scale
    }

    /// AVX2: the sums of the first and of the last 16 activations of group `g` of all tokens, as two 16-bit integers.
    ///
    /// # Safety
    /// The tokens have group `g`.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(in crate::matmul) unsafe fn pair(&self, g: usize) -> i32 {
        debug_assert!(g < self.pairs.len());
        // SAFETY: by the caller's promise.
        unsafe { *self.pairs.get_unchecked(g) }
    }

    /// The sums that offsets are multiplied with, if 32 weights have `offsets` of them.
    #[inline(always)]
    pub(in crate::matmul) fn sums_for(&self, offsets: usize) -> &'a [f32] {
        if offsets == 2 { self.s16 } else { self.s32 }
    }

    /// Tokens `first .. first + count` unrounded, `[count, cols]`, of which the last need not exist but are in the buffer.
    #[cfg(target_arch = "x86_64")]
    pub(in crate::matmul) fn float_block(&self, first: usize, count: usize) -> *const f32 {
        assert!((first + count) * self.set.cols <= self.float.len());
        self.float[first * self.set.cols..].as_ptr()
    }

    /// Token `t` unrounded, `[cols]`.
    pub(crate) fn float(&self, t: usize) -> &'a [f32] {
        &self.float[t * self.set.cols..][..self.set.cols]
    }

    /// The data that tiles are multiplied with, and the position in it of the `block`-th block of these tokens.
    #[cfg(target_arch = "x86_64")]
    pub(in crate::matmul) fn tiles(&self, block: usize) -> (&'a TileActs, usize) {
        (&self.set.tiles, self.first / TOKEN_BLOCK + block)
    }
}
