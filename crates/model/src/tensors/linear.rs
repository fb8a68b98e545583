//! A projection of a network: every product of a part with the packed input goes through one.

use alight_kernels::matmul::Matrix;
use alight_kernels::{Layout, WeightType};

use super::matrix::MatrixRef;
use crate::store::Store;

/// `y = scale · W x + bias`, plus the adapters. The scale is the matrix's own.
#[derive(Debug)]
pub(crate) struct Linear {
    /// `[rows, cols]`
    pub(crate) matrix: MatrixRef,
    /// `[rows]`, if the file has it.
    pub(crate) bias: Option<Vec<f32>>,
    /// Each adds to the products, in this order.
    pub(crate) adapters: Vec<Adapter>,
}

/// A correction of low rank (LoRA: Hu et al. 2021): `y += scale · B (A x)`.
#[derive(Debug)]
pub(crate) struct Adapter {
    /// `[rank, cols]`
    pub(crate) a: Vec<f32>,
    /// `[rows, rank]`
    pub(crate) b: Vec<f32>,
    pub(crate) scale: f32,
    pub(crate) rank: usize,
}

/// A [`Linear`] whose weights can be read.
#[derive(Clone, Copy)]
pub(crate) struct LinearView<'m> {
    pub(crate) matrix: Matrix<'m>,
    pub(crate) bias: Option<&'m [f32]>,
    pub(crate) adapters: &'m [Adapter],
}

impl From<MatrixRef> for Linear {
    fn from(matrix: MatrixRef) -> Linear {
        Linear { matrix, bias: None, adapters: Vec::new() }
    }
}

impl<'m> From<Matrix<'m>> for LinearView<'m> {
    fn from(matrix: Matrix<'m>) -> LinearView<'m> {
        LinearView { matrix, bias: None, adapters: &[] }
    }
}

impl Linear {
    /// Adds a bias, if there is one.
    pub(crate) fn with_bias(self, bias: Option<Vec<f32>>) -> Linear {
        Linear { bias, ..self }
    }

    /// Borrowed view of the weights. The caller must have waited for the section of the matrix.
    pub(crate) fn view<'m>(&'m self, store: &'m Store) -> LinearView<'m> {
        LinearView {
            matrix: self.matrix.view(store),
            bias: self.bias.as_deref(),
            adapters: &self.adapters,
        }
    }

    /// Type and layout of everything that multiplies the input, which decide the activation formats that it needs.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = (WeightType, Layout)> {
        let adapters = self.adapters.iter().map(|_| (WeightType::F32, Layout::Rows));
        [self.matrix.kind()].into_iter().chain(adapters)
    }

    /// Input features.
    pub(crate) fn cols(&self) -> usize {
        self.matrix.cols()
    }

    /// Output features.
    pub(crate) fn rows(&self) -> usize {
        self.matrix.all_rows()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use alight_formats::GgmlType;

    use super::*;
    use crate::common::{Recurrence, Spec, distance, tokens};
    use crate::engine::{Session, SessionOptions};
    use crate::open::{Model, OpenOptions};

    const RANK: usize = 2;

    fn open(path: &Path) -> Model {
        Model::open(path, &OpenOptions { threads: Some(2), ..OpenOptions::default() }).unwrap()
    }

    /// Gives every projection of a model's layers an adapter. Returns their number.
    fn adapt(model: &mut Model, scale: f32, each: &mut dyn FnMut(&Linear)) -> usize {
        let mut count = 0;
        for layer in &mut model.weights_mut().layers {
            let parts = [&mut layer.mixer, &mut layer.feed_forward].into_iter().flatten();
            for linear in parts.flat_map(|branch| branch.part.linears_mut()) {
                count += 1;
                let number = |i: usize| ((i * 37 + count * 101) as f32).sin() * 0.06;
                let a = (0..RANK * linear.cols()).map(number).collect();
                let b = (0..RANK * linear.rows()).map(|i| number(i + 7)).collect();
                linear.adapters.push(Adapter { a, b, scale, rank: RANK });
                each(linear);
            }
        }
        count
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
            Spec::lfm2(),
            Spec::nemotron_h_moe(),
            Spec::qwen2moe(),
        ] {
            let (path, _) = spec.write(folder.path());
            let mut bytes = std::fs::read(&path).unwrap();
            let mut model = open(&path);
            let base = logits(&model, 64);
            let scale = 2.0;
            let count = adapt(&mut model, scale, &mut |linear| {
                assert_eq!(linear.matrix.kind(), (WeightType::F32, Layout::Rows));
                let Adapter { a, b, rank, .. } = &linear.adapters[0];
                let weights = &mut bytes[linear.matrix.file_range().1];
                for (i, weight) in weights.chunks_exact_mut(4).enumerate() {
                    let (row, col) = (i / linear.cols(), i % linear.cols());
                    let low = |k: usize| b[row * rank + k] * a[k * linear.cols() + col];
                    let sum: f32 = (0..*rank).map(low).sum();
                    let before = f32::from_le_bytes(weight.try_into().unwrap());
                    weight.copy_from_slice(&(before + scale * sum).to_le_bytes());
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

    #[test]
    fn an_adapter_leaves_the_bits_of_a_row_to_itself() {
        let folder = tempfile::tempdir().unwrap();
        for ty in [GgmlType::Q8_0, GgmlType::Q4_0] {
            let spec = Spec { ty, ..Spec::llama() };
            let (path, _) = spec.write(folder.path());
            let base = logits(&open(&path), 64);
            let mut model = open(&path);
            adapt(&mut model, 0.5, &mut |_| {});
            let whole = logits(&model, 64);
            assert_ne!(whole, base);
            assert_eq!(logits(&model, 3), whole, "{ty:?}, cut in another way");
            let mut nothing = open(&path);
            adapt(&mut nothing, 0.0, &mut |_| {});
            assert_eq!(logits(&nothing, 64), base, "{ty:?}, a scale of 0");
        }
    }
}
