//! A model into one with weights of other types.

use std::path::Path;

use crate::import::{About, Conversion, Converted};
use crate::mix::QuantizationMix;
use crate::{ConvertError, OnProgress, Options};

/// Quantises the model at `source` (of a split model, any shard) into a new file at `dest`, with
/// `threads` threads.
///
/// With `imatrix`, a file of importance matrices as `llama-imatrix` writes it, errors count by how much the columns of a matrix
/// are used, and mixes are llama.cpp's with such a file.
///
/// The new file is a GGUF of version 3 with the source's metadata and tensors, which begin on pages
/// and stand in the order in which they are used. Vectors and norms stay as they are. The same source
/// gives the same bytes, whatever the number of threads and the processor.
///
/// # Errors
/// See [`ConvertError`]. There is no file at `dest` then, or the one that was there before.
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
