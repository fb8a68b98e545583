//! The files of a source: mapped for their headers, and left in the page cache as they were found.

use std::path::PathBuf;

use alight_pages::{Map, give_up, residency};

use crate::ConvertError;

/// Files that are mapped. Those of which nothing was cached are not cached afterwards: headers are read
/// through the map, and the kernel reads ahead of them.
pub(crate) struct Files {
    maps: Vec<Map>,
    cold: Vec<bool>,
}

impl Files {
    /// Maps all of `paths`.
    ///
    /// # Errors
    /// One of them is not a regular file, or cannot be mapped.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Files, ConvertError> {
        let mut files = Files { maps: Vec::new(), cold: Vec::new() };
        for path in paths {
            let map = Map::open(path)?;
            let found = residency(map.file(), 0..map.len() as u64);
            files.cold.push(found.is_ok_and(|found| found.is_proven_cold()));
            files.maps.push(map);
        }
        Ok(files)
    }

    /// The maps, in the order of the paths.
    pub(crate) fn maps(&self) -> &[Map] {
        &self.maps
    }

    /// Whether all are still as long as they were.
    ///
    /// # Errors
    /// One was cut short while it was read.
    pub(crate) fn check(&self) -> Result<(), ConvertError> {
        Ok(self.maps.iter().try_for_each(Map::check)?)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for (map, _) in self.maps.iter().zip(&self.cold).filter(|(_, cold)| **cold) {
            map.give_back(0..map.len());
            // That it cannot be done costs memory that the system takes when it needs it.
            let _ = give_up(map.file());
        }
    }
}
