//! The models of a repository, and their headers, before anything is fetched.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use alight_formats::Source;
use alight_formats::gguf::{self, MAX_HEADER};

use crate::api::{self, FileInfo, Listed};
use crate::client::{self, Client, Method, Trouble};
use crate::fetch::{Served, served};
use crate::pull::{named, observed};
use crate::select::{self, Model};
use crate::{Hub, HubError, Name, cache};

/// Bytes of a file that are requested first. Most headers have a vocabulary of some megabytes.
const FIRST_BYTES: u64 = 4 << 20;

/// A model of a repository of the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The model.
    pub model: Model,
    /// Bytes of all its files, if the hub reports them.
    pub bytes: Option<u64>,
    /// True if it is the one that a name without a tag stands for.
    pub is_default: bool,
}

/// A model whose headers were fetched.
#[derive(Clone, Debug)]
pub struct Header {
    /// The model.
    pub model: Model,
    /// A file for each of the model's, of the same length: its header, then a hole.
    pub paths: Vec<PathBuf>,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Bytes received.
    pub received: u64,
}

impl Hub {
    /// The models of a repository, by name, as the hub lists them. `is_stopped` is asked several times per second.
    ///
    /// # Errors
    /// The hub or the network prevents it, or it was stopped.
    pub fn offers(
        &self,
        name: &Name,
        is_stopped: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<Offer>, HubError> {
        self.asking(name, is_stopped, |client, stopped| {
            let listing = api::listing(client, name, stopped)?;
            let models = select::models(listing.sizes());
            let default = select::choose(&name.repo, &models, None).ok().cloned();
            let size = |path: &String| {
                listing.files.iter().find(|file| file.path == *path).and_then(|file| file.size)
            };
            let bytes = |model: &Model| {
                model.files.iter().map(size).try_fold(0_u64, |sum, size| sum.checked_add(size?))
            };
            let offer = |model: Model| Offer {
                bytes: bytes(&model),
                is_default: default.as_ref() == Some(&model),
                model,
            };
            match models.is_empty() {
                true => Err(HubError::NoModels { repo: name.repo.clone(), safetensors: false }),
                false => Ok(models.into_iter().map(offer).collect()),
            }
        })
    }

    /// Fetches the headers of a model's files into a folder, under the files' names, and nothing into the cache.
    ///
    /// # Errors
    /// The hub or the network prevents it, a file is not GGUF, or it was stopped.
    pub fn header(
        &self,
        name: &Name,
        folder: &Path,
        is_stopped: &mut dyn FnMut() -> bool,
    ) -> Result<Header, HubError> {
        self.asking(name, is_stopped, |client, stopped| {
            let (listing, model) = named(client, name, stopped)?;
            let files = api::files(client, name, &listing, &model.files, stopped)?;
            let headers =
                files.iter().map(|(listed, info)| header_of(client, listed, info, stopped));
            // All of them come before the first file is created, since they may take long, and the process may be killed meanwhile.
            let headers = headers.collect::<Result<Vec<_>, _>>()?;
            let (mut paths, mut received, mut bytes) = (Vec::new(), 0, 0);
            for ((listed, _), head) in files.iter().zip(headers) {
                let name = listed.path.rsplit('/').next().unwrap_or(&listed.path);
                let path = folder.join(name);
                sparse(&path, &head.bytes, head.len).map_err(HubError::cache(&path))?;
                received += head.bytes.len() as u64;
                bytes += head.len;
                paths.push(path);
            }
            Ok(Header { model, paths, bytes, received })
        })
    }

    fn asking<T: Send>(
        &self,
        name: &Name,
        is_stopped: &mut dyn FnMut() -> bool,
        work: impl FnOnce(&Client, &dyn Fn() -> bool) -> Result<T, HubError> + Send,
    ) -> Result<T, HubError> {
        if self.settings.offline {
            return Err(cache::not_there(&self.settings.cache, name));
        }
        let client = Client::new(&self.settings, self.pause)?;
        let stop = AtomicBool::new(false);
        observed(&self.settings, &client, &stop, is_stopped, || {
            work(&client, &|| stop.load(Ordering::Relaxed))
        })
    }
}

/// The beginning of a file.
struct Beginning {
    bytes: Vec<u8>,
    /// Bytes of the whole file.
    len: u64,
    /// True if bytes after the beginning were asked for.
    is_short: Cell<bool>,
}

impl<'a> Source<'a> for &'a Beginning {
    fn len(&self) -> u64 {
        self.len
    }

    fn get(&self, range: Range<u64>) -> Option<&'a [u8]> {
        let found = Source::get(&self.bytes.as_slice(), range);
        self.is_short.set(self.is_short.get() || found.is_none());
        found
    }

    fn read(&self, at: u64, to: &mut [u8]) -> bool {
        let found = Source::read(&self.bytes.as_slice(), at, to);
        self.is_short.set(self.is_short.get() || !found);
        found
    }
}

/// Fetches a file from its beginning until its header is complete.
fn header_of(
    client: &Client,
    listed: &Listed,
    info: &FileInfo,
    stopped: &dyn Fn() -> bool,
) -> Result<Beginning, HubError> {
    let mut head = Beginning { bytes: Vec::new(), len: info.size, is_short: Cell::new(false) };
    let mut end = FIRST_BYTES;
    loop {
        end = end.min(info.size).min(MAX_HEADER as u64);
        let more = head.bytes.len() as u64..end;
        if !more.is_empty() {
            let next = || (0, range_of(client, listed, info, more.clone()));
            head.bytes.extend(client.patiently(stopped, next)?);
        }
        head.is_short.set(false);
        match gguf::parse(&head) {
            Ok(_) => return Ok(head),
            Err(_) if head.is_short.get() && end < info.size.min(MAX_HEADER as u64) => end *= 2,
            Err(error) => {
                return Err(HubError::Header {
                    file: listed.path.clone(),
                    problem: error.to_string(),
                });
            }
        }
    }
}

/// Fetches a range of a file.
fn range_of(
    client: &Client,
    listed: &Listed,
    info: &FileInfo,
    range: Range<u64>,
) -> Result<Vec<u8>, Trouble> {
    let answer = client.send(Method::Get, &info.location, Some((range.start, range.end - 1)))?;
    let url = answer.url.clone();
    let skipped = match served(&answer, listed, info, &range)? {
        Some(Served::Range) => 0,
        // Of the whole file, the end is not read.
        Some(Served::Whole) => range.start,
        None => return Err(client::status(&answer)),
    };
    let lost = |error: io::Error| Trouble::Again(client::connection(&url, &error), None);
    let mut body = answer.response.into_body().into_reader();
    io::copy(&mut body.by_ref().take(skipped), &mut io::sink()).map_err(lost)?;
    let wanted = range.end - range.start;
    let mut bytes = Vec::new();
    body.take(wanted).read_to_end(&mut bytes).map_err(lost)?;
    match bytes.len() as u64 == wanted {
        true => Ok(bytes),
        false => Err(lost(io::ErrorKind::UnexpectedEof.into())),
    }
}

/// Creates a file of `len` bytes that begins with these.
fn sparse(path: &Path, bytes: &[u8], len: u64) -> io::Result<()> {
    let file = File::create_new(path)?;
    file.set_len(len)?;
    file.write_all_at(bytes, 0)
}
