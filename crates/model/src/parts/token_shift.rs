//! The token shift with which RWKV's parts begin: their inputs are the normed residual stream of a token, mixed with that of the token before it. Its part of
//! a layer's state is the normed row of the last token.

use std::ops::Range;

use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::Rows;

use crate::norm::Norm;
use crate::parts::step::Step;

/// Norms the rows of the residual stream into `up`, and puts them and the rows before them next to each other into `mixed`, `[rows, 2 · hidden]`. `place` is
/// where the layer's state has the row of the last token.
pub(super) fn shift(norm: &Norm, place: Range<usize>, step: &mut Step<'_>) {
    let (isa, hidden, n) = (step.compute.isa, step.hidden, step.rows().all());
    let b = &mut *step.buffers;
    let rows = [Rows::new(&mut b.x, hidden), Rows::new(&mut b.up, hidden)];
    step.compute.each_row(n, rows, &b.threads, &|_, [x, up], _| norm.apply_to(isa, x, up));
    for span in b.batch.all_spans().iter().filter(|span| !span.rows.is_empty()) {
        let state = &mut step.cache.state(step.layer, span.sequence)[place.clone()];
        let (first, n) = (span.rows.start, span.rows.len());
        let normed = &b.up[first * hidden..(first + n) * hidden];
        let before = &*state;
        let rows = [Rows::starting_at(&mut b.mixed, 2 * hidden, first)];
        step.compute.each_row(n, rows, &b.threads, &|i, [row], _| {
            let (now, earlier) = row.split_at_mut(hidden);
            now.copy_from_slice(&normed[i * hidden..][..hidden]);
            earlier.copy_from_slice(match i.checked_sub(1) {
                Some(i) => &normed[i * hidden..][..hidden],
                None => before,
            });
        });
        state.copy_from_slice(&normed[(n - 1) * hidden..]);
        let of = (span.sequence, span.draft_row);
        step.cache.keep_of_draft(step.layer, of, place.clone());
    }
}

/// Packs the rows of `mixed`, each mixed with the row before it by the shares `[hidden]` of the latter.
pub(super) fn pack_shifted(shares: &[f32], formats: ActivationFormats, step: &mut Step<'_>) {
    let (hidden, n) = (step.hidden, step.rows());
    let b = &mut *step.buffers;
    let rows = [Rows::new(&mut b.mixed, 2 * hidden)];
    let (acts, threads) = (&mut b.acts, &b.threads);
    step.compute.pack(n, hidden, rows, acts, formats, threads, &|_, [row], scratch, put| {
        let (now, before) = row.split_at(hidden);
        let mixed = &mut scratch.row[..hidden];
        for (((to, now), before), share) in mixed.iter_mut().zip(now).zip(before).zip(shares) {
            *to = (before - now) * share + now;
        }
        put(mixed);
    });
}
