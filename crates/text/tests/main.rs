//! The tests of this crate from outside, in one program: a program for each file has to be linked, and that took most of the time
//! of `make test`.
//!
//! The tests of all files run at the same time in the same process. So a test changes nothing that belongs to the process, such as
//! its environment, current folder, signal handlers or limits, and counts nothing of it, such as its memory or its open files: it
//! looks at its own thread, memory and files, or it starts a process.

#[path = "../../formats/tests/support/memory.rs"]
#[allow(dead_code)] // no test here uses `within`
mod memory;

mod chat_golden;
mod encoder_input;
mod errors;
mod hostile;
mod infill;
mod jinja2_agreement;
mod tokenizer_golden;
mod tokenizer_hostile;
mod tokenizer_originals;
mod vocabulary;
