//! What the quantization of a model is called.

use std::path::Path;

use alight_convert::QuantizationMix;
use alight_files::FilesError;

use crate::inspect::summary::Summary;

/// What llama.cpp adds to the number of a file's type where it has guessed it.
const GUESSED: u32 = 1024;

/// The mix that the file of a model says, such as `Q4_K_M`, or else the type of most of its weights. Its header is read for it.
///
/// # Errors
/// The files are no model any more.
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
