//! One error per way in which a model can fail to open or to run. Every message is complete: it
//! names the file, the key or tensor, what was found and what was expected.

use std::path::PathBuf;
use std::sync::Arc;

use alight_files::FilesError;
use alight_kernels::attention::KvType;
use alight_pages::MapError;
use alight_text::TokenizerError;
use thiserror::Error;

use crate::cache::CacheError;
use crate::keys::SpecError;
use crate::store::LoadError;
use crate::tensors::WeightError;

/// Why a model could not be opened, or a step could not be computed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file cannot be mapped, or has shrunk since it was. Names the file itself.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The files are no GGUF files that make a model.
    #[error(transparent)]
    Files(Box<FilesError>),
    /// The hyper-parameters make no model, or none that is supported.
    #[error("{}: {source}", path.display())]
    Spec {
        /// The file.
        path: PathBuf,
        /// Which of them, and why.
        source: SpecError,
    },
    /// A tensor is missing, or not what the hyper-parameters ask for.
    #[error("{}: {source}", path.display())]
    Weights {
        /// The file.
        path: PathBuf,
        /// Which tensor, and why.
        source: WeightError,
    },
    /// The vocabulary makes no tokenizer.
    #[error("{}: {source}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The mistake in it.
        source: TokenizerError,
    },
    /// The weights could not be loaded. Names the file, or the limit that was met.
    #[error(transparent)]
    Load(Arc<LoadError>),
    /// The tokens do not fit the context that is left. Nothing was fed.
    #[error(
        "the context is full: {used} of {limit} positions are used and {asked} more are needed{}",
        raise(*used, *asked, *limit, *trained)
    )]
    ContextFull {
        /// Positions in use.
        used: usize,
        /// Tokens that were to be fed.
        asked: usize,
        /// Positions of this session.
        limit: usize,
        /// Positions that the model was trained for.
        trained: usize,
    },
    /// A session was asked for with impossible options.
    #[error("a session cannot have {what} of {found}, expected {expected}")]
    Options {
        /// Which option.
        what: &'static str,
        /// The request.
        found: usize,
        /// What is possible.
        expected: String,
    },
    /// Keys and values of a layer cannot be kept as a type.
    #[error(
        "keys and values cannot be kept as {ty}: those of layer {layer} are {found} elements long, expected a multiple of \
         {expected}; --cache-type f16 keeps them as they are"
    )]
    CacheType {
        /// The type.
        ty: KvType,
        /// The layer.
        layer: usize,
        /// How long a key or a value of a head is.
        found: usize,
        /// What lengths must be multiples of.
        expected: usize,
    },
    /// The system does not give the memory for a cache.
    #[error(transparent)]
    Memory(#[from] CacheError),
    /// The network's output is not numbers (NaN or +∞), so no token follows from it.
    #[error(
        "{}: the logits after position {position} are not numbers, so no token follows from them{}",
        path.display(), blame(weight.as_deref())
    )]
    NotNumbers {
        /// The file, or the first of them.
        path: PathBuf,
        /// The position, from 0, that was computed.
        position: usize,
        /// The first matrix with a weight that is not a finite number; `None` if all are finite.
        weight: Option<String>,
    },
    /// A constraint cannot tell which tokens may come next.
    #[error("the answer's constraint cannot go on: {why}")]
    Constraint {
        /// What it says of it.
        why: Box<str>,
    },
    /// A model that cannot draft for another one.
    #[error("{draft} cannot draft for {model}: {why}")]
    Draft {
        /// The name of the draft model.
        draft: String,
        /// The name of the other.
        model: String,
        /// What keeps it from that.
        why: String,
    },
    /// A network whose tokens see those after them was to continue a text.
    #[error(
        "{model} attends in both directions: it makes embeddings of texts (`alight serve`, `/v1/embeddings`), and continues none"
    )]
    Bidirectional {
        /// The name of the model.
        model: String,
    },
    /// A text is to be read as a whole, and is too long for that.
    #[error(
        "the text has {found} tokens, and this model reads a text as a whole: at most {expected} tokens, which are computed together (--batch-size)"
    )]
    TooLongForBatch {
        /// Its tokens.
        found: usize,
        /// The most that are computed together.
        expected: usize,
    },
    /// There is nothing to feed.
    #[error("there are no tokens to feed: the prompt is empty")]
    EmptyInput,
    /// A token id that the vocabulary does not have.
    #[error("token id {id} is outside the vocabulary of {vocab} tokens")]
    TokenRange {
        /// The id.
        id: u32,
        /// Tokens in the vocabulary.
        vocab: usize,
    },
}

impl From<FilesError> for ModelError {
    fn from(error: FilesError) -> ModelError {
        match error {
            FilesError::Map(error) => ModelError::Map(error),
            error => ModelError::Files(Box::new(error)),
        }
    }
}

impl From<LoadError> for ModelError {
    fn from(error: LoadError) -> ModelError {
        ModelError::Load(Arc::new(error))
    }
}

impl From<Arc<LoadError>> for ModelError {
    fn from(error: Arc<LoadError>) -> ModelError {
        ModelError::Load(error)
    }
}

/// Which weight is the reason that logits are not numbers, and what to do.
fn blame(weight: Option<&str>) -> String {
    match weight {
        Some(weight) => format!(
            ": tensor \"{}\" has weights that are not finite; the file is damaged, or was converted from \
             damaged weights: get it again",
            weight.escape_debug()
        ),
        None => ": all weights are finite, but what is computed with them overflows; another \
                 quantisation of the model may not"
            .into(),
    }
}

/// How to get a larger context, if there is a way.
fn raise(used: usize, asked: usize, limit: usize, trained: usize) -> String {
    let needed = used.saturating_add(asked);
    if needed <= trained {
        format!(
            "; a larger context can be asked for with -c {needed} or more (the model was trained \
             for {trained})"
        )
    } else if limit < trained {
        format!(
            "; a larger context can be asked for with -c, but the model was trained for {trained} \
             positions only"
        )
    } else {
        format!("; the model was trained for {trained} positions, so a shorter text is needed")
    }
}
