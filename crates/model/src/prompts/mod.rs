//! Prompts in files: what was computed of a prompt is written once and mapped ever after, by any number of processes.
//!
//! A folder has a file for each prompt, named after what computed it and what it begins with, so that most files need not be opened to
//! see that they are of no use. A file that is short, damaged, foreign or of another version is ignored, and the caller is told why;
//! the prompt is computed then.

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
/// A prompt with fewer tokens is computed sooner than looked up.
pub(crate) const MIN_TOKENS: usize = POSITIONS;

/// A folder of prompt files.
///
/// Only its owner may read the files and go into the folder: they are the conversation.
#[derive(Clone, Debug)]
pub struct PromptFolder {
    path: PathBuf,
    limit: u64,
}

/// A prompt file that was found and not used.
#[derive(Debug)]
pub struct IgnoredPrompt {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub why: PromptFileError,
}

impl IgnoredPrompt {
    /// A file that is damaged is removed, so that the prompt can be written again.
    pub(crate) fn new(path: PathBuf, why: PromptFileError) -> IgnoredPrompt {
        if matches!(why, PromptFileError::Damaged { .. } | PromptFileError::Magic { .. }) {
            // Where it cannot be removed, it is ignored the next time as well.
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
    /// Its bytes.
    pub bytes: u64,
    /// When it was last used or written.
    pub used: SystemTime,
    /// The model's name and the prompt's tokens; or why it is of no use.
    pub prompt: Result<(String, Vec<u32>), PromptFileError>,
}

/// What was found for a prompt.
pub(crate) struct FoundPrompt {
    pub(crate) file: PromptFile,
    /// How many tokens it has of the prompt.
    pub(crate) positions: usize,
}

impl PromptFolder {
    /// The folder at `path`, which is made when a prompt is written. Its files have up to `limit` bytes together: those that were
    /// not used for longest go.
    pub fn new(path: impl Into<PathBuf>, limit: u64) -> PromptFolder {
        PromptFolder { path: path.into(), limit }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The prompt files in it, with their bytes and times, those first that were last used; none if there is no folder.
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
            // Of a link itself: a link is nothing that this program has made.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_file() && path.extension().is_some_and(|e| e == EXTENSION) {
                let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                files.push((path, metadata.len(), used));
            }
        }
        files.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(&b.0)));
        Ok(files)
    }

    /// The files in it, those first that were last used.
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

    /// Removes all prompt files, and returns how many and how many bytes. What processes have mapped stays valid for them.
    ///
    /// # Errors
    /// The folder cannot be read, or a file not be removed.
    pub fn clear(&self) -> io::Result<(usize, u64)> {
        let (mut count, mut all) = (0, 0);
        for (path, bytes, _) in self.files()? {
            fs::remove_file(&path)?;
            (count, all) = (count + 1, all + bytes);
        }
        Ok((count, all))
    }

    /// The file that has most of the beginning of `tokens`, if one has more than `least` of them, for a cache with pages and states
    /// of so many bytes; and files that should have been of use and are not.
    pub(crate) fn find(
        &self,
        key: &Key,
        tokens: &[u32],
        least: usize,
        [stride, states]: [usize; 2],
    ) -> (Option<FoundPrompt>, Vec<IgnoredPrompt>) {
        let (mut best, mut ignored) = (None, Vec::<IgnoredPrompt>::new());
        let mut most = least;
        // What another user has put there may be anything.
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
            // For what goes first; a folder that may not be written to is of use all the same.
            let _ = found.file.map.file().set_modified(SystemTime::now());
        }
        (best, ignored)
    }

    /// Writes a prompt, if it is not there, and removes what was not used for longest. Returns its file; `None` if it is larger than
    /// all files may be.
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
                    // Another process may have removed it.
                    let _ = fs::remove_file(other);
                }
            }
        }
        contents.write(&path)?;
        Ok(Some(path))
    }
}

/// How what is computed of a prompt is rounded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounding {
    /// Activations.
    pub(crate) prompt: Precision,
    /// Keys and values.
    pub(crate) cache: KvType,
}

/// Makes a folder, with those above it, into which only its owner may go.
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

/// A hash of tokens that tells nothing of them to those who do not have the key.
fn hash_of(key: &Key, tokens: &[u32]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(key);
    tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
    hash.finalize().into()
}

/// The first eight bytes in hexadecimal.
fn short(bytes: &[u8; 32]) -> String {
    bytes[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What the names of files begin with that may have the beginning of `tokens`, at least a page of them.
fn beginning(key: &Key, tokens: &[u32]) -> String {
    format!("{}-{}", short(key), short(&hash_of(key, &tokens[..MIN_TOKENS])))
}
