//! The memory that holds weights: which of it holds which, what of it is there already, and who reads first.

pub(crate) mod arrival;
pub(crate) mod budget;
mod error;
pub(crate) mod huge;
pub(crate) mod priority;
pub(crate) mod trace;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use alight_pages::slots::{Found, Held, Slots};
use alight_pages::{Advice, Map, MapError, Region, is_cached};

pub(crate) use self::arrival::Arrival;
pub use self::arrival::Loading;
use self::budget::MemoryBudget;
pub(crate) use self::budget::{MemoryShare, PROGRAM};
pub use self::error::LoadError;
use self::huge::HugePages;
pub(crate) use self::priority::First;
use self::priority::Priority;
use self::trace::Recorder;
pub use self::trace::{ExpertTrace, TraceError};

/// Which memory holds one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// In the map of its file.
    Map,
    /// In the image of its file, at the same offset.
    Image,
    /// At this offset in the region of packed matrices.
    Tiles(usize),
    /// Its matrices come when they are chosen, into slots.
    Slots(InSlots),
}

/// Which pieces in slots the matrices of a stack are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InSlots {
    /// The group of the layer, which has a piece for each expert.
    pub(crate) group: u32,
    /// Which span of each piece has those of the stack.
    pub(crate) span: u16,
    /// Where they begin in it.
    pub(crate) at: usize,
    /// How many there are in it, one after the other.
    pub(crate) per_piece: u16,
}

/// The experts of a layer that are chosen now. They stay where they are until it is dropped.
pub(crate) struct Chosen<'s> {
    store: &'s Store,
    held: Option<Held<'s>>,
}

impl Chosen<'_> {
    /// True if all of an expert is there.
    pub(crate) fn is_here(&self, expert: usize) -> bool {
        self.held.as_ref().is_none_or(|held| held.is_here(expert))
    }

    /// True if all experts are.
    pub(crate) fn all_here(&self) -> bool {
        self.held.as_ref().is_none_or(Held::all_here)
    }

    /// How many of them were there when they were chosen; `None` where there are no slots.
    pub(crate) fn found(&self) -> Option<Found> {
        self.held.as_ref().map(Held::found)
    }

    /// Returns when more experts are there than before.
    pub(crate) fn wait_for_more(&mut self) {
        self.held.iter_mut().for_each(Held::wait_for_more);
    }

    /// True if it would be of use to say what may be chosen next.
    pub(crate) fn may_guess(&mut self) -> bool {
        self.held.as_mut().is_some_and(Held::may_guess)
    }

    /// Says which experts of a later layer may be chosen, the likeliest first, and how sure that is.
    pub(crate) fn guess(&mut self, place: InSlots, experts: impl Iterator<Item = (usize, u8)>) {
        if let Some(held) = &mut self.held {
            held.guess(place.group as usize, experts);
        }
    }

    /// Has experts of the next layer read after those of this one.
    pub(crate) fn read_ahead(
        &mut self,
        place: InSlots,
        experts: impl Iterator<Item = usize> + Clone,
    ) {
        if let Some(held) = &mut self.held {
            held.read_ahead(place.group as usize, experts);
        }
    }

    /// The bytes of matrix `index` of a stack in slots, each of which has `one`.
    pub(crate) fn bytes(&self, place: InSlots, index: usize, one: usize) -> &[u8] {
        let held = self.held.as_ref().expect("the experts of a layer in slots");
        let per_piece = usize::from(place.per_piece);
        let span = held.bytes(index / per_piece, place.span.into());
        &span[place.at + index % per_piece * one..][..one]
    }

    /// The memory of all other weights.
    pub(crate) fn store(&self) -> &Store {
        self.store
    }
}

/// The memory that a store needs.
#[derive(Debug, Default)]
pub(crate) struct StoreSizes {
    /// By file: whether it needs an image.
    pub(crate) images: Vec<bool>,
    /// Bytes of the region of packed matrices.
    pub(crate) tiles: usize,
    /// By file: whether weights stay in its map.
    pub(crate) in_use: Vec<bool>,
    /// True if experts stay in maps, and may be chosen before they have been read.
    pub(crate) asks_ahead: bool,
}

/// All memory that holds weights, and which of them have been loaded.
pub(crate) struct Store {
    maps: Vec<Arc<Map>>,
    /// By file: memory that mirrors it, where weights were copied as they are. The parts that no weight
    /// needs are never touched and take no memory.
    images: Vec<Option<Region>>,
    /// Packed matrices, in order of use.
    tiles: Option<Region>,
    /// By file: whether weights stay in its map.
    in_use: Vec<bool>,
    /// Experts of a model that memory cannot hold, and what memory they share with all else.
    slots: Option<(Slots, Arc<MemoryBudget>)>,
    arrival: Arrival,
    output_section: usize,
    /// Which experts are chosen, if somebody wants to know.
    recorder: Recorder,
    /// True if the system is asked for experts that are chosen, since they may not have been read.
    asks_ahead: AtomicBool,
    /// By file: which parts it was asked for.
    asked: Vec<HugePages>,
    /// What the forward pass needs is read before what a load in the background brings.
    priority: Priority,
}

impl Store {
    /// Reserves the memory.
    pub(crate) fn new(
        maps: Vec<Arc<Map>>,
        sizes: StoreSizes,
        slots: Option<(Slots, Arc<MemoryBudget>)>,
        arrival: Arrival,
        output_section: usize,
    ) -> Result<Store, LoadError> {
        let region = |map: &Map, len| {
            Region::new(len).map_err(|source| LoadError::Memory { path: map.path().into(), source })
        };
        let images = maps.iter().zip(&sizes.images);
        let images = images.map(|(map, wanted)| wanted.then(|| region(map, map.len())).transpose());
        let images = images.collect::<Result<Vec<_>, _>>()?;
        let tiles = (sizes.tiles > 0).then(|| region(&maps[0], sizes.tiles)).transpose()?;
        let StoreSizes { in_use, asks_ahead, .. } = sizes;
        let asked = maps.iter().map(|map| HugePages::of(if asks_ahead { map.len() } else { 0 }));
        let asked = asked.collect();
        let recorder = Recorder::default();
        Ok(Store {
            maps,
            images,
            tiles,
            in_use,
            slots,
            arrival,
            output_section,
            recorder,
            asks_ahead: AtomicBool::new(asks_ahead),
            asked,
            priority: Priority::new(),
        })
    }

    /// True if matrices have been packed, or will be.
    pub(crate) fn is_repacked(&self) -> bool {
        self.tiles.is_some()
    }

    /// Which experts are chosen, if somebody wants to know.
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// True if it is of use to ask the system for experts that are chosen.
    pub(crate) fn asks_ahead(&self) -> bool {
        self.asks_ahead.load(Ordering::Relaxed)
    }

    /// All experts are in memory, and stay there.
    pub(crate) fn stop_asking(&self) {
        self.asks_ahead.store(false, Ordering::Relaxed);
    }

    /// Asks the system to read a range of the map of file `shard`, and does not wait for that. Whether some of it may be missing.
    pub(crate) fn ask_ahead(&self, shard: usize, range: Range<usize>) -> bool {
        let map = &self.maps[shard];
        let cached = is_cached(map.file(), range.start as u64..range.end as u64);
        if cached == Some(true) {
            return false;
        }
        // That it is refused costs time only.
        let _ = map.advise(range.clone(), Advice::WillNeed);
        // Where the system does not tell, it may have come in huge pages.
        if cached == Some(false) {
            self.asked[shard].mark(range);
        }
        true
    }

    /// By file: which parts have been asked for, and were missing.
    pub(crate) fn asked(&self) -> &[HugePages] {
        &self.asked
    }

    /// What the forward pass needs is read before what a load in the background brings.
    pub(crate) fn priority(&self) -> &Priority {
        &self.priority
    }

    /// The files, in the order of the shards.
    pub(crate) fn maps(&self) -> &[Arc<Map>] {
        &self.maps
    }

    pub(crate) fn image(&self, shard: usize) -> Option<&Region> {
        self.images[shard].as_ref()
    }

    pub(crate) fn tiles(&self) -> Option<&Region> {
        self.tiles.as_ref()
    }

    /// True if weights stay in the map of file `shard`.
    pub(crate) fn in_use(&self, shard: usize) -> bool {
        self.in_use[shard]
    }

    /// Readiness of each section.
    pub(crate) fn arrival(&self) -> &Arrival {
        &self.arrival
    }

    /// Section holding the output matrix.
    pub(crate) fn output_section(&self) -> usize {
        self.output_section
    }

    /// The bytes `range` of file `shard`, in the memory that holds them.
    pub(crate) fn bytes(&self, shard: usize, range: Range<usize>, storage: Storage) -> &[u8] {
        // A region that a matrix is in exists: the plan that put the matrix there made it.
        match storage {
            Storage::Map => &self.maps[shard].bytes()[range],
            Storage::Image => &self.images[shard].as_ref().expect("an image").bytes()[range],
            Storage::Tiles(at) => {
                &self.tiles.as_ref().expect("a region of tiles").bytes()[at..at + range.len()]
            }
            Storage::Slots(_) => unreachable!("experts in slots are read one by one"),
        }
    }

    /// Slots of experts, if there are any.
    pub(crate) fn slots(&self) -> Option<&Slots> {
        self.slots.as_ref().map(|(slots, _)| slots)
    }

    /// For a session or an engine that has no memory yet.
    pub(crate) fn nothing_taken(&self) -> MemoryShare {
        self.slots.as_ref().map_or(MemoryShare::default(), |(_, budget)| budget.nothing())
    }

    /// Chooses experts of the layer whose weights are at `place`. Those in slots that are not there are read from now on.
    pub(crate) fn choose(
        &self,
        place: Storage,
        experts: impl Iterator<Item = usize>,
    ) -> Chosen<'_> {
        let held = match (place, self.slots()) {
            (Storage::Slots(place), Some(slots)) => Some(slots.hold(place.group as usize, experts)),
            _ => None,
        };
        Chosen { store: self, held }
    }

    /// Whether the maps that weights stay in are whole. A file that was copied may change.
    ///
    /// # Errors
    /// A file in use has become shorter or could not be read.
    pub(crate) fn check_maps(&self) -> Result<(), MapError> {
        let mut used = self.maps.iter().zip(&self.in_use).filter(|(_, in_use)| **in_use);
        used.try_for_each(|(map, _)| map.check())
    }

    /// Whether all experts have come that were chosen.
    ///
    /// # Errors
    /// A file has become shorter or could not be read.
    pub(crate) fn check_slots(&self) -> Result<(), LoadError> {
        match self.slots().and_then(Slots::failure) {
            Some(failure) => Err(LoadError::Slots(Arc::clone(failure))),
            None => Ok(()),
        }
    }
}
