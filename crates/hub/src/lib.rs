//! Models from the Hugging Face hub, in the cache of Hugging Face's own tools: files fetched by either are found by the other.
//! There is no other store.
//!
//! - [`Name`]: `user/repo:Q4_K_M`, as users write it.
//! - [`Settings`]: the locations of the cache and the hub, and your identity (`HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_TOKEN`, …).
//! - [`Hub::find`]: a model in the cache, without a network. [`Hub::pull`]: the hub's current version of it, fetched if necessary.
//!   [`Hub::pull_and_read`]: the same, and the file can be read while it comes.
//!   [`Hub::pull_to_pack`], [`Hub::keep_packed`]: the same, and only its packed form is kept.
//!   [`Hub::locate`]: one or the other. [`Hub::list`], [`Hub::remove`]: the contents of the cache.
//!
//! This crate must never print, run a model, send the token anywhere but to the hub, or keep anything outside the cache.
//!
//! **Invariant:** a file is in a snapshot once all of its bytes are on disk and have the SHA-256 that the hub has promised (files
//! that the hub keeps in git itself, which weights are not, have another hash, and only their size is checked). Until then the
//! received bytes are stored next to it, however the process ends, and the next pull continues with them.
//!
//! **Invariant:** a packed form is in a snapshot under a name of its own, next to the place of the file that it was packed from, so that no
//! file has a name of the hub and other bytes. Where there are both, the packed one is the model.
//!
//! **Invariant:** an answer of a hub is treated as hostile: names of files and commits become paths only after a check, each body
//! has a limit, and a size or a range that is not the promised one is an error.
//!
//! **Invariant:** what is opened in the cache is a regular file, so that opening it never blocks. Links are followed only from a
//! snapshot to bytes that are in the cache.
//!
//! **Invariant:** two pulls of one file, in one process or several, are both correct: one waits for the other's lock.
//!
//! **Invariant:** fetched bytes are kept out of the page cache as far as the system permits: written pages are given up as they
//! reach the disk. Those of a file that is read while it comes stay.

#![forbid(unsafe_code)]
#![cfg(unix)]

mod api;
mod cache;
mod client;
mod error;
mod fetch;
mod locate;
mod name;
mod offers;
mod packed;
mod partial;
mod pull;
mod select;
mod settings;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use alight_pages::Map;

pub use cache::{Cached, Removed};
pub use error::HubError;
pub use locate::Located;
pub use name::Name;
pub use offers::{Header, Offer};
pub use select::{Model, SAFETENSORS};
pub use settings::Settings;

use pull::Reading;

/// The first pause before a retry; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(500);

/// A hub and its cache.
#[derive(Clone, Debug)]
pub struct Hub {
    settings: Settings,
    pause: Duration,
}

/// An event for the observer of a pull.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The model to be fetched, after the hub has sent its listing.
    Chosen {
        /// The model.
        model: &'a Model,
        /// Bytes of all its files.
        bytes: u64,
        /// Bytes that are in the cache already.
        there: u64,
    },
    /// Another process is fetching this file, and this one waits for it.
    Waiting {
        /// The file.
        file: &'a str,
    },
    /// The bytes received in an earlier run are not those that the hub has promised, and the file is fetched again.
    Refetched {
        /// The file.
        file: &'a str,
    },
    /// The model can be read from now on: its maps wait for what is not there yet. If the pull ends with an error, those of the files
    /// that were not complete [fail](Map::check), also if all their bytes were there.
    Readable {
        /// The files.
        maps: &'a [Arc<Map>],
    },
    /// The model was to be read while it comes, but its server does not support ranges, so that it can be only when it is complete.
    OnlyWhole,
    /// The progress, several times per second.
    Progress {
        /// Bytes that are in the cache.
        received: u64,
        /// Bytes in total; 0 until that is known.
        total: u64,
    },
}

/// Called with every event; `Break` stops the pull, which then ends with [`HubError::Stopped`] and keeps the received bytes.
pub type OnEvent<'f> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'f;

/// A model that was pulled.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// The model, as listed by the hub.
    pub model: Model,
    /// Its files.
    pub paths: Vec<PathBuf>,
    /// The commit.
    pub commit: String,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Bytes received by this pull.
    pub received: u64,
    /// True if its file is packed: the one that the hub has was packed earlier, and is no longer in the cache.
    pub packed: bool,
}

impl Hub {
    /// Creates a hub, without sending a request.
    pub fn new(settings: Settings) -> Hub {
        Hub { settings, pause: PAUSE }
    }

    /// Sets the first pause before a retry.
    #[must_use]
    pub fn with_pause(self, pause: Duration) -> Hub {
        Hub { pause, ..self }
    }

    /// The settings that were given.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The model of this name, if all of it is in the cache. No network is used. Without a quantization in the name, the choice is
    /// the one that would be made if the hub had only the cached models.
    ///
    /// # Errors
    /// Several models fit.
    pub fn find(&self, name: &Name) -> Result<Option<Cached>, HubError> {
        cache::find(&self.settings.cache, name)
    }

    /// The model of this name, if all of it is in the cache and a request to the hub would not lead to another of its files.
    ///
    /// # Errors
    /// Several models fit.
    pub fn find_exactly(&self, name: &Name) -> Result<Option<Cached>, HubError> {
        let folder = cache::RepoFolder::new(&self.settings.cache, &name.repo);
        let found = self.find(name)?;
        if name.tag.is_some() || found.is_none() {
            return Ok(found);
        }
        let commit = folder.commit(name.revision())?.unwrap_or_default();
        let first = |cached: &Cached| {
            folder
                .models(&commit)
                .iter()
                .any(|m| select::is_first_choice(m) && m.tag() == cached.tag)
        };
        Ok(found.filter(first))
    }

    /// The error for a model that would have to be fetched where that is forbidden.
    pub fn not_there(&self, name: &Name) -> HubError {
        cache::not_there(&self.settings.cache, name)
    }

    /// Fetches the missing files of a model, in the hub's current version.
    ///
    /// # Errors
    /// The hub, the network, the disk or the observer prevents it.
    pub fn pull(&self, name: &Name, on_event: &mut OnEvent<'_>) -> Result<Pulled, HubError> {
        pull::pull(&self.settings, self.pause, name, Reading::Complete, on_event)
    }

    /// Like [`pull`](Hub::pull), but the model can be read while it comes: there is an [`Event::Readable`], unless it is in the cache
    /// already, or the server does not support ranges ([`Event::OnlyWhole`]). The bytes of all its files are then fetched in the
    /// order in which they are asked for, and the others only after
    /// [`Incoming::take_rest`](alight_pages::Incoming::take_rest). They are checked when all of them are there: until this call has
    /// returned, whatever is computed with them may be wrong.
    ///
    /// # Errors
    /// Those of `pull`.
    pub fn pull_and_read(
        &self,
        name: &Name,
        on_event: &mut OnEvent<'_>,
    ) -> Result<Pulled, HubError> {
        pull::pull(&self.settings, self.pause, name, Reading::Coming, on_event)
    }

    /// All models in the cache, by name.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn list(&self) -> Result<Vec<Cached>, HubError> {
        cache::list(&self.settings.cache)
    }

    /// The repositories with bytes left by pulls that were interrupted, or are still running, by name, with the number of these
    /// bytes.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn incomplete(&self) -> Result<Vec<(String, u64)>, HubError> {
        cache::incomplete(&self.settings.cache)
    }

    /// Removes a model from the cache: all of a repository if `all`, or if there is one model in it.
    ///
    /// # Errors
    /// It is not in the cache, several fit, or the system denies it.
    pub fn remove(&self, name: &Name, all: bool) -> Result<Removed, HubError> {
        cache::remove(&self.settings.cache, name, all)
    }
}
