//! One error per way in which a model can fail to open or to run. Every message is complete: it names the file, the key or tensor, and the values
//! found and expected.

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
    /// A file cannot be mapped, or has shrunk since it was mapped. Names the file.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The files are not GGUF files, or do not form a model.
    #[error(transparent)]
    Files(Box<FilesError>),
    /// The hyper-parameters do not describe a model, or not a supported one.
    #[error("{}: {source}", path.display())]
    Spec {
        /// The file.
        path: PathBuf,
        /// The key at fault, and the reason.
        source: SpecError,
    },
    /// A tensor is missing, or does not match the hyper-parameters.
    #[error("{}: {source}", path.display())]
    Weights {
        /// The file.
        path: PathBuf,
        /// The tensor at fault, and the reason.
        source: WeightError,
    },
    /// The vocabulary does not describe a tokenizer.
    #[error("{}: {source}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The mistake in it.
        source: TokenizerError,
    },
    /// The metadata makes answers doubtful, and such files were to be refused ([`OpenOptions::strict`](crate::OpenOptions::strict)).
    #[error("{}: {}", path.display(), warnings.join("; "))]
    Doubtful {
        /// The file.
        path: PathBuf,
        /// The [warnings](crate::describe::warnings), at least one.
        warnings: Vec<String>,
    },
    /// The weights could not be loaded. Names the file, or the limit that was reached.
    #[error(transparent)]
    Load(Arc<LoadError>),
    /// The step was [cancelled](crate::Cancel).
    #[error("cancelled")]
    Cancelled,
    /// The tokens do not fit in the remaining context. Nothing was fed.
    #[error(
        "{}{}",
        full(*used, *asked, *limit),
        raise(*used, *asked, *limit, [*trained, *computable])
    )]
    ContextFull {
        /// Positions in use.
        used: usize,
        /// Tokens that were to be fed.
        asked: usize,
        /// Maximum number of positions of this session.
        limit: usize,
        /// Positions that the model was trained for.
        trained: usize,
        /// Positions that can be computed of it, whatever the context.
        computable: usize,
    },
    /// A session was requested with impossible options.
    #[error("a session cannot have {what} of {found}, expected {expected}")]
    Options {
        /// The option.
        what: &'static str,
        /// The requested value.
        found: usize,
        /// The possible values.
        expected: String,
    },
    /// Keys and values of a layer cannot be stored as a type.
    #[error(
        "keys and values cannot be kept as {ty}: those of layer {layer} are {found} elements long, expected a multiple of \
         {expected}; --cache-type f16 keeps them as they are"
    )]
    CacheType {
        /// The type.
        ty: KvType,
        /// The layer.
        layer: usize,
        /// Length of a key or a value of a head.
        found: usize,
        /// The required divisor of lengths.
        expected: usize,
    },
    /// A request has an adapter that was opened for another model.
    #[error("{}: the adapter was opened for another model than {model}", path.display())]
    OtherBase {
        /// The adapter's file.
        path: PathBuf,
        /// The model of the request.
        model: String,
    },
    /// The system does not provide the memory for a cache.
    #[error(transparent)]
    Memory(#[from] CacheError),
    /// The network's output is not numbers (NaN or infinite), so no token follows from it.
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
    /// A weight is not a finite number.
    #[error("{}{}", path.display(), blame(Some(tensor)))]
    NotFinite {
        /// The file, or the first of them.
        path: PathBuf,
        /// The first tensor with such a weight.
        tensor: String,
    },
    /// A constraint cannot determine which tokens may come next.
    #[error("the answer's constraint cannot go on: {why}")]
    Constraint {
        /// The reason it gives.
        why: Box<str>,
    },
    /// A model that cannot draft for another one.
    #[error("{draft} cannot draft for {model}: {why}")]
    Draft {
        /// The name of the draft model.
        draft: String,
        /// The name of the other model.
        model: String,
        /// The reason.
        why: String,
    },
    /// A network whose tokens attend to later ones cannot continue a text.
    #[error(
        "{model} is an encoder: it makes vectors or scores of texts (`alight embed`, `alight rerank`; `/v1/embeddings` and `/v1/rerank` of `alight serve`), and cannot continue a text"
    )]
    Bidirectional {
        /// The name of the model.
        model: String,
    },
    /// A network without a classifier gives texts no scores.
    #[error(
        "{model} has no classifier (\"cls.output.weight\"): it gives texts no scores, but vectors that can be compared (`alight embed`)"
    )]
    NoClassifier {
        /// The name of the model.
        model: String,
    },
    /// A text has to be read as a whole, and is too long for that.
    #[error(
        "there are {found} tokens that are computed together, since they see each other: at most {expected} can be"
    )]
    TooLongForBatch {
        /// The number of its tokens.
        found: usize,
        /// The maximum number of tokens that are computed together.
        expected: usize,
    },
    /// There is nothing to feed.
    #[error("there are no tokens to feed: the prompt is empty")]
    EmptyInput,
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab} tokens")]
    TokenRange {
        /// The id.
        id: u32,
        /// Number of tokens in the vocabulary.
        vocab: usize,
    },
}

impl ModelError {
    /// If a file could not be read, by which a later step may not be hindered: this message with the name of the file alone, for readers who are not to
    /// learn where it is.
    pub fn unread(&self) -> Option<String> {
        let path = match self {
            ModelError::Map(error) => error.path(),
            ModelError::Load(error) => error.unread()?,
            _ => return None,
        };
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        Some(self.to_string().replace(&path.display().to_string(), &name))
    }
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

/// The reason why a forward pass has ended early.
#[derive(Debug)]
pub(crate) enum StepError {
    /// Weights could not be loaded.
    Load(Arc<LoadError>),
    /// It was [cancelled](crate::Cancel).
    Cancelled,
}

impl From<Arc<LoadError>> for StepError {
    fn from(error: Arc<LoadError>) -> StepError {
        StepError::Load(error)
    }
}

impl From<StepError> for ModelError {
    fn from(error: StepError) -> ModelError {
        match error {
            StepError::Load(error) => ModelError::Load(error),
            StepError::Cancelled => ModelError::Cancelled,
        }
    }
}

/// Names the weight that makes logits something other than numbers, and the remedy.
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

/// States what is in the context, and what does not fit.
fn full(used: usize, asked: usize, limit: usize) -> String {
    match used {
        0 => format!("the prompt has {asked} tokens, and the context has {limit} positions"),
        used => format!(
            "the context is full: {used} of its {limit} positions are used, and {asked} more are needed"
        ),
    }
}

/// Explains how to get a larger context, if there is a way.
fn raise(used: usize, asked: usize, limit: usize, [trained, computable]: [usize; 2]) -> String {
    let needed = used.saturating_add(asked);
    if computable < trained && needed > computable {
        format!(
            "; of this model {computable} positions can be computed (it was trained for {trained}), so a \
             shorter text is needed"
        )
    } else if needed <= trained {
        format!(
            "; ask for a larger one with -c {needed} or more (the model was trained for {trained})"
        )
    } else if limit < trained {
        format!(
            "; ask for a larger one with -c, but the model was trained for {trained} positions only"
        )
    } else {
        format!("; the model was trained for {trained} positions, so a shorter text is needed")
    }
}
