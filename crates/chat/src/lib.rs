//! From a request to an answer, and from tokens to what a person is shown: what `alight run`, `alight batch`, `alight serve` and the Python
//! package have in common.
//!
//! - [`body`]: requests as OpenAI writes them, field by field, with errors that name the field;
//! - [`grammar`]: answers that are held to a JSON schema, a grammar, a regular expression, or the call of a tool;
//! - [`worker`]: the thread that owns an engine, and [`counts`], what it has done;
//! - [`answer`]: tokens into text, thinking and calls of tools, up to a text that ends the answer.
//!
//! **Invariant:** nothing here knows of HTTP, of a terminal or of Python; nothing is printed.
//!
//! **Invariant:** what a stranger's request may cost is limited before it is paid.

pub mod answer;
pub mod body;
pub mod counts;
pub mod decoded;
pub mod grammar;
pub mod worker;
