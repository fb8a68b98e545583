//! Models that are kept packed: in the place of a file, there is the one that was packed of it, from which it can be restored to the
//! byte. The caller packs; this crate says where the packed file is, checks what was packed, and exchanges the two.
//!
//! At every moment one of the two is in the snapshot, complete.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::thread;

use alight_formats::split::ShardName;

use crate::api::is_hex;
use crate::cache::{self, Lock, RepoFolder};
use crate::error::{NO_HASH, OTHER_NAME, SEVERAL_FILES, TAKEN_NAME};
use crate::pull::{self, Reading, TICK};
use crate::{Event, Hub, HubError, Name, OnEvent, Pulled};

fn is_shard(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    ShardName::parse(&name).is_some_and(|shard| shard.count > 1)
}

impl Hub {
    /// Like [`pull`](Hub::pull), for a model that [`keep_packed`](Hub::keep_packed) is to be called for. There must be disk space for
    /// the model and its packed form.
    ///
    /// # Errors
    /// Those of `pull`; before anything is fetched, [`HubError::NotPackable`].
    pub fn pull_to_pack(
        &self,
        name: &Name,
        on_event: &mut OnEvent<'_>,
    ) -> Result<Pulled, HubError> {
        pull::pull(self.settings(), self.pause, name, Reading::Packed, on_event)
    }

    /// Keeps a model of the cache packed, and no longer as it is. `paths` are its files in a snapshot of this repository. Calls
    /// `pack` with the one file and the path of the packed one, unless that exists; it returns the SHA-256 of the bytes that it has
    /// packed. Returns the path of the packed file in the snapshot.
    ///
    /// # Errors
    /// That of `pack`; or the bytes are not those that the hub has promised, it cannot be kept packed, the disk or the observer
    /// prevents it. The model is then in the cache as it was.
    pub fn keep_packed<E: From<HubError>>(
        &self,
        repo: &str,
        paths: &[PathBuf],
        on_event: &mut OnEvent<'_>,
        pack: impl FnOnce(&Path, &Path) -> Result<String, E>,
    ) -> Result<PathBuf, E> {
        let folder = RepoFolder::new(&self.settings().cache, repo);
        let refused = |problem| {
            let file = paths.first().map_or(String::new(), |path| path.display().to_string());
            E::from(HubError::NotPackable { file, problem })
        };
        let [path] = paths else { return Err(refused(SEVERAL_FILES)) };
        if is_shard(path) {
            return Err(refused(SEVERAL_FILES));
        }
        let linked = cache::linked(path).ok_or("the cache is on a filesystem without links");
        let bytes = linked.map_err(refused)?;
        let etag = cache::etag_of(&bytes);
        if !is_hex(etag, 64) {
            return Err(refused(NO_HASH));
        }
        let packed_path = match etag == bytes {
            true => cache::packed_path(path).ok_or_else(|| refused(OTHER_NAME))?,
            false => path.clone(),
        };
        if cache::is_taken(&packed_path) {
            return Err(refused(TAKEN_NAME));
        }
        let _lock = self.lock_for_packing(&folder, etag, path, on_event)?;
        let packed = folder.packed(etag);
        if folder.regular(&packed)?.is_none() {
            let found = pack(path, &packed)?;
            if found != etag {
                let (path, expected) = (path.to_owned(), etag.to_owned());
                fs::remove_file(&packed).map_err(HubError::cache(&packed))?;
                return Err(HubError::Damaged { path, expected, found }.into());
            }
        }
        folder.replace_by_packed(etag)?;
        Ok(packed_path)
    }

    /// Waits for the lock of the bytes with this etag, which those who fetch them hold as well.
    fn lock_for_packing(
        &self,
        folder: &RepoFolder,
        etag: &str,
        path: &Path,
        on_event: &mut OnEvent<'_>,
    ) -> Result<Lock, HubError> {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let mut event = Event::Waiting { file: &file };
        loop {
            match folder.try_lock(etag)? {
                Lock::Others => {}
                lock => return Ok(lock),
            }
            if on_event(event) == ControlFlow::Break(()) {
                return Err(HubError::Stopped);
            }
            thread::sleep(TICK);
            event = Event::Progress { received: 0, total: 0 };
        }
    }
}
