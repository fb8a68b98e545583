//! The chunks of tokens in which a text is measured (`alight perplexity`, `alight imatrix`).

use crate::outcome::{Outcome, Stop};

/// How a text is cut into chunks.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct ChunkArgs {
    /// Tokens per chunk
    #[arg(short = 'c', long, value_name = "N", default_value_t = 512, value_parser = chunk_size)]
    pub ctx_size: usize,

    /// Use the first N chunks; -1: all
    #[arg(long, value_name = "N", default_value_t = -1,
          value_parser = clap::value_parser!(i64).range(-1..))]
    chunks: i64,

    /// Tokens that are computed at once
    #[arg(short = 'b', long, value_name = "N", default_value_t = 512, value_parser = batch_size)]
    pub batch_size: usize,
}

impl ChunkArgs {
    /// Returns how many of `all` chunks are used.
    ///
    /// # Errors
    /// None is.
    pub fn count(&self, all: usize) -> Outcome<usize> {
        match usize::try_from(self.chunks) {
            Ok(0) => Err(Stop::Usage("--chunks 0 leaves nothing to measure".to_owned())),
            Ok(n) => Ok(n.min(all)),
            Err(_) => Ok(all),
        }
    }
}

/// Parses the number of tokens of a chunk.
fn chunk_size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 4..=16_777_216) => Ok(n),
        _ => Err("expected a number from 4 to 16777216".to_owned()),
    }
}

/// Parses the number of tokens that are computed at once.
fn batch_size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=4096) => Ok(n),
        _ => Err("expected a number from 1 to 4096".to_owned()),
    }
}
