//! What an earlier run has left in the file of results, and which lines it has answered.

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
use super::lines::Lines;
use super::result::{DUPLICATE, ID};
use crate::new_file;

/// Most bytes of a result. Ours are as long as a context has text.
const LIMIT: usize = 256 << 20;

/// A `custom_id` in 16 bytes. The keys are random, so that nobody can make two ids equal.
pub type Key = [u64; 2];

/// Makes keys.
#[derive(Clone, Default)]
pub struct Keys([RandomState; 2]);

impl Keys {
    /// The key of an id.
    pub fn of(&self, custom_id: &str) -> Key {
        [self.0[0].hash_one(custom_id), self.0[1].hash_one(custom_id)]
    }
}

/// The lines that have results.
#[derive(Default)]
pub struct Done {
    /// By their ids: the hash of the line that the result is of, if the result says so.
    ids: HashMap<Key, Option<u64>>,
    /// The same by their numbers: those without an id, and those whose id is an earlier line's.
    numbers: HashMap<u64, Option<u64>>,
    /// Results in all, and how many of them are no answers.
    pub results: u64,
    /// See [`results`](Done::results).
    pub failed: u64,
    /// How many do not say what they were made of: an older version wrote them.
    pub unmarked: u64,
}

impl Done {
    /// The hash of the line that a result is of, if the result says so; none if the line of this id has no result, or without an id that
    /// of this number.
    pub fn of(&self, number: u64, id: Option<&Key>) -> Option<Option<u64>> {
        id.map_or_else(|| self.numbers.get(&number), |id| self.ids.get(id)).copied()
    }

    /// Counts a result, if it is one. Returns whether it may be of this `run`.
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

/// What has to be known of a result.
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

/// Opens the file of results at `path`: a new one, or with `force` an empty one in the place of an old one; or that of an earlier
/// run, whose unfinished last line is cut off. `inputs`: what results are made of; `run`: the hash of what they depend on besides lines.
pub fn open(
    path: &Path,
    force: bool,
    inputs: &[Input],
    keys: &Keys,
    run: u64,
) -> anyhow::Result<(File, Done)> {
    let named = || format!("'{}'", path.display());
    let is_there = path.try_exists().with_context(named)?;
    if force || !is_there {
        // It gets its name and the rights of what it is made of here, and its lines later.
        new_file::create(path, force, inputs, 0)?.commit().map_err(|e| anyhow!(e))?;
    } else {
        new_file::check(path, true, inputs)?;
    }
    let mut file = OpenOptions::new().read(true).append(true).open(path).with_context(named)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            return Err(anyhow!("'{}' is being written by another process", path.display()));
        }
        // Where files cannot be locked, nobody is kept out.
        Ok(()) | Err(TryLockError::Error(_)) => {}
    }
    let (done, whole) = scan(&mut file, keys, run).with_context(named)?;
    if whole < file.metadata().with_context(named)?.len() {
        file.set_len(whole).with_context(named)?;
    }
    Ok((file, done))
}

/// The results in a file, and how many bytes of it are whole lines.
fn scan(file: &mut File, keys: &Keys, run: u64) -> anyhow::Result<(Done, u64)> {
    file.seek(SeekFrom::Start(0))?;
    let mut lines = Lines::new(BufReader::with_capacity(1 << 20, file.by_ref()), LIMIT);
    let (mut done, mut whole) = (Done::default(), 0);
    while let Some(line) = lines.next()? {
        let begun = format!("{{\"id\":\"{ID}");
        let bytes = line.bytes.unwrap_or_default();
        let known = if line.is_whole {
            done.take(&bytes, keys, run)
        } else {
            // What was being written when the run ended.
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
