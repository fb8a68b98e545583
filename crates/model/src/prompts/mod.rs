//! Prompts in files: a computed prompt is written once and then mapped by any number of processes.
//!
//! A folder has a file for each prompt, named after its key and its first tokens, so that most unusable files can be skipped without opening them. A
//! file that is truncated, damaged, foreign or of another version is ignored, and the reason is reported to the caller; the prompt is then computed.

mod file;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use alight_kernels::attention::KvType;
use alight_kernels::matmul::Precision;
use alight_pages::{GuardedError, GuardedFile, GuardedFolder};
pub(crate) use file::{Contents, Key, PromptFile, in_folder};
pub use file::{PromptFileError, PromptWriteError, RestoreError};
use sha2::{Digest, Sha256};

use self::file::open_folder;
use crate::positions::{POSITIONS, Windows};

const EXTENSION: &str = "prompt";
/// After this time without a write, a file that never got its name is left over from a process that was killed. A prompt is written in seconds; the
/// clocks of hosts that share a folder may differ by more.
const ABANDONED: Duration = Duration::from_secs(3600);
/// A shorter prompt is computed faster than it is looked up.
pub(crate) const MIN_TOKENS: usize = POSITIONS;

/// A folder of prompt files.
///
/// Only its owner may read the files and enter the folder: they contain conversations. If it was created with other permissions, other users may put
/// files into it, or links: these are neither read nor replaced nor removed. A folder of another user is not used.
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

/// The sizes of pages and of the states of a sequence, in memory and in prompt files.
pub(crate) struct CacheSizes<'c> {
    /// Bytes of a page of layers that keep all positions.
    pub(crate) page: usize,
    /// Bytes of a page of layers with a window.
    pub(crate) window_page: usize,
    /// Bytes of the states of recurrent layers.
    pub(crate) states: usize,
    pub(crate) windows: &'c Windows,
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

    /// Opens the folder; `None` if it does not exist.
    ///
    /// # Errors
    /// It cannot be opened, or belongs to another user.
    fn open(&self) -> Result<Option<GuardedFolder>, GuardedError> {
        match open_folder(&self.path) {
            Ok(folder) => Ok(Some(folder)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The files in it that are named like prompt files and are this user's, most recently used first.
    ///
    /// # Errors
    /// The folder cannot be opened or read, or belongs to another user.
    pub fn list(&self) -> Result<Vec<ListedPrompt>, GuardedError> {
        let Some(folder) = self.open()? else { return Ok(Vec::new()) };
        let listed = files(&folder)?.into_iter().map(|GuardedFile { name, bytes, modified }| {
            let prompt = PromptFile::open(&folder, &name);
            let prompt = prompt.map(|file| (file.header.name, file.header.tokens));
            ListedPrompt { path: self.path.join(name), bytes, used: modified, prompt }
        });
        Ok(listed.collect())
    }

    /// Removes all prompt files, and returns their number and total bytes. Existing mappings stay valid. Other files with
    /// the name of a prompt file stay.
    ///
    /// # Errors
    /// The folder cannot be opened or read, or belongs to another user; or a file cannot be removed.
    pub fn clear(&self) -> Result<(usize, u64), GuardedError> {
        let Some(folder) = self.open()? else { return Ok((0, 0)) };
        let (mut count, mut all) = (0, 0);
        for GuardedFile { name, bytes, .. } in files(&folder)? {
            match folder.remove(&name) {
                Ok(()) => (count, all) = (count + 1, all + bytes),
                Err(GuardedError::NotOurs { .. }) => {}
                // Another process has removed it.
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error),
            }
        }
        Ok((count, all))
    }

    /// Reports a file that is not used. A damaged one is removed, so that the prompt can be written again.
    pub(crate) fn ignore(&self, path: PathBuf, why: PromptFileError) -> IgnoredPrompt {
        if let (PromptFileError::Damaged { .. }, Some(name)) = (&why, path.file_name()) {
            // If it cannot be removed, it is ignored again the next time.
            let _ = open_folder(&self.path).and_then(|folder| folder.remove(name));
        }
        IgnoredPrompt { path, why }
    }

    /// Returns the file with the longest beginning of `tokens`, if it has more than `least` of them, for a cache with pages and states of these
    /// sizes; and the files that should have been usable and are not.
    pub(crate) fn find(
        &self,
        key: &Key,
        tokens: &[u32],
        least: usize,
        sizes: &CacheSizes<'_>,
    ) -> (Option<FoundPrompt>, Vec<IgnoredPrompt>) {
        let (mut best, mut ignored) = (None, Vec::<IgnoredPrompt>::new());
        let mut most = least;
        if tokens.len() < MIN_TOKENS {
            return (best, ignored);
        }
        // A folder that cannot be used has no prompts; writing to it reports why.
        let Ok(Some(folder)) = self.open() else { return (best, ignored) };
        let beginning = beginning(key, tokens);
        for GuardedFile { name, .. } in files_of(&folder, &beginning).unwrap_or_default() {
            let opened = PromptFile::open(&folder, &name).and_then(|file| {
                if file.header.key != *key {
                    return Err(PromptFileError::Foreign);
                }
                file.check_shape(sizes)?;
                Ok(file)
            });
            match opened {
                Ok(file) => {
                    let positions = file.usable(tokens, sizes);
                    if positions > most {
                        most = positions;
                        best = Some(FoundPrompt { file, positions });
                    }
                }
                // Another process has removed it.
                Err(PromptFileError::Guarded(error)) if error.is_missing() => {}
                Err(why) => ignored.push(self.ignore(self.path.join(name), why)),
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
        let folder = open_folder(&self.path)?;
        let name = format!(
            "{}-{}.{EXTENSION}",
            beginning(&contents.key, contents.tokens),
            short(&hash_of(&contents.key, contents.tokens)),
        );
        let (name, path) = (OsStr::new(&name), self.path.join(&name));
        if PromptFile::open(&folder, name).is_ok_and(|there| {
            there.header.key == contents.key && there.header.tokens == contents.tokens
        }) {
            return Ok(Some(path));
        }
        let mut left = (self.limit - len).saturating_sub(unfinished(&folder)?);
        for GuardedFile { name: other, bytes, .. } in files(&folder)? {
            match left.checked_sub(bytes) {
                Some(rest) if other != name => left = rest,
                Some(_) => {}
                None => {
                    // Another process may have already removed it; a file that is no prompt file stays.
                    let _ = folder.remove(&other);
                }
            }
        }
        contents.write(&folder, name)?;
        Ok(Some(path))
    }
}

/// The bytes of files that have no names of prompts yet, where a filesystem has no files without names (NFS, FUSE). Those that are no longer written
/// are removed.
///
/// # Errors
/// The folder cannot be read.
fn unfinished(folder: &GuardedFolder) -> Result<u64, GuardedError> {
    let hidden = format!(".{EXTENSION}.");
    let is_hidden = |name: &OsStr| {
        name.as_encoded_bytes().starts_with(b".")
            && name.to_str().is_some_and(|name| name.contains(&hidden) && name.ends_with(".tmp"))
    };
    let mut all = 0;
    for GuardedFile { name, bytes, modified } in folder.files(is_hidden)? {
        let age = SystemTime::now().duration_since(modified).unwrap_or_default();
        if age <= ABANDONED || folder.remove(&name).is_err() {
            all += bytes;
        }
    }
    Ok(all)
}

/// The files in a folder that are named like prompt files, most recently used first.
///
/// # Errors
/// The folder cannot be read.
fn files(folder: &GuardedFolder) -> Result<Vec<GuardedFile>, GuardedError> {
    files_of(folder, "")
}

/// Those of them whose names have this prefix.
///
/// # Errors
/// The folder cannot be read.
fn files_of(folder: &GuardedFolder, prefix: &str) -> Result<Vec<GuardedFile>, GuardedError> {
    let mut files = folder.files(|name| {
        name.as_encoded_bytes().starts_with(prefix.as_bytes())
            && Path::new(name).extension().is_some_and(|e| e == EXTENSION)
    })?;
    files.sort_by(|a, b| b.modified.cmp(&a.modified).then_with(|| a.name.cmp(&b.name)));
    Ok(files)
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
