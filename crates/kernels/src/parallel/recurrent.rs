//! Recurrent mixers over threads: a unit is a block of columns of a head's state, which processes all tokens.

use std::ops::Range;

use super::{Cost, Rows, Threads};
use crate::Isa;
use crate::recurrent::{
    COLUMNS, DeltaStep, LinearStep, ScanStep, SsmStep, delta_step, linear_step, scan_step, ssm_step,
};

/// Nanoseconds that a token takes on a block of columns, for each element of a head, approximately.
const NS_PER_ELEMENT: usize = 1;

/// Heads of a gated delta net, and the location of their numbers.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRule<'a> {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Elements of a query, a key and a value; a multiple of [`COLUMNS`].
    pub dim: usize,
    /// True if neighbouring value heads share a key head; if not, value head `h` has key head `h mod key_heads`.
    pub neighbours: bool,
    /// Queries, keys and values of all heads, `[tokens, (2 · key_heads + value_heads) · dim]`.
    pub mixed: &'a [f32],
    /// Factors on the states, `[tokens, value_heads]`.
    pub decays: &'a [f32],
    /// Fractions of the differences that are added, `[tokens, value_heads]`.
    pub rates: &'a [f32],
}

impl DeltaRule<'_> {
    /// Returns the elements of the state: `[value_heads, dim / COLUMNS, dim, COLUMNS]`.
    pub fn state_len(value_heads: usize, dim: usize) -> usize {
        value_heads * dim * dim
    }

    /// Runs `n` tokens through `state`, and writes `[tokens, value_heads · dim]` to `out`.
    ///
    /// # Panics
    /// If a slice is shorter than its shape.
    pub fn run<T: Threads>(
        &self,
        threads: &mut T,
        isa: Isa,
        n: usize,
        state: &mut [f32],
        out: Rows<'_>,
    ) {
        let DeltaRule { key_heads, value_heads, dim, .. } = *self;
        let width = (2 * key_heads + value_heads) * dim;
        let heads = [value_heads, dim, dim];
        each_block(threads, heads, n, state, out, &|token, head, columns, state, out| {
            let from =
                if self.neighbours { head / (value_heads / key_heads) } else { head % key_heads };
            let row = &self.mixed[token * width..][..width];
            let (queries, rest) = row.split_at(key_heads * dim);
            let (keys, values) = rest.split_at(key_heads * dim);
            let step = DeltaStep {
                query: &queries[from * dim..][..dim],
                key: &keys[from * dim..][..dim],
                value: &values[columns],
                decay: self.decays[token * value_heads + head],
                rate: self.rates[token * value_heads + head],
            };
            delta_step(isa, state, step, out);
        });
    }
}

/// Heads of a Mamba-2 mixer, and the location of their numbers.
#[derive(Clone, Copy, Debug)]
pub struct StateSpace<'a> {
    /// Heads.
    pub heads: usize,
    /// Groups of neighbouring heads that share keys and queries; divides `heads`.
    pub groups: usize,
    /// Elements of a head's input and output; a multiple of [`COLUMNS`].
    pub dim: usize,
    /// Elements of a key and a query; a multiple of 4.
    pub len: usize,
    /// Inputs of all heads, then keys and then queries of all groups: `[tokens, heads · dim + 2 · groups · len]`.
    pub mixed: &'a [f32],
    /// Factors on the states, `[tokens, heads]`.
    pub decays: &'a [f32],
    /// Factors on the added inputs, `[tokens, heads]`.
    pub rates: &'a [f32],
    /// Factors on the inputs that bypass the states, `[heads]`.
    pub past: &'a [f32],
}

impl StateSpace<'_> {
    /// Returns the elements of the state: `[heads, dim / COLUMNS, len, COLUMNS]`.
    pub fn state_len(heads: usize, dim: usize, len: usize) -> usize {
        heads * dim * len
    }

    /// Runs `n` tokens through `state`, and writes `[tokens, heads · dim]` to `out`.
    ///
    /// # Panics
    /// If a slice is shorter than its shape.
    pub fn run<T: Threads>(
        &self,
        threads: &mut T,
        isa: Isa,
        n: usize,
        state: &mut [f32],
        out: Rows<'_>,
    ) {
        let StateSpace { heads, groups, dim, len, .. } = *self;
        let (inner, width) = (heads * dim, heads * dim + 2 * groups * len);
        let shape = [heads, dim, len];
        each_block(threads, shape, n, state, out, &|token, head, columns, state, out| {
            let row = &self.mixed[token * width..][..width];
            let (keys, queries) = row[inner..].split_at(groups * len);
            let from = head / (heads / groups) * len;
            let step = SsmStep {
                key: &keys[from..][..len],
                query: &queries[from..][..len],
                x: &row[columns],
                decay: self.decays[token * heads + head],
                rate: self.rates[token * heads + head],
                past: self.past[head],
            };
            ssm_step(isa, state, step, out);
        });
    }
}

/// A vector for each head of each token: those of token `t` begin at `t · stride`.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows<'a> {
    /// From the first token's vectors on.
    pub rows: &'a [f32],
    /// Elements from one token to the next.
    pub stride: usize,
}

impl<'a> HeadRows<'a> {
    /// Returns the elements `range` of a token.
    fn of(&self, token: usize, range: Range<usize>) -> &'a [f32] {
        &self.rows[token * self.stride..][range]
    }
}

/// Heads of linear attention, and the location of their vectors; see [`LinearStep`].
#[derive(Clone, Copy, Debug)]
pub struct LinearAttention<'a> {
    /// Heads.
    pub heads: usize,
    /// Elements of a query, a key and a value; a multiple of [`COLUMNS`].
    pub dim: usize,
    /// Vectors that read the states.
    pub queries: HeadRows<'a>,
    /// Vectors under which values are added.
    pub keys: HeadRows<'a>,
    /// Values, which are added.
    pub values: HeadRows<'a>,
    /// Factors on the rows of the states.
    pub decays: HeadRows<'a>,
    /// The state under the first is added under the second.
    pub moved: Option<[HeadRows<'a>; 2]>,
    /// If states are read before they change: factors on the keys of what is added for that, `[heads, dim]`.
    pub bonus: Option<&'a [f32]>,
}

impl LinearAttention<'_> {
    /// Returns the elements of the state: `[heads, dim / COLUMNS, dim, COLUMNS]`.
    pub fn state_len(heads: usize, dim: usize) -> usize {
        heads * dim * dim
    }

    /// Runs `n` tokens through `state`, and writes `[tokens, heads · dim]` to `out`.
    ///
    /// # Panics
    /// If a slice is shorter than its shape.
    pub fn run<T: Threads>(
        &self,
        threads: &mut T,
        isa: Isa,
        n: usize,
        state: &mut [f32],
        out: Rows<'_>,
    ) {
        let shape = [self.heads, self.dim, self.dim];
        each_block(threads, shape, n, state, out, &|token, head, columns, state, out| {
            let all = head * self.dim..(head + 1) * self.dim;
            let step = LinearStep {
                query: self.queries.of(token, all.clone()),
                key: self.keys.of(token, all.clone()),
                value: self.values.of(token, columns),
                decay: self.decays.of(token, all.clone()),
                moved: self.moved.map(|both| both.map(|rows| rows.of(token, all.clone()))),
                bonus: self.bonus.map(|bonus| &bonus[all.clone()]),
            };
            linear_step(isa, state, step, out);
        });
    }
}

/// Channels of a selective scan, and the location of their numbers; see [`ScanStep`].
#[derive(Clone, Copy, Debug)]
pub struct SelectiveScan<'a> {
    /// Channels; a multiple of [`COLUMNS`].
    pub channels: usize,
    /// Elements of a channel's state; a multiple of 4.
    pub len: usize,
    /// Inputs of all channels.
    pub inputs: HeadRows<'a>,
    /// Step lengths of all channels.
    pub lengths: HeadRows<'a>,
    /// The vector under which inputs are added, and then the one that reads the states: `[tokens, 2 · len]`.
    pub keys: HeadRows<'a>,
    /// `[channels / COLUMNS, len, COLUMNS]`
    pub rates: &'a [f32],
    /// `[channels]`
    pub past: &'a [f32],
}

impl SelectiveScan<'_> {
    /// Returns the elements of the state: `[channels / COLUMNS, len, COLUMNS]`.
    pub fn state_len(channels: usize, len: usize) -> usize {
        channels * len
    }

    /// Runs `n` tokens through `state`, and writes `[tokens, channels]` to `out`.
    ///
    /// # Panics
    /// If a slice is shorter than its shape.
    pub fn run<T: Threads>(
        &self,
        threads: &mut T,
        isa: Isa,
        n: usize,
        state: &mut [f32],
        out: Rows<'_>,
    ) {
        let len = self.len;
        let shape = [1, self.channels, len];
        each_block(threads, shape, n, state, out, &|token, _, columns, state, out| {
            let step = ScanStep {
                x: self.inputs.of(token, columns.clone()),
                length: self.lengths.of(token, columns.clone()),
                rates: &self.rates[columns.start * len..columns.end * len],
                key: self.keys.of(token, 0..len),
                query: self.keys.of(token, len..2 * len),
                past: &self.past[columns],
            };
            scan_step(isa, state, step, out);
        });
    }
}

/// Processes a token on a block of columns: `f(token, head, columns among those of all heads, block of the state, output
/// of these columns)`.
type BlockFn<'f> = dyn Fn(usize, usize, Range<usize>, &mut [f32], &mut [f32]) + Sync + 'f;

/// Calls `f` for `n` tokens, in their order, with each block of columns of a state `[heads, dim / COLUMNS, len, COLUMNS]`.
fn each_block<T: Threads>(
    threads: &mut T,
    [heads, dim, len]: [usize; 3],
    n: usize,
    state: &mut [f32],
    out: Rows<'_>,
    f: &BlockFn<'_>,
) {
    assert!(dim.is_multiple_of(COLUMNS), "{dim} elements of a head");
    assert_eq!(state.len(), heads * dim * len, "the state");
    let blocks = dim / COLUMNS;
    let (states, _) = Rows::new(state, len * COLUMNS).into_output();
    let (out, _) = out.into_output();
    let units = heads * blocks;
    let cost = Cost { take: 1, ..Cost::of(units * n * len * NS_PER_ELEMENT) };
    threads.run(units, cost, &|units: Range<usize>, _: &mut T::Scratch| {
        for unit in units {
            // SAFETY: the states are borrowed exclusively, and each block of them belongs to one unit.
            let state = unsafe { states.row_mut(unit, 0..len * COLUMNS) };
            let columns = unit * COLUMNS..(unit + 1) * COLUMNS;
            for token in 0..n {
                // SAFETY: the output is borrowed exclusively, and these columns belong to one unit.
                let out = unsafe { out.row_mut(token, columns.clone()) };
                f(token, unit / blocks, columns.clone(), state, out);
            }
        }
    });
}
