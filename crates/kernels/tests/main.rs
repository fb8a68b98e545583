//! The tests of this crate from outside, in one program: a program for each file has to be linked, and that took most of the time
//! of `make test`.
//!
//! The tests of all files run at the same time in the same process. So a test changes nothing that belongs to the process, such as
//! its environment, current folder, signal handlers or limits, and counts nothing of it, such as its memory or its open files: it
//! looks at its own thread, memory and files, or it starts a process.
//! What needs this process for itself is another program, in `Cargo.toml`.

mod common;

mod attention;
mod bits;
mod columns;
mod dequant;
mod elements;
mod float_ops;
mod half;
mod independent;
mod low_rank;
mod math;
mod matmul;
mod not_finite;
mod parallel;
mod peak;
mod planes;
mod quantize;
mod recurrent;
mod tiles;
