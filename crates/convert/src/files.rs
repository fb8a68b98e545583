//! The files of a source: mapped for their headers, and left in the page cache as they were found.

use std::path::PathBuf;

use alight_pages::assemble::Record;
use alight_pages::{Advice, Map};

use crate::{ConvertError, source};

/// Files that are mapped. What of them was not cached is not cached afterwards.
pub(crate) struct Files {
    maps: Vec<Map>,
    records: Vec<Record>,
}

impl Files {
    /// Maps all of `paths`. `scattered` says that what is to be looked at through the maps lies far
    /// apart: the kernel is then asked not to read megabytes around each look.
    ///
    /// # Errors
    /// One of them is not a regular file, or cannot be mapped.
    pub(crate) fn open(paths: &[PathBuf], scattered: bool) -> Result<Files, ConvertError> {
        let mut files = Files { maps: Vec::new(), records: Vec::new() };
        for path in paths {
            let map = source::map(path)?;
            files.records.push(Record::of(map.file()));
            if scattered {
                // Advice: that it is not taken is no error.
                let _ = map.advise(0..map.len(), Advice::Random);
            }
            files.maps.push(map);
        }
        Ok(files)
    }

    /// Adds one that is mapped already, after the others.
    pub(crate) fn add(&mut self, map: Map) {
        self.records.push(Record::of(map.file()));
        self.maps.push(map);
    }

    /// The maps, in the order of the paths.
    pub(crate) fn maps(&self) -> &[Map] {
        &self.maps
    }

    /// Whether all are still what they were.
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
