//! Configurations and names of other programs, into those of GGUF.

use super::side::SideFiles;
use super::tensor::{Described, Network};
use crate::ConvertError;

/// What a folder of Hugging Face's says about its network.
///
/// # Errors
/// It has no `config.json`, an architecture that is not known, or tensors that do not fit.
pub(crate) fn huggingface(
    side: &SideFiles,
    _tensors: &[Described<'_>],
) -> Result<Network, ConvertError> {
    let path = side.path("config.json");
    Err(ConvertError::Side { path, problem: "is not understood yet".into() })
}
