//! Inputs of the matrices of a model, measured while it reads texts: the contents of an importance matrix.
//!
//! Every product of a part goes through [`Compute`](crate::parts::compute::Compute) with its [`Linear`], which has the sums; nothing is
//! measured, and no input kept as floats, unless that was asked for.

use std::collections::HashMap;

use alight_formats::gguf::TensorInfo;

use crate::error::ModelError;
use crate::open::Model;
use crate::tensors::{InputSums, Linear};

/// The inputs of a tensor's matrices: one, or one for each expert or head.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixInputs {
    /// The tensor's name.
    pub name: String,
    /// Elements of an input.
    pub columns: usize,
    /// Sums of the squares of each column of the inputs, `[matrices][columns]`.
    pub squares: Vec<f64>,
    /// Numbers of inputs, `[matrices]`.
    pub counts: Vec<u64>,
}

impl Model {
    /// From now on sums up the squares of what every matrix of the layers is multiplied with, and those of the output matrix. Steps take
    /// longer; their results are the same.
    pub fn measure_inputs(&mut self) {
        let measure = |linear: &mut Linear| {
            linear.inputs = Some(Box::new(InputSums::new(linear.matrix.count(), linear.cols())));
        };
        self.weights_mut().linears_mut().for_each(measure);
    }

    /// The inputs so far of all tensors that were multiplied with any, by name. An output matrix that is the embedding has its name.
    ///
    /// # Errors
    /// A file has changed.
    pub fn measured_inputs(&self) -> Result<Vec<MatrixInputs>, ModelError> {
        let maps = self.store().maps();
        let copies = alight_files::copies(maps);
        let headers = alight_files::headers(maps, &copies)?;
        let mut found: HashMap<&str, (usize, MatrixInputs)> = HashMap::new();
        for linear in self.weights().linears() {
            let Some(sums) = linear.inputs.as_ref().map(|inputs| inputs.sums()) else { continue };
            let (shard, range) = linear.matrix.file_range();
            let holds = |info: &TensorInfo<'_>| info.range().contains(&range.start);
            let mut tensors = headers.catalog.tensors.iter();
            let Some(tensor) = tensors.find(|t| t.shard == shard && holds(&t.info)) else {
                continue;
            };
            if sums.counts.iter().all(|count| *count == 0) {
                continue;
            }
            let info = &tensor.info;
            let columns = linear.cols();
            let matrices = info.ne[2..].iter().product::<u64>() as usize;
            let entry = found.entry(info.name).or_insert_with(|| {
                let (squares, counts) = (vec![0.0; matrices * columns], vec![0; matrices]);
                let name = info.name.to_owned();
                (range.start, MatrixInputs { name, columns, squares, counts })
            });
            // Other rows of a tensor have the same inputs.
            if entry.0 != range.start {
                continue;
            }
            entry.1.add(&sums.squares, &sums.counts);
        }
        let mut found: Vec<MatrixInputs> = found.into_values().map(|(_, inputs)| inputs).collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }
}

impl MatrixInputs {
    /// Adds the sums of a stack of projections. Those that are parts of one expert's matrix have the same inputs, of which the first are
    /// taken; those that are parts of one matrix alone have their own.
    fn add(&mut self, squares: &[f64], counts: &[u64]) {
        let per_matrix = (counts.len() / self.counts.len()).max(1);
        let step = if self.counts.len() > 1 { per_matrix } else { 1 };
        for index in (0..counts.len()).step_by(step) {
            let matrix = (index / per_matrix).min(self.counts.len() - 1);
            self.counts[matrix] += counts[index];
            let sums = &mut self.squares[matrix * self.columns..][..self.columns];
            let squares = &squares[index * self.columns..][..self.columns];
            sums.iter_mut().zip(squares).for_each(|(sum, square)| *sum += square);
        }
    }
}
