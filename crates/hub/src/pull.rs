//! A pull: reads the hub's listing, selects a model, and fetches one file after another, or all of them in the order in which they are
//! read.

use std::collections::HashSet;
use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use alight_pages::{Folder, IncomingQueue, Map};

use crate::api::{self, FileInfo, Listed, Listing};
use crate::cache;
use crate::cache::{Lock, RepoFolder};
use crate::client::Client;
use crate::error::{NO_HASH, OTHER_NAME, SEVERAL_FILES, TAKEN_NAME};
use crate::fetch::{self, Job, JobFile};
use crate::partial::{PIECE, Partial};
use crate::select::{self, Model};
use crate::{Event, HubError, Name, OnEvent, Pulled, Settings};

/// Interval between two reports of progress.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// A message from the pulling thread to the calling thread.
enum Message {
    Chosen { model: Model, bytes: u64, there: u64 },
    Waiting(String),
    Refetched(String),
    Readable(Vec<Arc<Map>>),
    OnlyWhole,
}

/// When the files of a model may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// When all of them are complete.
    Complete,
    /// While they come. The order of their bytes is that in which they are asked for.
    Coming,
    /// When it is complete; then it is packed, and its packed form is kept in its place.
    Packed,
}

/// A file of a model, before it is fetched.
enum Found {
    /// It is in the cache, at this path.
    There(PathBuf),
    /// It has to be fetched, and this process holds its lock.
    Missing(Lock),
}

/// A pull in progress.
struct Pull<'a> {
    settings: &'a Settings,
    client: &'a Client,
    name: &'a Name,
    reading: Reading,
    folder: RepoFolder,
    messages: Sender<Message>,
    received: AtomicU64,
    total: AtomicU64,
    stop: AtomicBool,
}

/// See [`Hub::pull`](crate::Hub::pull). The work is done in its own thread, so that the observer can stop it at any time.
pub(crate) fn pull(
    settings: &Settings,
    pause: Duration,
    name: &Name,
    reading: Reading,
    on_event: &mut OnEvent<'_>,
) -> Result<Pulled, HubError> {
    if settings.offline {
        return Err(cache::not_there(&settings.cache, name));
    }
    let client = Client::new(settings, pause)?;
    let (messages, inbox) = mpsc::channel();
    let pull = Pull {
        settings,
        client: &client,
        name,
        reading,
        folder: RepoFolder::new(&settings.cache, &name.repo),
        messages,
        received: AtomicU64::new(0),
        total: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    let mut tell = || {
        let mut stop = false;
        let mut tell = |event: Event<'_>| stop |= on_event(event) == ControlFlow::Break(());
        while let Ok(message) = inbox.try_recv() {
            tell(match &message {
                Message::Chosen { model, bytes, there } => {
                    Event::Chosen { model, bytes: *bytes, there: *there }
                }
                Message::Waiting(file) => Event::Waiting { file },
                Message::Refetched(file) => Event::Refetched { file },
                Message::Readable(maps) => Event::Readable { maps },
                Message::OnlyWhole => Event::OnlyWhole,
            });
        }
        let received = pull.received.load(Ordering::Relaxed);
        tell(Event::Progress { received, total: pull.total.load(Ordering::Relaxed) });
        stop
    };
    observed(settings, &client, &pull.stop, &mut tell, || pull.run())
}

/// Does work that waits for servers in its own thread, so that it can be stopped at any time: when `is_stopped`, which is asked
/// several times per second and once after the end, returns true.
pub(crate) fn observed<T: Send>(
    settings: &Settings,
    client: &Client,
    stop: &AtomicBool,
    is_stopped: &mut dyn FnMut() -> bool,
    work: impl FnOnce() -> Result<T, HubError> + Send,
) -> Result<T, HubError> {
    thread::scope(|scope| {
        let (done, ended) = mpsc::channel();
        let work = move || {
            let _ = done.send(work());
        };
        let spawned = thread::Builder::new().name("hub".into()).spawn_scoped(scope, work);
        spawned.map_err(HubError::cache(&settings.cache))?;
        loop {
            let result = ended.recv_timeout(TICK);
            if is_stopped() {
                stop.store(true, Ordering::Relaxed);
            }
            // Again until all have ended: a request may begin while those in flight are ended, and would wait for a server that sends nothing.
            if stop.load(Ordering::Relaxed) {
                client.shut_down();
            }
            match result {
                Ok(result) => return result,
                Err(RecvTimeoutError::Timeout) => {}
                // The thread has panicked; the scope propagates the panic.
                Err(RecvTimeoutError::Disconnected) => return Err(HubError::Stopped),
            }
        }
    })
}

/// The hub's listing, and the model in it that a name stands for.
pub(crate) fn named(
    client: &Client,
    name: &Name,
    stop: &dyn Fn() -> bool,
) -> Result<(Listing, Model), HubError> {
    let listing = api::listing(client, name, stop)?;
    let models = select::models(listing.sizes());
    let model = select::choose(&name.repo, &models, name.tag.as_deref())?.clone();
    Ok((listing, model))
}

/// Checks that a model can be kept packed alone, as far as its listing tells.
fn packable(name: &Name, listing: &Listing, model: &Model) -> Result<(), HubError> {
    let refused = |problem| {
        let file = format!("{}:{}", name.repo, model.tag());
        Err(HubError::NotPackable { file, problem })
    };
    if model.is_safetensors() {
        return refused(
            "it is a model in safetensors, of which `alight convert` makes a GGUF file",
        );
    }
    let [file] = &model.files[..] else { return refused(SEVERAL_FILES) };
    match cache::packed_name(file) {
        None => refused(OTHER_NAME),
        Some(packed) if listing.files.iter().any(|listed| listed.path == packed) => {
            refused(TAKEN_NAME)
        }
        Some(_) => Ok(()),
    }
}

/// Checks that the hub has promised a hash by which a file can be restored.
fn has_hash(listed: &Listed, info: &FileInfo) -> Result<(), HubError> {
    match info.sha256() {
        Some(_) => Ok(()),
        None => Err(HubError::NotPackable { file: listed.path.clone(), problem: NO_HASH }),
    }
}

/// The maps of a model's files: those that are in the cache, and `coming` in the place of those that are not.
fn maps(found: &[Found], coming: &[JobFile<'_>]) -> Result<Vec<Arc<Map>>, HubError> {
    let mut coming = coming.iter();
    let mut maps = Vec::new();
    for found in found {
        let map = match found {
            Found::There(path) => Map::open(path),
            Found::Missing(_) => {
                let Some(JobFile { partial, .. }) = coming.next() else { continue };
                let file = partial.file.try_clone().map_err(HubError::cache(&partial.path))?;
                Map::of_incoming(file, Arc::clone(&partial.incoming))
            }
        };
        maps.push(Arc::new(map.map_err(HubError::opening)?));
    }
    Ok(maps)
}

impl Pull<'_> {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn run(&self) -> Result<Pulled, HubError> {
        let name = self.name;
        let stopped = || self.stopped();
        let (listing, model) = named(self.client, name, &stopped)?;
        if self.reading == Reading::Packed {
            packable(name, &listing, &model)?;
        }
        let files = api::files(self.client, name, &listing, &model.files, &stopped)?;
        let bytes: u64 = files.iter().map(|(_, info)| info.size).sum();
        let (mut there, mut to_pack) = (0, 0);
        for (listed, info) in &files {
            if self.is_packed(info)? {
                there += info.size;
                continue;
            }
            there += match self.is_in_snapshot(&listing.commit, listed, info)? {
                true => info.size,
                false => self.there(info)?,
            };
            if self.reading == Reading::Packed {
                has_hash(listed, info)?;
                // Little more than the file itself; the disk must have both until the packed one is complete.
                to_pack += info.size;
            }
        }
        // An error about the place of the commit is reported before anything is fetched.
        self.folder.commit(name.revision())?;
        let all = match &model.files[..] {
            [file] => file.clone(),
            files => format!("{name} ({} files)", files.len()),
        };
        let all = if to_pack > 0 { format!("{all}, with its packed form,") } else { all };
        self.check_space(&all, bytes - there + to_pack)?;
        self.total.store(bytes, Ordering::Relaxed);
        self.received.store(there, Ordering::Relaxed);
        self.say(Message::Chosen { model: model.clone(), bytes, there });
        let mut paths = Vec::new();
        let reading = self.reading_of(&model, &files);
        let together = if reading == Reading::Coming { files.len().max(1) } else { 1 };
        for files in files.chunks(together) {
            paths.extend(self.files(&listing.commit, files, reading)?);
        }
        // Only now that all of it is in the cache; until then the branch keeps its previous commit.
        self.folder.set_revision(name.revision(), &listing.commit)?;
        let received = self.received.load(Ordering::Relaxed).saturating_sub(there);
        let packed = paths.iter().any(|path| cache::is_packed(path));
        let bytes = match packed {
            true => paths.iter().flat_map(fs::metadata).map(|found| found.len()).sum(),
            false => bytes,
        };
        Ok(Pulled { model, paths, commit: listing.commit, bytes, received, packed })
    }

    fn say(&self, message: Message) {
        let _ = self.messages.send(message);
    }

    /// The number of bytes of a file that are in the cache, complete or not.
    fn there(&self, info: &FileInfo) -> Result<u64, HubError> {
        if self.is_complete(info)? {
            return Ok(info.size);
        }
        Partial::received_at(&self.folder.incomplete(&info.etag), info.size)
    }

    fn is_complete(&self, info: &FileInfo) -> Result<bool, HubError> {
        let there = self.folder.regular(&self.folder.blob(&info.etag))?;
        Ok(there.is_some_and(|there| there.len() == info.size))
    }

    /// True if a file is kept packed, with a SHA-256 by which it can be restored.
    fn is_packed(&self, info: &FileInfo) -> Result<bool, HubError> {
        match info.sha256() {
            Some(_) => Ok(self.folder.regular(&self.folder.packed(&info.etag))?.is_some()),
            None => Ok(false),
        }
    }

    /// True if a file is in the snapshot of a commit, with all of its bytes.
    fn is_in_snapshot(
        &self,
        commit: &str,
        listed: &Listed,
        info: &FileInfo,
    ) -> Result<bool, HubError> {
        let path = self.folder.file(commit, &listed.path);
        // This includes filesystems without links, where the bytes are stored at this path.
        let there = self.folder.regular(&path)?.is_some_and(|there| there.len() == info.size);
        Ok(there && (!path.is_symlink() || self.is_complete(info)?))
    }

    /// When the files of a model can be read: while they come only if they are GGUF, and all of them different, since two files of the
    /// same bytes have one lock.
    fn reading_of(&self, model: &Model, files: &[(&Listed, FileInfo)]) -> Reading {
        let etags: HashSet<&str> = files.iter().map(|(_, info)| &info.etag[..]).collect();
        match self.reading {
            Reading::Coming if model.is_safetensors() || etags.len() < files.len() => {
                Reading::Complete
            }
            reading => reading,
        }
    }

    /// Ensures that files are in the cache, and returns their paths.
    fn files(
        &self,
        commit: &str,
        files: &[(&Listed, FileInfo)],
        reading: Reading,
    ) -> Result<Vec<PathBuf>, HubError> {
        let found = files.iter().map(|(listed, info)| self.found(commit, listed, info));
        let found = found.collect::<Result<Vec<_>, _>>()?;
        let missing: Vec<(usize, &Lock)> = (0..)
            .zip(&found)
            .filter_map(|(no, found)| match found {
                Found::Missing(lock) => Some((no, lock)),
                Found::There(_) => None,
            })
            .collect();
        if !missing.is_empty() {
            self.bytes(commit, files, &missing, &found, reading)?;
        }
        let path = |(found, (listed, info)): (Found, &(&Listed, FileInfo))| match found {
            Found::There(path) => Ok(path),
            Found::Missing(_lock) => self.linked(commit, listed, info),
        };
        found.into_iter().zip(files).map(path).collect()
    }

    /// Finds a file in the cache, or takes the lock with which it is fetched.
    fn found(&self, commit: &str, listed: &Listed, info: &FileInfo) -> Result<Found, HubError> {
        let packed = || self.folder.link_packed(commit, &listed.path, &info.etag);
        if self.is_packed(info)? {
            return packed().map(Found::There);
        }
        if self.is_in_snapshot(commit, listed, info)? {
            return Ok(Found::There(self.folder.file(commit, &listed.path)));
        }
        self.folder.create()?;
        let lock = self.lock(&listed.path, info)?;
        // Another process may have fetched it in the meantime, and packed it.
        if self.is_packed(info)? {
            return packed().map(Found::There);
        }
        match self.is_complete(info)? {
            true => self.linked(commit, listed, info).map(Found::There),
            false => Ok(Found::Missing(lock)),
        }
    }

    /// Links a file of a commit to its bytes, which are in the cache.
    fn linked(&self, commit: &str, listed: &Listed, info: &FileInfo) -> Result<PathBuf, HubError> {
        self.folder.link(commit, &listed.path, &info.etag)?;
        Ok(self.folder.file(commit, &listed.path))
    }

    /// Waits for the lock of a file.
    fn lock(&self, file: &str, info: &FileInfo) -> Result<Lock, HubError> {
        let before = self.there(info)?;
        let mut reported = false;
        loop {
            match self.folder.try_lock(&info.etag)? {
                Lock::Others => {}
                lock => {
                    // Bytes that another process has added in the meantime.
                    let now = self.there(info)?;
                    self.received.fetch_add(now.saturating_sub(before), Ordering::Relaxed);
                    return Ok(lock);
                }
            }
            if self.stopped() {
                return Err(HubError::Stopped);
            }
            if !std::mem::replace(&mut reported, true) {
                self.say(Message::Waiting(file.to_owned()));
            }
            thread::sleep(TICK);
        }
    }

    /// Fetches the bytes of the missing files, which are those of these numbers.
    fn bytes(
        &self,
        commit: &str,
        files: &[(&Listed, FileInfo)],
        missing: &[(usize, &Lock)],
        found: &[Found],
        reading: Reading,
    ) -> Result<(), HubError> {
        let (queue, mut received, mut needed) = (Arc::default(), Vec::new(), 0);
        for (no, lock) in missing {
            let (listed, info) = &files[*no];
            let incomplete = match lock {
                Lock::Ours(_) => self.folder.incomplete(&info.etag),
                // A name of this process alone: no other writes to it.
                _ => self.folder.incomplete(&format!("{}.{}", info.etag, std::process::id())),
            };
            needed += info.size - Partial::received_at(&incomplete, info.size)?;
            received.push((*listed, info, incomplete));
        }
        // Before a file is as long as the hub claims that it is.
        let all = received.first().map_or("", |(listed, ..)| &listed.path);
        self.check_space(all, needed)?;
        let mut partials = Vec::new();
        for (listed, info, incomplete) in &received {
            let name = self.folder.file(commit, &listed.path);
            partials.push(Partial::open(incomplete, &name, info.size, &queue)?);
        }
        let coming: Vec<JobFile<'_>> = received
            .iter()
            .zip(&partials)
            .map(|((listed, info, _), partial)| JobFile { listed, info, partial })
            .collect();
        let fetched = self.fetched(commit, &coming, found, &queue, reading);
        if let Err(error) = &fetched {
            // Its readers wait no longer, and rely on nothing of it.
            queue.fail(&error.to_string());
        }
        fetched?;
        for ((_, info, incomplete), partial) in received.iter().zip(&partials) {
            partial.complete().map_err(HubError::cache(incomplete))?;
            self.folder.complete(incomplete, &info.etag)?;
        }
        Ok(())
    }

    /// Fetches what is missing of files, and checks all of it. Files whose bytes are wrong are removed.
    fn fetched(
        &self,
        commit: &str,
        files: &[JobFile<'_>],
        found: &[Found],
        queue: &Arc<IncomingQueue>,
        reading: Reading,
    ) -> Result<(), HubError> {
        let is_read = AtomicBool::new(false);
        let on_readable = |ranges: bool| {
            if !ranges {
                self.say(Message::OnlyWhole);
                return Ok(());
            }
            is_read.store(true, Ordering::Relaxed);
            self.say(Message::Readable(maps(found, files)?));
            Ok(())
        };
        let job = Job {
            client: self.client,
            name: self.name,
            commit,
            files,
            received: &self.received,
            stop: &self.stop,
            on_readable: (reading == Reading::Coming).then_some(&on_readable),
        };
        // Of each file, true if it has bytes that an earlier run has left.
        let mut earlier: Vec<bool> = files.iter().map(|file| file.partial.received() > 0).collect();
        loop {
            let hashes = fetch::fetch(&job)?;
            let wrong: Vec<usize> = (0..files.len())
                .filter(|no| {
                    files[*no]
                        .info
                        .sha256()
                        .is_some_and(|hash| hashes[*no].as_deref() != Some(hash))
                })
                .collect();
            for no in &wrong {
                self.received.fetch_sub(files[*no].info.size, Ordering::Relaxed);
            }
            let Some(first) = wrong.first() else { return Ok(()) };
            // Bytes that have been read cannot be exchanged.
            if is_read.load(Ordering::Relaxed) || wrong.iter().any(|no| !earlier[*no]) {
                let JobFile { listed, info, .. } = &files[*first];
                let error = HubError::Hash {
                    file: listed.path.clone(),
                    expected: info.sha256().unwrap_or_default().to_owned(),
                    found: hashes[*first].clone().unwrap_or_default(),
                };
                queue.fail(&error.to_string());
                for no in &wrong {
                    let path = &files[*no].partial.path;
                    fs::remove_file(path).map_err(HubError::cache(path))?;
                }
                return Err(error);
            }
            for no in wrong {
                // The bytes left by an earlier run may be wrong.
                let JobFile { listed, partial, .. } = &files[no];
                partial.reset().map_err(HubError::cache(&partial.path))?;
                self.say(Message::Refetched(listed.path.clone()));
                earlier[no] = false;
            }
        }
    }

    /// Checks that there is enough free disk space for `needed` more bytes.
    fn check_space(&self, file: &str, needed: u64) -> Result<(), HubError> {
        let blobs = self.folder.path().join("blobs");
        // The folder may not exist yet.
        let existing = blobs.ancestors().find_map(|path| Folder::open(path).ok());
        // If the system cannot report it, a write will fail instead.
        let Some(free) = existing.and_then(|folder| folder.free_bytes()) else { return Ok(()) };
        if needed > free && needed > PIECE {
            let (cache, file) = (self.settings.cache.clone(), file.to_owned());
            return Err(HubError::NoRoom { cache, file, needed, free });
        }
        Ok(())
    }
}
