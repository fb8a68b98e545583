//! Linear attention with a decay for each element of a key: the state is a matrix, to which each token adds its value under its key. It may first take
//! away what the state holds under another vector and add it under a third one: Kimi delta attention (Kimi Team 2025) and RWKV-7 (Peng et al. 2025) differ
//! in these alone. It may read the state before it adds (RWKV-6: Peng et al. 2024).

use super::COLUMNS;
use crate::Isa;
use crate::lanes::{Lanes, by_level};

/// The inputs of a token to a head.
#[derive(Clone, Copy, Debug)]
pub struct LinearStep<'a> {
    /// `[dim]`
    pub query: &'a [f32],
    /// `[dim]`
    pub key: &'a [f32],
    /// `[COLUMNS]`, those of the block.
    pub value: &'a [f32],
    /// Factors on the rows of the state, `[dim]`, from 0 to 1.
    pub decay: &'a [f32],
    /// The value that the state has under the first of these, before it decays, is added under the second; `[dim]` each.
    pub moved: Option<[&'a [f32]; 2]>,
    /// The state is read before it changes, with the value added under the key times this, `[dim]`.
    pub bonus: Option<&'a [f32]>,
}

/// One token on a block of columns `S` of a state, `[dim, COLUMNS]`, with `moved = [from, to]`: `S ← decay ⊙ S + to · (fromᵀ S) + key · value`;
/// `out = queryᵀ S`, or `queryᵀ (S + bonus ⊙ key · value)` of the state as it was.
///
/// # Panics
/// If the lengths do not match, or `dim` is not a multiple of 4.
pub fn linear_step(isa: Isa, state: &mut [f32], step: LinearStep<'_>, out: &mut [f32]) {
    let dim = step.query.len();
    let [from, to] = step.moved.unwrap_or([step.key; 2]);
    let vectors = [step.key, step.decay, from, to, step.bonus.unwrap_or(step.key)];
    assert!(dim.is_multiple_of(4) && vectors.iter().all(|v| v.len() == dim), "{dim} elements");
    assert_eq!(state.len(), dim * COLUMNS, "a block of the state");
    assert!(step.value.len() == COLUMNS && out.len() == COLUMNS, "columns");
    by_level!(
        isa,
        (state: &mut [f32], step: LinearStep<'_>, out: &mut [f32]) -> (),
        linear_step_lanes
    )
}

#[inline(always)]
unsafe fn linear_step_lanes<S: Lanes>(state: &mut [f32], step: LinearStep<'_>, out: &mut [f32]) {
    let LinearStep { query, key, value, decay, moved, bonus } = step;
    let dim = query.len();
    // SAFETY: a block has `dim` rows of COLUMNS elements, of which N follow from each `part`; all vectors have `dim`, a multiple of 4; value and out COLUMNS.
    // The caller has checked that, and vouches for the features.
    unsafe {
        for part in (0..COLUMNS).step_by(S::N) {
            let block = state.as_mut_ptr().add(part);
            let value = S::load(value.as_ptr().add(part));
            let row = |i: usize| block.add(i * COLUMNS);
            let held = moved.map(|[from, to]| {
                let mut held = [S::splat(0.0); 4];
                for i in (0..dim).step_by(4) {
                    for (j, held) in held.iter_mut().enumerate() {
                        let from = S::splat(*from.get_unchecked(i + j));
                        *held = S::fma(S::load(row(i + j)), from, *held);
                    }
                }
                (S::add(S::add(held[0], held[1]), S::add(held[2], held[3])), to)
            });
            let mut read = [S::splat(0.0); 4];
            for i in (0..dim).step_by(4) {
                for (j, read) in read.iter_mut().enumerate() {
                    let i = i + j;
                    let (old, query) = (S::load(row(i)), S::splat(*query.get_unchecked(i)));
                    let mut new = S::mul(S::splat(*decay.get_unchecked(i)), old);
                    if let Some((held, to)) = held {
                        new = S::fma(S::splat(*to.get_unchecked(i)), held, new);
                    }
                    let key = *key.get_unchecked(i);
                    new = S::fma(S::splat(key), value, new);
                    S::store(row(i), new);
                    let seen = match bonus {
                        None => new,
                        Some(bonus) => S::fma(S::splat(*bonus.get_unchecked(i) * key), value, old),
                    };
                    *read = S::fma(query, seen, *read);
                }
            }
            let read = S::add(S::add(read[0], read[1]), S::add(read[2], read[3]));
            S::store(out.as_mut_ptr().add(part), read);
        }
    }
}
