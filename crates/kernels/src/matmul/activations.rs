//! Activations, packed once for all the matrices that read them.
//!
//! A set may hold tokens of both [`Precision`]s: those of 16 bits first, then those of 8 ([`RowCounts`]).
//!
//! 16 bits, quantised weights — groups of 256 with one f32 scale `a` = max|x| / 32512 and
//! 16-bit integers `q` = round(x / a):
//! - scalar and AVX2: `q` as i16 `[K]`;
//! - AVX2, packed weights: `planes` too, per 32 values 32 high bytes then 32 low bytes (both signed: q = 256·hi + lo);
//! - AVX-512: per 64 values 64 high bytes then 64 low bytes;
//! - NEON: the same per 32 values;
//! - all: `s16[K/16]` and `s32[K/32]`, the sums of 16 and 32 `q` as f32 (exact); past the last
//!   value they are finite.
//!
//! All of that begins anew for each token, after as much room as whole groups of 256 take.
//!
//! 8 bits, quantised weights — groups of 32 with one f32 scale `a` = max|x| / 127 and
//! 8-bit integers: `q` `[T][K]` unsigned, round(x / a) + 128, `scale` `[T][K/32]`, and
//! `s32` = a·Σ round(x / a) `[T][K/32]` for the types with an offset (`s16` `[T][K/16]` for those with
//! two). (`vpdpbusd` wants one
//! unsigned operand. Making it the activations costs one constant per row and group of weights,
//! −128·Σw, which is computed once with the panel and shared by all tokens.) With AVX2 the integers stay signed, and `pairs`
//! `[T][K/32][2]` i16 has their sums of 16. In portable code and with NEON they stay signed, too.
//!
//! The same for packed weights with AVX-512 ([`TileActs`]): there the weights are the unsigned operand
//! and the integers stay signed; twelve tokens lie together, so that one address and constant
//! offsets reach all of them.
//!
//! With AMX's tiles of bytes so are many tokens ([`MANY`]) for rows with a scale for each 32 weights. With its tiles of bf16 there is bf16 instead of
//! 8-bit integers, for weights that are quantised or bf16: `[T/16][K/32][16][32]` (`bf16`).
//!
//! Float weights read the values themselves, `[T][K]` f32.
//!
//! The kernels read [`Tokens`]: some of a set that follow one another, as if there were no others.

use std::ops::{Deref, DerefMut, Range};

use super::sizes::{TOKEN_BLOCK, WIDE_TOKEN_BLOCK};
use crate::blocks::{BlockFormat, WeightType, with_block};
use crate::isa::{Isa, SimdLevel};
use crate::tiles::Layout;

/// The largest 16-bit integer used: 127·256, so that its high byte stays a signed byte.
const WIDE: f32 = 32512.0;

/// How activations are rounded for quantised weights, and in which order products with weights of any type are summed. What
/// a token gets follows from its own precision, and not from the tokens beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// 16-bit integers, one scale per 256 values.
    Bits16,
    /// 8-bit integers, one scale per 32 values. With AMX bf16 instead, whose errors are smaller.
    Bits8,
}

/// So many tokens of 8 bits are multiplied by AMX's tiles of bytes, even if some tokens of the last block do not exist. Fewer can be slower than by
/// `vpdpbusd`.
pub(super) const MANY: usize = 8 * TOKEN_BLOCK;

/// How many tokens a set has of each [`Precision`]. Those of 16 bits come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowCounts {
    /// Tokens of 16 bits.
    pub bits16: usize,
    /// Tokens of 8 bits.
    pub bits8: usize,
}

impl RowCounts {
    /// So many tokens of one precision.
    pub const fn new(precision: Precision, tokens: usize) -> RowCounts {
        match precision {
            Precision::Bits16 => RowCounts { bits16: tokens, bits8: 0 },
            Precision::Bits8 => RowCounts { bits16: 0, bits8: tokens },
        }
    }

    /// The counts of a call that is either one token of an answer or several of a prompt, and does not say which.
    pub const fn of_call(tokens: usize) -> RowCounts {
        RowCounts::new(if tokens == 1 { Precision::Bits16 } else { Precision::Bits8 }, tokens)
    }

    /// All tokens.
    pub const fn all(self) -> usize {
        self.bits16 + self.bits8
    }

    /// The precision of token `t`.
    pub const fn precision(self, t: usize) -> Precision {
        if t < self.bits16 { Precision::Bits16 } else { Precision::Bits8 }
    }

    /// The tokens of either precision; a range may be empty.
    pub const fn ranges(self) -> [Range<usize>; 2] {
        [0..self.bits16, self.bits16..self.bits16 + self.bits8]
    }
}

/// Which packings the consumers of a set of activations need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActivationFormats {
    float: bool,
    /// Some rows have a scale for each 32 weights. AMX's tiles of bytes are for these.
    rows: bool,
    /// Some rows have one for each 16, or are multiplied with a few tokens each.
    rows_in_order: bool,
    tiles: bool,
    /// Sums of 16 values too, for types with an offset for each.
    sums_of_16: bool,
    /// Some weights are bf16.
    bf16: bool,
}

impl ActivationFormats {
    /// The formats that these matrices need: the [`kind`](super::Matrix::kind) of each.
    pub fn of(matrices: impl IntoIterator<Item = (WeightType, Layout)>) -> ActivationFormats {
        let one = |(ty, layout): (WeightType, Layout)| ActivationFormats {
            float: ty.is_float(),
            rows: layout == Layout::Rows && scales(ty) == 1,
            rows_in_order: layout == Layout::Rows && scales(ty) == 2,
            tiles: layout == Layout::Tiles && !ty.is_float(),
            sums_of_16: needs_sums_of_16(ty),
            bf16: ty == WeightType::BF16,
        };
        matrices.into_iter().map(one).fold(ActivationFormats::default(), ActivationFormats::and)
    }

    /// The formats of matrices each of which is multiplied with some of the tokens, as experts are: mostly with a few.
    pub fn of_parts(matrices: impl IntoIterator<Item = (WeightType, Layout)>) -> ActivationFormats {
        let all = ActivationFormats::of(matrices);
        ActivationFormats { rows: false, rows_in_order: all.rows_in_order || all.rows, ..all }
    }

    /// Both formats.
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
            Layout::Tiles => self.tiles,
        };
        packed
            && (self.sums_of_16 || !needs_sums_of_16(ty))
            && (self.bf16 || ty != WeightType::BF16)
    }

    /// The largest [`block`](ActivationFormats::block).
    pub const LONGEST_BLOCK: usize = WIDE_TOKEN_BLOCK;

    /// Tokens that are multiplied together, but are only some of a set, begin at a multiple of this
    /// ([`Activations::tokens_in`]).
    pub fn block(self, isa: Isa) -> usize {
        match isa.level() {
            SimdLevel::Amx if self.quantized() || self.bf16 => WIDE_TOKEN_BLOCK,
            SimdLevel::AmxInt8 if self.rows => TOKEN_BLOCK,
            _ if self.tiles => TOKEN_BLOCK,
            _ => 1,
        }
    }

    /// True if a prompt's tokens of so many columns are packed as bf16.
    fn as_bf16(self, isa: Isa, cols: usize) -> bool {
        isa.level() == SimdLevel::Amx && cols.is_multiple_of(32) && (self.quantized() || self.bf16)
    }

    /// True if any of the matrices is quantised.
    fn quantized(self) -> bool {
        self.rows || self.rows_in_order || self.tiles
    }
}

/// Scales of 32 weights.
fn scales(ty: WeightType) -> usize {
    with_block!(ty, Q => Q::SCALES, 0)
}

fn needs_sums_of_16(ty: WeightType) -> bool {
    with_block!(ty, Q => Q::OFFSETS == 2, false)
}

/// Zero bytes from a cache line on, whose pages stay untouched until they are used. They are not items that are aligned to a line: of
/// what is aligned more than usual, the allocator gets no zero pages from the system, but writes the zeros itself.
pub(super) struct Lines {
    bytes: Vec<i8>,
    lines: Range<usize>,
}

impl Lines {
    pub(super) fn new(len: usize) -> Lines {
        const LINE: usize = 64;
        let bytes = vec![0; len + LINE - 1];
        let first = (bytes.as_ptr() as usize).wrapping_neg() % LINE;
        Lines { bytes, lines: first..first + len }
    }
}

impl Deref for Lines {
    type Target = [i8];

    fn deref(&self) -> &[i8] {
        &self.bytes[self.lines.clone()]
    }
}

impl DerefMut for Lines {
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
    /// True if tokens of 8 bits are packed as for packed weights for rows with a scale for each 32 weights.
    rows_in_blocks: bool,
    /// Integers: 2 bytes per value of 16 bits, then 1 byte.
    q: Lines,
    /// AVX2, 16 bits, for packed weights: 2 bytes per value.
    planes: Lines,
    /// 16 bits: per 256. 8 bits: per 32.
    scale: Vec<f32>,
    s32: Vec<f32>,
    s16: Vec<f32>,
    /// AVX2, 8 bits: Σ q of either 16 of a group, the first in the lower half.
    pairs: Vec<i32>,
    float: Vec<f32>,
    pub(super) tiles: TileActs,
    /// bf16 for AMX, in bytes, `[T/16][K/32][16][32]`.
    bf16: Lines,
}

/// Several tokens for packed weights, in blocks of [`TOKEN_BLOCK`] tokens.
pub(super) struct TileActs {
    /// `[T/TOKEN_BLOCK][K/32][TOKEN_BLOCK][32]` i8
    pub(super) q: Lines,
    /// `[T/TOKEN_BLOCK][K/32][TOKEN_BLOCK]`
    pub(super) scale: Vec<f32>,
    /// `[T/TOKEN_BLOCK][K/32][TOKEN_BLOCK]`, scale · Σ q
    pub(super) s32: Vec<f32>,
    /// `[T/TOKEN_BLOCK][K/32][TOKEN_BLOCK]`, −Σ q
    pub(super) z32: Vec<i32>,
    /// `[T/TOKEN_BLOCK][K/32][2][TOKEN_BLOCK]`, −Σ q of each 16
    pub(super) z16: Vec<i32>,
}

impl Activations {
    /// Room for `max_tokens` × `max_cols`. The memory is zero pages until it is used.
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
            q: Lines::new(2 * t * k),
            planes: Lines::new(2 * t * k),
            scale: vec![0.0; t * k / 32],
            s32: vec![0.0; t * k / 32],
            s16: vec![0.0; t * k / 16],
            pairs: vec![0; t * k / 32],
            // Blocks of tokens of 8 bits begin anywhere.
            float: vec![0.0; (t + TOKEN_BLOCK) * k],
            tiles: {
                let groups = t.next_multiple_of(TOKEN_BLOCK) * k / 32;
                TileActs {
                    q: Lines::new(32 * groups),
                    scale: vec![0.0; groups],
                    s32: vec![0.0; groups],
                    z32: vec![0; groups],
                    z16: vec![0; 2 * groups],
                }
            },
            bf16: Lines::new(2 * t.next_multiple_of(WIDE_TOKEN_BLOCK) * k),
        }
    }

    /// The approximate size in bytes of `max_tokens` tokens of prompts: a code for each element, and a scale and three sums for each 32
    /// elements.
    pub fn usual_bytes(&self) -> usize {
        self.max_tokens * self.max_cols / 32 * (32 + 4 * 4)
    }

    /// Starts a new set of `rows` × `cols` for the given SIMD level and consumers. Tokens may be left out; until a token has
    /// been put, its contents are unspecified.
    ///
    /// # Panics
    /// If `rows` × `cols` is more than the buffers were made for.
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

    /// The same for copies of another set's tokens, which are packed as these are.
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

    /// Number of tokens of each precision.
    pub fn rows(&self) -> RowCounts {
        self.rows
    }

    /// Values per token.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// What the set was packed for.
    pub fn formats(&self) -> ActivationFormats {
        self.formats
    }

    /// The tokens of each precision, with the number of the first, if there are any.
    pub fn parts(&self) -> impl Iterator<Item = (usize, Tokens<'_>)> + Clone {
        let ranges = self.rows.ranges().into_iter().filter(|range| !range.is_empty());
        ranges.map(|range| (range.start, self.tokens_in(range)))
    }

    /// Tokens `range`, which are of one precision. A matrix in tiles takes those of 8 bits only from a multiple of
    /// [`TOKEN_BLOCK`] on, counted from the first of 8 bits.
    ///
    /// # Panics
    /// If the set has fewer tokens, or they are of both precisions.
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
        let at = Offsets::of(self.rows, self.cols, precision, first);
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

/// Where a token begins in what rows are multiplied with.
#[derive(Clone, Copy)]
struct Offsets {
    /// In the integers.
    bytes: usize,
    /// In the scales.
    scale: usize,
    /// In the sums of 32 and of 16: this over 32 and over 16.
    values: usize,
}

impl Offsets {
    /// Of the `t`-th token of a precision. Those of 8 bits begin where as many groups of 32 end as those of 16 bits have at
    /// most, padded to 256 values.
    #[inline(always)]
    fn of(rows: RowCounts, cols: usize, precision: Precision, t: usize) -> Offsets {
        let padded = cols.next_multiple_of(256);
        match precision {
            Precision::Bits16 => {
                let values = t * padded;
                Offsets { bytes: 2 * values, scale: values / 256, values }
            }
            Precision::Bits8 => {
                let before = rows.bits16 * padded;
                let values = before + t * cols;
                Offsets { bytes: before + values, scale: values / 32, values }
            }
        }
    }
}

/// Bytes of 32 columns as bf16.
const BF16_LINE: usize = 64;

/// Where columns `32·g .. 32·g + 32` of the `t`-th token of a prompt begin in bytes of bf16, if tokens have `cols` columns.
#[inline(always)]
fn bf16_line(t: usize, g: usize, cols: usize) -> usize {
    let block = t / WIDE_TOKEN_BLOCK * (cols / 32) + g;
    BF16_LINE * (block * WIDE_TOKEN_BLOCK + t % WIDE_TOKEN_BLOCK)
}

/// Some tokens of a set that follow one another: what matrices are multiplied with.
#[derive(Clone, Copy)]
pub struct Tokens<'a> {
    set: &'a Activations,
    precision: Precision,
    /// Among the tokens of this precision.
    first: usize,
    tokens: usize,
    // What rows are multiplied with, from the first token on.
    q: &'a [i8],
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    planes: &'a [i8],
    scale: &'a [f32],
    s32: &'a [f32],
    s16: &'a [f32],
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pairs: &'a [i32],
    /// `[tokens, cols]` and more.
    float: &'a [f32],
}

impl<'a> From<&'a Activations> for Tokens<'a> {
    /// All tokens.
    ///
    /// # Panics
    /// If they are of both precisions.
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

    /// How they are rounded for quantised weights.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The `t`-th of them alone, which are of 16 bits.
    pub(super) fn one(&self, t: usize) -> Tokens<'a> {
        debug_assert!(self.precision == Precision::Bits16 && t < self.tokens);
        let at = Offsets::of(self.set.rows, self.set.cols, Precision::Bits16, t);
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

    /// What the set was packed for.
    pub fn formats(&self) -> ActivationFormats {
        self.set.formats
    }

    /// True if the kernels can take them together for a matrix of this kind: tiles take blocks of tokens.
    pub(super) fn suit(&self, kind: (WeightType, Layout)) -> bool {
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

    /// True if rows with a scale for each 32 weights are multiplied with them in blocks of [`TOKEN_BLOCK`], however few they are.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn rows_in_blocks(&self) -> bool {
        self.set.rows_in_blocks
    }

    /// True if a matrix of this kind is multiplied with them as bf16.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn as_bf16(&self, kind: (WeightType, Layout)) -> bool {
        let formats = ActivationFormats::of([kind]);
        self.precision == Precision::Bits8 && formats.as_bf16(self.set.isa, self.set.cols)
    }

    /// Columns from group `g` of 32 on of 16 tokens, block `block` of these.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn bf16_block(&self, block: usize, g: usize) -> *const u8 {
        let token = self.first + WIDE_TOKEN_BLOCK * block;
        self.set.bf16[bf16_line(token, g, self.set.cols)..].as_ptr().cast()
    }

    pub(super) fn q8(&self) -> *const i8 {
        self.q.as_ptr()
    }

    pub(super) fn q16(&self) -> &'a [i16] {
        assert!(2 * self.set.cols <= self.q.len());
        // SAFETY: in bounds; tokens of 16 bits begin at multiples of 512 bytes of a buffer that is aligned to 64.
        unsafe { std::slice::from_raw_parts(self.q.as_ptr().cast(), self.set.cols) }
    }

    /// AVX2: 32 high and then 32 low bytes of group `g` of a token of 16 bits.
    ///
    /// # Safety
    /// The token has so many groups.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) unsafe fn planes(&self, g: usize) -> *const i8 {
        debug_assert!(64 * (g + 1) <= self.planes.len());
        // SAFETY: by the caller's promise.
        unsafe { self.planes.as_ptr().add(64 * g) }
    }

    pub(super) fn scale(&self) -> &'a [f32] {
        self.scale
    }

    pub(super) fn s32(&self) -> &'a [f32] {
        self.s32
    }

    pub(super) fn s16(&self) -> &'a [f32] {
        self.s16
    }

    /// AVX2: the sums of the first and of the last 16 activations of group `g` of all tokens, as two 16-bit integers.
    ///
    /// # Safety
    /// The tokens have so many groups.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) unsafe fn pair(&self, g: usize) -> i32 {
        debug_assert!(g < self.pairs.len());
        // SAFETY: by the caller's promise.
        unsafe { *self.pairs.get_unchecked(g) }
    }

    /// The sums that offsets are multiplied with, where 32 weights have `offsets` of them.
    #[inline(always)]
    pub(super) fn sums_for(&self, offsets: usize) -> &'a [f32] {
        if offsets == 2 { self.s16 } else { self.s32 }
    }

    /// Tokens `first .. first + count` unrounded, `[count, cols]`, of which the last need not exist
    /// but are in the buffer.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn float_block(&self, first: usize, count: usize) -> *const f32 {
        assert!((first + count) * self.set.cols <= self.float.len());
        self.float[first * self.set.cols..].as_ptr()
    }

    /// Token `t` unrounded, `[cols]`.
    pub(crate) fn float(&self, t: usize) -> &'a [f32] {
        &self.float[t * self.set.cols..][..self.set.cols]
    }

    /// What tiles are multiplied with, and where in it block `block` of these tokens is.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn tiles(&self, block: usize) -> (&'a TileActs, usize) {
        (&self.set.tiles, self.first / TOKEN_BLOCK + block)
    }
}

/// Packs tokens of one set of [`Activations`] from several threads.
pub struct ActSlots<'a> {
    isa: Isa,
    rows: RowCounts,
    cols: usize,
    formats: ActivationFormats,
    rows_in_blocks: bool,
    q: *mut i8,
    planes: *mut i8,
    scale: *mut f32,
    s32: *mut f32,
    s16: *mut f32,
    pairs: *mut i32,
    float: *mut f32,
    tiles: TileSlots,
    bf16: *mut u8,
    _owner: std::marker::PhantomData<&'a mut Activations>,
}

/// The pointers of [`TileActs`].
struct TileSlots {
    q: *mut i8,
    scale: *mut f32,
    s32: *mut f32,
    z32: *mut i32,
    z16: *mut i32,
}

// SAFETY: different tokens use disjoint parts of the buffers, see `put`.
unsafe impl Send for ActSlots<'_> {}
// SAFETY: as above.
unsafe impl Sync for ActSlots<'_> {}

impl ActSlots<'_> {
    /// Packs token `t`; `x` is `[cols]`. NaN becomes 0 in the integer packings and ±inf saturates.
    ///
    /// # Safety
    /// No two threads may put the same token at the same time.
    ///
    /// # Panics
    /// If `t` or the length of `x` does not fit the shape.
    pub unsafe fn put(&self, t: usize, x: &[f32]) {
        assert!(x.len() == self.cols, "activations of another shape");
        // SAFETY: by the caller's promise.
        unsafe { self.put_columns(t, 0, x) }
    }

    /// Packs the columns of token `t` from `first` on: all of a token of 16 bits, and of one of 8 bits whole groups of 32 or what is
    /// left at its end. As [`put`](ActSlots::put) otherwise.
    ///
    /// # Safety
    /// No two threads may put the same columns of a token at the same time.
    ///
    /// # Panics
    /// If the token does not exist, has no such columns, or its columns cannot be packed apart from the others.
    pub unsafe fn put_columns(&self, t: usize, first: usize, x: &[f32]) {
        let (k, end) = (self.cols, first + x.len());
        assert!(t < self.rows.all() && end <= k, "activations of another shape");
        let in_groups = first.is_multiple_of(32) && (end.is_multiple_of(32) || end == k);
        let apart = in_groups && self.rows.precision(t) == Precision::Bits8;
        assert!(apart || first == 0 && end == k, "columns that share a scale with others");
        // SAFETY: all offsets stay inside buffers of max_tokens × max_cols values, and parts of
        // different tokens and columns are disjoint; the level was checked by `begin`.
        unsafe {
            if self.formats.float {
                let to = self.float.add(t * k + first);
                std::ptr::copy_nonoverlapping(x.as_ptr(), to, x.len());
            }
            #[cfg(target_arch = "x86_64")]
            if self.rows.precision(t) == Precision::Bits8 && self.formats.as_bf16(self.isa, k) {
                self.put_bf16(t - self.rows.bits16, first / 32, x);
                return;
            }
            if !self.formats.quantized() {
                return;
            }
            if self.rows.precision(t) == Precision::Bits16 {
                match self.isa.base() {
                    #[cfg(target_arch = "x86_64")]
                    SimdLevel::Avx512 => self.put_planes_avx512(t, x),
                    #[cfg(target_arch = "x86_64")]
                    SimdLevel::Avx2 => self.put_words_avx2(t, x),
                    #[cfg(target_arch = "aarch64")]
                    SimdLevel::Neon => self.put_planes_neon(t, x),
                    _ => self.put_words(t, x),
                }
            } else {
                let (t, first) = (t - self.rows.bits16, first / 32);
                match self.isa.base() {
                    #[cfg(target_arch = "x86_64")]
                    SimdLevel::Avx512 => {
                        if self.in_order() {
                            self.put_bytes_avx512(t, first, x);
                        }
                        if self.in_blocks() {
                            self.put_tiles_avx512(t, first, x);
                        }
                    }
                    #[cfg(target_arch = "x86_64")]
                    SimdLevel::Avx2 => self.put_bytes_avx2(t, first, x),
                    #[cfg(target_arch = "aarch64")]
                    SimdLevel::Neon => self.put_bytes_neon(t, first, x),
                    _ => self.put_bytes(t, first, x),
                }
            }
        }
    }

    /// True if tokens of 8 bits are packed one after the other: in portable code, with AVX2 and with NEON packed matrices read what rows do.
    fn in_order(&self) -> bool {
        match self.isa.base() {
            SimdLevel::Avx512 => {
                self.formats.rows_in_order || self.formats.rows && !self.rows_in_blocks
            }
            _ => self.formats.quantized(),
        }
    }

    /// True if they are packed in blocks of [`TOKEN_BLOCK`].
    fn in_blocks(&self) -> bool {
        self.isa.base() == SimdLevel::Avx512 && (self.formats.tiles || self.rows_in_blocks)
    }

    /// Token `t` as i16.
    #[inline(always)]
    unsafe fn put_words(&self, t: usize, x: &[f32]) {
        let q: *mut i16 = self.q.cast();
        let first = t * self.cols.div_ceil(256);
        for (g, x) in x.chunks(256).enumerate() {
            let (g, (a, inv)) = (first + g, scale_for(max_abs(x), WIDE));
            // SAFETY: within the buffers, as in `put`.
            unsafe {
                *self.scale.add(g) = a;
                for (b, x) in x.chunks_exact(32).enumerate() {
                    let mut sums = [0; 2];
                    for (i, &x) in x.iter().enumerate() {
                        let v = round_within(x * inv, WIDE);
                        sums[i / 16] += v;
                        *q.add(256 * g + 32 * b + i) = v as i16;
                    }
                    *self.s16.add(16 * g + 2 * b) = sums[0] as f32;
                    *self.s16.add(16 * g + 2 * b + 1) = sums[1] as f32;
                    *self.s32.add(8 * g + b) = (sums[0] + sums[1]) as f32;
                }
            }
        }
    }

    /// The `t`-th token of 8 bits from group `first` of 32 on.
    #[inline(always)]
    unsafe fn put_bytes(&self, t: usize, first: usize, x: &[f32]) {
        let at = Offsets::of(self.rows, self.cols, Precision::Bits8, t);
        for (g, x) in (first..).zip(x.chunks_exact(32)) {
            let (a, inv) = scale_for(max_abs(x), 127.0);
            let mut sums = [0; 2];
            // SAFETY: within the buffers, as in `put`.
            unsafe {
                for (i, &x) in x.iter().enumerate() {
                    let v = round_within(x * inv, 127.0);
                    sums[i / 16] += v;
                    *self.q.add(at.bytes + 32 * g + i) = v as i8;
                }
                self.put_sums(at.scale + g, a, sums);
            }
        }
    }
}

impl ActSlots<'_> {
    /// Makes token `t` a copy of token `from` of another set, which has the same shape and at least these formats, and where
    /// the token has the same precision.
    ///
    /// # Safety
    /// No two threads may make the same token at the same time.
    ///
    /// # Panics
    /// If a token is not in its set, or the sets do not fit.
    pub unsafe fn copy(&self, t: usize, set: &Activations, from: usize) {
        let k = self.cols;
        assert!(t < self.rows.all() && from < set.rows.all(), "no such token");
        let precision = self.rows.precision(t);
        let alike = (set.cols, set.rows.precision(from), set.isa) == (k, precision, self.isa)
            && (set.rows_in_blocks == self.rows_in_blocks || !self.formats.rows);
        let covered = [
            (self.formats.float, set.formats.float),
            (self.formats.rows, set.formats.rows),
            (self.formats.rows_in_order, set.formats.rows_in_order),
            (self.formats.tiles, set.formats.tiles),
            (self.formats.sums_of_16, set.formats.sums_of_16),
            (self.formats.bf16, set.formats.bf16),
        ];
        assert!(alike && covered.iter().all(|(wanted, there)| *there || !wanted), "unlike sets");
        // SAFETY: all offsets stay inside buffers of max_tokens × max_cols values, and parts of different tokens are
        // disjoint.
        unsafe {
            let part = |from: *const f32, to: *mut f32, at: [usize; 2], len: usize| {
                std::ptr::copy_nonoverlapping(from.add(at[0]), to.add(at[1]), len);
            };
            if self.formats.float {
                part(set.float.as_ptr(), self.float, [from * k, t * k], k);
            }
            let wide = precision == Precision::Bits16;
            let [from, t] = match wide {
                true => [from, t],
                false => [from - set.rows.bits16, t - self.rows.bits16],
            };
            if !wide && self.formats.as_bf16(self.isa, k) {
                for g in 0..k / 32 {
                    let line = set.bf16[bf16_line(from, g, k)..][..BF16_LINE].as_ptr().cast();
                    let to = self.bf16.add(bf16_line(t, g, k));
                    std::ptr::copy_nonoverlapping(line, to, BF16_LINE);
                }
                return;
            }
            if self.formats.quantized() && (wide || self.in_order()) {
                let (bytes, values, per_scale) =
                    if wide { (2, k.next_multiple_of(256), 256) } else { (1, k, 32) };
                let source = Offsets::of(set.rows, k, precision, from);
                let target = Offsets::of(self.rows, k, precision, t);
                let q = set.q.as_ptr().cast::<i8>().add(source.bytes);
                std::ptr::copy_nonoverlapping(q, self.q.add(target.bytes), bytes * values);
                let avx2 = self.isa.base() == SimdLevel::Avx2;
                if wide && avx2 && self.formats.tiles {
                    let planes = set.planes.as_ptr().cast::<i8>().add(source.bytes);
                    let to = self.planes.add(target.bytes);
                    std::ptr::copy_nonoverlapping(planes, to, bytes * values);
                }
                let scales = [source.scale, target.scale];
                part(set.scale.as_ptr(), self.scale, scales, values / per_scale);
                let sums = |n| [source.values / n, target.values / n];
                part(set.s32.as_ptr(), self.s32, sums(32), values / 32);
                if !wide && avx2 {
                    let pairs = set.pairs.as_ptr().add(source.scale);
                    std::ptr::copy_nonoverlapping(pairs, self.pairs.add(target.scale), values / 32);
                }
                if wide || self.formats.sums_of_16 {
                    part(set.s16.as_ptr(), self.s16, sums(16), values / 16);
                }
            }
            if self.in_blocks() && !wide {
                self.copy_for_tiles(t, &set.tiles, from);
            }
        }
    }

    /// The same of what tiles are multiplied with.
    unsafe fn copy_for_tiles(&self, t: usize, set: &TileActs, from: usize) {
        let groups = self.cols / 32;
        let start = |t: usize| (t / TOKEN_BLOCK * groups * TOKEN_BLOCK, t % TOKEN_BLOCK);
        let ((source, s), (target, t)) = (start(from), start(t));
        // SAFETY: by the caller's promise.
        unsafe {
            for g in 0..groups {
                let (a, b) = (source + g * TOKEN_BLOCK, target + g * TOKEN_BLOCK);
                let q = set.q.as_ptr().cast::<i8>().add(32 * (a + s));
                std::ptr::copy_nonoverlapping(q, self.tiles.q.add(32 * (b + t)), 32);
                *self.tiles.scale.add(b + t) = set.scale[a + s];
                *self.tiles.s32.add(b + t) = set.s32[a + s];
                *self.tiles.z32.add(b + t) = set.z32[a + s];
                *self.tiles.z16.add(2 * b + t) = set.z16[2 * a + s];
                *self.tiles.z16.add(2 * b + TOKEN_BLOCK + t) = set.z16[2 * a + TOKEN_BLOCK + s];
            }
        }
    }

    /// The scale of group `g` of all tokens' groups, and its sums: of 32 values, and of 16.
    #[inline(always)]
    unsafe fn put_sums(&self, g: usize, a: f32, sums: [i32; 2]) {
        // SAFETY: within the buffers, as in `put`.
        unsafe {
            *self.scale.add(g) = a;
            *self.s32.add(g) = a * (sums[0] + sums[1]) as f32;
            if self.formats.sums_of_16 {
                *self.s16.add(2 * g) = a * sums[0] as f32;
                *self.s16.add(2 * g + 1) = a * sums[1] as f32;
            }
        }
    }
}

/// max |x|, ignoring NaN and capped so that its reciprocal stays normal.
#[inline(always)]
fn max_abs(x: &[f32]) -> f32 {
    // Sixteen independent maxima, so that the loop vectorises without reassociating floats.
    let mut lanes = [0f32; 16];
    let mut chunks = x.chunks_exact(16);
    for c in &mut chunks {
        for (l, &x) in lanes.iter_mut().zip(c) {
            *l = if x.abs() > *l { x.abs() } else { *l };
        }
    }
    for (l, &x) in lanes.iter_mut().zip(chunks.remainder()) {
        *l = if x.abs() > *l { x.abs() } else { *l };
    }
    lanes.iter().fold(0f32, |m, &l| if l > m { l } else { m }).min(f32::MAX)
}

/// The scale for integers up to `limit`, and its reciprocal; both 0 where nothing can be
/// represented (all zeros, or so small that the scale is subnormal).
#[inline(always)]
fn scale_for(max: f32, limit: f32) -> (f32, f32) {
    let a = max / limit;
    if a < f32::MIN_POSITIVE { (0.0, 0.0) } else { (a, limit / max) }
}

/// Rounds to the nearest even integer; NaN gives 0.
#[inline(always)]
fn round_within(v: f32, limit: f32) -> i32 {
    // Adding 1.5·2²³ leaves the rounded integer in the low mantissa bits; exact for |v| < 2²².
    const MAGIC: f32 = 12_582_912.0;
    let v = if v > limit { limit } else { v };
    let v = if v < -limit { -limit } else { v };
    let v = if v.is_nan() { 0.0 } else { v };
    (v + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{ActSlots, Offsets, Precision, WIDE, scale_for};
    use crate::lanes::{Avx2, Lanes};
    use std::arch::x86_64::*;

    impl ActSlots<'_> {
        /// Token `t` as i16, and as planes of high and low bytes for packed weights.
        #[target_feature(enable = "avx2,fma,f16c")]
        pub(super) unsafe fn put_words_avx2(&self, t: usize, x: &[f32]) {
            let first = t * self.cols.div_ceil(256);
            for (g, x) in x.chunks(256).enumerate() {
                // SAFETY: within the buffers, as in `put`; a group of 32 is whole.
                unsafe {
                    let g = first + g;
                    let values = |b: usize| -> [__m256; 4] {
                        let x = x.as_ptr().add(32 * b);
                        [0, 8, 16, 24].map(|i| _mm256_loadu_ps(x.add(i)))
                    };
                    let mut max = _mm256_setzero_ps();
                    for b in 0..x.len() / 32 {
                        for v in values(b) {
                            max = Avx2::max(Avx2::abs(v), max);
                        }
                    }
                    let (a, inv) = scale_for(Avx2::largest(max).min(f32::MAX), WIDE);
                    *self.scale.add(g) = a;
                    let inv = _mm256_set1_ps(inv);
                    for b in 0..x.len() / 32 {
                        let q = words(values(b).map(|v| quantize(_mm256_mul_ps(v, inv), WIDE)));
                        let at = 512 * g + 64 * b;
                        let to = self.q.add(at).cast::<__m256i>();
                        to.write_unaligned(q[0]);
                        to.add(1).write_unaligned(q[1]);
                        if self.formats.tiles {
                            let to = self.planes.add(at).cast::<__m256i>();
                            let [high, low] = planes(q);
                            to.write_unaligned(high);
                            to.add(1).write_unaligned(low);
                        }
                        let sums = q.map(|q| sum_of_16(_mm256_madd_epi16(q, _mm256_set1_epi16(1))));
                        *self.s16.add(16 * g + 2 * b) = sums[0] as f32;
                        *self.s16.add(16 * g + 2 * b + 1) = sums[1] as f32;
                        *self.s32.add(8 * g + b) = (sums[0] + sums[1]) as f32;
                    }
                }
            }
        }

        /// The `t`-th token of 8 bits from group `first` of 32 on, the integers signed.
        #[target_feature(enable = "avx2,fma,f16c")]
        pub(super) unsafe fn put_bytes_avx2(&self, t: usize, first: usize, x: &[f32]) {
            let at = Offsets::of(self.rows, self.cols, Precision::Bits8, t);
            for (g, x) in (first..).zip(x.chunks_exact(32)) {
                // SAFETY: within the buffers, as in `put`.
                unsafe {
                    let v: [__m256; 4] =
                        std::array::from_fn(|i| _mm256_loadu_ps(x.as_ptr().add(8 * i)));
                    let (a, inv) = scale_for(largest(v).min(f32::MAX), 127.0);
                    let inv = _mm256_set1_ps(inv);
                    let q = bytes(v.map(|v| quantize(_mm256_mul_ps(v, inv), 127.0)));
                    _mm256_storeu_si256(self.q.add(at.bytes + 32 * g).cast(), q);
                    let sums = sums_of_16(q);
                    *self.pairs.add(at.scale + g) = sums[0] & 0xffff | sums[1] << 16;
                    self.put_sums(at.scale + g, a, sums);
                }
            }
        }
    }

    /// 32 words as 32 high and 32 low bytes: q = 256·hi + lo with lo in −128..128, so hi takes the carry.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn planes([a, b]: [__m256i; 2]) -> [__m256i; 2] {
        let carry = _mm256_set1_epi16(128);
        let [ha, hb] = [a, b].map(|v| _mm256_srai_epi16::<8>(_mm256_add_epi16(v, carry)));
        let [la, lb] = [a, b].map(|v| _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(v)));
        // Each half of what is packed has eight of a and eight of b.
        [_mm256_packs_epi16(ha, hb), _mm256_packs_epi16(la, lb)]
            .map(|v| _mm256_permute4x64_epi64::<0b11_01_10_00>(v))
    }

    /// 32 integers as words, in their order.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn words([a, b, c, d]: [__m256i; 4]) -> [__m256i; 2] {
        // Each half of what is packed has four of a and four of b.
        [_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d)]
            .map(|v| _mm256_permute4x64_epi64::<0b11_01_10_00>(v))
    }

    /// max |x|, ignoring NaN.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn largest(v: [__m256; 4]) -> f32 {
        // SAFETY: the CPU has AVX2. `Lanes::max` gives the second operand if one is NaN.
        unsafe {
            let max = |max, v| Avx2::max(Avx2::abs(v), max);
            Avx2::largest(v.into_iter().fold(_mm256_setzero_ps(), max))
        }
    }

    /// Clamps (NaN to 0) and rounds to nearest even.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn quantize(v: __m256, limit: f32) -> __m256i {
        let ordered = _mm256_cmp_ps::<_CMP_ORD_Q>(v, v);
        let v = _mm256_min_ps(v, _mm256_set1_ps(limit));
        let v = _mm256_max_ps(v, _mm256_set1_ps(-limit));
        _mm256_cvtps_epi32(_mm256_and_ps(ordered, v))
    }

    /// 32 integers as bytes, in their order.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn bytes([a, b, c, d]: [__m256i; 4]) -> __m256i {
        let packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
        // Each half has four of a, b, c and d.
        _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
    }

    /// The sum of all lanes.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn sum_of_16(v: __m256i) -> i32 {
        let v = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
        let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
        _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v)))
    }

    /// The sums of the first and the last 16 signed bytes.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn sums_of_16(q: __m256i) -> [i32; 2] {
        let four =
            _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
        let two = _mm256_add_epi32(four, _mm256_shuffle_epi32::<0b01_00_11_10>(four));
        let one = _mm256_add_epi32(two, _mm256_shuffle_epi32::<0b10_11_00_01>(two));
        [_mm256_extract_epi32::<0>(one), _mm256_extract_epi32::<4>(one)]
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{ActSlots, Offsets, Precision, TOKEN_BLOCK, WIDE, bf16_line, scale_for};
    use std::arch::x86_64::*;

    impl ActSlots<'_> {
        /// Token `t` as planes of high and low bytes.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
        pub(super) unsafe fn put_planes_avx512(&self, t: usize, x: &[f32]) {
            // SAFETY: within the buffers, as in `put`; masked loads stay inside x.
            unsafe {
                let k = x.len();
                let ones = _mm512_set1_epi8(1);
                for i in 0..k.div_ceil(256) {
                    let n = (k - 256 * i).min(256);
                    let xp = x.as_ptr().add(256 * i);
                    let g = t * k.div_ceil(256) + i;
                    let mut max = _mm512_setzero_ps();
                    for i in 0..16 {
                        max = _mm512_max_ps(_mm512_abs_ps(load(xp, 16 * i, n)), max);
                    }
                    let (a, inv) = scale_for(_mm512_reduce_max_ps(max).min(f32::MAX), WIDE);
                    *self.scale.add(g) = a;
                    let inv = _mm512_set1_ps(inv);
                    for s in 0..n.div_ceil(64) {
                        let out = self.q.add(512 * g + 128 * s);
                        let mut lo = [_mm_setzero_si128(); 4];
                        let mut hi = [_mm_setzero_si128(); 4];
                        for i in 0..4 {
                            let v = _mm512_mul_ps(load(xp, 64 * s + 16 * i, n), inv);
                            let v = quantize(v, WIDE);
                            // q = 256·hi + lo with lo in −128..128: hi takes the carry.
                            let h =
                                _mm512_srai_epi32::<8>(_mm512_add_epi32(v, _mm512_set1_epi32(128)));
                            lo[i] = _mm512_cvtepi32_epi8(v);
                            hi[i] = _mm512_cvtepi32_epi8(h);
                        }
                        let hi = join(hi);
                        let lo = join(lo);
                        _mm512_storeu_si512(out.cast(), hi);
                        _mm512_storeu_si512(out.add(64).cast(), lo);
                        let sum = |v| _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, v);
                        let s4 = _mm512_add_epi32(_mm512_slli_epi32::<8>(sum(hi)), sum(lo));
                        // Four lanes of s4 are 16 values.
                        let s8 = _mm512_add_epi32(s4, _mm512_shuffle_epi32::<0b1011_0001>(s4));
                        let s16 = _mm512_add_epi32(s8, _mm512_shuffle_epi32::<0b0100_1110>(s8));
                        let s16 = _mm512_maskz_compress_epi32(0x1111, s16);
                        let s16 = _mm_cvtepi32_ps(_mm512_castsi512_si128(s16));
                        _mm_storeu_ps(self.s16.add(16 * g + 4 * s), s16);
                        let s32 = _mm_hadd_ps(s16, s16);
                        _mm_storel_pd(self.s32.add(8 * g + 2 * s).cast(), _mm_castps_pd(s32));
                    }
                }
            }
        }

        /// The `t`-th token of a prompt from group `first` of 32 on as bf16, rounded to nearest even.
        #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
        pub(super) unsafe fn put_bf16(&self, t: usize, first: usize, x: &[f32]) {
            for (g, x) in (first..).zip(x.chunks_exact(32)) {
                // SAFETY: within the buffers, as in `put`.
                unsafe {
                    let [a, b] = [0, 16].map(|i| _mm512_loadu_ps(x.as_ptr().add(i)));
                    let both = _mm512_cvtne2ps_pbh(b, a);
                    let to = self.bf16.add(bf16_line(t, g, self.cols));
                    to.cast::<__m512bh>().write(both);
                }
            }
        }

        /// The `t`-th token of 8 bits from group `first` of 32 on, as bytes.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
        pub(super) unsafe fn put_bytes_avx512(&self, t: usize, first: usize, x: &[f32]) {
            let at = Offsets::of(self.rows, self.cols, Precision::Bits8, t);
            // SAFETY: within the buffers, as in `put`.
            unsafe {
                for (g, x) in (first..).zip(x.chunks_exact(32)) {
                    let (a, i0, i1) = quantize_32(x.as_ptr());
                    let out = self.q.add(at.bytes + 32 * g);
                    let [b0, b1] = [i0, i1].map(|v| unsigned(_mm512_cvtepi32_epi8(v)));
                    _mm_storeu_si128(out.cast(), b0);
                    _mm_storeu_si128(out.add(16).cast(), b1);
                    self.put_sums(at.scale + g, a, sums_of_16(b0, b1));
                }
            }
        }

        /// The `t`-th token of 8 bits from group `first` of 32 on, for packed weights.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
        pub(super) unsafe fn put_tiles_avx512(&self, t: usize, first: usize, x: &[f32]) {
            let groups = self.cols / 32;
            let (block, t) = (t / TOKEN_BLOCK, t % TOKEN_BLOCK);
            // SAFETY: within the buffers, as in `put`.
            unsafe {
                for (g, x) in (first..).zip(x.chunks_exact(32)) {
                    let (a, i0, i1) = quantize_32(x.as_ptr());
                    let at = (block * groups + g) * TOKEN_BLOCK;
                    let out = self.tiles.q.add(32 * (at + t));
                    let [b0, b1] = [i0, i1].map(|v| _mm512_cvtepi32_epi8(v));
                    _mm_storeu_si128(out.cast(), b0);
                    _mm_storeu_si128(out.add(16).cast(), b1);
                    let [s0, s1] = sums_of_16(unsigned(b0), unsigned(b1));
                    *self.tiles.scale.add(at + t) = a;
                    *self.tiles.s32.add(at + t) = a * (s0 + s1) as f32;
                    *self.tiles.z32.add(at + t) = -(s0 + s1);
                    *self.tiles.z16.add(2 * at + t) = -s0;
                    *self.tiles.z16.add(2 * at + TOKEN_BLOCK + t) = -s1;
                }
            }
        }
    }

    /// 16 values of `x[n]` from `i` on, zeros past the end.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(x: *const f32, i: usize, n: usize) -> __m512 {
        let left = n.saturating_sub(i).min(16);
        // SAFETY: masked lanes are not read.
        unsafe { _mm512_maskz_loadu_ps(((1u32 << left) - 1) as __mmask16, x.wrapping_add(i)) }
    }

    /// Clamps (NaN to 0) and rounds to nearest even.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn quantize(v: __m512, limit: f32) -> __m512i {
        let ordered = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(v, v);
        let v = _mm512_min_ps(v, _mm512_set1_ps(limit));
        let v = _mm512_max_ps(v, _mm512_set1_ps(-limit));
        _mm512_maskz_cvtps_epi32(ordered, v)
    }

    /// Signed bytes with 128 added to each.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn unsigned(bytes: __m128i) -> __m128i {
        _mm_xor_si128(bytes, _mm_set1_epi8(-128))
    }

    /// The sums of 16 and of 16 signed bytes, to each of which 128 was added.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn sums_of_16(b0: __m128i, b1: __m128i) -> [i32; 2] {
        let [s0, s1] = [b0, b1].map(|b| _mm_sad_epu8(b, _mm_setzero_si128()));
        let both = _mm_add_epi64(_mm_unpacklo_epi64(s0, s1), _mm_unpackhi_epi64(s0, s1));
        [_mm_cvtsi128_si32(both) - 16 * 128, _mm_extract_epi32::<2>(both) - 16 * 128]
    }

    /// 32 values of `x` as 8-bit integers, 16 to a register, and their scale.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    unsafe fn quantize_32(x: *const f32) -> (f32, __m512i, __m512i) {
        // SAFETY: the caller's pointer has 32 readable floats.
        let (v0, v1) = unsafe { (_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(16))) };
        let max = _mm512_max_ps(_mm512_abs_ps(v0), _mm512_setzero_ps());
        let max = _mm512_max_ps(_mm512_abs_ps(v1), max);
        let (a, inv) = scale_for(_mm512_reduce_max_ps(max).min(f32::MAX), 127.0);
        let inv = _mm512_set1_ps(inv);
        let i0 = quantize(_mm512_mul_ps(v0, inv), 127.0);
        let i1 = quantize(_mm512_mul_ps(v1, inv), 127.0);
        (a, i0, i1)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn join(v: [__m128i; 4]) -> __m512i {
        let v01 = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(v[0]), v[1]);
        _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(v01, v[2]), v[3])
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::{ActSlots, Offsets, Precision, WIDE, max_abs, scale_for};
    use std::arch::aarch64::*;

    impl ActSlots<'_> {
        /// Token `t` as planes of high and low bytes.
        #[target_feature(enable = "neon")]
        pub(super) unsafe fn put_planes_neon(&self, t: usize, x: &[f32]) {
            let first = t * self.cols.div_ceil(256);
            for (g, x) in x.chunks(256).enumerate() {
                let (g, (a, inv)) = (first + g, scale_for(max_abs(x), WIDE));
                // SAFETY: within the buffers, as in `put`.
                unsafe {
                    *self.scale.add(g) = a;
                    for (b, x) in x.chunks_exact(32).enumerate() {
                        let to = self.q.add(512 * g + 64 * b);
                        let mut sums = [0; 2];
                        for (h, sum) in sums.iter_mut().enumerate() {
                            let q = quantize_16(x.as_ptr().add(16 * h), inv, WIDE);
                            *sum = vaddlvq_s16(q[0]) + vaddlvq_s16(q[1]);
                            // q = 256·hi + lo with lo in −128..128: rounding gives hi the carry.
                            let high = vrshrn_high_n_s16::<8>(vrshrn_n_s16::<8>(q[0]), q[1]);
                            let low = vmovn_high_s16(vmovn_s16(q[0]), q[1]);
                            vst1q_s8(to.add(16 * h), high);
                            vst1q_s8(to.add(32 + 16 * h), low);
                        }
                        *self.s16.add(16 * g + 2 * b) = sums[0] as f32;
                        *self.s16.add(16 * g + 2 * b + 1) = sums[1] as f32;
                        *self.s32.add(8 * g + b) = (sums[0] + sums[1]) as f32;
                    }
                }
            }
        }

        /// The `t`-th token of 8 bits from group `first` of 32 on, the integers signed.
        #[target_feature(enable = "neon")]
        pub(super) unsafe fn put_bytes_neon(&self, t: usize, first: usize, x: &[f32]) {
            let at = Offsets::of(self.rows, self.cols, Precision::Bits8, t);
            for (g, x) in (first..).zip(x.chunks_exact(32)) {
                let (a, inv) = scale_for(max_abs(x), 127.0);
                let mut sums = [0; 2];
                // SAFETY: within the buffers, as in `put`.
                unsafe {
                    for (h, sum) in sums.iter_mut().enumerate() {
                        let q = quantize_16(x.as_ptr().add(16 * h), inv, 127.0);
                        let q = vmovn_high_s16(vmovn_s16(q[0]), q[1]);
                        *sum = i32::from(vaddlvq_s8(q));
                        vst1q_s8(self.q.add(at.bytes + 32 * g + 16 * h), q);
                    }
                    self.put_sums(at.scale + g, a, sums);
                }
            }
        }
    }

    /// 16 values times `inv`, clamped (NaN to 0) and rounded to nearest even.
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn quantize_16(x: *const f32, inv: f32, limit: f32) -> [int16x8_t; 2] {
        let (least, most) = (vdupq_n_f32(-limit), vdupq_n_f32(limit));
        let mut q = [vdupq_n_s32(0); 4];
        for (i, q) in q.iter_mut().enumerate() {
            // SAFETY: the caller's pointer has 16 readable floats.
            let v = vmulq_n_f32(unsafe { vld1q_f32(x.add(4 * i)) }, inv);
            // A NaN stays one, and becomes 0 as an integer.
            *q = vcvtnq_s32_f32(vmaxq_f32(vminq_f32(v, most), least));
        }
        [vmovn_high_s32(vmovn_s32(q[0]), q[1]), vmovn_high_s32(vmovn_s32(q[2]), q[3])]
    }
}
