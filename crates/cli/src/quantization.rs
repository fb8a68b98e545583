//! The name of a model's quantization.

use std::path::Path;

use alight_convert::QuantizationMix;
use alight_files::FilesError;

use crate::inspect::summary::Summary;

/// The number that llama.cpp adds to a guessed file type.
const GUESSED: u32 = 1024;

/// Returns the mix that a model's file states, such as `Q4_K_M`, or else the type of most of its weights. Reads its header.
///
/// # Errors
/// The files no longer form a model.
pub fn of(path: &Path) -> Result<String, FilesError> {
    let maps = alight_files::open(path)?;
    let copies = alight_files::copies(&maps);
    let headers = alight_files::headers(&maps, &copies)?;
    let said = headers.files.first().and_then(|gguf| gguf.get_u32("general.file_type").ok()?);
    if let Some(mix) = said.and_then(|number| QuantizationMix::of_file_type(number & !GUESSED)) {
        return Ok(mix.to_string());
    }
    let types = Summary::of_catalog(&headers.catalog).types.into_iter();
    let most = types.max_by_key(|of_type| (of_type.parameters, of_type.ty));
    Ok(most.map_or("unknown", |of_type| of_type.ty).to_owned())
}
