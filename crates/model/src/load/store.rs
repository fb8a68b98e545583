//! Where the bytes of the weights are.

use std::ops::Range;
use std::sync::Arc;

use alight_pages::{Map, Region};

use super::arrival::Arrival;
use super::error::LoadError;
use super::plan::Plan;
use crate::error::ModelError;

/// Where the bytes of one matrix are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the map of its file.
    Map,
    /// In the image of its file, at the same offset.
    Image,
    /// At this offset in the region of packed matrices.
    Tiles(usize),
}

/// All memory that holds weights, and what of it is there already.
pub(crate) struct Store {
    maps: Vec<Arc<Map>>,
    /// By file: memory that mirrors it, where weights were copied as they are. What nobody asked for
    /// is not there and costs nothing.
    images: Vec<Option<Region>>,
    /// Packed matrices, in order of use.
    tiles: Option<Region>,
    /// By file: whether weights stay in its map.
    in_use: Vec<bool>,
    arrival: Arrival,
    output_section: usize,
}

impl Store {
    /// Reserves what `plan` needs.
    pub(super) fn new(
        maps: Vec<Arc<Map>>,
        plan: &Plan,
        arrival: Arrival,
    ) -> Result<Store, LoadError> {
        let region = |map: &Map, len| {
            Region::new(len).map_err(|source| LoadError::Memory { path: map.path().into(), source })
        };
        let images = maps.iter().zip(&plan.images);
        let images = images.map(|(map, wanted)| wanted.then(|| region(map, map.len())).transpose());
        let images = images.collect::<Result<Vec<_>, _>>()?;
        let tiles = (plan.tiles > 0).then(|| region(&maps[0], plan.tiles)).transpose()?;
        let in_use = plan.kept.iter().map(|kept| !kept.is_empty()).collect();
        let output_section = plan.output_section;
        Ok(Store { maps, images, tiles, in_use, arrival, output_section })
    }

    /// The files, in the order of the shards.
    pub(crate) fn maps(&self) -> &[Arc<Map>] {
        &self.maps
    }

    pub(super) fn image(&self, shard: usize) -> Option<&Region> {
        self.images[shard].as_ref()
    }

    pub(super) fn tiles(&self) -> Option<&Region> {
        self.tiles.as_ref()
    }

    /// Whether weights stay in the map of file `shard`.
    pub(super) fn in_use(&self, shard: usize) -> bool {
        self.in_use[shard]
    }

    /// The gate before what is not there yet.
    pub(crate) fn arrival(&self) -> &Arrival {
        &self.arrival
    }

    /// Behind which gate the output matrix is.
    pub(crate) fn output_section(&self) -> usize {
        self.output_section
    }

    /// The bytes `range` of file `shard`, which are at `place`.
    pub(crate) fn bytes(&self, shard: usize, range: Range<usize>, place: Place) -> &[u8] {
        // A region that a matrix is in exists: the plan that put the matrix there made it.
        match place {
            Place::Map => &self.maps[shard].bytes()[range],
            Place::Image => &self.images[shard].as_ref().expect("an image").bytes()[range],
            Place::Tiles(at) => {
                &self.tiles.as_ref().expect("a region of tiles").bytes()[at..at + range.len()]
            }
        }
    }

    /// Whether what was read so far can be relied on. A file that was copied may change.
    ///
    /// # Errors
    /// The load has failed, or a file in use has become shorter or could not be read.
    pub(crate) fn check(&self) -> Result<(), ModelError> {
        for (map, in_use) in self.maps.iter().zip(&self.in_use) {
            if *in_use {
                map.check()?;
            }
        }
        self.arrival.check()
    }
}
