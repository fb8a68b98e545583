//! Models from the Hugging Face hub, in the cache that Hugging Face's own tools have: what they fetched is found here, and what is
//! fetched here they find. There is no other store.
//!
//! - [`Name`]: `user/repo:Q4_K_M`, as people write it.
//! - [`Settings`]: where the cache and the hub are, and who you are (`HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_TOKEN`, …).
//! - [`Hub::find`]: a model in the cache, without a network. [`Hub::pull`]: the same as the hub has it now, fetched if need be.
//!   [`Hub::locate`]: the one or the other. [`Hub::list`], [`Hub::remove`]: what is in the cache.
//!
//! This crate must never print, run a model, send the token to anybody but the hub, or keep anything outside the cache.
//!
//! **Invariant:** a file is in a snapshot when all of its bytes are on the disk and have the SHA-256 that the hub has promised
//! (files that the hub keeps in git itself, which weights are not, have another hash and are held to their size alone).
//! What was received stays beside it until then, whichever way the process ends, and the next pull continues with it.
//!
//! **Invariant:** an answer of a hub is hostile: names of files and commits become paths after they were checked, each body has a
//! limit, and a size or a range that is not the promised one is an error.
//!
//! **Invariant:** two pulls of one file, in one process or several, are both right: one waits for the other's lock.
//!
//! **Invariant:** what is fetched is written around the page cache as far as the system lets: pages that were written are given up
//! as they reach the disk.

#![forbid(unsafe_code)]
#![cfg(unix)]

mod api;
mod cache;
mod client;
mod error;
mod fetch;
mod locate;
mod name;
mod partial;
mod pull;
mod select;
mod settings;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

pub use cache::{Cached, Removed};
pub use error::HubError;
pub use locate::Located;
pub use name::Name;
pub use select::Model;
pub use settings::Settings;

/// The first pause before something is tried again; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(500);

/// A hub and its cache.
#[derive(Clone, Debug)]
pub struct Hub {
    settings: Settings,
    pause: Duration,
}

/// What an observer is told.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// What is fetched, when the hub has said what there is.
    Chosen {
        /// The model.
        model: &'a Model,
        /// Bytes of all its files.
        bytes: u64,
        /// Bytes that are there already.
        there: u64,
    },
    /// Another process fetches this file, and is waited for.
    Waiting {
        /// The file.
        file: &'a str,
    },
    /// What was received in an earlier run is not what the hub has promised, and the file is fetched again.
    Refetched {
        /// The file.
        file: &'a str,
    },
    /// Several times per second.
    Progress {
        /// Bytes that are there.
        received: u64,
        /// Bytes in all; 0 as long as that is not known.
        total: u64,
    },
}

/// Told about everything; `Break` stops the pull, which then ends with [`HubError::Stopped`] and keeps what was received.
pub type OnEvent<'f> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'f;

/// A model that was pulled.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// As the hub has it.
    pub model: Model,
    /// Its files; the first is the one that is opened.
    pub paths: Vec<PathBuf>,
    /// The commit.
    pub commit: String,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Bytes that were received.
    pub received: u64,
}

impl Hub {
    /// Nothing is asked yet.
    pub fn new(settings: Settings) -> Hub {
        Hub { settings, pause: PAUSE }
    }

    /// With another first pause before something is tried again.
    #[must_use]
    pub fn with_pause(self, pause: Duration) -> Hub {
        Hub { pause, ..self }
    }

    /// As they were given.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The model that is meant, if it is in the cache as a whole. No network is used. Where nothing says which quantization, it is
    /// what would be chosen if the hub had no more than the cache.
    ///
    /// # Errors
    /// Several fit.
    pub fn find(&self, name: &Name) -> Result<Option<Cached>, HubError> {
        cache::find(&self.settings.cache, name)
    }

    /// The model that is meant, if it is in the cache as a whole and no question to the hub would lead to another of its files.
    ///
    /// # Errors
    /// Several fit.
    pub fn find_exactly(&self, name: &Name) -> Result<Option<Cached>, HubError> {
        let folder = cache::RepoFolder::new(&self.settings.cache, &name.repo);
        let found = self.find(name)?;
        if name.tag.is_some() || found.is_none() {
            return Ok(found);
        }
        let commit = folder.commit(name.revision()).unwrap_or_default();
        let first = |cached: &Cached| {
            folder
                .models(&commit)
                .iter()
                .any(|m| select::is_first_choice(m) && m.tag() == cached.tag)
        };
        Ok(found.filter(first))
    }

    /// The error that a model would have to be fetched, where nothing may be.
    pub fn not_there(&self, name: &Name) -> HubError {
        cache::not_there(&self.settings.cache, name)
    }

    /// Fetches what the cache lacks of a model, as the hub has it now.
    ///
    /// # Errors
    /// The hub, the network, the disk or the observer do not let it.
    pub fn pull(&self, name: &Name, on_event: &mut OnEvent<'_>) -> Result<Pulled, HubError> {
        pull::pull(&self.settings, self.pause, name, on_event)
    }

    /// All models in the cache, by name.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn list(&self) -> Result<Vec<Cached>, HubError> {
        cache::list(&self.settings.cache)
    }

    /// The repositories of which pulls that were interrupted, or are at work, have left something, by name; and how many bytes that is.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn incomplete(&self) -> Result<Vec<(String, u64)>, HubError> {
        cache::incomplete(&self.settings.cache)
    }

    /// Removes a model from the cache: all of a repository if `all`, or if there is one model in it.
    ///
    /// # Errors
    /// It is not there, there are several, or the system does not let it.
    pub fn remove(&self, name: &Name, all: bool) -> Result<Removed, HubError> {
        cache::remove(&self.settings.cache, name, all)
    }
}
