//! Packing in portable code, and code shared by all levels.

use super::{
    ActivationFormats, Activations, BF16_LINE, Precision, RowCounts, TOKEN_BLOCK, TileActs,
    TokenOffsets, WIDE, bf16_line,
};
use crate::isa::{Isa, SimdLevel};

/// Packs tokens of one set of [`Activations`] from several threads.
pub struct ActSlots<'a> {
    pub(super) isa: Isa,
    pub(super) rows: RowCounts,
    pub(super) cols: usize,
    pub(super) formats: ActivationFormats,
    pub(super) rows_in_blocks: bool,
    pub(super) q: *mut i8,
    pub(super) planes: *mut i8,
    pub(super) scale: *mut f32,
    pub(super) s32: *mut f32,
    pub(super) s16: *mut f32,
    pub(super) pairs: *mut i32,
    pub(super) float: *mut f32,
    pub(super) tiles: TileSlots,
    pub(super) bf16: *mut u8,
    pub(super) _owner: std::marker::PhantomData<&'a mut Activations>,
}

/// The pointers of [`TileActs`].
pub(super) struct TileSlots {
    pub(super) q: *mut i8,
    pub(super) scale: *mut f32,
    pub(super) s32: *mut f32,
    pub(super) z32: *mut i32,
    pub(super) z16: *mut i32,
}

// SAFETY: different tokens use disjoint parts of the buffers, see `put`.
unsafe impl Send for ActSlots<'_> {}
// SAFETY: as above.
unsafe impl Sync for ActSlots<'_> {}

impl ActSlots<'_> {
    /// Packs token `t`; `x` is `[cols]`. In the integer packings, values that share a scale with one that is not finite are NaN.
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

    /// Packs the columns of token `t` from `first` on: all columns of a 16-bit token; of an 8-bit token whole groups of 32, or
    /// the rest at its end. Otherwise as [`put`](ActSlots::put).
    ///
    /// # Safety
    /// No two threads may put the same columns of a token at the same time.
    ///
    /// # Panics
    /// If the token does not exist, has no such columns, or its columns cannot be packed separately from the others.
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
                self.end_sums(t);
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

    /// True if 8-bit tokens are packed one after the other: in portable code, with AVX2 and with NEON packed matrices read the
    /// same data as rows.
    fn in_order(&self) -> bool {
        match self.isa.base() {
            SimdLevel::Avx512 => {
                self.formats.rows_in_order || self.formats.rows && !self.rows_in_blocks
            }
            _ => self.formats.quantized(),
        }
    }

    /// True if 8-bit tokens are packed in blocks of [`TOKEN_BLOCK`].
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

    /// Writes the sums past the last value of 16-bit token `t`: the memory may have anything of another set, also NaN.
    #[inline(always)]
    unsafe fn end_sums(&self, t: usize) {
        let padded = self.cols.next_multiple_of(256);
        for (sums, each) in [(self.s16, 16), (self.s32, 32)] {
            let count = padded / each - self.cols / each;
            // SAFETY: within the buffers, as in `put`: tokens have whole groups of 256.
            unsafe { sums.add(t * padded / each + self.cols / each).write_bytes(0, count) };
        }
    }

    /// The `t`-th 8-bit token from the `first`-th group of 32 on.
    #[inline(always)]
    unsafe fn put_bytes(&self, t: usize, first: usize, x: &[f32]) {
        let at = TokenOffsets::of(self.rows, self.cols, Precision::Bits8, t);
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
    /// Makes token `t` a copy of token `from` of another set, which has the same shape and at least these formats, and in which
    /// the token has the same precision.
    ///
    /// # Safety
    /// No two threads may write the same token at the same time.
    ///
    /// # Panics
    /// If a token is not in its set, or the sets do not match.
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
                let source = TokenOffsets::of(set.rows, k, precision, from);
                let target = TokenOffsets::of(self.rows, k, precision, t);
                let q = set.q.as_ptr().cast::<i8>().add(source.bytes);
                std::ptr::copy_nonoverlapping(q, self.q.add(target.bytes), bytes * values);
                let avx2 = self.isa.base() == SimdLevel::Avx2;
                if wide && avx2 {
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

    /// As [`copy`](Self::copy), for the data that tiles are multiplied with.
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

    /// Stores the scale of group `g`, counted over all tokens, and its sums: of 32 values, and of 16.
    #[inline(always)]
    pub(super) unsafe fn put_sums(&self, g: usize, a: f32, sums: [i32; 2]) {
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

/// max |x|; NaN or infinite if an `x` is. (Without their sign, floats have the order of their bits, above which are those of NaN.
/// Maxima of floats would ignore it.)
#[inline(always)]
pub(super) fn max_abs(x: &[f32]) -> f32 {
    let max = |bits: u32, x: f32| bits.max(x.abs().to_bits());
    // Sixteen independent maxima, so that the loop becomes vectors as it is.
    let mut lanes = [0u32; 16];
    let mut chunks = x.chunks_exact(16);
    for c in &mut chunks {
        for (l, &x) in lanes.iter_mut().zip(c) {
            *l = max(*l, x);
        }
    }
    for (l, &x) in lanes.iter_mut().zip(chunks.remainder()) {
        *l = max(*l, x);
    }
    f32::from_bits(lanes.into_iter().fold(0, u32::max))
}

/// The scale for integers up to `limit` of numbers up to `max`, and its reciprocal. Both are 0 if nothing can be represented (all zeros, or
/// so small that the scale is subnormal), and NaN if `max` is not finite: then all integers are 0, and every product with them is NaN.
#[inline(always)]
pub(super) fn scale_for(max: f32, limit: f32) -> (f32, f32) {
    let a = max / limit;
    match a {
        f32::MIN_POSITIVE..f32::INFINITY => (a, limit / max),
        0.0..f32::MIN_POSITIVE => (0.0, 0.0),
        _ => (f32::NAN, f32::NAN),
    }
}

/// Rounds to the nearest even integer; NaN becomes 0.
#[inline(always)]
pub(super) fn round_within(v: f32, limit: f32) -> i32 {
    // Adding 1.5·2²³ leaves the rounded integer in the low mantissa bits; exact for |v| < 2²².
    const MAGIC: f32 = 12_582_912.0;
    let v = if v > limit { limit } else { v };
    let v = if v < -limit { -limit } else { v };
    let v = if v.is_nan() { 0.0 } else { v };
    (v + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32
}
