//! What an earlier run has left in the file of results, and which lines it has answered.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::fs::{File, OpenOptions, TryLockError};
use std::hash::BuildHasher;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use alight_pages::Input;
use anyhow::{Context, anyhow};
use serde::Deserialize;

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
    /// By their ids.
    ids: HashSet<Key>,
    /// By their numbers: those without an id, and those whose id is an earlier line's.
    numbers: HashSet<u64>,
    /// Results in all, and how many of them are no answers.
    pub results: u64,
    /// See [`results`](Done::results).
    pub failed: u64,
}

impl Done {
    /// Whether the line of this id has a result.
    pub fn has_id(&self, key: &Key) -> bool {
        self.ids.contains(key)
    }

    /// Whether this line has a result of its own, whatever its id.
    pub fn has_number(&self, number: u64) -> bool {
        self.numbers.contains(&number)
    }

    /// Counts a result, if it is one.
    fn take(&mut self, bytes: &[u8], keys: &Keys) -> Option<()> {
        let result: Found = serde_json::from_slice(bytes).ok()?;
        let number: u64 = result.id.strip_prefix(ID)?.parse().ok()?;
        self.results += 1;
        self.failed += u64::from(result.error.is_some());
        let duplicate = result.error.is_some_and(|error| error.code == DUPLICATE);
        match result.custom_id {
            Some(id) if !duplicate => self.ids.insert(keys.of(&id)),
            _ => self.numbers.insert(number),
        };
        Some(())
    }
}

/// What has to be known of a result.
#[derive(Deserialize)]
struct Found {
    id: String,
    custom_id: Option<String>,
    error: Option<Reason>,
}

#[derive(Deserialize)]
struct Reason {
    code: String,
}

/// Opens the file of results at `path`: a new one, or with `force` an empty one in the place of an old one; or that of an earlier
/// run, whose unfinished last line is cut off. `inputs`: what results are made of.
pub fn open(
    path: &Path,
    force: bool,
    inputs: &[Input],
    keys: &Keys,
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
    let (done, whole) = scan(&mut file, keys).with_context(named)?;
    if whole < file.metadata().with_context(named)?.len() {
        file.set_len(whole).with_context(named)?;
    }
    Ok((file, done))
}

/// The results in a file, and how many bytes of it are whole lines.
fn scan(file: &mut File, keys: &Keys) -> anyhow::Result<(Done, u64)> {
    file.seek(SeekFrom::Start(0))?;
    let mut lines = Lines::new(BufReader::with_capacity(1 << 20, file.by_ref()), LIMIT);
    let (mut done, mut whole) = (Done::default(), 0);
    while let Some(line) = lines.next()? {
        let begun = format!("{{\"id\":\"{ID}");
        let bytes = line.bytes.unwrap_or_default();
        let known = if line.is_whole {
            done.take(&bytes, keys).is_some()
        } else {
            // What was being written when the run ended.
            let shared = bytes.len().min(begun.len());
            bytes[..shared] == begun.as_bytes()[..shared]
        };
        if !known {
            return Err(anyhow!(
                "line {} is no result of `alight batch`: give another file, or --force to replace this one",
                line.number
            ));
        }
        if line.is_whole {
            whole = line.end;
        }
    }
    Ok((done, whole))
}
