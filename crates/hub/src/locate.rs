//! A model of the hub as a file: out of the cache where it is there, and fetched where it is not.

use std::path::PathBuf;

use crate::{Cached, Hub, HubError, Name, Pulled};

/// Where a model was found.
#[derive(Debug)]
pub enum Located {
    /// In the cache. The hub was not asked.
    There(Cached),
    /// The hub was asked, and what the cache lacked was fetched.
    Pulled(Pulled),
    /// The hub could not be reached, for this reason. This is in the cache, and fits.
    Instead(Cached, HubError),
}

impl Located {
    /// The file that is opened.
    pub fn into_file(self) -> PathBuf {
        let paths = match self {
            Located::There(found) | Located::Instead(found, _) => found.paths,
            Located::Pulled(pulled) => pulled.paths,
        };
        // A model has a file: the choice is made among files.
        paths.into_iter().next().unwrap_or_default()
    }
}

impl Hub {
    /// The model that is meant. What is in the cache is used as it is, without a question whether there is something newer: that is what
    /// [`pull`](Hub::pull) asks. `fetch` is called where it has to be fetched, and pulls.
    ///
    /// # Errors
    /// It is not in the cache, and may not be fetched or cannot be.
    pub fn locate(
        &self,
        name: &Name,
        fetch: impl FnOnce(&Hub, &Name) -> Result<Pulled, HubError>,
    ) -> Result<Located, HubError> {
        if let Ok(Some(found)) = self.find_exactly(name) {
            return Ok(Located::There(found));
        }
        if self.settings().offline {
            return self.find(name)?.map(Located::There).ok_or_else(|| self.not_there(name));
        }
        match fetch(self, name) {
            Ok(pulled) => Ok(Located::Pulled(pulled)),
            Err(error) if error.is_unreachable() => match self.find(name) {
                Ok(Some(found)) => Ok(Located::Instead(found, error)),
                _ => Err(error),
            },
            Err(error) => Err(error),
        }
    }
}
