//! The format of a prompt file, see `docs/reference/prompt-cache.md`: a header with all tokens, then pages of keys and values in their in-memory
//! layout, of layers that keep all positions and then of layers with a window, then states of recurrent layers.
//!
//! Invariant: no length, offset or token is taken from the file before the header's checksum and its limits have been checked; the data after the
//! header is only used in computations.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use alight_pages::{GuardedError, GuardedFolder, Map, MapError, NotOurs, ReplaceError, page_size};
use thiserror::Error;

use super::CacheSizes;
use crate::positions::POSITIONS;

const MAGIC: &[u8; 8] = b"ALIGHTPC";
const VERSION: u32 = 2;
/// Bytes of the header before the name.
const FIXED: usize = 124;
/// Maximum size of a header: some eight million tokens.
const MAX_HEADER: usize = 64 << 20;
/// Alignment of pages, a multiple of all system page sizes.
const ALIGNMENT: u64 = 64 << 10;

/// Identifies the computation and the shape of a prompt: another model, another arithmetic or another salt yields another key.
pub(crate) type Key = [u8; 32];

/// Why a prompt file is unusable.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PromptFileError {
    /// It cannot be mapped, or was truncated while in use. Names the file.
    #[error(transparent)]
    Map(#[from] MapError),
    /// It cannot be opened, or is not this user's, or its folder is not. Names the file or the folder.
    #[error(transparent)]
    Guarded(#[from] GuardedError),
    /// It is not a prompt file.
    #[error("it is not a prompt file: it begins with {found:02x?} instead of \"ALIGHTPC\"")]
    Magic {
        /// The first bytes.
        found: Vec<u8>,
    },
    /// It was written by a later or an earlier version of the program.
    #[error("it has version {found} of the format, and this program reads version {VERSION}")]
    Version {
        /// The version.
        found: u32,
    },
    /// Its parts are inconsistent, or a checksum is wrong.
    #[error("it is damaged: {what}")]
    Damaged {
        /// The mistake.
        what: String,
    },
    /// It was computed by another model, or by another build, precision or SIMD level.
    #[error("it was computed by another model, program, precision or SIMD level")]
    Foreign,
}

/// A prompt file could not be added to the cached prompts.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// It is unusable.
    #[error(transparent)]
    File(#[from] PromptFileError),
    /// All sequences are busy, or prompts are not cached.
    #[error(
        "no sequence is free for it now: every sequence is busy, or nothing is kept of prompts"
    )]
    NoRoom,
}

/// A prompt file cannot be written. Only the time that it would have saved is lost.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PromptWriteError {
    /// Its folder, or the file that has its name, cannot be created or read.
    #[error("{}: {source}", path.display())]
    Folder {
        /// The folder or the file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Its folder is another user's. Names the folder.
    #[error(transparent)]
    FolderOfOthers(GuardedError),
    /// Another file has its name: one that is not a prompt file of this user's.
    #[error(
        "{}: {why}, and stays: a prompt replaces only a prompt file of yours; move it to another folder, or give another folder",
        path.display()
    )]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// The difference.
        why: NotOurs,
    },
    /// It cannot be written: the disk fails or is full. Names the file.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
}

impl From<GuardedError> for PromptWriteError {
    fn from(error: GuardedError) -> PromptWriteError {
        match error {
            GuardedError::System { path, source } => PromptWriteError::Folder { path, source },
            GuardedError::NotOurs { path, why } => PromptWriteError::NotOurs { path, why },
            GuardedError::Replace(error) => PromptWriteError::Replace(error),
            error => PromptWriteError::FolderOfOthers(error),
        }
    }
}

/// The states of recurrent layers in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StatesAt {
    bytes: Range<u64>,
    /// The number of tokens in them.
    after: u64,
    crc: u32,
}

/// The header of a prompt file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) key: Key,
    /// The model's name, for the user.
    pub(crate) name: String,
    pub(crate) tokens: Vec<u32>,
    /// Bytes of a page of layers that keep all positions.
    stride: u64,
    /// Bytes of a page of layers with a window; 0 if there are none.
    window_stride: u64,
    /// The number of pages, and the first of those for layers with a window, which all later ones follow.
    pages: usize,
    window: usize,
    pages_at: u64,
    /// The checksum of each page.
    crcs: Vec<u32>,
    states: Option<StatesAt>,
}

/// An open prompt file.
pub(crate) struct PromptFile {
    pub(crate) map: Arc<Map>,
    pub(crate) header: Header,
}

/// The contents of a file to be written.
pub(crate) struct Contents<'c> {
    pub(crate) key: Key,
    pub(crate) name: &'c str,
    pub(crate) tokens: &'c [u32],
    /// All of the same size.
    pub(crate) pages: Vec<&'c [u8]>,
    /// The last pages of layers with a window, all of the same size.
    pub(crate) windows: Vec<&'c [u8]>,
    /// The states of recurrent layers, and the number of tokens in them.
    pub(crate) states: Option<(&'c [u8], usize)>,
}

fn damaged(what: impl Into<String>) -> PromptFileError {
    PromptFileError::Damaged { what: what.into() }
}

/// Numbers from the header, little-endian.
struct Fields<'f>(&'f [u8]);

impl Fields<'_> {
    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }

    fn u32s(&self, range: Range<usize>) -> Vec<u32> {
        let bytes = self.0[range].chunks_exact(4);
        bytes.map(|b| u32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
    }
}

impl Header {
    /// Reads the header of a file of `len` bytes; `read(to, at)` returns whether it could fill `to`.
    ///
    /// # Errors
    /// See [`PromptFileError`].
    pub(crate) fn read(
        len: u64,
        read: &dyn Fn(&mut [u8], u64) -> bool,
    ) -> Result<Header, PromptFileError> {
        let short = || damaged(format!("it ends within its header, after {len} bytes"));
        let mut fixed = [0; FIXED];
        let there = len.min(FIXED as u64) as usize;
        if !read(&mut fixed[..there], 0) {
            return Err(short());
        }
        if fixed[..8] != MAGIC[..] {
            return Err(PromptFileError::Magic { found: fixed[..there.min(8)].to_vec() });
        }
        if there < FIXED {
            return Err(short());
        }
        let f = Fields(&fixed);
        if f.u32(8) != VERSION {
            return Err(PromptFileError::Version { found: f.u32(8) });
        }
        let header_len = f.u32(12) as usize;
        if !(FIXED + 4..=MAX_HEADER).contains(&header_len) || header_len as u64 > len {
            return Err(damaged(format!("a header of {header_len} bytes in a file of {len}")));
        }
        let mut bytes = vec![0; header_len];
        if !read(&mut bytes, 0) {
            return Err(short());
        }
        Header::parse(&bytes, len)
    }

    /// Parses a complete header.
    fn parse(bytes: &[u8], len: u64) -> Result<Header, PromptFileError> {
        let f = Fields(bytes);
        let end = bytes.len() - 4;
        if crc32fast::hash(&bytes[..end]) != f.u32(end) {
            return Err(damaged("the checksum of its header is wrong"));
        }
        let (count, name_len, pages) = (f.u64(48), f.u32(104), f.u32(60));
        let (window_stride, window) = (f.u64(112), f.u32(120));
        let Some(windows) = pages.checked_sub(window) else {
            return Err(damaged(format!("pages of windows from {window} on, of {pages}")));
        };
        let after_name = FIXED as u64 + u64::from(name_len);
        let expected = count.checked_mul(4).and_then(|tokens| {
            let crcs = 4 * (u64::from(pages) + u64::from(windows));
            after_name.checked_add(tokens)?.checked_add(crcs)?.checked_add(4)
        });
        if expected != Some(bytes.len() as u64) || f.u32(12) as usize != bytes.len() {
            return Err(damaged("its header has another length than its parts"));
        }
        if u64::from(pages) != count.div_ceil(POSITIONS as u64) || f.u32(56) != POSITIONS as u32 {
            return Err(damaged(format!("{count} tokens in {pages} pages of {}", f.u32(56))));
        }
        let (stride, pages_at) = (f.u64(64), f.u64(72));
        let pages_end = u64::from(pages).checked_mul(stride).and_then(|full| {
            let windows = u64::from(windows).checked_mul(window_stride)?;
            pages_at.checked_add(full)?.checked_add(windows)
        });
        let states = [80, 88, 96].map(|at| f.u64(at));
        let states_end = states[0].checked_add(states[1]);
        let whole = states[1] == 0 && pages_end == Some(len)
            || states[1] > 0 && pages_end == Some(states[0]) && states_end == Some(len);
        if !pages_at.is_multiple_of(ALIGNMENT) || pages_at < bytes.len() as u64 || !whole {
            return Err(damaged(format!("it has {len} bytes, and its parts have others")));
        }
        if states[2] > count || (states[1] == 0) != (states[2] == 0) {
            return Err(damaged(format!("states after {} of {count} tokens", states[2])));
        }
        if window_stride == 0 && windows > 0 {
            return Err(damaged(format!("{windows} pages of windows without bytes")));
        }
        let name_end = after_name as usize;
        let tokens_end = name_end + count as usize * 4;
        let name = std::str::from_utf8(&bytes[FIXED..name_end]);
        Ok(Header {
            key: bytes[16..48].try_into().expect("32 bytes"),
            name: name.map_err(|_| damaged("its name is not UTF-8"))?.to_owned(),
            tokens: f.u32s(name_end..tokens_end),
            stride,
            window_stride,
            pages: pages as usize,
            window: window as usize,
            pages_at,
            crcs: f.u32s(tokens_end..end),
            states: (states[1] > 0).then(|| StatesAt {
                bytes: states[0]..states[0] + states[1],
                after: states[2],
                crc: f.u32(108),
            }),
        })
    }
}

impl Contents<'_> {
    /// Builds the header, and returns it with the offset of the pages.
    fn header(&self) -> (Vec<u8>, u64) {
        let len = self.header_len();
        let pages_at = (len as u64).next_multiple_of(ALIGNMENT);
        let [stride, window_stride] = self.strides();
        let (states, after) = self.states.unwrap_or_default();
        let states_at = match states.is_empty() {
            true => 0,
            false => pages_at + self.pages_len() as u64,
        };
        let mut header = Vec::with_capacity(len);
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend((len as u32).to_le_bytes());
        header.extend(self.key);
        header.extend((self.tokens.len() as u64).to_le_bytes());
        header.extend((POSITIONS as u32).to_le_bytes());
        header.extend((self.pages.len() as u32).to_le_bytes());
        for number in [stride as u64, pages_at, states_at, states.len() as u64, after as u64] {
            header.extend(number.to_le_bytes());
        }
        header.extend((self.name.len() as u32).to_le_bytes());
        header.extend(crc32fast::hash(states).to_le_bytes());
        header.extend((window_stride as u64).to_le_bytes());
        header.extend(((self.pages.len() - self.windows.len()) as u32).to_le_bytes());
        header.extend(self.name.as_bytes());
        self.tokens.iter().for_each(|token| header.extend(token.to_le_bytes()));
        for page in self.pages.iter().chain(&self.windows) {
            header.extend(crc32fast::hash(page).to_le_bytes());
        }
        header.extend(crc32fast::hash(&header).to_le_bytes());
        (header, pages_at)
    }

    /// The size of the file in bytes.
    pub(crate) fn len(&self) -> u64 {
        let states = self.states.map_or(0, |(states, _)| states.len());
        let header = (self.header_len() as u64).next_multiple_of(ALIGNMENT);
        header + (self.pages_len() + states) as u64
    }

    fn header_len(&self) -> usize {
        let pages = self.pages.len() + self.windows.len();
        FIXED + self.name.len() + 4 * (self.tokens.len() + pages) + 4
    }

    /// The bytes of a page of either kind.
    fn strides(&self) -> [usize; 2] {
        [&self.pages, &self.windows].map(|pages| pages.first().map_or(0, |page| page.len()))
    }

    /// The bytes of all pages.
    fn pages_len(&self) -> usize {
        let [stride, window_stride] = self.strides();
        stride * self.pages.len() + window_stride * self.windows.len()
    }

    /// Writes the file atomically; only this user may read it. It replaces only a prompt file.
    ///
    /// # Errors
    /// See [`PromptWriteError`].
    pub(crate) fn write(
        &self,
        folder: &GuardedFolder,
        name: &OsStr,
    ) -> Result<(), PromptWriteError> {
        let (header, pages_at) = self.header();
        folder.write(name, self.len(), |mut file| {
            file.write_all(&header)?;
            file.write_all(&vec![0; (pages_at - header.len() as u64) as usize])?;
            let pages = self.pages.iter().chain(&self.windows);
            pages.into_iter().try_for_each(|page| file.write_all(page))?;
            file.write_all(self.states.unwrap_or_default().0)
        })?;
        Ok(())
    }
}

/// Opens the folder at `path` for prompt files.
///
/// # Errors
/// It cannot be opened, or belongs to another user.
pub(crate) fn open_folder(path: &Path) -> Result<GuardedFolder, GuardedError> {
    GuardedFolder::open(path, MAGIC)
}

/// Opens the folder of the prompt file at `path`, which need not exist, and returns it with the file's name.
///
/// # Errors
/// As [`open_folder`]; no file can have this path.
pub(crate) fn in_folder(path: &Path) -> Result<(GuardedFolder, &OsStr), GuardedError> {
    let no_name =
        || GuardedError::System { path: path.into(), source: io::ErrorKind::InvalidInput.into() };
    let name = path.file_name().ok_or_else(no_name)?;
    Ok((open_folder(path.parent().unwrap_or(Path::new("")))?, name))
}

impl PromptFile {
    /// Opens a file of the folder. Its pages are not read.
    ///
    /// # Errors
    /// See [`PromptFileError`].
    pub(crate) fn open(
        folder: &GuardedFolder,
        name: &OsStr,
    ) -> Result<PromptFile, PromptFileError> {
        let map = Map::of_file(folder.read(name)?, &folder.path_of(name))?;
        let header = Header::read(map.len() as u64, &map.reader());
        map.check()?;
        Ok(PromptFile { map: Arc::new(map), header: header? })
    }

    /// Checks that the file matches a cache with pages and states of these sizes.
    ///
    /// # Errors
    /// [`PromptFileError::Foreign`] if its shape differs, or if its page size is not a multiple of the system's, so that its pages cannot be mapped.
    pub(crate) fn check_shape(&self, sizes: &CacheSizes<'_>) -> Result<(), PromptFileError> {
        let h = &self.header;
        let own = h.states.as_ref().map_or(0, |s| s.bytes.end - s.bytes.start);
        let mapped = [sizes.page, sizes.window_page].map(|page| page.is_multiple_of(page_size()));
        let pages = h.stride == sizes.page as u64
            // At a place that needs none, there are none.
            && (h.window_stride == sizes.window_page as u64 || h.window == h.pages);
        let fits = pages && (own == sizes.states as u64 || own == 0) && mapped == [true; 2];
        if fits { Ok(()) } else { Err(PromptFileError::Foreign) }
    }

    /// The first page that it has of layers with a window.
    pub(crate) fn first_window(&self) -> usize {
        self.header.window
    }

    /// The range of pages of layers with a window among all pages of the file.
    pub(crate) fn window_run(&self, pages: Range<usize>) -> Range<usize> {
        let before = self.header.pages - self.header.window;
        pages.start + before..pages.end + before
    }

    /// The bytes of a range of pages, which are all of one kind.
    pub(crate) fn bytes_of(&self, pages: Range<usize>) -> Range<usize> {
        let Header { stride, window_stride, pages: full, pages_at, .. } = self.header;
        let (before, each, first) = match pages.start.checked_sub(full) {
            None => (0, stride as usize, pages.start),
            Some(window) => (full * stride as usize, window_stride as usize, window),
        };
        let start = pages_at as usize + before + first * each;
        start..start + pages.len() * each
    }

    /// Returns true if the checksum of page `i` is correct.
    pub(crate) fn is_page(&self, i: usize, bytes: &[u8]) -> bool {
        crc32fast::hash(bytes) == self.header.crcs[i]
    }

    /// The number of tokens of a prompt that can be reused from this file by a cache of these sizes.
    pub(crate) fn usable(&self, tokens: &[u32], sizes: &CacheSizes<'_>) -> usize {
        let most = crate::positions::common(&self.header.tokens, tokens);
        let after = self.header.states.as_ref().map_or(0, |states| states.after as usize);
        let usable = match sizes.states > 0 {
            true if after <= most => after,
            true => 0,
            false => most,
        };
        let windows = sizes.windows;
        let seen = windows.is_empty() || windows.needed_from(usable) >= self.header.window;
        if seen { usable } else { 0 }
    }

    /// Reads the states of recurrent layers, if there are any and their checksum is correct.
    ///
    /// # Errors
    /// The checksum is wrong, or the file cannot be read.
    pub(crate) fn read_states(&self, to: &mut [u8]) -> Result<(), PromptFileError> {
        let Some(states) = &self.header.states else { return Ok(()) };
        self.map.read(to, states.bytes.start)?;
        match crc32fast::hash(to) == states.crc {
            true => Ok(()),
            false => Err(damaged("the checksum of its states is wrong")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(tokens: usize, windows: usize, states: Option<(&[u8], usize)>) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let tokens: Vec<u32> = (0..tokens as u32).collect();
        let pages = vec![vec![3u8; 64 << 10]; tokens.len().div_ceil(POSITIONS)];
        let pages = pages.iter().map(Vec::as_slice).collect();
        let windows = vec![vec![5u8; 16 << 10]; windows];
        let windows = windows.iter().map(Vec::as_slice).collect();
        let (key, name) = ([7; 32], "tiny");
        let contents = Contents { key, name, tokens: &tokens, pages, windows, states };
        let (folder, name) = in_folder(&path).unwrap();
        contents.write(&folder, name).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), contents.len());
        std::fs::read(path).unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Header, PromptFileError> {
        Header::read(bytes.len() as u64, &|to, at| {
            let from = bytes.get(at as usize..).and_then(|bytes| bytes.get(..to.len()));
            from.is_some_and(|from| {
                to.copy_from_slice(from);
                true
            })
        })
    }

    #[test]
    fn what_was_written_is_read() {
        for states in [None, Some((&[5; 40][..], 64))] {
            let header = read(&written(150, 2, states)).unwrap();
            assert_eq!((header.tokens.len(), &header.name[..], header.key), (150, "tiny", [7; 32]));
            assert_eq!((header.crcs.len(), header.window, header.window_stride), (5, 1, 16 << 10));
            let none = read(&written(150, 0, states)).unwrap();
            assert_eq!((none.crcs.len(), none.window, none.window_stride), (3, 3, 0));
            assert_eq!(header.states.map(|s| s.after), states.map(|_| 64));
        }
    }

    #[test]
    fn a_file_that_is_cut_anywhere_is_refused() {
        let bytes = written(150, 1, Some((&[5; 40], 64)));
        let cuts = (0..200).chain((200..bytes.len()).step_by(997)).chain([bytes.len() - 1]);
        for cut in cuts {
            assert!(read(&bytes[..cut]).is_err(), "{cut}");
        }
        assert!(read(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn every_changed_bit_of_the_header_is_noticed() {
        let bytes = written(70, 1, None);
        let header_len = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
        for bit in 0..header_len * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn numbers_that_do_not_fit_together_are_refused_whatever_the_checksum_says() {
        let bytes = written(70, 1, Some((&[5; 40], 64)));
        let header_len = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
        // Each number of the header, made small, large and absurd.
        for (at, len) in [
            (12, 4),
            (48, 8),
            (56, 4),
            (60, 4),
            (64, 8),
            (72, 8),
            (80, 8),
            (88, 8),
            (96, 8),
            (104, 4),
            (112, 8),
            (120, 4),
        ] {
            for number in [0u64, 1, 3, 65, 1 << 20, u64::from(u32::MAX), 1 << 62, u64::MAX] {
                let mut bytes = bytes.clone();
                let before = bytes[at..at + len].to_vec();
                bytes[at..at + len].copy_from_slice(&number.to_le_bytes()[..len]);
                let crc = crc32fast::hash(&bytes[..header_len - 4]);
                bytes[header_len - 4..header_len].copy_from_slice(&crc.to_le_bytes());
                // States may be after any number of its tokens, except none.
                let right = at == 96 && (1..=70).contains(&number);
                let same = bytes[at..at + len] == before[..];
                assert!(same || right || read(&bytes).is_err(), "{number} at {at}");
            }
        }
    }
}
