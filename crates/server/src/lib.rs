//! Answers HTTP requests in the wire formats of today's clients, with a model of `alight-model`.
//!
//! [`Server::bind`] binds the address, [`Server::run`] answers until its [`Stopper`] stops it. Each endpoint is one line in the
//! table of `routes.rs` and one file.
//!
//! | Module | Contents |
//! |---|---|
//! | `listen` | connections, their limits, and the end |
//! | `socket` | the listening socket: a port or a file |
//! | `watched_stream` | the stream of a connection: clients that read nothing, send no more, or have left |
//! | `routes` | the handler of each address, and the format of its errors |
//! | `access` | access control: Host, Origin, API keys |
//! | `apart` | the limit on the number of threads that do long work |
//! | `json` | bodies of requests: limits before anything is parsed |
//! | [`body`] | the fields of bodies; shared with `alight batch` |
//! | [`answer`] | tokens into text, thinking and tool calls; shared with `alight batch` |
//! | `worker` | the thread that owns an engine: requests in, tokens out |
//! | `counts` | counters of an engine |
//! | `generation` | the answers to one request, as they are generated |
//! | [`grammar`] | answers constrained to a JSON schema, grammar, regular expression or tool call; shared with `alight run` and `alight batch` |
//! | `asking` | the parts that all requests for an answer have in common |
//! | `openai`, `anthropic`, `ollama`, `llama` | their endpoints, one file each |
//! | `endpoints` | the fields of each endpoint's bodies: what is read, refused and ignored |
//! | `unknown_fields` | counts the others |
//! | `request_log` | a line for each request, for people |
//! | `page` | the page with a chat and a picture of memory, and the data for the picture |
//!
//! It must never print, and must not contain logic of the model.
//!
//! **Invariant:** the engine waits for no client. Events of a request are put into an unbounded channel; an answer has at most as
//! many of them as the context has positions.
//!
//! **Invariant:** dropping cancels. hyper drops a handler, or the body of a response, when its client has left, and with it the
//! guard of each of its requests, in whatever state they are.
//!
//! **Invariant:** a client error is a 4xx that no client retries; only a full queue is a 503, with Retry-After.
//!
//! **Invariant:** an answer is the same as that of `alight run` for the same prompt, options and seed, to the token.

mod access;
mod adapters;
mod anthropic;
mod apart;
mod asking;
mod client_errors;
mod cohere;
mod embedding;
mod ending;
mod endpoints;
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
mod recent;
mod request_log;
mod rerank;
mod routes;
mod shared;
mod socket;
mod tei;
mod threads;
mod unknown_fields;
mod watched_stream;
mod worker;

pub use adapters::ServedAdapter;
pub use alight_chat::worker::Log;
pub use ids::date;
pub use listen::{Server, Stopper};
pub use models::{Quantization, Served};
pub use socket::{Listening, is_socket_file};

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use alight_model::{EngineOptions, SamplerOptions};
use serde_json::{Map, Value};

/// Options of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name or address to listen on; a path that ends with `.sock` is a Unix socket.
    pub host: String,
    /// The port; 0 selects a free one.
    pub port: u16,
    /// Options of each engine, except for its context, which is that of its model.
    pub engine: EngineOptions,
    /// Sampling options for fields that a request leaves out.
    pub sampling: SamplerOptions,
    /// Texts that break sequences for DRY, for requests that have none; `None`: [`SamplerOptions::DRY_SEQUENCE_BREAKERS`].
    pub dry_sequence_breakers: Option<Vec<String>>,
    /// True if requests without a seed get the seed of `sampling`, instead of one of their own.
    pub fixed_seed: bool,
    /// Maximum number of tokens of an answer, if the request does not set it.
    pub max_tokens: usize,
    /// Maximum number of requests that wait for a sequence.
    pub queue: usize,
    /// API keys that are accepted. Empty disables authentication.
    pub keys: Vec<String>,
    /// Origins whose pages may send requests; `*` allows any.
    pub origins: Vec<String>,
    /// True if `/metrics` is enabled.
    pub metrics: bool,
    /// True if `/metrics` has vLLM's names, too.
    pub vllm_metrics: bool,
    /// How long requests may take to end after the server was asked to end.
    pub drain: Duration,
    /// True if `/slots` is enabled.
    pub slots: bool,
    /// The folder of the files that `/slots/N?action=save` writes and `restore` reads; `None` disables them.
    pub slot_files: Option<PathBuf>,
    /// The time without a request after which the memory of an engine is released; `None`: never.
    pub rest: Option<Duration>,
    /// True if a page is served at `/`.
    pub page: bool,
    /// Variables of chat templates that requests do not set.
    pub template_variables: Map<String, Value>,
    /// True if clients may have adapters loaded from files of this machine.
    pub allow_load: bool,
}

impl Options {
    /// A server with every optional feature off.
    #[cfg(test)]
    pub(crate) fn of_tests() -> Options {
        Options {
            host: "localhost".into(),
            port: 0,
            engine: EngineOptions::default(),
            sampling: SamplerOptions::default(),
            dry_sequence_breakers: None,
            fixed_seed: false,
            max_tokens: 0,
            queue: 0,
            keys: Vec::new(),
            origins: Vec::new(),
            metrics: false,
            vllm_metrics: false,
            drain: Duration::from_secs(5),
            slots: false,
            slot_files: None,
            rest: None,
            page: false,
            template_variables: Map::new(),
            allow_load: false,
        }
    }

    /// True if clients other than programs on this machine can connect.
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
