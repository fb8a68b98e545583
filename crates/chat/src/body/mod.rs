//! The bodies of requests, as OpenAI writes them, taken apart: for the server, and for `alight batch`.

pub mod conversation;
pub mod fields;
pub mod json;
pub mod messages;
pub mod options;
pub mod refusal;
