//! The tests of this crate from outside, in one program: a program for each file has to be linked, and that took most of the time
//! of `make test`.
//!
//! The tests of all files run at the same time in the same process. So a test changes nothing that belongs to the process, such as
//! its environment, current folder, signal handlers or limits, and counts nothing of it, such as its memory or its open files: it
//! looks at its own thread, memory and files, or it starts a process.
//! What needs this process for itself is another program, in `Cargo.toml`.

#[cfg(target_os = "linux")]
#[path = "common/disk.rs"]
mod disk;
#[cfg(target_os = "linux")]
#[path = "../../pages/tests/common/refuse.rs"]
mod refuse;

mod adapters;
mod cache_type;
mod cancel;
mod changing;
mod consistency;
mod content;
mod encoders;
mod expert_traces;
mod experts;
mod few_logits;
mod generate;
mod greedy_agreement;
mod hostile;
mod incoming;
mod load;
mod long_context;
mod measure;
mod mtp;
mod neighbours;
mod not_finite;
mod of_prompt;
mod oracle;
mod pool;
mod pool_idle;
mod prompt_files;
mod read_again;
mod recurrent;
mod refusals;
mod sampler_behaviour;
mod shards;
mod speculate;
mod streamed;
mod unread_keys;
mod vectors;
mod windows;

/// How a test opens a model if it does not matter.
fn options() -> alight_model::OpenOptions {
    alight_model::OpenOptions {
        threads: Some(alight_testing::models::threads()),
        ..Default::default()
    }
}
