//! Parses the bodies of requests in OpenAI's format, for the server and for `alight batch`.

mod accepted;
mod changes;
pub mod conversation;
pub mod declared;
pub mod fields;
mod in_words;
pub mod json;
pub mod messages;
pub mod options;
pub mod refusal;
pub mod thinking;
pub mod tools;
