//! Recurrent mixers over threads: a unit is a block of columns of a head's state, which goes through all tokens.

use std::ops::Range;

use super::{Cost, Rows, Threads};
use crate::Isa;
use crate::recurrent::{COLUMNS, DeltaStep, delta_step};

/// Nanoseconds that a token takes on a block of columns, for each element of a head, about.
const NS_PER_ELEMENT: usize = 1;

/// Heads of a gated delta net, and where their numbers are.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRule<'a> {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Elements of a query, a key and a value; a multiple of [`COLUMNS`].
    pub dim: usize,
    /// Whether neighbouring value heads share a key head; if not, value head `h` has key head `h mod key_heads`.
    pub neighbours: bool,
    /// Queries, keys and values of all heads, `[tokens, (2 · key_heads + value_heads) · dim]`.
    pub mixed: &'a [f32],
    /// What states are multiplied by, `[tokens, value_heads]`.
    pub decays: &'a [f32],
    /// How much of a difference is added, `[tokens, value_heads]`.
    pub rates: &'a [f32],
}

impl DeltaRule<'_> {
    /// Elements of the state: `[value_heads, dim / COLUMNS, dim, COLUMNS]`.
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
        assert_eq!(state.len(), DeltaRule::state_len(value_heads, dim), "the state");
        assert!(dim.is_multiple_of(COLUMNS), "{dim} elements of a head");
        let (width, blocks) = ((2 * key_heads + value_heads) * dim, dim / COLUMNS);
        let (states, _) = Rows::new(state, dim * COLUMNS).into_output();
        let (out, _) = out.into_output();
        let units = value_heads * blocks;
        let cost = Cost { take: 1, ..Cost::of(units * n * dim * NS_PER_ELEMENT) };
        threads.run(units, cost, &|units: Range<usize>, _: &mut T::Scratch| {
            for unit in units {
                let (head, block) = (unit / blocks, unit % blocks);
                let from = if self.neighbours {
                    head / (value_heads / key_heads)
                } else {
                    head % key_heads
                };
                let columns = head * dim + block * COLUMNS..head * dim + (block + 1) * COLUMNS;
                // SAFETY: the states are borrowed exclusively, and a block of them is one unit's.
                let state = unsafe { states.row_mut(unit, 0..dim * COLUMNS) };
                for token in 0..n {
                    let row = &self.mixed[token * width..][..width];
                    let (queries, rest) = row.split_at(key_heads * dim);
                    let (keys, values) = rest.split_at(key_heads * dim);
                    let step = DeltaStep {
                        query: &queries[from * dim..][..dim],
                        key: &keys[from * dim..][..dim],
                        value: &values[columns.clone()],
                        decay: self.decays[token * value_heads + head],
                        rate: self.rates[token * value_heads + head],
                    };
                    // SAFETY: the output is borrowed exclusively, and these columns are one unit's.
                    let out = unsafe { out.row_mut(token, columns.clone()) };
                    delta_step(isa, state, step, out);
                }
            }
        });
    }
}
