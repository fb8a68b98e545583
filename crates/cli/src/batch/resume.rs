//! The results of an earlier run in the output file, and the lines it has answered.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fs::{File, OpenOptions, TryLockError};
use std::hash::BuildHasher;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use alight_pages::Input;
use anyhow::{Context, anyhow};
use serde::Deserialize;

use super::fingerprint::Fingerprint;
use super::lines::InputLines;
use super::result::{DUPLICATE, ID};
use crate::new_file;

/// Maximum bytes of a result. Ours are as long as the text of a context.
const LIMIT: usize = 256 << 20;

/// A `custom_id` in 16 bytes. The keys are random, so that equal ids cannot be crafted.
pub type Key = [u64; 2];

/// Makes keys.
#[derive(Clone, Default)]
pub struct Keys([RandomState; 2]);

impl Keys {
    /// Returns the key of an id.
    pub fn of(&self, custom_id: &str) -> Key {
        [self.0[0].hash_one(custom_id), self.0[1].hash_one(custom_id)]
    }
}

/// The lines that have results.
#[derive(Default)]
pub struct Done {
    /// By id: the hash of the line that the result belongs to, if the result has one.
    ids: HashMap<Key, Option<u64>>,
    /// The same by line number: for lines without an id, and those with the id of an earlier line.
    numbers: HashMap<u64, Option<u64>>,
    /// The number of results, and how many of them are not answers.
    pub results: u64,
    /// See [`results`](Done::results).
    pub failed: u64,
    /// Results without a fingerprint: an older version wrote them.
    pub unmarked: u64,
}

impl Done {
    /// Returns the hash of the line that a result belongs to, if the result has one; `None` if the line with this id, or without
    /// an id the line with this number, has no result.
    pub fn of(&self, number: u64, id: Option<&Key>) -> Option<Option<u64>> {
        id.map_or_else(|| self.numbers.get(&number), |id| self.ids.get(id)).copied()
    }

    /// Counts a result, if it is one. Returns true if it can be one of this `run`.
    fn take(&mut self, bytes: &[u8], keys: &Keys, run: u64) -> Option<bool> {
        let result: Found = serde_json::from_slice(bytes).ok()?;
        let number: u64 = result.id.strip_prefix(ID)?.parse().ok()?;
        let made_of = match result.fingerprint {
            Some(written) => Some(Fingerprint::parse(&written)?),
            None => None,
        };
        self.unmarked += u64::from(made_of.is_none());
        let line = made_of.map(|made_of| made_of.line);
        self.results += 1;
        self.failed += u64::from(result.error.is_some());
        let duplicate = result.error.is_some_and(|error| error.code == DUPLICATE);
        match result.custom_id {
            Some(id) if !duplicate => self.ids.insert(keys.of(&id), line),
            _ => self.numbers.insert(number, line),
        };
        Some(made_of.is_none_or(|made_of| made_of.run == run))
    }
}

/// The required fields of a result.
#[derive(Deserialize)]
struct Found {
    id: String,
    custom_id: Option<String>,
    error: Option<Reason>,
    fingerprint: Option<String>,
}

#[derive(Deserialize)]
struct Reason {
    code: String,
}

/// Opens the file of results at `path`: a new one, or with `force` an empty one that replaces an old one; or that of an earlier
/// run, whose unfinished last line is cut off. `inputs`: the files that results depend on; `run`: the hash of everything they
/// depend on besides lines.
pub fn open(
    path: &Path,
    force: bool,
    inputs: &[Input],
    keys: &Keys,
    run: u64,
) -> anyhow::Result<(File, Done)> {
    let named = || format!("'{}'", path.display());
    let mut file = open_locked(path, force, inputs)?;
    let (done, whole) = scan(&mut file, keys, run).with_context(named)?;
    if whole < file.metadata().with_context(named)?.len() {
        file.set_len(whole).with_context(named)?;
    }
    Ok((file, done))
}

/// Opens a file that a run appends to and that no other process appends to at the same time: a new one, or with `force` an empty one that
/// replaces an old one, or an old one.
///
/// # Errors
/// The system's; it is one of the `inputs`, or in use.
pub fn open_locked(path: &Path, force: bool, inputs: &[Input]) -> anyhow::Result<File> {
    let named = || format!("'{}'", path.display());
    let is_there = path.try_exists().with_context(named)?;
    if force || !is_there {
        // It is created here with its name and the permissions of its inputs; its lines follow later.
        new_file::create(path, force, inputs, 0)?.commit().map_err(|e| anyhow!(e))?;
    } else {
        new_file::check(path, true, inputs)?;
    }
    let file = OpenOptions::new().read(true).append(true).open(path).with_context(named)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            return Err(anyhow!("'{}' is being written by another process", path.display()));
        }
        // Where files cannot be locked, other processes are not kept out.
        Ok(()) | Err(TryLockError::Error(_)) => {}
    }
    Ok(file)
}

/// Returns the results in a file, and its length in whole lines, in bytes.
fn scan(file: &mut File, keys: &Keys, run: u64) -> anyhow::Result<(Done, u64)> {
    file.seek(SeekFrom::Start(0))?;
    let mut lines = InputLines::new(BufReader::with_capacity(1 << 20, file.by_ref()), LIMIT);
    let (mut done, mut whole) = (Done::default(), 0);
    while let Some(line) = lines.next()? {
        let begun = format!("{{\"id\":\"{ID}");
        let bytes = line.bytes.unwrap_or_default();
        let known = if line.is_whole {
            done.take(&bytes, keys, run)
        } else {
            // The line being written when the run ended.
            let shared = bytes.len().min(begun.len());
            (bytes[..shared] == begun.as_bytes()[..shared]).then_some(true)
        };
        let what = match known {
            Some(true) => None,
            Some(false) => Some("a result of another model or of other options"),
            None => Some("no result of `alight batch`"),
        };
        if let Some(what) = what {
            return Err(anyhow!(
                "line {} is {what}: give another file, or --force to replace this one",
                line.number
            ));
        }
        if line.is_whole {
            whole = line.end;
        }
    }
    Ok((done, whole))
}
