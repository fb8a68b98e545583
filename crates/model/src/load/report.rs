//! How the weights were loaded, and the reasons.

use std::path::PathBuf;
use std::time::Duration;

use alight_pages::transfer::{Engine, TransferFallback, TransferReport};
use alight_pages::{Choice, Facts, ReadMethod};

use super::SlotsReport;

/// How one file is read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FileReport {
    /// The file.
    pub path: PathBuf,
    /// Bytes of it that are weights of this model.
    pub weights: u64,
    /// The facts known when it was opened.
    pub facts: Facts,
    /// The decision.
    pub choice: Choice,
}

/// How the weights are loaded: the decisions, and the progress so far.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadReport {
    /// By file, in the order of the shards.
    pub files: Vec<FileReport>,
    /// True if matrices are packed while they are loaded.
    pub repack: bool,
    /// The reason, in one sentence.
    pub repack_reason: String,
    /// Matrices that are packed while they are loaded.
    pub packed: usize,
    /// Bytes packed so far.
    pub bytes_repacked: u64,
    /// Bytes of mapped pages that were given back after their contents had been packed.
    pub bytes_given_back: u64,
    /// Bytes of weights that were read into memory of this process.
    pub bytes_read: u64,
    /// Bytes that are locked in memory.
    pub bytes_locked: u64,
    /// The engine that issued the reads; `None`: nothing was read (yet).
    pub engine: Option<Engine>,
    /// True if all reads went around the page cache.
    pub direct: bool,
    /// Methods that were not available, and why.
    pub fallbacks: Vec<TransferFallback>,
    /// Time from the start of the load to its end; `None` while it continues.
    pub took: Option<Duration>,
    /// The time that steps waited for weights.
    pub waited: Duration,
    /// Experts that are loaded on demand, if there are any.
    pub slots: Option<SlotsReport>,
}

impl LoadReport {
    /// How the first file is read. The others are read in the same way unless the facts about them differ.
    pub fn method(&self) -> ReadMethod {
        self.files.first().map_or(ReadMethod::Mmap, |file| file.choice.method)
    }

    /// The reason, in one sentence.
    pub fn reason(&self) -> &str {
        self.files.first().map_or("", |file| &file.choice.reason)
    }

    /// Adds the outcome of a transfer.
    pub(super) fn add(&mut self, report: &TransferReport) {
        self.direct = report.direct && self.engine.is_none_or(|_| self.direct);
        self.engine = Some(report.engine);
        self.bytes_read += report.bytes;
        for fallback in &report.fallbacks {
            if !self.fallbacks.contains(fallback) {
                self.fallbacks.push(fallback.clone());
            }
        }
    }
}
