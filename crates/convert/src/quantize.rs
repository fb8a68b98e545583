//! Quantises a model to other types of weights.

use std::path::Path;

use crate::import::{About, Conversion, Converted};
use crate::mix::QuantizationMix;
use crate::tensor_types::TensorTypes;
use crate::{ConvertError, OnProgress, Options};

/// The types of the new file's tensors, and how they are made.
#[derive(Clone, Debug)]
pub struct Quantization<'p> {
    /// The types of matrices.
    pub mix: QuantizationMix,
    /// Types that the mix does not decide.
    pub types: TensorTypes,
    /// A file of importance matrices, as written by `alight imatrix` and `llama-imatrix`.
    pub imatrix: Option<&'p Path>,
}

impl From<QuantizationMix> for Quantization<'_> {
    fn from(mix: QuantizationMix) -> Self {
        Quantization { mix, types: TensorTypes::default(), imatrix: None }
    }
}

/// Quantises the model at `source` (any shard of a split model) into a new file at `dest`, with `threads` threads.
///
/// With an importance matrix, errors are weighted by how much the columns of
/// a matrix are used, and the mixes are those of llama.cpp with such a file.
///
/// The new file is GGUF version 3 with the source's metadata and tensors, which begin on pages and are in the order of use.
/// Vectors and norms stay as they are. The same source yields the same bytes, whatever the number of threads and the processor.
///
/// # Errors
/// See [`ConvertError`]. In that case there is no file at `dest`, or still the earlier one.
pub fn quantize(
    source: &Path,
    dest: &Path,
    quantization: &Quantization<'_>,
    threads: usize,
    options: Options,
    on_progress: &mut OnProgress<'_>,
) -> Result<(About, Converted), ConvertError> {
    let Quantization { mix, types, imatrix } = quantization;
    let conversion = Conversion::of_gguf(source, Some(*mix), types, *imatrix)?;
    let done = conversion.write(dest, threads, options, on_progress)?;
    Ok((conversion.about().clone(), done))
}
