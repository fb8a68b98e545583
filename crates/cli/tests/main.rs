//! The tests of this crate from outside, in one program: a program for each file has to be linked, and that took most of the time
//! of `make test`.
//!
//! The tests of all files run at the same time in the same process. So a test changes nothing that belongs to the process, such as
//! its environment, current folder, signal handlers or limits, and counts nothing of it, such as its memory or its open files: it
//! looks at its own thread, memory and files, or it starts a process.

mod support;

mod batch;
mod batch_output;
mod bench_load;
mod chat;
mod coming;
mod command;
mod cp;
mod cp_bystander;
mod defaults;
mod embed;
mod engine;
mod experts;
mod file_size;
mod habits;
mod held;
mod hub;
mod inspect;
mod inspect_ggml;
mod inspect_safetensors;
mod inspect_torch;
mod interrupts;
mod limits;
mod lines;
mod llama_cpp;
mod load;
mod loading;
mod long_chat;
mod lora;
mod measure;
mod memory_limit;
mod merge;
mod no_threads;
mod outputs;
mod pack;
mod prompt_cache;
mod quantize;
mod replay;
mod run;
mod serve;
mod serve_completion;
mod serve_fields;
mod serve_keeps;
mod serve_limits;
mod serve_log;
mod serve_tools;
mod slash;
mod streams;
mod terminal;
mod thinking;
mod tokenize;
mod watch;
mod widths;
