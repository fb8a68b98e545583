//! Quantises a model to other types of weights.

use std::path::Path;

use crate::import::{About, Conversion, Converted};
use crate::mix::QuantizationMix;
use crate::{ConvertError, OnProgress, Options};

/// Quantises the model at `source` (any shard of a split model) into a new file at `dest`, with `threads` threads.
///
/// With `imatrix`, a file of importance matrices as written by `llama-imatrix`, errors are weighted by how much the columns of
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
    mix: QuantizationMix,
    imatrix: Option<&Path>,
    threads: usize,
    options: Options,
    on_progress: &mut OnProgress<'_>,
) -> Result<(About, Converted), ConvertError> {
    let conversion = Conversion::of_gguf(source, Some(mix), imatrix)?;
    let done = conversion.write(dest, threads, options, on_progress)?;
    Ok((conversion.about().clone(), done))
}
