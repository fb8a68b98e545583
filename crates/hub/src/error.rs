//! Errors. Every message states what to do, where something can be done.

use std::io;
use std::path::PathBuf;

use alight_pages::{MapError, ReplaceError};
use alight_types::units;
use thiserror::Error;

/// Why some models cannot be kept packed alone.
pub(crate) const SEVERAL_FILES: &str =
    "it has several files, which would come back as one: keep it as it is, and run it with --pack";
pub(crate) const NO_HASH: &str = "the hub has no SHA-256 of it, by which it could be restored";
pub(crate) const OTHER_NAME: &str = "its name does not end in .gguf";
pub(crate) const TAKEN_NAME: &str =
    "the repository has a file of the name that its packed form would have";

/// The reason a model could not be fetched or found. Received bytes of a file are kept, and the next pull continues with them,
/// unless a variant states otherwise.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HubError {
    /// The text is not the name of a model.
    #[error(
        "'{text}' is not the name of a model on the hub: {problem}; a name has the form USER/REPO or USER/REPO:Q4_K_M"
    )]
    Name {
        /// The text.
        text: String,
        /// The problem with it.
        problem: &'static str,
    },
    /// A variable has an invalid value.
    #[error("{variable} is '{value}': {problem}")]
    Setting {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The problem with it.
        problem: &'static str,
    },
    /// The model would have to be fetched, which is forbidden.
    #[error("{name} is not in the cache ({}), and nothing is fetched offline{}", cache.display(), of_it(there))]
    Offline {
        /// The model.
        name: String,
        /// The cache.
        cache: PathBuf,
        /// The cached models of the same repository, by quantization or file.
        there: Vec<String>,
    },
    /// The model is not in the cache.
    #[error("{name} is not in the cache ({}); `alight list` says what is", cache.display())]
    NotCached {
        /// The model.
        name: String,
        /// The cache.
        cache: PathBuf,
    },
    /// The repository does not exist, or is not visible to us.
    #[error("{repo}: the hub has no such model, or it is private: {}", advice(*with_token))]
    NoSuchRepo {
        /// The repository.
        repo: String,
        /// True if a token was sent.
        with_token: bool,
    },
    /// There is no such branch, tag or commit.
    #[error("{repo}: there is no revision '{revision}'")]
    NoSuchRevision {
        /// The repository.
        repo: String,
        /// The revision.
        revision: String,
    },
    /// The owner requires that conditions are accepted.
    #[error("{repo}: its owner requires that you accept the conditions at {url}: do that in a browser, and {}", advice(*with_token))]
    Gated {
        /// The repository.
        repo: String,
        /// Its page.
        url: String,
        /// True if a token was sent.
        with_token: bool,
    },
    /// The hub denies access.
    #[error("{repo}: the hub refuses it (status {status}): {}", advice(*with_token))]
    Refused {
        /// The repository.
        repo: String,
        /// The status.
        status: u16,
        /// True if a token was sent.
        with_token: bool,
    },
    /// The listing has a file that cannot be fetched.
    #[error("{repo}: there is no file '{file}'")]
    NoSuchFile {
        /// The repository.
        repo: String,
        /// The file.
        file: String,
    },
    /// The beginning of a file is not the header of a model.
    #[error("{file}: {problem}")]
    Header {
        /// The file.
        file: String,
        /// The problem.
        problem: String,
    },
    /// The repository has no GGUF file.
    #[error(
        "{repo} has no .gguf file{}",
        match safetensors {
            true => format!(
                ", but safetensors: `alight convert hf.co/{repo} -o model.gguf` makes a model of them"
            ),
            false => String::new(),
        }
    )]
    NoModels {
        /// The repository.
        repo: String,
        /// True if it has a model in safetensors.
        safetensors: bool,
    },
    /// The repository has no model of this name.
    #[error("{repo} has no model '{tag}'; it has {}", exist.join(", "))]
    NoMatch {
        /// The repository.
        repo: String,
        /// The request.
        tag: String,
        /// The names that can be requested.
        exist: Vec<String>,
    },
    /// Several files fit.
    #[error("{repo} has several that fit: {}; name one of them, as {repo}:NAME", exist.join(", "))]
    Several {
        /// The repository.
        repo: String,
        /// The files that fit.
        exist: Vec<String>,
    },
    /// The listing lacks a part of a model.
    #[error("{repo} lacks '{file}', a part of the model")]
    ShardMissing {
        /// The repository.
        repo: String,
        /// The part.
        file: String,
    },
    /// A model cannot be kept packed alone. Nothing was fetched for it.
    #[error("{file} cannot be kept packed: {problem}")]
    NotPackable {
        /// The file, or the model.
        file: String,
        /// The reason, and a remedy.
        problem: &'static str,
    },
    /// A file of the cache has other bytes than the hub has promised. It stays as it is.
    #[error(
        "'{}' has the SHA-256 {found}, and the hub has promised {expected}: remove it (`alight rm`), and pull it again",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The promised hash.
        expected: String,
        /// The hash of its bytes.
        found: String,
    },
    /// An answer is not that of a hub.
    #[error("{url}: the answer is not that of a hub: {problem}")]
    Answer {
        /// The requested URL, without its query.
        url: String,
        /// The problem with it.
        problem: String,
    },
    /// The program was built without the feature `tls`.
    #[error(
        "{url}: this program was built without HTTPS; `make build` and `cargo install` build it with it"
    )]
    NoTls {
        /// The requested URL, without its query.
        url: String,
    },
    /// The hub fails repeatedly.
    #[error("{url}: the server answers with status {status}; try again later")]
    Status {
        /// The requested URL, without its query.
        url: String,
        /// The status.
        status: u16,
    },
    /// The hub requests a long pause.
    #[error("{url}: too many requests; the server asks for a pause of {seconds} s")]
    RateLimited {
        /// The requested URL, without its query.
        url: String,
        /// The length of the pause that it requests.
        seconds: u64,
    },
    /// The server cannot be reached, or closed the connection.
    #[error("{url}: {problem}")]
    Connection {
        /// The requested URL, without its query.
        url: String,
        /// The error of the system.
        problem: String,
    },
    /// The received bytes differ from those that the hub has promised. They were thrown away.
    #[error(
        "{file}: what was received is not what the hub has promised (SHA-256 {found}, promised {expected}), and was thrown away"
    )]
    Hash {
        /// The file.
        file: String,
        /// The promised hash.
        expected: String,
        /// The hash of the received bytes.
        found: String,
    },
    /// There is not enough free disk space. Nothing was fetched.
    #[error(
        "{}: {file} needs {} more, and {} are free: remove models that you do not need (`alight rm`), or let \
         HF_HUB_CACHE name a folder on another disk",
        cache.display(), units::bytes(*.needed), units::bytes(*.free)
    )]
    NoRoom {
        /// The cache.
        cache: PathBuf,
        /// The file.
        file: String,
        /// Bytes that are still to be received.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// Something in the cache is no regular file, or is a link that leads out of the cache.
    #[error("'{}' is a {found}, expected a regular file in the cache: remove it, and try again", path.display())]
    Unexpected {
        /// The path in the cache.
        path: PathBuf,
        /// Its kind, without an article.
        found: String,
    },
    /// A file in the cache cannot be used. Names the file.
    #[error(transparent)]
    Open(MapError),
    /// A file in the cache cannot be replaced. Names the file.
    #[error(transparent)]
    Write(ReplaceError),
    /// The system denies an operation in the cache.
    #[error("{}: {source}{}", path.display(), instead_of_this_cache(source))]
    Cache {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The observer stopped the pull.
    #[error("stopped")]
    Stopped,
}

impl HubError {
    /// A system error about `path`.
    pub(crate) fn cache(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> HubError {
        let path = path.into();
        move |source| HubError::Cache { path, source }
    }

    /// An error of opening a file in the cache.
    pub(crate) fn opening(error: MapError) -> HubError {
        match error {
            MapError::NotAFile { path, kind } => {
                HubError::Unexpected { path, found: kind.to_string() }
            }
            MapError::Open { path, source } => HubError::Cache { path, source },
            other => HubError::Open(other),
        }
    }

    /// An error of writing a file in the cache.
    pub(crate) fn writing(error: ReplaceError) -> HubError {
        match error {
            ReplaceError::Create { path, source } | ReplaceError::Commit { path, source } => {
                HubError::Cache { path, source }
            }
            other => HubError::Write(other),
        }
    }

    /// True if the hub could not be reached, so that only the cache is left.
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self,
            HubError::Connection { .. } | HubError::Status { .. } | HubError::RateLimited { .. }
        )
    }
}

/// Advice about a cache in which nothing can be written, as the end of a sentence.
fn instead_of_this_cache(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            ": let HF_HUB_CACHE name a folder that you may write to"
        }
        _ => "",
    }
}

/// The advice after a refusal.
fn advice(with_token: bool) -> &'static str {
    match with_token {
        true => {
            "see that the token (HF_TOKEN, or that of `hf auth login`) is of an account that may read it"
        }
        false => "give a token in HF_TOKEN, or log in with `hf auth login`",
    }
}

/// The cached models of a repository, as the end of a sentence.
fn of_it(there: &[String]) -> String {
    match there {
        [] => String::new(),
        there => format!("; of this repository it has {}", there.join(", ")),
    }
}
