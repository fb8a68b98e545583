//! The files of a tokenizer, into the keys of GGUF.

use super::side::SideFiles;
use super::tensor::Entry;
use crate::ConvertError;

/// What the files of a tokenizer come to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tokens {
    /// Metadata, in the order in which it is written.
    pub(crate) keys: Vec<(String, Entry)>,
    /// What a person should know: guesses, and what was lost.
    pub(crate) notes: Vec<String>,
}

/// The tokenizer of a folder whose embedding has `vocab` rows; `None` if it has none.
///
/// # Errors
/// Its files are not in order, or do not fit each other or the embedding.
pub(crate) fn read(
    _side: &SideFiles,
    _architecture: &str,
    _vocab: u64,
) -> Result<Option<Tokens>, ConvertError> {
    Ok(None)
}
