//! Answers HTTP requests in the wire formats of today's clients, with a model of `alight-model`.
//!
//! [`Server::bind`] takes the address, [`Server::run`] answers until a [`Stopper`] is told. Every address is one line in the table
//! of `routes.rs` and one file.
//!
//! | Module | What it is |
//! |---|---|
//! | `listen` | connections, their limits, and the end |
//! | `socket` | where it listens: a port or a file |
//! | `routes` | which address is answered by what, and in which shape its errors are |
//! | `access` | who may ask: Host, Origin, API keys |
//! | `apart` | how many threads do at a time what may take long |
//! | `json` | bodies of requests: limits before anything is parsed |
//! | [`body`] | the fields of bodies; shared with `alight batch` |
//! | [`answer`] | tokens into text, thinking and calls; shared with `alight batch` |
//! | `worker` | the thread that owns an engine: requests in, tokens out |
//! | `counts` | what an engine has done, in numbers |
//! | `generation` | the answers to one request, as they come |
//! | [`grammar`] | answers that are held to a JSON schema, a grammar, a regular expression, or the call of a tool; shared with `alight run` and `alight batch` |
//! | `asking` | what all requests for an answer have in common |
//! | `openai`, `anthropic`, `ollama`, `llama` | their addresses, one file each |
//! | `page` | the page with a chat and a picture of memory, and what the picture is drawn of |
//!
//! It must never print, and it must never hold logic of the model.
//!
//! **Invariant:** the engine waits for no client. Events of a request are put into a channel without a bound; an answer has no more
//! of them than the context has positions.
//!
//! **Invariant:** what is dropped is cancelled. hyper drops a handler, or the body of a response, when its client has left, and
//! with it goes the guard of each of its requests, in whatever state they are.
//!
//! **Invariant:** a mistake of the client's is a 4xx that no client repeats; only a full queue is a 503, with Retry-After.
//!
//! **Invariant:** an answer is that of `alight run` for the same prompt, options and seed, to the token.

mod access;
mod anthropic;
mod apart;
mod asking;
mod embedding;
mod failure;
#[cfg(fuzzing)]
pub mod fuzzing;
mod generation;
mod health;
mod http;
mod ids;
mod json;
mod listen;
mod llama;
mod models;
mod ollama;
mod openai;
mod page;
mod routes;
mod shared;
mod socket;
mod worker;

pub use alight_chat::worker::Log;
pub use listen::{Server, Stopper};
pub use models::{Quantization, Served};
pub use socket::{Listening, is_socket_file};

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use alight_model::{EngineOptions, SamplerOptions};

/// How to serve.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name or address to listen at; a path that ends with `.sock`: that Unix socket.
    pub host: String,
    /// The port; 0: any that is free.
    pub port: u16,
    /// Of each engine, except for its context, which is that of its model.
    pub engine: EngineOptions,
    /// How tokens are chosen if a request does not say.
    pub sampling: SamplerOptions,
    /// True if requests without a seed get the seed of `sampling`, instead of one of their own.
    pub fixed_seed: bool,
    /// Most tokens of an answer if a request does not say.
    pub max_tokens: usize,
    /// Most requests that wait for a sequence.
    pub queue: usize,
    /// API keys that are accepted. Empty disables authentication.
    pub keys: Vec<String>,
    /// Origins whose pages may send requests; `*`: any.
    pub origins: Vec<String>,
    /// True if there is `/metrics`.
    pub metrics: bool,
    /// True if there is `/slots`.
    pub slots: bool,
    /// The folder of files that `/slots/N?action=save` writes and `restore` reads; `None`: there are none.
    pub slot_files: Option<PathBuf>,
    /// After how long without a request the memory of an engine is given back; `None`: never.
    pub rest: Option<Duration>,
    /// True if there is a page at `/`.
    pub page: bool,
}

impl Options {
    /// A server that offers as little as there is.
    #[cfg(test)]
    pub(crate) fn of_tests() -> Options {
        Options {
            host: "localhost".into(),
            port: 0,
            engine: EngineOptions::default(),
            sampling: SamplerOptions::default(),
            fixed_seed: false,
            max_tokens: 0,
            queue: 0,
            keys: Vec::new(),
            origins: Vec::new(),
            metrics: false,
            slots: false,
            slot_files: None,
            rest: None,
            page: false,
        }
    }

    /// True if others than programs of this machine can ask.
    pub fn is_public(&self) -> bool {
        if is_socket_file(&self.host) {
            return false;
        }
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        match host.parse::<IpAddr>() {
            Ok(address) => !address.is_loopback(),
            Err(_) => host != "localhost",
        }
    }
}
