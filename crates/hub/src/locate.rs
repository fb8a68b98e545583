//! A model of the hub as a file: from the cache if it is there, fetched otherwise.

use std::path::{Path, PathBuf};

use crate::{Cached, Hub, HubError, Name, Pulled, SAFETENSORS};

/// The source of a located model.
#[derive(Debug)]
pub enum Located<P = Pulled> {
    /// It is in the cache. The hub was not contacted.
    There(Cached),
    /// The hub was contacted, and files missing from the cache were fetched.
    Pulled(P),
    /// The hub could not be reached, for this reason. The model is in the cache, and fits.
    Instead(Cached, HubError),
}

impl Located {
    /// The path that is opened.
    pub fn path(&self) -> &Path {
        match self {
            Located::There(found) | Located::Instead(found, _) => found.path(),
            Located::Pulled(pulled) => pulled.path(),
        }
    }
}

impl Cached {
    /// The path that is opened: the first file, or the folder of a model in safetensors.
    pub fn path(&self) -> &Path {
        opened(&self.paths, self.tag == SAFETENSORS)
    }
}

impl Pulled {
    /// The path that is opened: the first file, or the folder of a model in safetensors.
    pub fn path(&self) -> &Path {
        opened(&self.paths, self.model.is_safetensors())
    }
}

fn opened(paths: &[PathBuf], is_folder: bool) -> &Path {
    // A model has at least one file: the choice is made among files.
    let first = paths.first().map_or(Path::new(""), PathBuf::as_path);
    if is_folder { first.parent().unwrap_or(first) } else { first }
}

impl Hub {
    /// The model of this name. A cached one is used as it is, without a check for a newer version, which is the task of
    /// [`pull`](Hub::pull). `fetch` is called if it has to be fetched, and pulls, or begins to.
    ///
    /// # Errors
    /// It is not in the cache, and may not be fetched or cannot be.
    pub fn locate<P>(
        &self,
        name: &Name,
        fetch: impl FnOnce(&Hub, &Name) -> Result<P, HubError>,
    ) -> Result<Located<P>, HubError> {
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
