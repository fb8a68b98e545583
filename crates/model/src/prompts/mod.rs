//! Prompts in files: a computed prompt is written once and then mapped by any number of processes.
//!
//! A folder has a file for each prompt, named after its key and its first tokens, so that most unusable files can be skipped without opening them. A
//! file that is truncated, damaged, foreign or of another version is ignored, and the reason is reported to the caller; the prompt is then computed.

mod file;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use alight_kernels::attention::KvType;
use alight_kernels::matmul::Precision;
pub(crate) use file::{Contents, Key, PromptFile};
pub use file::{PromptFileError, PromptWriteError, RestoreError};
use sha2::{Digest, Sha256};

use crate::positions::POSITIONS;

const EXTENSION: &str = "prompt";
/// A shorter prompt is computed faster than it is looked up.
pub(crate) const MIN_TOKENS: usize = POSITIONS;

/// A folder of prompt files.
///
/// Only its owner may read the files and enter the folder: they contain conversations.
#[derive(Clone, Debug)]
pub struct PromptFolder {
    path: PathBuf,
    limit: u64,
}

/// A prompt file that was found but not used.
#[derive(Debug)]
pub struct IgnoredPrompt {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    pub why: PromptFileError,
}

impl IgnoredPrompt {
    /// Removes a damaged file, so that the prompt can be written again.
    pub(crate) fn new(path: PathBuf, why: PromptFileError) -> IgnoredPrompt {
        if matches!(why, PromptFileError::Damaged { .. } | PromptFileError::Magic { .. }) {
            // If it cannot be removed, it is ignored again the next time.
            let _ = fs::remove_file(&path);
        }
        IgnoredPrompt { path, why }
    }
}

/// A file in a folder of prompts.
#[derive(Debug)]
pub struct ListedPrompt {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was last used or written.
    pub used: SystemTime,
    /// The model's name and the prompt's tokens; or why the file is unusable.
    pub prompt: Result<(String, Vec<u32>), PromptFileError>,
}

/// The prompt file found for a prompt.
pub(crate) struct FoundPrompt {
    pub(crate) file: PromptFile,
    /// The number of tokens of the prompt that it has.
    pub(crate) positions: usize,
}

impl PromptFolder {
    /// The folder at `path`, which is created when a prompt is written. Its files have at most `limit` bytes in total: the least recently used ones
    /// are removed.
    pub fn new(path: impl Into<PathBuf>, limit: u64) -> PromptFolder {
        PromptFolder { path: path.into(), limit }
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The prompt files in it, with their sizes and times, most recently used first; none if the folder does not exist.
    ///
    /// # Errors
    /// The folder cannot be read.
    fn files(&self) -> io::Result<Vec<(PathBuf, u64, SystemTime)>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut files = Vec::new();
        for entry in entries.flatten() {
            let path = entry.path();
            // Metadata of a link itself: this program never creates links.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_file() && path.extension().is_some_and(|e| e == EXTENSION) {
                let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                files.push((path, metadata.len(), used));
            }
        }
        files.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(&b.0)));
        Ok(files)
    }

    /// The files in it, most recently used first.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list(&self) -> io::Result<Vec<ListedPrompt>> {
        let listed = self.files()?.into_iter().map(|(path, bytes, used)| {
            let prompt = PromptFile::open(&path).map(|file| (file.header.name, file.header.tokens));
            ListedPrompt { path, bytes, used, prompt }
        });
        Ok(listed.collect())
    }

    /// Removes all prompt files, and returns their number and total bytes. Existing mappings stay valid.
    ///
    /// # Errors
    /// The folder cannot be read, or a file cannot be removed.
    pub fn clear(&self) -> io::Result<(usize, u64)> {
        let (mut count, mut all) = (0, 0);
        for (path, bytes, _) in self.files()? {
            fs::remove_file(&path)?;
            (count, all) = (count + 1, all + bytes);
        }
        Ok((count, all))
    }

    /// Returns the file with the longest beginning of `tokens`, if it has more than `least` of them, for a cache with pages and states of these sizes
    /// in bytes; and the files that should have been usable and are not.
    pub(crate) fn find(
        &self,
        key: &Key,
        tokens: &[u32],
        least: usize,
        [stride, states]: [usize; 2],
    ) -> (Option<FoundPrompt>, Vec<IgnoredPrompt>) {
        let (mut best, mut ignored) = (None, Vec::<IgnoredPrompt>::new());
        let mut most = least;
        // Files written by another user cannot be trusted.
        if tokens.len() < MIN_TOKENS || alight_pages::belongs_to_others(&self.path) {
            return (best, ignored);
        }
        let beginning = beginning(key, tokens);
        for (path, ..) in self.files().unwrap_or_default() {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if !name.starts_with(&beginning) {
                continue;
            }
            let opened = PromptFile::open(&path).and_then(|file| {
                if file.header.key != *key {
                    return Err(PromptFileError::Foreign);
                }
                file.check_shape(stride, states)?;
                Ok(file)
            });
            match opened {
                Ok(file) => {
                    let positions = file.usable(tokens, states > 0);
                    if positions > most {
                        most = positions;
                        best = Some(FoundPrompt { file, positions });
                    }
                }
                // Another process has removed it.
                Err(PromptFileError::Map(_)) if !path.exists() => {}
                Err(why) => ignored.push(IgnoredPrompt::new(path, why)),
            }
        }
        if let Some(found) = &best {
            // For the eviction order; a read-only folder is still usable.
            let _ = found.file.map.file().set_modified(SystemTime::now());
        }
        (best, ignored)
    }

    /// Writes a prompt, unless it already exists, and removes the least recently used files. Returns its file; `None` if it exceeds the size limit of
    /// the folder.
    ///
    /// # Errors
    /// See [`PromptWriteError`].
    pub(crate) fn write(
        &self,
        contents: &Contents<'_>,
    ) -> Result<Option<PathBuf>, PromptWriteError> {
        let len = contents.len();
        if len > self.limit || contents.tokens.len() < MIN_TOKENS {
            return Ok(None);
        }
        let folder_error = |source| PromptWriteError::Folder { path: self.path.clone(), source };
        make_private(&self.path).map_err(folder_error)?;
        if alight_pages::belongs_to_others(&self.path) {
            return Err(folder_error(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the folder belongs to another user, who can change what is read from it",
            )));
        }
        let name = format!(
            "{}-{}.{EXTENSION}",
            beginning(&contents.key, contents.tokens),
            short(&hash_of(&contents.key, contents.tokens)),
        );
        let path = self.path.join(name);
        let is_file = fs::symlink_metadata(&path).is_ok_and(|there| there.is_file());
        let there = is_file.then(|| PromptFile::open(&path)).and_then(Result::ok);
        if there.is_some_and(|there| {
            there.header.key == contents.key && there.header.tokens == contents.tokens
        }) {
            return Ok(Some(path));
        }
        let mut room = self.limit - len;
        for (other, bytes, _) in self.files().map_err(folder_error)? {
            match room.checked_sub(bytes) {
                Some(left) if other != path => room = left,
                Some(_) => {}
                None => {
                    // Another process may have already removed it.
                    let _ = fs::remove_file(other);
                }
            }
        }
        contents.write(&path)?;
        Ok(Some(path))
    }
}

/// How the results of a prompt are rounded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounding {
    /// Activations.
    pub(crate) prompt: Precision,
    /// Keys and values.
    pub(crate) cache: KvType,
}

/// Creates a folder, with its parents, which only its owner may enter.
fn make_private(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    if path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent() {
        fs::create_dir_all(above)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(path) {
        // Another process was first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made,
    }
}

/// A hash that reveals nothing about the tokens without the key.
fn hash_of(key: &Key, tokens: &[u32]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(key);
    tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
    hash.finalize().into()
}

/// The first eight bytes, in hexadecimal.
fn short(bytes: &[u8; 32]) -> String {
    bytes[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The prefix of the names of files that may have the beginning of `tokens`, which has at least a page.
fn beginning(key: &Key, tokens: &[u32]) -> String {
    format!("{}-{}", short(key), short(&hash_of(key, &tokens[..MIN_TOKENS])))
}
