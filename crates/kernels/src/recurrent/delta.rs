//! The gated delta rule (Yang, Kautz and Hatamizadeh 2024): the state is a matrix. Each token subtracts what the state holds
//! for the token's key before it adds the token's value under that key.

use crate::Isa;
use crate::lanes::{self, Lanes, by_level};

/// Columns of a state that are computed together: a block of `[dim, COLUMNS]` is contiguous.
pub const COLUMNS: usize = 16;

/// The inputs of a token to a head.
#[derive(Clone, Copy, Debug)]
pub struct DeltaStep<'a> {
    /// `[dim]`
    pub query: &'a [f32],
    /// `[dim]`
    pub key: &'a [f32],
    /// `[COLUMNS]`, those of the block.
    pub value: &'a [f32],
    /// Factor on the state, applied first, from 0 to 1.
    pub decay: f32,
    /// Fraction of the difference between the value and what the state holds for the key that is added, from 0 to 1.
    pub rate: f32,
}

/// One token on a block of columns `S` of a state, `[dim, COLUMNS]`: `S ← decay · S`; `S ← S + key · rate · (value − keyᵀ S)`;
/// `out = queryᵀ S`.
///
/// # Panics
/// If the lengths do not match, or `dim` is not a multiple of 4.
pub fn delta_step(isa: Isa, state: &mut [f32], step: DeltaStep<'_>, out: &mut [f32]) {
    let dim = step.query.len();
    assert!(dim.is_multiple_of(4) && step.key.len() == dim, "{dim} elements of a head");
    assert_eq!(state.len(), dim * COLUMNS, "a block of the state");
    assert!(step.value.len() == COLUMNS && out.len() == COLUMNS, "columns");
    by_level!(
        isa,
        (state: &mut [f32], step: DeltaStep<'_>, out: &mut [f32]) -> (),
        delta_step_lanes
    )
}

#[inline(always)]
unsafe fn delta_step_lanes<S: Lanes>(state: &mut [f32], step: DeltaStep<'_>, out: &mut [f32]) {
    let DeltaStep { query, key, value, decay, rate } = step;
    let dim = query.len();
    // SAFETY: a block has `dim` rows of COLUMNS elements, of which N follow from each `part`; key and query have `dim`, a
    // multiple of 4; value and out COLUMNS. The caller has checked that, and vouches for the features.
    unsafe {
        // queryᵀ (decay · S + key · added) is decay · queryᵀ S + (query · key) · added: the state is read once for both.
        let together = S::splat(lanes::dot::<S>(query, key));
        let (decay, rate) = (S::splat(decay), S::splat(rate));
        for part in (0..COLUMNS).step_by(S::N) {
            let block = state.as_mut_ptr().add(part);
            let mut held = [S::splat(0.0); 4];
            let mut asked = [S::splat(0.0); 4];
            for i in (0..dim).step_by(4) {
                for j in 0..4 {
                    let row = S::load(block.add((i + j) * COLUMNS));
                    held[j] = S::fma(row, S::splat(*key.get_unchecked(i + j)), held[j]);
                    asked[j] = S::fma(row, S::splat(*query.get_unchecked(i + j)), asked[j]);
                }
            }
            let held = S::add(S::add(held[0], held[1]), S::add(held[2], held[3]));
            let asked = S::add(S::add(asked[0], asked[1]), S::add(asked[2], asked[3]));
            let (held, asked) = (S::mul(decay, held), S::mul(decay, asked));
            let added = S::mul(rate, S::sub(S::load(value.as_ptr().add(part)), held));
            for i in 0..dim {
                let row = block.add(i * COLUMNS);
                let decayed = S::mul(decay, S::load(row));
                S::store(row, S::fma(S::splat(*key.get_unchecked(i)), added, decayed));
            }
            S::store(out.as_mut_ptr().add(part), S::fma(together, added, asked));
        }
    }
}
