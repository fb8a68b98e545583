//! A projection of a network, or several of one shape: every product of a part with a matrix goes through one.

use alight_kernels::matmul::{Activations, Matrix};
use alight_kernels::parallel::Place;
use alight_kernels::{Layout, WeightType};

use super::input_sums::InputSums;
use super::matrix::MatrixRef;
use crate::store::{Chosen, Store};

/// `y = scale · W x + bias`; or a stack of projections, those of experts or heads, each with its part of everything. The scale is the matrix's own. What
/// the adapters of a row add to it is found by its number.
#[derive(Debug)]
pub(crate) struct Linear {
    /// `[count][rows, cols]`
    pub(crate) matrix: MatrixRef,
    bias: Option<Bias>,
    /// Its number among the model's projections, if it can have adapters; else [`Linear::UNNUMBERED`].
    pub(crate) number: usize,
    /// Of what it is multiplied with, if that is measured.
    pub(crate) inputs: Option<Box<InputSums>>,
}

/// Additions to the products.
#[derive(Debug)]
enum Bias {
    /// That of one projection: `[rows]`.
    Values(Vec<f32>),
    /// Those of a stack, in the file: the rows of all projections, `[experts][1, len]`.
    Stored(Box<MatrixRef>),
}

/// A [`Linear`] of one projection whose weights can be read.
#[derive(Clone, Copy)]
pub(crate) struct LinearView<'m> {
    pub(crate) matrix: Matrix<'m>,
    pub(crate) bias: Option<&'m [f32]>,
    linear: &'m Linear,
    index: usize,
}

/// One of the projections of a stack, or some rows of it.
#[derive(Clone, Copy)]
pub(crate) struct Projection<'l> {
    pub(crate) linear: &'l Linear,
    /// Its number in the stack.
    pub(crate) index: usize,
    /// Row `i` of the products is row `first + i · step` of the projection.
    first: usize,
    step: usize,
    /// The number of these rows.
    rows: usize,
}

impl From<MatrixRef> for Linear {
    fn from(matrix: MatrixRef) -> Linear {
        Linear { matrix, bias: None, number: Linear::UNNUMBERED, inputs: None }
    }
}

impl Linear {
    /// Of projections that have no adapters.
    pub(crate) const UNNUMBERED: usize = usize::MAX;

    /// Adds a bias, if there is one.
    pub(crate) fn with_bias(self, bias: Option<Vec<f32>>) -> Linear {
        Linear { bias: bias.map(Bias::Values), ..self }
    }

    /// Adds the biases of a stack, if there are some.
    pub(crate) fn with_biases(self, biases: Option<MatrixRef>) -> Linear {
        Linear { bias: biases.map(|biases| Bias::Stored(Box::new(biases))), ..self }
    }

    /// Borrowed view of the weights. The caller must have waited for the section of the matrix.
    pub(crate) fn view<'m>(&'m self, store: &'m Store) -> LinearView<'m> {
        let bias = match &self.bias {
            Some(Bias::Values(values)) => Some(&values[..]),
            Some(Bias::Stored(_)) => unreachable!("a stack's projections are viewed one by one"),
            None => None,
        };
        LinearView { matrix: self.matrix.view(store), bias, linear: self, index: 0 }
    }

    /// Borrowed view of one projection of a stack without biases.
    pub(crate) fn part<'m>(&'m self, index: usize, store: &'m Store) -> LinearView<'m> {
        assert!(self.bias.is_none(), "a stack with biases");
        LinearView { matrix: self.matrix.part(index, store), bias: None, linear: self, index }
    }

    /// The bias of one projection, if it has one.
    pub(crate) fn bias_values(&self) -> Option<&[f32]> {
        match &self.bias {
            Some(Bias::Values(values)) => Some(values),
            Some(Bias::Stored(_)) | None => None,
        }
    }

    /// One projection of a stack.
    pub(crate) fn projection(&self, index: usize) -> Projection<'_> {
        Projection { linear: self, index, first: 0, step: 1, rows: self.matrix.rows() }
    }

    /// Its matrices: that of the weights, and that of biases in the file.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &MatrixRef> {
        let biases = match &self.bias {
            Some(Bias::Stored(biases)) => Some(&**biases),
            _ => None,
        };
        [&self.matrix].into_iter().chain(biases)
    }

    /// The same for modification.
    pub(crate) fn matrices_mut(&mut self) -> impl Iterator<Item = &mut MatrixRef> {
        let biases = match &mut self.bias {
            Some(Bias::Stored(biases)) => Some(&mut **biases),
            _ => None,
        };
        [&mut self.matrix].into_iter().chain(biases)
    }

    /// Type and layout of everything that multiplies the input, which decide the activation formats that it needs.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = (WeightType, Layout)> {
        let measured = self.inputs.is_some().then_some((WeightType::F32, Layout::Rows));
        [self.matrix.kind()].into_iter().chain(measured)
    }

    /// Input features.
    pub(crate) fn cols(&self) -> usize {
        self.matrix.cols()
    }

    /// Output features of each projection.
    pub(crate) fn rows(&self) -> usize {
        self.matrix.rows()
    }
}

impl<'m> LinearView<'m> {
    /// Adds all rows of packed activations to its inputs, if these are measured.
    pub(crate) fn measure(&self, acts: &Activations) {
        if let Some(inputs) = &self.linear.inputs {
            inputs.add(self.index, acts, 0..acts.rows().all());
        }
    }

    /// Its number, and its index in a stack.
    pub(crate) fn number(&self) -> (usize, usize) {
        (self.linear.number, self.index)
    }
}

impl<'l> Projection<'l> {
    /// Adds the rows of a place of packed activations to its inputs, if these are measured.
    pub(crate) fn measure(&self, acts: &Activations, place: &Place) {
        // The other rows of the same matrix have the same inputs.
        let is_second = self.step > 1 && self.first > 0;
        if let Some(inputs) = self.linear.inputs.as_ref().filter(|_| !is_second) {
            inputs.add(self.index, acts, place.range());
        }
    }

    /// Every second row, from row `first` on.
    pub(crate) fn every_second_row(self, first: usize) -> Projection<'l> {
        Projection { first, step: 2, rows: self.rows / 2, ..self }
    }

    /// `rows` rows from row `first` on.
    pub(crate) fn some_rows(self, first: usize, rows: usize) -> Projection<'l> {
        Projection { first, rows, ..self }
    }

    /// Borrowed view of its weights, which are in memory.
    pub(crate) fn matrix<'m>(&self, store: &'m Store) -> Matrix<'m> {
        self.rows_of(self.linear.matrix.part(self.index, store))
    }

    /// The same for an expert that has been chosen.
    pub(crate) fn chosen<'m>(&self, chosen: &'m Chosen<'_>) -> Matrix<'m> {
        self.rows_of(self.linear.matrix.chosen(self.index, chosen))
    }

    fn rows_of<'m>(&self, matrix: Matrix<'m>) -> Matrix<'m> {
        match self.step {
            2 => matrix.every_second_row(self.first),
            _ if self.rows == matrix.rows() => matrix,
            _ => matrix.rows_in(self.first..self.first + self.rows),
        }
    }

    /// True if there is no bias.
    pub(crate) fn is_plain(&self) -> bool {
        self.linear.bias.is_none()
    }

    /// Its number, and its index in the stack.
    pub(crate) fn number(&self) -> (usize, usize) {
        (self.linear.number, self.index)
    }

    /// The rows of the projection that products from row `row` on are of: the first, and the number of rows to the next.
    pub(crate) fn rows_from(&self, row: usize) -> (usize, usize) {
        (self.first + row * self.step, self.step)
    }

    /// Adds the bias to the products of one token from row `row` on.
    pub(crate) fn add_bias(&self, store: &Store, row: usize, products: &mut [f32]) {
        let first = self.first + row * self.step;
        match &self.linear.bias {
            None => {}
            Some(Bias::Values(values)) => {
                let values = values[first..].iter().step_by(self.step);
                products.iter_mut().zip(values).for_each(|(product, bias)| *product += bias);
            }
            Some(Bias::Stored(biases)) => {
                // A row of biases is for an expert, whose gate and up may be in one tensor.
                let per_row = self.linear.matrix.count() / biases.count();
                let at = (self.index % per_row * self.linear.rows() + first, self.step);
                biases.part(self.index / per_row, store).add_float_row(0, at, products);
            }
        }
    }
}
