//! Errors. Every message says what there is to do, where there is something.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a model could not be had. What was received of a file stays, and the next pull continues with it, if nothing else is said.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HubError {
    /// What was typed is not the name of a model.
    #[error(
        "'{text}' is not the name of a model on the hub: {problem}; a name is USER/REPO or USER/REPO:Q4_K_M"
    )]
    Name {
        /// What was typed.
        text: String,
        /// The mistake in it.
        problem: &'static str,
    },
    /// A variable has a value that is of no use.
    #[error("{variable} is '{value}': {problem}")]
    Setting {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The mistake in it.
        problem: &'static str,
    },
    /// It has to be fetched, and that is forbidden.
    #[error("{name} is not in the cache ({}), and nothing is fetched offline{}", cache.display(), of_it(there))]
    Offline {
        /// The model.
        name: String,
        /// The cache.
        cache: PathBuf,
        /// What the cache has of the same repository, by quantization or file.
        there: Vec<String>,
    },
    /// It is not in the cache.
    #[error("{name} is not in the cache ({}); `alight list` says what is", cache.display())]
    NotCached {
        /// The model.
        name: String,
        /// The cache.
        cache: PathBuf,
    },
    /// The hub shows no such repository to us.
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
    /// The owner wants conditions accepted.
    #[error("{repo}: its owner lets you have it when you have accepted the conditions at {url}: do that in a browser, and {}", advice(*with_token))]
    Gated {
        /// The repository.
        repo: String,
        /// Its page.
        url: String,
        /// True if a token was sent.
        with_token: bool,
    },
    /// The hub does not let us.
    #[error("{repo}: the hub refuses it (status {status}): {}", advice(*with_token))]
    Refused {
        /// The repository.
        repo: String,
        /// The status.
        status: u16,
        /// True if a token was sent.
        with_token: bool,
    },
    /// The listing has a file that cannot be had.
    #[error("{repo}: there is no file '{file}'")]
    NoSuchFile {
        /// The repository.
        repo: String,
        /// The file.
        file: String,
    },
    /// The repository has no GGUF file.
    #[error(
        "{repo} has no .gguf file; what `alight convert` reads is fetched with `hf download {repo}`"
    )]
    NoModels {
        /// The repository.
        repo: String,
    },
    /// Nothing in it has this name.
    #[error("{repo} has nothing that is called '{tag}'; it has {}", exist.join(", "))]
    NoMatch {
        /// The repository.
        repo: String,
        /// The request.
        tag: String,
        /// What can be asked for.
        exist: Vec<String>,
    },
    /// Several files fit.
    #[error("{repo} has several that fit: {}; name one of them, as {repo}:NAME", exist.join(", "))]
    Several {
        /// The repository.
        repo: String,
        /// Those that fit.
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
    /// An answer is not what a hub says.
    #[error("{url}: the answer is not one of a hub: {problem}")]
    Answer {
        /// What was asked for, without its query.
        url: String,
        /// The mistake.
        problem: String,
    },
    /// The program was built without the feature `tls`.
    #[error(
        "{url}: this program was built without HTTPS; `make build` and `cargo install` build it with it"
    )]
    NoTls {
        /// What was asked for, without its query.
        url: String,
    },
    /// The hub fails, again and again.
    #[error("{url}: the server answers with status {status}; try again later")]
    Status {
        /// What was asked for, without its query.
        url: String,
        /// The status.
        status: u16,
    },
    /// The hub wants us to wait for long.
    #[error("{url}: too many requests; the server asks for a pause of {seconds} s")]
    RateLimited {
        /// What was asked for, without its query.
        url: String,
        /// How long it wants us to wait.
        seconds: u64,
    },
    /// The server cannot be reached, or went away.
    #[error("{url}: {problem}")]
    Connection {
        /// What was asked for, without its query.
        url: String,
        /// What the system says.
        problem: String,
    },
    /// The bytes are not those that the hub has promised.
    #[error(
        "{file}: what was received is not what the hub has promised (SHA-256 {found}, promised {expected}), and was thrown away"
    )]
    Hash {
        /// The file.
        file: String,
        /// As promised.
        expected: String,
        /// Of what was received.
        found: String,
    },
    /// There is no room for it.
    #[error("{}: {file} needs {needed} more bytes, and {free} are free", cache.display())]
    NoRoom {
        /// The cache.
        cache: PathBuf,
        /// The file.
        file: String,
        /// Bytes that are missing.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The system refuses something in the cache.
    #[error("{}: {source}", path.display())]
    Cache {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The observer asked for it.
    #[error("stopped")]
    Stopped,
}

impl HubError {
    /// An error of the system about `path`.
    pub(crate) fn cache(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> HubError {
        let path = path.into();
        move |source| HubError::Cache { path, source }
    }

    /// True if the hub could not be asked, so that what is in the cache is all there is.
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self,
            HubError::Connection { .. } | HubError::Status { .. } | HubError::RateLimited { .. }
        )
    }
}

/// What to do about a refusal.
fn advice(with_token: bool) -> &'static str {
    match with_token {
        true => {
            "see that the token (HF_TOKEN, or that of `hf auth login`) is of an account that may read it"
        }
        false => "give a token in HF_TOKEN, or log in with `hf auth login`",
    }
}

/// What there is of a repository, as the end of a sentence.
fn of_it(there: &[String]) -> String {
    match there {
        [] => String::new(),
        there => format!("; of this repository it has {}", there.join(", ")),
    }
}
