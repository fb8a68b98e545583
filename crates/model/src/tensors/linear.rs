//! A projection of a network, or several of one shape: every product of a part with a matrix goes through one.

use alight_kernels::matmul::{Activations, Matrix};
use alight_kernels::parallel::{LowRank, Place};
use alight_kernels::{Isa, Layout, WeightType, vec};

use super::input_sums::InputSums;
use super::matrix::MatrixRef;
use crate::store::{Chosen, Store};

/// `y = scale · W x + bias`, plus the adapters; or a stack of projections, those of experts or heads, each with its part of everything. The
/// scale is the matrix's own.
#[derive(Debug)]
pub(crate) struct Linear {
    /// `[count][rows, cols]`
    pub(crate) matrix: MatrixRef,
    bias: Option<Bias>,
    /// Each adds to the products, in this order, before the bias.
    pub(crate) adapters: Vec<Adapter>,
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

/// A correction of low rank (LoRA: Hu et al. 2021): `y += scale · B (A x)`.
#[derive(Debug)]
pub(crate) struct Adapter {
    /// `[count][rank, cols]`
    pub(crate) a: Vec<f32>,
    /// `[count][rows, rank]`
    pub(crate) b: Vec<f32>,
    pub(crate) scale: f32,
    pub(crate) rank: usize,
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
        Linear { matrix, bias: None, adapters: Vec::new(), inputs: None }
    }
}

impl Linear {
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
        let adapters = self.adapters.iter().map(|_| (WeightType::F32, Layout::Rows));
        [self.matrix.kind()].into_iter().chain(adapters).chain(measured)
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

    /// Returns true if nothing is added to the products of its matrix.
    pub(crate) fn is_plain(&self) -> bool {
        self.bias.is_none() && self.linear.adapters.is_empty()
    }

    /// Its adapters' two factors, `[rank, cols]` and `[rows, rank]`, and what follows them.
    pub(crate) fn adapters(&self) -> impl Iterator<Item = AdapterPart<'m>> + use<'m> {
        let (linear, index) = (self.linear, self.index);
        linear.adapters.iter().map(move |adapter| adapter.part(linear, index))
    }
}

/// The part of an adapter that is for one projection.
#[derive(Clone, Copy)]
pub(crate) struct AdapterPart<'l> {
    /// `[rank, cols]`
    pub(crate) a: &'l [f32],
    /// `[rows, rank]`
    pub(crate) b: &'l [f32],
    pub(crate) scale: f32,
    pub(crate) rank: usize,
}

impl Adapter {
    /// The part that is for one of a stack's projections.
    pub(crate) fn part(&self, linear: &Linear, index: usize) -> AdapterPart<'_> {
        let (a, b) = (self.rank * linear.cols(), linear.rows() * self.rank);
        AdapterPart {
            a: &self.a[index * a..][..a],
            b: &self.b[index * b..][..b],
            scale: self.scale,
            rank: self.rank,
        }
    }
}

impl<'l> AdapterPart<'l> {
    /// The terms that it adds to products; `ax` `[tokens, rank]` has the products of its first factor.
    pub(crate) fn with<'x>(self, ax: &'x [f32]) -> LowRank<'x>
    where
        'l: 'x,
    {
        LowRank { b: self.b, ax, rank: self.rank, scale: self.scale }
    }

    /// Adds to `y` `[cols]` the product of the transpose with `x`, which is for the first rows: `y += scale · Aᵀ (Bᵀ x)`.
    pub(crate) fn add_transposed(&self, isa: Isa, x: &[f32], y: &mut [f32]) {
        for (k, a) in self.a.chunks_exact(y.len()).enumerate() {
            let bx: f32 = self.b.iter().skip(k).step_by(self.rank).zip(x).map(|(b, x)| b * x).sum();
            vec::add_times(isa, y, a, self.scale * bx);
        }
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

    /// True if nothing is added to the products of its matrix.
    pub(crate) fn is_plain(&self) -> bool {
        self.linear.bias.is_none() && self.linear.adapters.is_empty()
    }

    /// Adds the adapters' corrections to the products of one token, or slot, from row `row` on. `ax` has for each adapter the products
    /// `[tokens, rank]` of its first factor.
    pub(crate) fn correct(
        &self,
        isa: Isa,
        token: usize,
        row: usize,
        ax: &[Vec<f32>],
        products: &mut [f32],
    ) {
        for (adapter, ax) in self.linear.adapters.iter().zip(ax) {
            let low_rank = adapter.part(self.linear, self.index).with(ax);
            low_rank.add(isa, token, (self.first + row * self.step, self.step), products);
        }
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::path::Path;

    use alight_formats::{GgmlType, gguf};

    use super::*;
    use crate::engine::{Session, SessionOptions};
    use crate::open::{Model, OpenOptions};
    use alight_testing::definition::Oracle;
    use alight_testing::models::{Recurrence, Spec, distance, tokens};

    fn open(path: &Path) -> Model {
        Model::open(path, &OpenOptions { threads: Some(2), ..OpenOptions::default() }).unwrap()
    }

    /// Gives each `wanted` projection of a model's layers, or stack of them, an adapter. Returns their number.
    fn adapt(
        model: &mut Model,
        (rank, scale): (usize, f32),
        wanted: &dyn Fn(&Linear) -> bool,
        each: &mut dyn FnMut(&Linear),
    ) -> usize {
        let mut count = 0;
        for layer in &mut model.weights_mut().layers {
            let parts = [&mut layer.mixer, &mut layer.feed_forward].into_iter().flatten();
            let linears = parts.flat_map(|branch| branch.part.linears_mut());
            for linear in linears.filter(|linear| wanted(linear)) {
                count += 1;
                let number = |i: usize| ((i * 37 + count * 101) as f32).sin() * 0.06;
                let stack = rank * linear.matrix.count();
                let a = (0..stack * linear.cols()).map(number).collect();
                let b = (0..stack * linear.rows()).map(|i| number(i + 7)).collect();
                linear.adapters.push(Adapter { a, b, scale, rank });
                each(linear);
            }
        }
        count
    }

    /// The number that each weight of a projection, or of a stack, changes by if its adapter is in the matrix.
    fn changes(linear: &Linear) -> impl Iterator<Item = f64> {
        let Adapter { scale, rank, .. } = linear.adapters[0];
        let (rows, cols) = (linear.rows(), linear.cols());
        (0..linear.matrix.count() * rows * cols).map(move |i| {
            let (row, col) = (i / cols % rows, i % cols);
            let AdapterPart { a, b, .. } = linear.adapters[0].part(linear, i / cols / rows);
            let low = |k| f64::from(b[row * rank + k]) * f64::from(a[k * cols + col]);
            f64::from(scale) * (0..rank).map(low).sum::<f64>()
        })
    }

    /// The logits of a prompt in parts of `batch` tokens, and of a few decoded tokens after it.
    fn logits(model: &Model, batch: usize) -> Vec<f32> {
        let options = SessionOptions { batch, ..SessionOptions::default() };
        let mut session = Session::new(model, &options).unwrap();
        let all = tokens(40, model.spec().vocab, 5);
        let mut found = session.feed(&all[..35]).unwrap().to_vec();
        for token in &all[35..] {
            found.extend(session.decode(*token).unwrap());
        }
        found
    }

    #[test]
    fn an_adapter_is_computed_as_if_it_were_in_the_matrix() {
        let folder = tempfile::tempdir().unwrap();
        let hybrid = |kind, spec| Spec { recurrent: Some((kind, 3)), ..spec };
        for spec in [
            Spec { biases: true, ..Spec::llama() },
            Spec::gemma3(),
            Spec::gemma3n(),
            hybrid(Recurrence::DeltaNet([2, 4, 32]), Spec::qwen35()),
            Spec::deepseek2(),
            Spec { ty: GgmlType::F32, ..Spec::deepseek2_before_2025() },
            Spec::lfm2(),
            Spec::nemotron_h_moe(),
            Spec::qwen2moe(),
            Spec::gpt_oss(),
            Spec::gptoss(),
        ] {
            let (path, _) = spec.write(folder.path());
            let mut bytes = std::fs::read(&path).unwrap();
            let mut model = open(&path);
            let base = logits(&model, 64);
            let count = adapt(&mut model, (2, 2.0), &|_| true, &mut |linear| {
                assert_eq!(linear.matrix.kind(), (WeightType::F32, Layout::Rows));
                let weights = &mut bytes[linear.matrix.file_range().1];
                for (weight, change) in weights.chunks_exact_mut(4).zip(changes(linear)) {
                    let before = f32::from_le_bytes(weight.try_into().unwrap());
                    weight.copy_from_slice(&(before + change as f32).to_le_bytes());
                }
            });
            assert!(count >= 2 * spec.layers, "{count} projections of {}", spec.arch);
            let merged = folder.path().join("merged.gguf");
            std::fs::write(&merged, &bytes).unwrap();
            let expected = logits(&open(&merged), 64);
            let found = logits(&model, 64);
            let size = expected.iter().fold(0f32, |m, x| m.max(x.abs()));
            let [off, moved] = [&found, &base].map(|other| distance(&expected, other) / size);
            // Sums of f32 in another order; the thresholds of Gemma 3n's gates amplify the difference.
            let near = off < 1e-3 && moved > 0.02 && off < moved / 300.0;
            assert!(near, "{}: {off:e}, and without {moved}", spec.arch);
        }
    }

    /// Rank 1 on the matrices of experts and heads alone, against a forward pass in float64 with the sums of both.
    #[test]
    fn an_adapter_of_experts_and_heads_is_that_of_float64() {
        let folder = tempfile::tempdir().unwrap();
        let fused = |mut spec: Spec| {
            spec.moe.as_mut().unwrap().fused = true;
            spec
        };
        let early = Spec { ty: GgmlType::F32, ..Spec::deepseek2_before_2025() };
        for spec in [
            Spec::qwen3moe(),
            fused(Spec::qwen3moe()),
            Spec::qwen2moe(),
            Spec::gpt_oss(),
            Spec::gptoss(),
            Spec::llama4(),
            Spec::deepseek2(),
            early,
        ] {
            let (path, weights) = spec.write(folder.path());
            let base = logits(&open(&path), 64);
            let mut exact = Oracle::of(&spec, &weights);
            let bytes = std::fs::read(&path).unwrap();
            let file = gguf::parse(&bytes).unwrap();
            let at: HashMap<usize, &str> =
                file.tensors.iter().map(|info| (info.range().start, info.name)).collect();
            let mut model = open(&path);
            let stacks = |linear: &Linear| linear.matrix.count() > 1;
            let count = adapt(&mut model, (1, 2.0), &stacks, &mut |linear| {
                let name = at[&linear.matrix.file_range().1.start];
                let weights = exact.w.get_mut(name).unwrap();
                assert_eq!(changes(linear).count(), weights.len(), "{name}");
                weights.iter_mut().zip(changes(linear)).for_each(|(w, change)| *w += change);
            });
            assert!(count >= 2 * (spec.layers - 1), "{count} stacks of {}", spec.arch);
            let expected = exact.forward(&tokens(40, spec.vocab, 5));
            let expected: Vec<f32> =
                expected[34..].iter().flatten().map(|logit| *logit as f32).collect();
            for batch in [64, 7] {
                let found = logits(&model, batch);
                let size = expected.iter().fold(0f32, |m, x| m.max(x.abs()));
                let [off, moved] = [&found, &base].map(|other| distance(&expected, other) / size);
                let near = off < 5e-4 && moved > 100.0 * off;
                assert!(near, "{}: {off:e}, and without {moved}", spec.arch);
            }
        }
    }

    #[test]
    fn an_adapter_leaves_the_bits_of_a_row_to_itself() {
        let folder = tempfile::tempdir().unwrap();
        for ty in [GgmlType::Q8_0, GgmlType::Q4_0] {
            let mut moe = Spec::qwen3moe();
            moe.moe.as_mut().unwrap().width = 64;
            for spec in [Spec { ty, ..Spec::llama() }, Spec { ty, ..moe }] {
                let (path, _) = spec.write(folder.path());
                let base = logits(&open(&path), 64);
                let mut model = open(&path);
                adapt(&mut model, (2, 0.5), &|_| true, &mut |_| {});
                let whole = logits(&model, 64);
                assert_ne!(whole, base);
                let what = format!("{} of {ty:?}", spec.arch);
                assert_eq!(logits(&model, 3), whole, "{what}, cut in another way");
                let mut nothing = open(&path);
                adapt(&mut nothing, (2, 0.0), &|_| true, &mut |_| {});
                assert_eq!(logits(&nothing, 64), base, "{what}, a scale of 0");
            }
        }
    }
}
