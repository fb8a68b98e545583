//! The tests of this crate from outside, in one program: a program for each file has to be linked, and that took most of the time
//! of `make test`.
//!
//! The tests of all files run at the same time in the same process. So a test changes nothing that belongs to the process, such as
//! its environment, current folder, signal handlers or limits, and counts nothing of it, such as its memory or its open files: it
//! looks at its own thread, memory and files, or it starts a process.

mod legacy;
mod support;

mod adapter;
mod changing;
mod ggml_blocks;
mod ggml_by_another_hand;
mod ggml_malformed;
mod malformed;
mod real_models;
mod real_safetensors;
mod real_torch;
mod roundtrip;
mod safetensors;
mod splits;
mod tokenizer_json;
mod tokenizer_sentencepiece;
mod tokenizer_tiktoken;
mod torch_pickle;
mod torch_property;
mod torch_zip;
