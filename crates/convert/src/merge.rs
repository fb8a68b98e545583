//! Merges adapters into a model: `W + Σ s · B A`, computed in f32 from the model's weights.

use std::path::Path;

use crate::adapters::ScaledAdapter;
use crate::import::{About, Conversion, Converted};
use crate::tensor_types::TensorTypes;
use crate::{ConvertError, OnProgress, Options, QuantizationMix};

/// Merges `adapters` into the model at `base` (any shard of a split model), into a new file at `dest`.
///
/// Without a `mix` every tensor keeps its type: those that no adapter changes are copied as they are, the others are quantised again.
///
/// # Errors
/// An adapter is for another model; see [`ConvertError`]. In that case there is no file at `dest`, or still the earlier one.
pub fn merge(
    base: &Path,
    adapters: &[ScaledAdapter<'_>],
    mix: Option<QuantizationMix>,
    dest: &Path,
    threads: usize,
    options: Options,
    on_progress: &mut OnProgress<'_>,
) -> Result<(About, Converted), ConvertError> {
    let conversion = Conversion::of_merge(base, mix, &TensorTypes::default(), adapters)?;
    let done = conversion.write(dest, threads, options, on_progress)?;
    Ok((conversion.about().clone(), done))
}
