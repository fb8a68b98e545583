//! The recurrence of Mamba-2 (Dao and Gu 2024): the state is a matrix that decays by one factor per head, and to which each
//! token adds its input under its own key.

use super::COLUMNS;
use crate::Isa;
use crate::lanes::{Lanes, by_level};

/// The inputs of a token to a head.
#[derive(Clone, Copy, Debug)]
pub struct SsmStep<'a> {
    /// Vector under which the input is added, B in the paper: `[len]`.
    pub key: &'a [f32],
    /// Vector that reads the state, C in the paper: `[len]`.
    pub query: &'a [f32],
    /// The input, `[COLUMNS]`, those of the block.
    pub x: &'a [f32],
    /// Factor on the state, applied first, from 0 to 1.
    pub decay: f32,
    /// Factor on the input that is added.
    pub rate: f32,
    /// Factor on the input that bypasses the state, D in the paper.
    pub past: f32,
}

/// One token on a block of columns `S` of a state, `[len, COLUMNS]`: `S ← decay · S + key · rate · x`;
/// `out = queryᵀ S + past · x`.
///
/// # Panics
/// If the lengths do not match, or `len` is not a multiple of 4.
pub fn ssm_step(isa: Isa, state: &mut [f32], step: SsmStep<'_>, out: &mut [f32]) {
    let len = step.key.len();
    assert!(len.is_multiple_of(4) && step.query.len() == len, "{len} elements of a key");
    assert_eq!(state.len(), len * COLUMNS, "a block of the state");
    assert!(step.x.len() == COLUMNS && out.len() == COLUMNS, "columns");
    by_level!(
        isa,
        (state: &mut [f32], step: SsmStep<'_>, out: &mut [f32]) -> (),
        ssm_step_lanes
    )
}

#[inline(always)]
unsafe fn ssm_step_lanes<S: Lanes>(state: &mut [f32], step: SsmStep<'_>, out: &mut [f32]) {
    let SsmStep { key, query, x, decay, rate, past } = step;
    // SAFETY: a block has `len` rows of COLUMNS elements, of which N follow from each `part`; key and query have `len`, a
    // multiple of 4; x and out COLUMNS. The caller has checked that, and vouches for the features.
    unsafe {
        let (decay, rate, past) = (S::splat(decay), S::splat(rate), S::splat(past));
        for part in (0..COLUMNS).step_by(S::N) {
            let block = state.as_mut_ptr().add(part);
            let x = S::load(x.as_ptr().add(part));
            let added = S::mul(rate, x);
            let mut read = [S::splat(0.0); 4];
            for i in (0..key.len()).step_by(4) {
                for (j, read) in read.iter_mut().enumerate() {
                    let row = block.add((i + j) * COLUMNS);
                    let decayed = S::mul(decay, S::load(row));
                    let new = S::fma(S::splat(*key.get_unchecked(i + j)), added, decayed);
                    S::store(row, new);
                    *read = S::fma(S::splat(*query.get_unchecked(i + j)), new, *read);
                }
            }
            let read = S::add(S::add(read[0], read[1]), S::add(read[2], read[3]));
            S::store(out.as_mut_ptr().add(part), S::fma(past, x, read));
        }
    }
}
