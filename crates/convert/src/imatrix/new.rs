//! The file of an importance matrix that was measured here.

use alight_formats::GgmlType;
use alight_formats::gguf::GgufError;
use alight_formats::gguf::write::Builder;

use super::{CHUNKS, COUNTS, DATASETS, SUMS};

/// The key of the tokens of a chunk.
const CHUNK_SIZE: &str = "imatrix.chunk_size";

/// The inputs that a tensor's columns were multiplied with.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredTensor {
    /// The tensor's name.
    pub name: String,
    /// Columns of each of its matrices.
    pub columns: usize,
    /// Sums of squares, `[matrices][columns]`.
    pub squares: Vec<f64>,
    /// Numbers of inputs, `[matrices]`.
    pub counts: Vec<u64>,
}

/// Returns the file of an importance matrix in the format of `llama-imatrix`, measured on `chunks` chunks of `chunk_size` tokens of the
/// text called `dataset`. Its tensors are in the order of `all`.
///
/// # Errors
/// Two tensors of one name.
pub fn imatrix_file(
    all: &[MeasuredTensor],
    dataset: &str,
    (chunks, chunk_size): (usize, usize),
) -> Result<Vec<u8>, GgufError> {
    let mut builder = Builder::new();
    builder.str("general.type", "imatrix").strs(DATASETS, &[dataset]);
    builder.u32(CHUNKS, chunks as u32).u32(CHUNK_SIZE, chunk_size as u32);
    for MeasuredTensor { name, columns, counts, .. } in all {
        let (columns, matrices) = (*columns as u64, counts.len() as u64);
        builder.tensor(&format!("{name}{SUMS}"), GgmlType::F32, &[columns, matrices])?;
        builder.tensor(&format!("{name}{COUNTS}"), GgmlType::F32, &[1, matrices])?;
    }
    let put = |values: &mut dyn Iterator<Item = f32>, out: &mut [u8]| {
        for (out, value) in out.chunks_exact_mut(4).zip(values) {
            out.copy_from_slice(&value.to_le_bytes());
        }
    };
    Ok(builder.file(|index, out| {
        let MeasuredTensor { squares, counts, .. } = &all[index / 2];
        match index % 2 {
            0 => put(&mut squares.iter().map(|sum| *sum as f32), out),
            _ => put(&mut counts.iter().map(|count| *count as f32), out),
        }
    }))
}
