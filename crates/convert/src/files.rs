//! The files of a source: mapped for their headers, with the page cache left as it was found.

use std::path::PathBuf;

use alight_pages::assemble::Record;
use alight_pages::{Advice, Map};

use crate::{ConvertError, source};

/// Mapped files. Pages that were not cached before are not cached afterwards.
pub(crate) struct Files {
    maps: Vec<Map>,
    records: Vec<Record>,
}

impl Files {
    /// Maps all `paths`. With `scattered`, the bytes to be read through the maps are far from one
    /// another: the kernel is then advised not to read megabytes around each access.
    ///
    /// # Errors
    /// One of them is not a regular file, or cannot be mapped.
    pub(crate) fn open(paths: &[PathBuf], scattered: bool) -> Result<Files, ConvertError> {
        let mut files = Files { maps: Vec::new(), records: Vec::new() };
        for path in paths {
            let map = source::map(path)?;
            files.records.push(Record::of(map.file()));
            if scattered {
                // Only advice: a refusal is no error.
                let _ = map.advise(0..map.len(), Advice::Random);
            }
            files.maps.push(map);
        }
        Ok(files)
    }

    /// Adds a file that is already mapped, after the others.
    pub(crate) fn add(&mut self, map: Map) {
        self.records.push(Record::of(map.file()));
        self.maps.push(map);
    }

    /// The maps, in the order of the paths.
    pub(crate) fn maps(&self) -> &[Map] {
        &self.maps
    }

    /// Checks that no file has changed.
    ///
    /// # Errors
    /// One was changed while it was read.
    pub(crate) fn check(&self) -> Result<(), ConvertError> {
        Ok(self.maps.iter().try_for_each(Map::check_unchanged)?)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for (map, record) in self.maps.iter().zip(&self.records) {
            map.give_back(0..map.len());
            record.restore(map.file());
        }
    }
}
