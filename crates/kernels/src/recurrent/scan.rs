//! The selective scan of Mamba (Gu and Dao 2023): each channel has a small state of its own, whose elements decay at rates of their own, by a step length
//! that depends on the token.

use super::COLUMNS;
use crate::Isa;
use crate::lanes::{self, Lanes, by_level};

/// The inputs of a token to a block of channels.
#[derive(Clone, Copy, Debug)]
pub struct ScanStep<'a> {
    /// The input of each channel, `[COLUMNS]`.
    pub x: &'a [f32],
    /// Its step length, `[COLUMNS]`.
    pub length: &'a [f32],
    /// Rates of decay, A in the paper, at most 0: `[len, COLUMNS]`.
    pub rates: &'a [f32],
    /// Vector under which inputs are added, B in the paper: `[len]`.
    pub key: &'a [f32],
    /// Vector that reads the states, C in the paper: `[len]`.
    pub query: &'a [f32],
    /// Factors on the inputs that bypass the states, D in the paper: `[COLUMNS]`.
    pub past: &'a [f32],
}

/// One token on the states `S` of a block of channels, `[len, COLUMNS]`: `S ← exp(length · rates) ⊙ S + key · (length ⊙ x)`;
/// `out = queryᵀ S + past ⊙ x`.
///
/// # Panics
/// If the lengths do not match, or `len` is not a multiple of 4.
pub fn scan_step(isa: Isa, state: &mut [f32], step: ScanStep<'_>, out: &mut [f32]) {
    let len = step.key.len();
    assert!(len.is_multiple_of(4) && step.query.len() == len, "{len} elements of a state");
    assert!(state.len() == len * COLUMNS && step.rates.len() == state.len(), "states and rates");
    let columns = [step.x, step.length, step.past].iter().all(|c| c.len() == COLUMNS);
    assert!(columns && out.len() == COLUMNS, "channels");
    by_level!(
        isa,
        (state: &mut [f32], step: ScanStep<'_>, out: &mut [f32]) -> (),
        scan_step_lanes
    )
}

#[inline(always)]
unsafe fn scan_step_lanes<S: Lanes>(state: &mut [f32], step: ScanStep<'_>, out: &mut [f32]) {
    let ScanStep { x, length, rates, key, query, past } = step;
    // SAFETY: states and rates have `len` rows of COLUMNS elements, of which N follow from each `part`; key and query have `len`, a multiple of 4; the others
    // COLUMNS. The caller has checked that, and vouches for the features.
    unsafe {
        for part in (0..COLUMNS).step_by(S::N) {
            let (block, rates) = (state.as_mut_ptr().add(part), rates.as_ptr().add(part));
            let (x, length) = (S::load(x.as_ptr().add(part)), S::load(length.as_ptr().add(part)));
            let added = S::mul(length, x);
            let mut read = [S::splat(0.0); 4];
            for i in (0..key.len()).step_by(4) {
                for (j, read) in read.iter_mut().enumerate() {
                    let at = (i + j) * COLUMNS;
                    let decay = lanes::exp::<S>(S::mul(length, S::load(rates.add(at))));
                    let decayed = S::mul(decay, S::load(block.add(at)));
                    let new = S::fma(S::splat(*key.get_unchecked(i + j)), added, decayed);
                    S::store(block.add(at), new);
                    *read = S::fma(S::splat(*query.get_unchecked(i + j)), new, *read);
                }
            }
            let read = S::add(S::add(read[0], read[1]), S::add(read[2], read[3]));
            S::store(out.as_mut_ptr().add(part), S::fma(S::load(past.as_ptr().add(part)), x, read));
        }
    }
}
