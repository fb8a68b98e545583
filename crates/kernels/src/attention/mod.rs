//! Attention that streams over a key/value cache, of f16 unless its shape says otherwise.
//!
//! Scores are never materialised over the context: keys are processed in blocks of a fixed number of positions with an online softmax (a
//! running maximum `m`, a running sum `l` of exponentials and a running weighted sum `acc` of values per row). A *row* is one query head of
//! one token.
//!
//! Two forms:
//! - **decode**: [`attend_partial`] handles one token, all query heads that share a key/value head,
//!   and a range of positions; [`attend_merge`] joins the partial results of several ranges. Keys
//!   and values are converted from f16 once for all rows.
//! - **prefill**: [`attend_tile`] handles a tile of tokens against all keys that they may see, and writes finished rows. A block of keys and
//!   values is converted once per tile.
//!
//! Each call is a pure function of its inputs and writes only its own output, so pieces can be repeated and run in any order.
//!
//! # Sinks
//! A head may have a *sink*: one more score, neither scaled nor capped, that takes part in the softmax and has no value. It
//! joins the maximum and the sum when a row is finished.
//!
//! # Biases
//! A head may add a number to each score that depends on the distance of the two positions ([`RelativeBias`]).
//!
//! # Where numbers are rounded
//! Keys and values are rounded to f16 when they are stored (saturating at ±65504, NaN kept), or to Q8_0, or to four bits after a rotation, or not at
//! all ([`KvType`]). Everything after that
//! is f32: queries as given, products and sums by fused multiply-add (up to four independent sums per dot product, see `micro.rs`), one
//! multiplication by `scale` after the dot product, `exp` within 1 ulp, a weighted sum per block of 64 positions added to the rescaled
//! running sum, one multiplication by the inverse of `l` at the end.
//!
//! # Masks
//! A mask is data: which positions before its own a token sees ([`Window`], the same for all tokens of a layer), and which after it
//! ([`Ahead`], for each token of a tile; usually none). Scores of keys outside are replaced, not weighted: the contents of the cache after
//! the last position that a token of the call sees never matter, even NaN. Within a tile a NaN *value* of a later token does spoil the
//! earlier tokens of the tile.

mod bytes;
mod levels;
mod micro;
mod rotation;
mod store;
mod stream;

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use crate::Isa;
use crate::lanes::by_level;
pub use store::{KvWriter, kv_store};
use stream::attend_tile as tile_lanes;
use stream::{attend_merge as merge_lanes, attend_partial as partial_lanes};

/// Positions per line of the key cache; the capacity must be a multiple of it.
pub const LINE: usize = 16;

/// Columns of the value cache that are stored together.
pub(crate) const COLUMNS: usize = 64;

/// Positions whose scores are computed at a time.
pub(crate) const BLOCK: usize = 64;

/// The positions of a page must be a multiple of this where a cache has several pages: a block's keys and values are in one page.
pub const PAGE_UNIT: usize = BLOCK;

/// Format in which keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvType {
    /// 16-bit floats.
    #[default]
    F16,
    /// Bytes, of which 32 share an f16 scale, as in GGUF's type of this name; keys and values are multiples of 32 elements long.
    Q8_0,
    /// Codes of four bits, of which 32 share an f16 scale, as in GGUF's IQ4_NL, of heads that are rotated: within blocks of a power of two,
    /// each element is a sum of all of them (`attention/rotation.rs`). Keys and values are multiples of 32 elements long.
    Q4R,
    /// 32-bit floats, as they were computed. They are read in place, so the memory must be aligned for them, and values are stored.
    F32,
}

impl KvType {
    /// The types that a user can choose from. The other one is that of encoders.
    pub const CHOICES: [KvType; 3] = [KvType::F16, KvType::Q8_0, KvType::Q4R];

    /// Returns the number that the lengths of keys and values must be multiples of.
    pub const fn multiple(self) -> usize {
        match self {
            KvType::F16 | KvType::F32 => 1,
            KvType::Q8_0 | KvType::Q4R => bytes::GROUP,
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KvType::F16 => "f16",
            KvType::Q8_0 => "q8_0",
            KvType::Q4R => "q4r",
            KvType::F32 => "f32",
        })
    }
}

/// Shape of a page of the key/value cache of one layer and one sequence. A cache is one page, or several with consecutive positions
/// ([`PageTable`]).
///
/// For [`KvType::F16`]:
///
/// - keys: `[kv_heads][capacity / 16][k_dim][16]` f16: 16 positions side by side, so that a dot
///   product with a query runs over positions in lanes and needs no horizontal sum.
/// - values: `[kv_heads][v_dim / 64][capacity][64]` f16 (the last columns, if fewer than 64, with correspondingly shorter rows): a kernel has
///   sums for 64 columns in registers, and so reads them sequentially. None are stored where values are the beginnings of keys.
///
/// For [`KvType::F32`] the same with f32, of which each takes the place of two `u16`. For [`KvType::Q8_0`] the layout is in `attention/bytes.rs`,
/// and for [`KvType::Q4R`] in `attention/levels.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Key/value heads.
    pub kv_heads: usize,
    /// Length of a key (and of a query).
    pub k_dim: usize,
    /// Length of a value.
    pub v_dim: usize,
    /// Positions of a page: a multiple of [`LINE`], and of [`PAGE_UNIT`] where there are several.
    pub capacity: usize,
    /// True if a value is the first `v_dim` elements of the key, and is not stored a second time (latent attention).
    pub shared: bool,
    /// Storage format.
    pub ty: KvType,
}

impl KvShape {
    /// Returns the `u16` elements of the keys of a page.
    pub const fn k_len(&self) -> usize {
        self.kv_heads * self.capacity * self.stored(self.k_dim)
    }

    /// Returns the `u16` elements of the values of a page.
    pub const fn v_len(&self) -> usize {
        self.kv_heads * self.capacity * self.stored(self.stored_v_dim())
    }

    /// Returns the `u16` elements that a key or a value of `dim` elements occupies.
    const fn stored(&self, dim: usize) -> usize {
        match self.ty {
            KvType::F16 => dim,
            KvType::Q8_0 => bytes::stored(dim),
            KvType::Q4R => levels::stored(dim),
            KvType::F32 => 2 * dim,
        }
    }

    /// Returns the elements of a value that are stored in addition to the key.
    pub const fn stored_v_dim(&self) -> usize {
        if self.shared { 0 } else { self.v_dim }
    }

    /// Returns the lengths that must be multiples of [`KvType::multiple`]. Values that are the beginnings of keys are rotated with these.
    pub const fn grouped(&self) -> [usize; 2] {
        [self.k_dim, if let KvType::Q4R = self.ty { self.v_dim } else { self.stored_v_dim() }]
    }

    /// Returns where columns `c..c + width` of the value at position `pos` of a page are within a head, for `c` a multiple of [`COLUMNS`]:
    /// the index of the first, and the width (also the distance to the next position).
    fn value_columns(&self, pos: usize, c: usize) -> (usize, usize) {
        let width = COLUMNS.min(self.v_dim - c);
        (self.capacity * c + pos * width, width)
    }

    fn check(&self) {
        assert!(self.kv_heads > 0 && self.k_dim > 0 && self.v_dim > 0, "empty {self:?}");
        assert!(self.capacity.is_multiple_of(LINE), "capacity must be a multiple of 16: {self:?}");
        assert!(!self.shared || self.v_dim <= self.k_dim, "values longer than keys: {self:?}");
        let whole = |dim: usize| dim.is_multiple_of(self.ty.multiple());
        assert!(self.grouped().into_iter().all(whole), "no whole groups: {self:?}");
        assert!(!self.shared || self.ty != KvType::F32, "f32 are not turned into rows: {self:?}");
    }

    /// Checks that keys and values in this memory can be read in place, in pages at distances of `stride`.
    fn check_aligned(&self, starts: [*const u16; 2], stride: usize) {
        let aligned = |start: &*const u16| start.cast::<f32>().is_aligned();
        let whole = stride.is_multiple_of(2) && starts.iter().all(aligned);
        assert!(self.ty != KvType::F32 || whole, "memory of {self:?} is not aligned");
    }

    /// The same as [`KvShape::check`] for one page of several.
    fn check_paged(&self) {
        self.check();
        let whole = self.capacity > 0 && self.capacity.is_multiple_of(PAGE_UNIT);
        assert!(whole, "pages must be multiples of {PAGE_UNIT} positions: {self:?}");
    }
}

/// The pages of a memory that form a cache, in the order of positions.
#[derive(Clone, Copy, Debug)]
pub struct PageTable<'a> {
    /// Their numbers.
    pub pages: &'a [u32],
    /// Elements from one page to the next in the memory.
    pub stride: usize,
}

impl PageTable<'_> {
    /// One page at the beginning.
    const ONE: PageTable<'static> = PageTable { pages: &[0], stride: 0 };

    /// Returns where page `i` of the cache begins.
    #[inline(always)]
    fn start(&self, i: usize) -> usize {
        self.pages[i] as usize * self.stride
    }
}

/// A key/value cache to read from.
#[derive(Clone, Copy, Debug)]
pub struct KvCache<'a> {
    shape: KvShape,
    k: &'a [u16],
    v: &'a [u16],
    table: PageTable<'a>,
}

impl<'a> KvCache<'a> {
    /// Views `k` (`k_len` elements) and `v` (`v_len` elements) as a cache of one page. Panics on other lengths.
    pub fn new(shape: KvShape, k: &'a [u16], v: &'a [u16]) -> KvCache<'a> {
        shape.check();
        assert_eq!(k.len(), shape.k_len(), "key cache length for {shape:?}");
        assert_eq!(v.len(), shape.v_len(), "value cache length for {shape:?}");
        shape.check_aligned([k.as_ptr(), v.as_ptr()], 0);
        KvCache { shape, k, v, table: PageTable::ONE }
    }

    /// Views pages of a memory as a cache: page `n` has its keys at `n · stride` of `k` and its values at `n · stride` of `v`. A
    /// page that is not in the memory panics when it is read.
    pub fn paged(shape: KvShape, k: &'a [u16], v: &'a [u16], table: PageTable<'a>) -> KvCache<'a> {
        shape.check_paged();
        shape.check_aligned([k.as_ptr(), v.as_ptr()], table.stride);
        KvCache { shape, k, v, table }
    }

    /// Returns the positions of all pages.
    pub fn positions(&self) -> usize {
        self.shape.capacity * self.table.pages.len()
    }

    /// Returns the cache's shape.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Returns the keys of one head in page `page`: `[capacity / 16][k_dim][16]`, or as bytes.
    #[inline(always)]
    fn keys(&self, kv_head: usize, page: usize) -> &'a [u16] {
        let n = self.shape.capacity * self.shape.stored(self.shape.k_dim);
        &self.k[self.table.start(page) + kv_head * n..][..n]
    }

    /// Returns the values of one head in page `page`: `[v_dim / 64][capacity][64]`; empty where they are the beginnings of keys.
    #[inline(always)]
    fn values(&self, kv_head: usize, page: usize) -> &'a [u16] {
        let n = self.shape.capacity * self.shape.stored(self.shape.stored_v_dim());
        match n {
            0 => &[],
            n => &self.v[self.table.start(page) + kv_head * n..][..n],
        }
    }
}

/// Turns dot products into scores, and selects the positions that a token sees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionParams {
    /// Factor on `q · k`, usually `1 / sqrt(k_dim)`.
    pub scale: f32,
    /// `Some(cap)`: scores become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// The positions near its own that a token sees; `None`: all.
    pub window: Option<Window>,
}

/// The positions that a token sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// The token's own and those before it, this many in all.
    Sliding(usize),
    /// Those of its chunk, where chunks of this many positions begin at multiples of it.
    Chunk(usize),
    /// Those at most this many positions away, on either side.
    Around(usize),
}

/// The positions after their own that tokens of a prompt see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ahead<'a> {
    /// None: attention is causal.
    #[default]
    Nothing,
    /// All positions before this one.
    To(usize),
    /// Token `t` of a call sees all positions before number `t`. The numbers never decrease; where one is not above the token's own position,
    /// the token sees nothing after itself.
    Each(&'a [usize]),
}

impl Ahead<'_> {
    /// Returns the position after the last one that token `t`, at `pos`, sees.
    #[inline(always)]
    fn end(self, t: usize, pos: usize) -> usize {
        match self {
            Ahead::Nothing => pos + 1,
            Ahead::To(end) => end.max(pos + 1),
            Ahead::Each(ends) => ends[t].max(pos + 1),
        }
    }
}

impl AttentionParams {
    /// Returns the positions that the token at `pos` attends to, if it sees none after its own.
    pub fn visible(&self, pos: usize) -> Range<usize> {
        self.visible_to(pos, pos + 1)
    }

    /// Returns the positions that the token at `pos` attends to, if there are none from `end` on.
    #[inline(always)]
    pub fn visible_to(&self, pos: usize, end: usize) -> Range<usize> {
        match self.window {
            Some(Window::Sliding(positions)) => (pos + 1).saturating_sub(positions)..end,
            Some(Window::Chunk(positions)) => pos / positions * positions..end,
            Some(Window::Around(away)) => pos.saturating_sub(away)..end.min(pos + away + 1),
            None => 0..end,
        }
    }
}

/// Query rows of a batch: token `t`, head `h` at `data[t * stride + h * k_dim..][..k_dim]`.
#[derive(Clone, Copy, Debug)]
pub struct Queries<'a> {
    /// All rows.
    pub data: &'a [f32],
    /// Elements from one token to the next.
    pub stride: usize,
}

/// Output rows of a batch: token `t`, head `h` at `t * stride + h * v_dim`.
///
/// A pointer instead of a slice, because several threads fill different heads of the same tokens.
pub struct HeadsOut<'a> {
    data: *mut f32,
    len: usize,
    stride: usize,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: it represents a `&mut [f32]`, which may be sent; concurrent use of duplicates is governed by the contract of `duplicate`.
unsafe impl Send for HeadsOut<'_> {}
// SAFETY: a shared reference gives no access to the elements except through `duplicate`.
unsafe impl Sync for HeadsOut<'_> {}

impl<'a> HeadsOut<'a> {
    /// Rows in `data`, `stride` elements from one token to the next.
    pub fn new(data: &'a mut [f32], stride: usize) -> HeadsOut<'a> {
        HeadsOut { data: data.as_mut_ptr(), len: data.len(), stride, lifetime: PhantomData }
    }

    /// Returns a second handle on the same rows, for another thread.
    ///
    /// # Safety
    /// While several handles are in use at the same time, no two may be passed to [`attend_tile`] with overlapping tokens *and* overlapping
    /// heads.
    pub unsafe fn duplicate(&self) -> HeadsOut<'a> {
        HeadsOut { data: self.data, len: self.len, stride: self.stride, lifetime: PhantomData }
    }

    /// Returns the row of one token and head. Panics outside the buffer.
    fn row(&mut self, token: usize, head: usize, v_dim: usize) -> &mut [f32] {
        let start = token * self.stride + head * v_dim;
        assert!(start + v_dim <= self.len, "output row {token}.{head} outside of {}", self.len);
        // SAFETY: inside the slice that the handle was made from; `duplicate` requires that no other thread accesses this row, and `&mut
        // self` keeps this handle exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), v_dim) }
    }
}

/// The largest call that is possible; sizes the scratch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionLimits {
    /// Maximum number of rows (tokens × query heads per key/value head) of a call.
    pub rows: usize,
    /// Longest key.
    pub k_dim: usize,
    /// Longest value.
    pub v_dim: usize,
}

impl AttentionLimits {
    /// Returns the f32 elements of the scratch, in units of 16.
    const fn lines(&self) -> usize {
        let (rows, k, v) = (self.rows, self.k_dim, padded(self.v_dim));
        let rows = stream::padded_rows(rows);
        // Queries, scores of a panel (twice), keys and values of a block, sums, m and l; as in `stream`.
        let parts = [rows * k, 2 * stream::PANEL * BLOCK, BLOCK * k, BLOCK * v, rows * v, 2 * rows];
        let mut lines = 0;
        let mut i = 0;
        while i < parts.len() {
            lines += parts[i].div_ceil(16);
            i += 1;
        }
        lines
    }

    /// Returns the bytes of a scratch with these limits.
    pub const fn scratch_bytes(&self) -> usize {
        self.lines() * 64
    }
}

/// A 64-byte aligned unit of scratch memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line16([f32; 16]);

/// Working memory of one thread, allocated once.
pub struct AttentionScratch {
    limits: AttentionLimits,
    lines: Vec<Line16>,
}

impl AttentionScratch {
    /// Allocates memory for calls within `limits`.
    pub fn new(limits: AttentionLimits) -> AttentionScratch {
        AttentionScratch { limits, lines: vec![Line16([0.0; 16]); limits.lines()] }
    }

    /// Returns the limits that it was made for.
    pub fn limits(&self) -> AttentionLimits {
        self.limits
    }

    fn check(&self, rows: usize, shape: &KvShape) {
        let l = &self.limits;
        assert!(
            rows <= l.rows && shape.k_dim <= l.k_dim && shape.v_dim <= l.v_dim,
            "attention of {rows} rows on {shape:?} exceeds the scratch of {l:?}"
        );
    }

    /// Returns all of it as f32.
    fn floats(&mut self) -> &mut [f32] {
        let n = self.lines.len() * 16;
        // SAFETY: Line16 is repr(C), 16 f32 and no padding.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), n) }
    }
}

/// Returns `v_dim` rounded up to whole vectors.
pub(crate) const fn padded(v_dim: usize) -> usize {
    v_dim.div_ceil(16) * 16
}

/// Returns the f32 elements of one row of a partial result: `acc` padded to a multiple of 16, then `m`, `l` and 14 unused ones.
pub const fn partial_row_len(v_dim: usize) -> usize {
    padded(v_dim) + 16
}

/// Returns the f32 elements of a partial result of `rows` rows.
pub const fn partial_len(rows: usize, v_dim: usize) -> usize {
    rows * partial_row_len(v_dim)
}

/// Returns a sensible number of positions for one [`attend_partial`] piece: some 10–20 µs of work.
pub const fn chunk_positions(shape: &KvShape) -> usize {
    let bytes = 2 * (shape.k_dim + shape.stored_v_dim());
    let positions = 256 * 1024 / bytes / BLOCK * BLOCK;
    if positions < 128 { 128 } else { positions }
}

/// Number of pieces of one token, where the context is long enough.
pub const PIECES: usize = 16;

/// Minimum length of a piece along the positions; all begin at multiples of it.
pub const SHORTEST_PIECE: usize = 64;

/// Returns where the first piece begins for tokens from `pos` on.
pub fn first_position(params: &AttentionParams, pos: usize) -> usize {
    params.visible(pos).start / SHORTEST_PIECE * SHORTEST_PIECE
}

/// Returns the positions of a piece where `span` positions are attended to.
pub fn piece_positions(shape: &KvShape, span: usize) -> usize {
    let wanted = (span * shape.kv_heads).div_ceil(PIECES).next_multiple_of(SHORTEST_PIECE);
    let longest = chunk_positions(shape).next_multiple_of(SHORTEST_PIECE);
    wanted.clamp(SHORTEST_PIECE, longest)
}

/// Returns a sensible number of tokens for one [`attend_tile`] piece with `group` query heads per key/value head: 48 to 96 rows.
pub const fn tile_tokens(group: usize) -> usize {
    let tokens = 96 / group;
    if tokens < 4 { 4 } else { tokens }
}

/// One token, some query heads and some positions: the arguments of [`attend_partial`].
#[derive(Clone, Debug)]
pub struct Partial<'a> {
    /// Turns products into scores.
    pub params: &'a AttentionParams,
    /// Keys and values, including the token's own.
    pub cache: &'a KvCache<'a>,
    /// The head of the cache.
    pub kv_head: usize,
    /// `[rows][k_dim]`, the query heads that share `kv_head`, contiguous.
    pub q: &'a [f32],
    /// Biases of the scores of each of them; none where values are the beginnings of keys.
    pub bias: Option<RelativeBias<'a>>,
    /// The token's position.
    pub pos: usize,
    /// The positions to attend to, restricted to those that the token sees.
    pub keys: Range<usize>,
}

/// A tile of tokens and the query heads of one key/value head: the arguments of [`attend_tile`].
#[derive(Clone, Debug)]
pub struct Tile<'a> {
    /// Turns products into scores.
    pub params: &'a AttentionParams,
    /// Keys and values, including those of all the tokens.
    pub cache: &'a KvCache<'a>,
    /// The head of the cache.
    pub kv_head: usize,
    /// The batch's queries.
    pub q: Queries<'a>,
    /// The query heads that share `kv_head`.
    pub heads: Range<usize>,
    /// The sink of each of them.
    pub sinks: Option<&'a [f32]>,
    /// Biases of the scores of each of them.
    pub bias: Option<RelativeBias<'a>>,
    /// Indices into the batch.
    pub tokens: Range<usize>,
    /// The position of token 0 of the batch.
    pub first_pos: usize,
    /// The positions after their own that they see, by their indices; keys and values of these must be in the cache, too.
    pub ahead: Ahead<'a>,
}

impl Tile<'_> {
    /// Returns the positions that token `t` of the batch attends to.
    #[inline(always)]
    fn visible(&self, t: usize) -> Range<usize> {
        let pos = self.first_pos + t;
        self.params.visible_to(pos, self.ahead.end(t, pos))
    }

    /// Returns the positions that any of the tokens attends to: later ones see no earlier start and no earlier end.
    #[inline(always)]
    fn all_visible(&self) -> Range<usize> {
        self.visible(self.tokens.start).start..self.visible(self.tokens.end - 1).end
    }
}

/// Numbers that are added to scores, by the distance from the query's position to the key's: ALiBi, or T5's buckets.
#[derive(Clone, Copy, Debug)]
pub struct RelativeBias<'a> {
    /// `[heads][RelativeBias::len_for(reach)]`: the number for distance `d` is element `reach − 1 + d` of a head's. The last ones are not
    /// numbers for any distance, but are read.
    pub values: &'a [f32],
    /// No distance is as large as this.
    pub reach: usize,
}

impl RelativeBias<'_> {
    /// Returns the elements of a head's numbers, for distances below `reach`.
    pub const fn len_for(reach: usize) -> usize {
        // A row of scores ends with a whole line of keys.
        2 * reach - 1 + LINE
    }

    /// Returns the numbers of heads from `head` on.
    pub(crate) fn of_heads(self, head: usize) -> Self {
        RelativeBias { values: &self.values[head * Self::len_for(self.reach)..], ..self }
    }
}

/// Decode: one token attends to some positions (Flash-Decoding: Dao et al. 2023).
///
/// `out`: `partial_len(rows, v_dim)` elements, overwritten; a range that is entirely masked has `l = 0`.
///
/// Panics if a slice has the wrong length, `keys` or `pos` exceed the capacity, or the scratch is too small.
pub fn attend_partial(
    isa: Isa,
    call: &Partial<'_>,
    out: &mut [f32],
    scratch: &mut AttentionScratch,
) {
    let Partial { params, cache, kv_head, q, pos, .. } = *call;
    let (shape, keys) = (&cache.shape, &call.keys);
    assert!(kv_head < shape.kv_heads, "key/value head {kv_head} of {shape:?}");
    assert!(
        !q.is_empty() && q.len().is_multiple_of(shape.k_dim),
        "{} query elements for {shape:?}",
        q.len()
    );
    let positions = cache.positions();
    assert!(pos < positions && keys.end <= positions, "{pos}, {keys:?} of {positions} positions");
    let rows = q.len() / shape.k_dim;
    if let Some(RelativeBias { values, reach }) = call.bias {
        let numbers = values.len() >= rows * RelativeBias::len_for(reach);
        assert!(numbers && !shape.shared, "{} biases of {rows} heads of {shape:?}", values.len());
        assert!(pos < reach, "biases of {reach} distances at {pos}");
    }
    assert_eq!(out.len(), partial_len(rows, shape.v_dim), "partial result length");
    scratch.check(rows, shape);
    let visible = params.visible(pos);
    let keys = keys.start.max(visible.start)..keys.end.min(visible.end);
    let keys = if keys.is_empty() { 0..0 } else { keys };
    let (call, scratch) = (&Partial { keys, ..call.clone() }, scratch.floats());
    by_level!(
        isa,
        (call: &Partial<'_>, out: &mut [f32], scratch: &mut [f32]) -> (),
        partial_lanes
    )
}

/// Joins the partial results of several ranges of the same rows.
///
/// - `partials`: any number of results of `rows` rows, each `partial_len(rows, v_dim)` long.
/// - `sinks`: `[rows]`, if there are any.
/// - `out`: `[rows][v_dim]`; a row that saw no position becomes zeros.
pub fn attend_merge(
    isa: Isa,
    v_dim: usize,
    rows: usize,
    partials: &[f32],
    sinks: Option<&[f32]>,
    out: &mut [f32],
) {
    assert_eq!(out.len(), rows * v_dim, "output length");
    assert!(sinks.is_none_or(|sinks| sinks.len() == rows), "sinks of {rows} rows");
    assert!(
        partials.len().is_multiple_of(partial_len(rows, v_dim)),
        "{} elements are no whole number of partial results",
        partials.len()
    );
    by_level!(
        isa,
        (v_dim: usize, rows: usize, partials: &[f32], sinks: Option<&[f32]>, out: &mut [f32]) -> (),
        merge_lanes
    )
}

/// Prefill: a tile of tokens attends to every position that each of them sees (FlashAttention: Dao et al. 2022). Rows `(token, head)` of
/// `out` are overwritten.
///
/// Panics if a row is outside the queries or `out`, a position outside the cache, if the positions that tokens see [ahead](Ahead) decrease,
/// or if the scratch is too small for `tokens × heads` rows.
pub fn attend_tile(
    isa: Isa,
    call: &Tile<'_>,
    out: &mut HeadsOut<'_>,
    scratch: &mut AttentionScratch,
) {
    let Tile { cache, kv_head, q, first_pos, ref heads, ref tokens, .. } = *call;
    if heads.is_empty() || tokens.is_empty() {
        return;
    }
    let shape = &cache.shape;
    assert!(kv_head < shape.kv_heads, "key/value head {kv_head} of {shape:?}");
    let last = tokens.end - 1;
    let positions = cache.positions();
    assert!(first_pos + last < positions, "position {} of {positions}", first_pos + last);
    if let Ahead::Each(ends) = call.ahead {
        assert!(ends[tokens.clone()].is_sorted(), "what tokens see decreases: {ends:?}");
    }
    let end = call.all_visible().end;
    assert!(end <= positions, "tokens see {end} of {positions} positions");
    let end = last * q.stride + heads.end * shape.k_dim;
    assert!(end <= q.data.len(), "query row outside of {}", q.data.len());
    let sinks = call.sinks.is_none_or(|sinks| sinks.len() == heads.len());
    assert!(sinks, "sinks of {} heads", heads.len());
    if let Some(RelativeBias { values, reach }) = call.bias {
        let numbers = values.len() >= heads.len() * RelativeBias::len_for(reach);
        assert!(numbers, "{} biases of {} heads", values.len(), heads.len());
        let far = first_pos + last < reach && call.all_visible().end <= reach;
        assert!(far, "biases of {reach} distances");
    }
    scratch.check(tokens.len() * heads.len(), shape);
    let scratch = scratch.floats();
    by_level!(
        isa,
        (call: &Tile<'_>, out: &mut HeadsOut<'_>, scratch: &mut [f32]) -> (),
        tile_lanes
    )
}
