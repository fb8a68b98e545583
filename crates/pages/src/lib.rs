//! Ranges of a file into memory.
//!
//! So far: [`Map`], a read-only shared map of one regular file. It refuses what is not a regular
//! file without blocking on it, and it survives the file's being cut short underneath it: the
//! program keeps running and [`Map::check`] names the file.
//!
//! This crate touches files, the page cache and one signal handler (SIGBUS, see [`fault`]); it knows
//! nothing of tensors. It is the only room besides the kernels and the pool that uses `unsafe`.

#![cfg(unix)]

mod error;
pub mod fault;
mod map;

pub use error::{FileKind, MapError};
pub use map::{Advice, Map};
