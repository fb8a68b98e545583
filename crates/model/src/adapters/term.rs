//! The changes of the products of a projection.

use std::ops::Range;
use std::sync::Arc;

use alight_formats::adapter::{MAX_RANK, factor};
use alight_kernels::low_rank::{self, Numbers};
use alight_kernels::{Isa, WeightType};
use alight_pages::Map;

/// Numbers of an adapter: in its file, or converted from there.
#[derive(Debug)]
pub(crate) enum Floats {
    /// The bytes of whole numbers of a type that is computed with as it is.
    Mapped(WeightType, Range<usize>),
    Own(Arc<[f32]>),
}

impl Floats {
    pub(crate) fn get<'m>(&'m self, map: &'m Map) -> Numbers<'m> {
        match self {
            // Maps begin at pages, and the bytes were checked when the adapter was opened.
            Floats::Mapped(ty, range) => {
                Numbers::in_place(*ty, &map.bytes()[range.clone()]).unwrap_or(Numbers::F32(&[]))
            }
            Floats::Own(values) => Numbers::F32(values),
        }
    }
}

/// A change of the products of a projection, or of those of a stack.
#[derive(Debug)]
pub(crate) enum Change {
    LowRank(LowRankTerm),
    /// Another matrix in place of the projection's.
    Replace(OtherMatrix),
    /// `[rows]` from row `first` on: numbers that are added, times the caller's scale.
    Delta {
        values: Floats,
        first: usize,
    },
}

/// A product of two factors (LoRA: Hu et al. 2021), whose rank is smaller than the matrix's: `s · B (A x)` is added. Of a stack, each expert has factors
/// of its own, and all projections of an expert share its first factor.
#[derive(Debug)]
pub(crate) struct LowRankTerm {
    /// `[experts][rank, cols]`
    pub(crate) a: Floats,
    /// `[experts][all_rows, rank]`
    pub(crate) b: Floats,
    pub(crate) rank: usize,
    pub(crate) cols: usize,
    /// The rows of an expert's second factor.
    pub(crate) all_rows: usize,
    /// Its first row that is the projection's.
    pub(crate) first: usize,
    /// Rows of each projection, and the number of an expert's.
    pub(crate) rows: usize,
    pub(crate) per_expert: usize,
    /// The numerator of the scale; 0: the caller's scale is used as it is.
    pub(crate) alpha: f32,
    /// `[all_rows]`, added to the product with B.
    pub(crate) bias: Option<Floats>,
    /// `[all_rows]`: factors on the products with this change at a scale of 1 (DoRA: Liu et al. 2024), less 1.
    pub(crate) gains: Option<Box<[f32]>>,
}

/// A matrix that replaces one of the base's: at a scale of 1 its products replace those, and between 0 and 1 they are in between.
#[derive(Debug)]
pub(crate) struct OtherMatrix {
    /// `[all_rows, cols]`
    pub(crate) values: Floats,
    pub(crate) cols: usize,
    /// The first row that is the projection's.
    pub(crate) first: usize,
}

impl OtherMatrix {
    /// Replaces the products of rows `first`, `first + step`, … with `x` `[cols]`.
    pub(crate) fn replace(
        &self,
        isa: Isa,
        (map, scale): (&Map, f32),
        x: &[f32],
        (first, step): (usize, usize),
        products: &mut [f32],
    ) {
        let values = self.values.get(map);
        for (i, y) in products.iter_mut().enumerate() {
            let (row, mut other) = ((self.first + first + i * step) * self.cols, [0.0]);
            low_rank::multiply(isa, values.range(row..row + self.cols), &[x], &mut other, 1);
            *y = between(*y, other[0], scale);
        }
    }
}

/// Returns the number that is this share of the way from one to another: at 1 exactly the other.
fn between(one: f32, other: f32, share: f32) -> f32 {
    if share == 1.0 { other } else { one + share * (other - one) }
}

impl Change {
    /// The number of products of its first factor.
    pub(crate) fn rank(&self) -> usize {
        match self {
            Change::LowRank(term) => term.rank,
            Change::Replace(_) | Change::Delta { .. } => 0,
        }
    }

    /// Computes the products of the first factor with each `x` `[cols]`, for projection `index` of a stack, into rows of `ax` `[tokens, stride]`.
    pub(crate) fn first_products(
        &self,
        isa: Isa,
        map: &Map,
        index: usize,
        x: &[&[f32]],
        (ax, stride): (&mut [f32], usize),
    ) {
        if let Change::LowRank(term) = self {
            low_rank::multiply(isa, term.a_of(map, index), x, ax, stride);
        }
    }

    /// Adds it to products of rows `first`, `first + step`, … of projection `index`. `ax` has the products of the first factor.
    pub(crate) fn add(
        &self,
        isa: Isa,
        (map, scale): (&Map, f32),
        (index, ax): (usize, &[f32]),
        (first, step): (usize, usize),
        products: &mut [f32],
    ) {
        match self {
            Change::Replace(_) => unreachable!("it has the input"),
            Change::Delta { values, first: before } => {
                let (values, at) = (values.get(map), before + first);
                let products = products.iter_mut().enumerate();
                products.for_each(|(i, y)| *y += scale * values.get(at + i * step));
            }
            Change::LowRank(term) => {
                let factor = term.factor(scale);
                let b = term.b_of(map, index);
                let b = b.range(first * term.rank..b.len());
                low_rank::add(isa, (b, step), ax, factor, products);
                let at = term.row(index) + first;
                if let Some(bias) = &term.bias {
                    let bias = bias.get(map);
                    let products = products.iter_mut().enumerate();
                    products.for_each(|(i, y)| *y += factor * bias.get(at + i * step));
                }
                if let Some(gains) = &term.gains {
                    let gains = gains[at..].iter().step_by(step);
                    products.iter_mut().zip(gains).for_each(|(y, gain)| *y += *y * (scale * gain));
                }
            }
        }
    }

    /// Adds to `y` `[cols]` the product of the transpose with `x`, which is for the first rows of projection `index`: `y += s · Aᵀ (Bᵀ x)`.
    pub(crate) fn add_transposed(
        &self,
        isa: Isa,
        (map, scale): (&Map, f32),
        index: usize,
        x: &[f32],
        y: &mut [f32],
    ) {
        let Change::LowRank(term) = self else { return };
        let (a, b, factor) = (term.a_of(map, index), term.b_of(map, index), term.factor(scale));
        for k in 0..term.rank {
            let bx: f32 = x.iter().enumerate().map(|(i, x)| b.get(i * term.rank + k) * x).sum();
            let cols = y.len();
            a.range(k * cols..(k + 1) * cols).add_times_to(isa, y, factor * bx);
        }
    }
}

impl LowRankTerm {
    /// The factor on its products at this scale of the caller's.
    pub(crate) fn factor(&self, scale: f32) -> f32 {
        factor(self.alpha, self.rank, scale)
    }

    /// The row of its expert's second factor that is the first of projection `index`.
    fn row(&self, index: usize) -> usize {
        self.first + index % self.per_expert * self.rows
    }

    /// `[rank, cols]`
    pub(crate) fn a_of<'m>(&'m self, map: &'m Map, index: usize) -> Numbers<'m> {
        let len = self.rank * self.cols;
        let first = index / self.per_expert * len;
        self.a.get(map).range(first..first + len)
    }

    /// `[rows, rank]`
    pub(crate) fn b_of<'m>(&'m self, map: &'m Map, index: usize) -> Numbers<'m> {
        let first = index / self.per_expert * self.all_rows + self.row(index);
        self.b.get(map).range(first * self.rank..(first + self.rows) * self.rank)
    }
}

/// A change of the row of a token in a table.
#[derive(Debug)]
pub(crate) enum TableChange {
    LowRank(TableTerm),
    /// `[tokens, hidden]`: other rows.
    Replace(Floats),
}

impl TableChange {
    /// Changes the row of a token.
    pub(crate) fn apply(&self, isa: Isa, (map, scale): (&Map, f32), token: usize, row: &mut [f32]) {
        match self {
            TableChange::LowRank(term) => term.add(isa, (map, scale), token, row),
            TableChange::Replace(values) => {
                let first = token * row.len();
                let other = values.get(map).range(first..first + row.len());
                other.each_stretch(isa, |range, other| {
                    let row = row[range].iter_mut().zip(other);
                    row.for_each(|(x, other)| *x = between(*x, *other, scale));
                });
            }
        }
    }
}

/// A product of low rank that is added to the row of a token in a table.
#[derive(Debug)]
pub(crate) struct TableTerm {
    /// `[tokens, rank]`
    pub(crate) a: Floats,
    /// `[hidden, rank]`
    pub(crate) b: Floats,
    pub(crate) rank: usize,
    pub(crate) alpha: f32,
}

impl TableTerm {
    /// Adds it to the row of a token.
    fn add(&self, isa: Isa, (map, scale): (&Map, f32), token: usize, row: &mut [f32]) {
        let (mut buffer, first) = ([0.0; MAX_RANK as usize], token * self.rank);
        let ax = &mut buffer[..self.rank];
        let a = self.a.get(map).range(first..first + self.rank);
        a.each_stretch(isa, |range, values| ax[range].copy_from_slice(values));
        let scale = factor(self.alpha, self.rank, scale);
        low_rank::add(isa, (self.b.get(map), 1), ax, scale, row);
    }
}
