//! Conversations into text. It knows nothing of weights.
//!
//! What holds here:
//! - A chat template is a program that nobody has vetted. Compiling and rendering it takes bounded
//!   time, memory and stack, whatever it says and whatever the conversation is ([`template`]).
//! - Nothing here prints, reads a file or starts a thread.

pub mod template;

pub use template::{ChatError, ChatTemplate, Message};
