//! AltUp (Baykal et al. 2023), as in Gemma 3n: each token has four residual streams, of which a layer computes the first. The
//! layer begins with predictions of all four, and its result for the first corrects all of them.
//!
//! With `m(x) = tanh(router · norm(x) / hidden)`, and streams `s`:
//! ```text
//! p[i] = s[i] + Σj (predict · m(s[0]))[4i + j] · s[j]        the layer computes y from p[0]
//! s[i] = p[i] + (1 + (correct · m(y))[i]) · (y − p[0])
//! ```
//! The other streams begin as projections of the first, scaled to its length. At the end they are projected back and scaled to
//! the length of the first, and the mean of all is taken.

use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::Rows;
use alight_kernels::{Isa, vec};

use super::Contribution;
use crate::norm::Norm;
use crate::parts::step::Step;
use crate::tensors::{Finder, LayerFinder, Linear, MatrixRef, WeightError};

/// Streams of a token. The first is the residual stream of other networks.
const STREAMS: usize = 4;

/// The streams other than the first.
const OTHERS: usize = STREAMS - 1;

/// f32 elements of a row of the buffer of streams: the others, then the kept prediction of the first.
pub(crate) fn row_len(hidden: usize) -> usize {
    STREAMS * hidden
}

/// The projections that make the other streams, and those that join them at the end.
#[derive(Debug)]
pub(crate) struct AltUp {
    /// `[OTHERS][hidden, hidden]`
    projections: Linear,
    /// `[OTHERS][hidden, hidden]`
    unembeddings: Linear,
}

impl AltUp {
    pub(crate) fn find(find: &Finder<'_, '_>, hidden: usize) -> Result<AltUp, WeightError> {
        let shape = [hidden, hidden, OTHERS];
        Ok(AltUp {
            projections: find.matrices("altup_proj.weight", shape)?.into(),
            unembeddings: find.matrices("altup_unembd_proj.weight", shape)?.into(),
        })
    }

    pub(crate) fn matrices(&self) -> [&MatrixRef; 2] {
        [&self.projections.matrix, &self.unembeddings.matrix]
    }

    pub(crate) fn matrices_mut(&mut self) -> [&mut MatrixRef; 2] {
        [&mut self.projections.matrix, &mut self.unembeddings.matrix]
    }

    /// Makes the other streams from the first.
    pub(crate) fn begin(&self, step: &mut Step<'_>) {
        let (isa, hidden, n) = (step.compute.isa, step.hidden, step.rows());
        let formats = ActivationFormats::of(self.projections.kinds());
        let b = &mut *step.buffers;
        let x = Rows::new(&mut b.x, hidden);
        step.compute.pack_rows(n, x, &mut b.acts, formats, &b.threads);
        for i in 0..OTHERS {
            let projection = self.projections.part(i, step.store);
            step.compute.project(&projection, Rows::new(&mut b.y, hidden), &b.acts, &b.threads);
            let [x, y] = [&mut b.x, &mut b.y].map(|rows| Rows::new(rows, hidden));
            let rows = [x, y, Rows::new(&mut b.streams, row_len(hidden))];
            step.compute.each_row(n.all(), rows, &b.threads, &|_, [x, y, streams], _| {
                to_length_of(isa, x, y);
                streams[i * hidden..][..hidden].copy_from_slice(y);
            });
        }
    }

    /// Makes the first stream the mean of all.
    pub(crate) fn end(&self, step: &mut Step<'_>) {
        let (isa, hidden, n) = (step.compute.isa, step.hidden, step.rows());
        let formats = ActivationFormats::of(self.unembeddings.kinds());
        let b = &mut *step.buffers;
        for i in 0..OTHERS {
            let rows = [Rows::new(&mut b.streams, row_len(hidden))];
            let (acts, threads) = (&mut b.acts, &b.threads);
            step.compute.pack(n, hidden, rows, acts, formats, threads, &|_, [streams], _, put| {
                put(&mut streams[i * hidden..][..hidden]);
            });
            let projection = self.unembeddings.part(i, step.store);
            step.compute.project(&projection, Rows::new(&mut b.y, hidden), &b.acts, &b.threads);
            let [x, y] = [&mut b.x, &mut b.y].map(|rows| Rows::new(rows, hidden));
            let rows = [x, y, Rows::new(&mut b.streams, row_len(hidden))];
            step.compute.each_row(n.all(), rows, &b.threads, &|_, [x, y, streams], _| {
                to_length_of(isa, x, y);
                streams[i * hidden..][..hidden].copy_from_slice(y);
            });
        }
        let rows = [Rows::new(&mut b.x, hidden), Rows::new(&mut b.streams, row_len(hidden))];
        step.compute.each_row(n.all(), rows, &b.threads, &|_, [x, streams], _| {
            for other in streams.chunks_exact(hidden).take(OTHERS) {
                vec::add_assign(isa, x, other);
            }
            vec::scale(isa, x, 1.0 / STREAMS as f32);
        });
    }
}

/// Scales `y` to the length of `x`.
fn to_length_of(isa: Isa, x: &[f32], y: &mut [f32]) {
    let length = |row: &[f32]| vec::root_of_squares(vec::dot(isa, row, row));
    let scale = length(x) / length(y).max(f32::MIN_POSITIVE);
    vec::scale(isa, y, scale);
}

/// The tensors of one layer.
#[derive(Debug)]
pub(crate) struct AltUpWeights {
    /// `[hidden]`, of the router's input: the weights, divided by the hidden size.
    router_norm: Norm,
    /// `[STREAMS, hidden]`
    router: Vec<f32>,
    /// `[STREAMS · STREAMS, STREAMS]`
    predict: Vec<f32>,
    /// `[STREAMS, STREAMS]`
    correct: Vec<f32>,
    /// `[hidden]`, of the first stream, for the matrices of the token's own input.
    correct_scale: Vec<f32>,
}

impl AltUpWeights {
    pub(crate) fn find(
        find: &LayerFinder<'_, '_, '_>,
        hidden: usize,
    ) -> Result<AltUpWeights, WeightError> {
        let norm = find.norm("altup_router_norm", hidden)?;
        let weight = norm.weight.iter().map(|weight| weight / hidden as f32).collect();
        Ok(AltUpWeights {
            router_norm: Norm { weight, ..norm },
            router: find.table("altup_router.weight", [hidden, STREAMS])?,
            predict: find.table("altup_predict_coef.weight", [STREAMS, STREAMS * STREAMS])?,
            correct: find.table("altup_correct_coef.weight", [STREAMS, STREAMS])?,
            correct_scale: find.vector("altup_correct_scale.weight", hidden)?,
        })
    }

    /// Mixes streams by products of `coefficients` `[N, STREAMS]` with the router's output for `x`.
    fn mixture<const N: usize>(
        &self,
        isa: Isa,
        x: &[f32],
        coefficients: &[f32],
        work: &mut [f32],
    ) -> [f32; N] {
        let normed = &mut work[..x.len()];
        self.router_norm.apply_to(isa, x, normed);
        let mut routed = self.router.chunks_exact(x.len()).map(|row| vec::dot(isa, row, normed));
        let routed: [f32; STREAMS] =
            std::array::from_fn(|_| libm::tanhf(routed.next().unwrap_or_default()));
        std::array::from_fn(|i| {
            let row = coefficients[i * STREAMS..][..STREAMS].iter();
            row.zip(&routed).map(|(coefficient, m)| coefficient * m).sum()
        })
    }

    /// Predicts the streams. The prediction of the first is kept.
    pub(crate) fn predict(&self, step: &mut Step<'_>) {
        let (isa, hidden, n) = (step.compute.isa, step.hidden, step.rows());
        let b = &mut *step.buffers;
        let rows = [Rows::new(&mut b.x, hidden), Rows::new(&mut b.streams, row_len(hidden))];
        step.compute.each_row(n.all(), rows, &b.threads, &|_, [x, streams], scratch| {
            let work = &mut scratch.row;
            let mixed: [f32; STREAMS * STREAMS] = self.mixture(isa, x, &self.predict, work);
            let (others, kept) = streams.split_at_mut(OTHERS * hidden);
            kept.copy_from_slice(x);
            // Element by element over all streams, since each depends on all.
            for (e, (x, first)) in x.iter_mut().zip(kept).enumerate() {
                let old: [f32; STREAMS] =
                    std::array::from_fn(|j| if j == 0 { *x } else { others[(j - 1) * hidden + e] });
                let new: [f32; STREAMS] = std::array::from_fn(|i| {
                    let row = mixed[i * STREAMS..][..STREAMS].iter();
                    old[i] + row.zip(&old).map(|(factor, old)| factor * old).sum::<f32>()
                });
                (*x, *first) = (new[0], new[0]);
                (1..STREAMS).for_each(|i| others[(i - 1) * hidden + e] = new[i]);
            }
        });
    }

    /// Applies the layer's last contribution to the first stream, and corrects all streams by it.
    pub(crate) fn correct(&self, pending: Option<Contribution<'_>>, step: &mut Step<'_>) {
        let (isa, hidden, n) = (step.compute.isa, step.hidden, step.rows());
        let b = &mut *step.buffers;
        let [x, y] = [&mut b.x, &mut b.y].map(|rows| Rows::new(rows, hidden));
        let rows = [x, y, Rows::new(&mut b.streams, row_len(hidden))];
        step.compute.each_row(n.all(), rows, &b.threads, &|_, [x, y, streams], scratch| {
            if let Some(contribution) = &pending {
                contribution.add_to(isa, x, y);
            }
            let factors: [f32; STREAMS] = self.mixture(isa, x, &self.correct, &mut scratch.row);
            let (others, predicted) = streams.split_at_mut(OTHERS * hidden);
            // The difference between the layer's result and its prediction, in `y`.
            y.copy_from_slice(x);
            vec::add_times(isa, y, predicted, -1.0);
            for (other, factor) in others.chunks_exact_mut(hidden).zip(&factors[1..]) {
                vec::add_times(isa, other, y, 1.0 + factor);
            }
            x.copy_from_slice(predicted);
            vec::add_times(isa, x, y, 1.0 + factors[0]);
        });
    }

    /// Packs the first stream for the matrices of the token's own input.
    pub(crate) fn pack_scaled(&self, formats: ActivationFormats, step: &mut Step<'_>) {
        let (hidden, n) = (step.hidden, step.rows());
        let b = &mut *step.buffers;
        let (rows, acts, threads) = ([Rows::new(&mut b.x, hidden)], &mut b.acts, &b.threads);
        step.compute.pack(n, hidden, rows, acts, formats, threads, &|_, [x], scratch, put| {
            let row = &mut scratch.row[..hidden];
            let scaled = row.iter_mut().zip(&*x).zip(&self.correct_scale);
            scaled.for_each(|((row, x), scale)| *row = x * scale);
            put(row);
        });
    }

    /// Adds a part's normed output to the other streams.
    pub(crate) fn add_to_others(norm: &Norm, step: &mut Step<'_>) {
        let (isa, hidden, n) = (step.compute.isa, step.hidden, step.rows());
        let b = &mut *step.buffers;
        let rows = [Rows::new(&mut b.y, hidden), Rows::new(&mut b.streams, row_len(hidden))];
        step.compute.each_row(n.all(), rows, &b.threads, &|_, [y, streams], _| {
            norm.apply(isa, y);
            for other in streams.chunks_exact_mut(hidden).take(OTHERS) {
                vec::add_assign(isa, other, y);
            }
        });
    }
}
