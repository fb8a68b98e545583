//! Where the bytes of the weights are.

use std::sync::Arc;

use alight_pages::Map;

use super::arrival::Arrival;
use crate::error::ModelError;

/// Where the bytes of one matrix are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the map of its file.
    Map,
}

/// All memory that holds weights, and what of it is there already.
pub(crate) struct Store {
    maps: Vec<Arc<Map>>,
    arrival: Arrival,
}

impl Store {
    pub(super) fn new(maps: Vec<Arc<Map>>, arrival: Arrival) -> Store {
        Store { maps, arrival }
    }

    /// The files, in the order of the shards.
    pub(crate) fn maps(&self) -> &[Arc<Map>] {
        &self.maps
    }

    /// The gate before what is not there yet.
    pub(crate) fn arrival(&self) -> &Arrival {
        &self.arrival
    }

    /// The bytes `range` of file `shard`, which are at `place`.
    pub(crate) fn bytes(&self, shard: usize, range: std::ops::Range<usize>, place: Place) -> &[u8] {
        match place {
            Place::Map => &self.maps[shard].bytes()[range],
        }
    }

    /// Whether what was read so far can be relied on.
    ///
    /// # Errors
    /// The load has failed, or a file in use has become shorter or could not be read.
    pub(crate) fn check(&self) -> Result<(), ModelError> {
        self.maps.iter().try_for_each(|map| map.check())?;
        self.arrival.check()
    }
}
