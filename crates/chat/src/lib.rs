//! From a request to an answer, and from tokens to visible output: the code that `alight run`, `alight batch`, `alight serve` and the
//! Python package share.
//!
//! - [`body`]: requests in OpenAI's format, field by field, with errors that name the field;
//! - [`grammar`]: answers constrained to a JSON schema, a grammar, a regular expression, or a tool call;
//! - [`worker`]: the thread that owns an engine, and [`counts`], its counters; `health`, its state;
//! - [`answer`]: tokens into text, thinking and tool calls, up to a stop text; [`thinking`], a limit on the thinking;
//! - [`vectors`]: texts as vectors, and pairs of texts as scores.
//!
//! **Invariant:** nothing here depends on HTTP, a terminal or Python; nothing is printed.
//!
//! **Invariant:** the cost of an untrusted request is limited before it is incurred.

pub mod answer;
pub mod body;
pub mod counts;
mod custom;
pub mod decoded;
pub mod grammar;
mod health;
pub mod thinking;
pub mod vectors;
pub mod worker;

/// Reports messages to the user.
pub type Log = std::sync::Arc<dyn Fn(&str) + Send + Sync>;
