//! The GGUF files of a model: finding and mapping them; their headers, copied and parsed; and all
//! tensors in one catalog. Everything that opens a model goes through here: the engine, the
//! converters, `inspect` and the Python package. [`folders`] names this user's folders for what is
//! kept of models.
//!
//! It must never interpret a tensor, or a key other than those that link shards, and must never
//! print.
//!
//! **Invariant:** a header is parsed from a copy and never from the map, which other processes can
//! write to ([`Header`]). The copies belong to the caller, because a catalog borrows from them.
//!
//! **Invariant:** every error names a file. A file that was truncated while it was read is reported
//! as truncated, and not as whatever was missing in it.
//!
//! # Example
//!
//! ```
//! use alight_formats::GgmlType;
//! use alight_formats::gguf::write::Builder;
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("model.gguf");
//! let mut file = Builder::new();
//! file.str("general.architecture", "llama");
//! file.tensor("output_norm.weight", GgmlType::F32, &[4])?;
//! std::fs::write(&path, file.file(|_, bytes| bytes.fill(0)))?;
//!
//! let maps = alight_files::open(&path)?; // one map for each shard
//! let copies = alight_files::copies(&maps);
//! let headers = alight_files::headers(&maps, &copies)?;
//! let tensor = headers.catalog.get("output_norm.weight").expect("a tensor of the file");
//! assert_eq!(tensor.info.shape(), [4]);
//! assert_eq!(&maps[tensor.shard].bytes()[tensor.info.range()], [0; 16]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod folders;

use std::borrow::Borrow;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use alight_formats::gguf::{self, Gguf, GgufError, Value};
use alight_formats::split::{self, Catalog, Shard, ShardName, SplitError};
use alight_formats::{Header, Memory};
use alight_pages::{Map, MapError, Region};
use thiserror::Error;

/// Why a model's files cannot be opened or read. Every message names the file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FilesError {
    /// A file cannot be mapped, has been truncated since, or cannot be read.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A header is invalid.
    #[error("{}: {source}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The error in it.
        source: GgufError,
    },
    /// Shards do not form a model.
    #[error("{}: {source}", path.display())]
    Split {
        /// The requested shard.
        path: PathBuf,
        /// The error in the set.
        source: SplitError,
    },
}

/// The headers of a model's files, and all tensors.
#[derive(Debug)]
pub struct Headers<'h> {
    /// The parsed headers, in the order of the shards.
    pub files: Vec<Gguf<'h>>,
    /// The tensors of all files.
    pub catalog: Catalog<'h>,
}

impl<'h> Headers<'h> {
    /// Checks parsed headers against each other, and merges them into one catalog.
    ///
    /// # Errors
    /// [`FilesError::Split`].
    pub fn merge<M: Borrow<Map>>(
        maps: &[M],
        files: Vec<Gguf<'h>>,
    ) -> Result<Headers<'h>, FilesError> {
        let names: Vec<String> = maps.iter().map(|map| file_name(map.borrow().path())).collect();
        let shards: Vec<Shard<'_, '_>> =
            names.iter().zip(&files).map(|(name, gguf)| Shard { name, gguf }).collect();
        let catalog = split::merge(&shards).map_err(|source| {
            let path = maps.first().map(|map| map.borrow().path().into()).unwrap_or_default();
            FilesError::Split { path, source }
        })?;
        Ok(Headers { files, catalog })
    }

    /// Returns the metadata of the model without the keys that link shards.
    pub fn metadata(&self) -> Vec<(&'h str, Value<'h>)> {
        let split = self.files.len() > 1;
        let all = self.files.first().map(|gguf| gguf.metadata.iter()).into_iter().flatten();
        all.filter(|(key, _)| !split || !key.starts_with("split.")).copied().collect()
    }
}

/// Maps the model at `path`: one file, or all shards of a split model, in order.
///
/// # Errors
/// A file cannot be mapped, or the header of the file at `path` is invalid or does not match a shard of that name.
pub fn open(path: &Path) -> Result<Vec<Map>, FilesError> {
    open_with(path, |path| Ok(Map::open(path)?))
}

/// Like [`open`]; `map` maps each file.
///
/// # Errors
/// Those of [`open`], and the errors of `map`.
pub fn open_with<E: From<FilesError>>(
    path: &Path,
    map: impl Fn(&Path) -> Result<Map, E>,
) -> Result<Vec<Map>, E> {
    let first = map(path)?;
    let others = {
        let copy = copy(&first);
        shards(&first, &parse(&first, &copy)?)?
    };
    match others {
        None => Ok(vec![first]),
        Some(paths) => paths.iter().map(|path| map(path)).collect(),
    }
}

/// Returns the paths of all shards of the split model that a file belongs to, in order; `None` if it is a model by itself.
///
/// # Errors
/// [`FilesError::Split`]: its name does not match its header.
pub fn shards(map: &Map, gguf: &Gguf<'_>) -> Result<Option<Vec<PathBuf>>, FilesError> {
    let path = map.path();
    let names = split::names(&file_name(path), gguf)
        .map_err(|source| FilesError::Split { path: path.into(), source })?;
    let paths = || names.iter().map(|name| path.with_file_name(name)).collect();
    Ok((names.len() > 1).then(paths))
}

/// Returns a copy of a file's header, which is filled while the header is parsed.
pub fn copy(map: &Map) -> Header<'_> {
    let read = map.reader();
    Header::new(map.len() as u64, move |to, at| in_halves(&read, to, at)).with_memory(memory)
}

/// Reads a large piece (a long vocabulary) with two threads: everything else waits for it.
fn in_halves(read: &(impl Fn(&mut [u8], u64) -> bool + Sync), to: &mut [u8], at: u64) -> bool {
    /// Reading this many bytes takes several times as long as starting a thread.
    const LARGE: usize = 2 << 20;
    if to.len() < LARGE {
        return read(to, at);
    }
    let half = to.len() / 2;
    let (first, second) = to.split_at_mut(half);
    let first = Mutex::new(first);
    let first_half = || first.lock().is_ok_and(|mut first| read(&mut first, at));
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("alight-header".into());
        let other = thread.spawn_scoped(scope, first_half);
        let second = read(second, at + half as u64);
        // The system may refuse another thread.
        second & other.map_or_else(|_| first_half(), |other| other.join().unwrap_or(false))
    })
}

/// Allocates memory for a piece of a header. A large one, for a long vocabulary, is in huge pages: its first touch would
/// otherwise take longer than copying into it.
fn memory(len: usize) -> Option<Box<dyn Memory>> {
    /// From this size, most of a huge page is used: a vocabulary stays there while the model is open.
    const LARGE: usize = 3 << 19;
    struct Huge(Region);
    impl Memory for Huge {
        fn bytes(&self) -> &[u8] {
            self.0.bytes()
        }

        fn bytes_mut(&mut self) -> &mut [u8] {
            self.0.bytes_mut()
        }
    }
    if len < LARGE {
        return Some(Box::new(vec![0u8; len]));
    }
    // In whole huge pages, or the system gives small ones. Untouched memory costs nothing.
    let region = Region::new(len.checked_next_multiple_of(Region::HUGE)?).ok()?;
    Some(Box::new(Huge(region)))
}

/// Returns a [`copy`] for each map.
pub fn copies<M: Borrow<Map>>(maps: &[M]) -> Vec<Header<'_>> {
    maps.iter().map(|map| copy(map.borrow())).collect()
}

/// Parses the header of one file into its copy.
///
/// # Errors
/// [`FilesError::Header`]. A file that was truncated meanwhile is reported as truncated.
pub fn parse<'h>(map: &Map, copy: &'h Header<'_>) -> Result<Gguf<'h>, FilesError> {
    let parsed = gguf::parse(copy);
    map.check()?;
    parsed.map_err(|source| FilesError::Header { path: map.path().into(), source })
}

/// Parses the headers of all files of a model into their [`copies`], and checks them against each other.
///
/// # Errors
/// Those of [`parse`] and [`Headers::merge`].
pub fn headers<'h, M: Borrow<Map>>(
    maps: &[M],
    copies: &'h [Header<'_>],
) -> Result<Headers<'h>, FilesError> {
    let files = maps.iter().zip(copies).map(|(map, copy)| parse(map.borrow(), copy));
    Headers::merge(maps, files.collect::<Result<Vec<_>, _>>()?)
}

/// Returns all files of the model that `path` is or belongs to, and true if it is packed.
///
/// # Errors
/// The file cannot be mapped, or its header is invalid.
pub fn shards_and_layout(path: &Path) -> Result<(Vec<PathBuf>, bool), FilesError> {
    let map = Map::open(path)?;
    let copy = copy(&map);
    let gguf = parse(&map, &copy)?;
    let shards = shards(&map, &gguf)?.unwrap_or_else(|| vec![path.to_owned()]);
    Ok((shards, gguf.packed))
}

/// Returns the name of the packed file next to a model.
pub fn packed_name(model: &Path) -> String {
    let name = file_name(model);
    let whole = model.file_stem().unwrap_or_default().to_string_lossy();
    let stem = ShardName::parse(&name).map_or(&*whole, |shard| shard.prefix);
    format!("{stem}.packed.gguf")
}

/// Returns the name of a file without its folder.
pub fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
