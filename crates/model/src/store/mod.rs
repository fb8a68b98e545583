//! The memory that holds weights: the location of each matrix, the parts already loaded, and the order of reads.

pub(crate) mod arrival;
pub(crate) mod budget;
mod error;
pub(crate) mod huge;
pub(crate) mod priority;
pub(crate) mod trace;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use alight_pages::slots::{Found, HeldGroup, Slots};
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

/// The memory that holds one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// In the map of its file.
    Map,
    /// In the image of its file, at the same offset.
    Image,
    /// At this offset in the region of packed matrices.
    Tiles(usize),
    /// Its matrices are read into slots when they are chosen.
    Slots(InSlots),
}

/// The location of a stack's matrices in the pieces in slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InSlots {
    /// The group of the layer, which has a piece for each expert.
    pub(crate) group: u32,
    /// The span of each piece that has the matrices of the stack.
    pub(crate) span: u16,
    /// Their offset in the span.
    pub(crate) at: usize,
    /// The number of them in the span; they are contiguous.
    pub(crate) per_piece: u16,
}

/// The chosen experts of a layer. They stay where they are until this is dropped.
pub(crate) struct Chosen<'s> {
    store: &'s Store,
    held: Option<HeldGroup<'s>>,
}

impl Chosen<'_> {
    /// True if an expert is completely in memory.
    pub(crate) fn is_here(&self, expert: usize) -> bool {
        self.held.as_ref().is_none_or(|held| held.is_here(expert))
    }

    /// True if all chosen experts are in memory.
    pub(crate) fn all_here(&self) -> bool {
        self.held.as_ref().is_none_or(HeldGroup::all_here)
    }

    /// The number of experts that were in memory when they were chosen; `None` if there are no slots.
    pub(crate) fn found(&self) -> Option<Found> {
        self.held.as_ref().map(HeldGroup::found)
    }

    /// Returns when more experts are in memory than before.
    pub(crate) fn wait_for_more(&mut self) {
        self.held.iter_mut().for_each(HeldGroup::wait_for_more);
    }

    /// True if guesses of the next experts would be of use.
    pub(crate) fn may_guess(&mut self) -> bool {
        self.held.as_mut().is_some_and(HeldGroup::may_guess)
    }

    /// Passes on which experts of a later layer may be chosen, the likeliest first, and the confidence in each.
    pub(crate) fn guess(&mut self, place: InSlots, experts: impl Iterator<Item = (usize, u8)>) {
        if let Some(held) = &mut self.held {
            held.guess(place.group as usize, experts);
        }
    }

    /// Requests reads of experts of the next layer, after those of this layer.
    pub(crate) fn read_ahead(
        &mut self,
        place: InSlots,
        experts: impl Iterator<Item = usize> + Clone,
    ) {
        if let Some(held) = &mut self.held {
            held.read_ahead(place.group as usize, experts);
        }
    }

    /// The bytes of matrix `index` of a stack in slots whose matrices have `one` bytes each.
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

/// The failures of reading before a step: see [`Store::begin_step`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// Of all maps that weights are used from.
    faults: usize,
    /// Of slots.
    failures: u64,
}

/// The memory that a store needs.
#[derive(Debug, Default)]
pub(crate) struct StoreSizes {
    /// By file: true if it needs an image.
    pub(crate) images: Vec<bool>,
    /// Bytes of the region of packed matrices.
    pub(crate) tiles: usize,
    /// By file: true if weights stay in its map.
    pub(crate) in_use: Vec<bool>,
    /// True if experts stay in maps, and may be chosen before they have been read.
    pub(crate) asks_ahead: bool,
}

/// All memory that holds weights, and the state of their load.
pub(crate) struct Store {
    maps: Vec<Arc<Map>>,
    /// By file: memory that mirrors it, for weights that were copied unchanged. The parts that no weight needs are never touched
    /// and use no memory.
    images: Vec<Option<Region>>,
    /// Packed matrices, in order of use.
    tiles: Option<Region>,
    /// By file: true if weights stay in its map.
    in_use: Vec<bool>,
    /// The slots of experts, if the model does not fit into memory, and the budget that they share with everything else.
    slots: Option<(Slots, Arc<MemoryBudget>)>,
    arrival: Arrival,
    output_section: usize,
    /// Records the chosen experts on request.
    recorder: Recorder,
    /// True if the system is asked to read chosen experts, which may not be in memory yet.
    asks_ahead: AtomicBool,
    /// By file: the parts that the system was asked to read.
    asked: Vec<HugePages>,
    /// Reads of the forward pass come before those of a load in the background.
    priority: Priority,
    /// Counts layers that were computed and pieces that were loaded.
    progress: Arc<AtomicU64>,
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
            progress: Arc::default(),
        })
    }

    /// True if matrices have been packed, or will be.
    pub(crate) fn is_repacked(&self) -> bool {
        self.tiles.is_some()
    }

    /// The recorder of chosen experts.
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// True if it is useful to ask the system to read chosen experts.
    pub(crate) fn asks_ahead(&self) -> bool {
        self.asks_ahead.load(Ordering::Relaxed)
    }

    /// Stops these requests: all experts are in memory, and stay there.
    pub(crate) fn stop_asking(&self) {
        self.asks_ahead.store(false, Ordering::Relaxed);
    }

    /// Asks the system to read a range of the map of file `shard`, without waiting for it. Returns true if some of it may be
    /// missing.
    pub(crate) fn ask_ahead(&self, shard: usize, range: Range<usize>) -> bool {
        let map = &self.maps[shard];
        if let Some(incoming) = map.incoming() {
            let range = range.start as u64..range.end as u64;
            incoming.ask_now(range.clone());
            return !incoming.is_here(&range);
        }
        let cached = is_cached(map.file(), range.start as u64..range.end as u64);
        if cached == Some(true) {
            return false;
        }
        // A refusal costs only time.
        let _ = map.advise(range.clone(), Advice::WillNeed);
        // If the system does not report what is cached, the range may have been read in huge pages.
        if cached == Some(false) {
            self.asked[shard].mark(range);
        }
        true
    }

    /// True if a file is still being received.
    pub(crate) fn is_incoming(&self) -> bool {
        self.maps.iter().any(|map| map.incoming().is_some())
    }

    /// Returns when a range of file `shard` that was asked for has been received, or when `give_up` returns true. If it will not come, the
    /// step fails at its end.
    pub(crate) fn wait_received(
        &self,
        shard: usize,
        range: Range<usize>,
        give_up: &dyn Fn() -> bool,
    ) {
        if let Some(incoming) = self.maps[shard].incoming() {
            let _ = incoming.wait(&(range.start as u64..range.end as u64), give_up);
        }
    }

    /// By file: the parts that the system was asked to read because they were missing.
    pub(crate) fn asked(&self) -> &[HugePages] {
        &self.asked
    }

    /// The order of reads: the forward pass comes before a load in the background.
    pub(crate) fn priority(&self) -> &Priority {
        &self.priority
    }

    /// A number that grows with each layer that is computed, and with each piece that is loaded.
    pub(crate) fn progress(&self) -> &Arc<AtomicU64> {
        &self.progress
    }

    /// Counts a layer that was computed, or a piece that was loaded.
    pub(crate) fn get_on(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
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

    /// The readiness of each section.
    pub(crate) fn arrival(&self) -> &Arrival {
        &self.arrival
    }

    /// The section of the output matrix.
    pub(crate) fn output_section(&self) -> usize {
        self.output_section
    }

    /// The bytes `range` of file `shard`, in the memory that holds them.
    pub(crate) fn bytes(&self, shard: usize, range: Range<usize>, storage: Storage) -> &[u8] {
        // The region of a matrix exists: it was reserved by the plan that put the matrix there.
        match storage {
            Storage::Map => &self.maps[shard].bytes()[range],
            Storage::Image => &self.images[shard].as_ref().expect("an image").bytes()[range],
            Storage::Tiles(at) => {
                &self.tiles.as_ref().expect("a region of tiles").bytes()[at..at + range.len()]
            }
            Storage::Slots(_) => unreachable!("experts in slots are read one by one"),
        }
    }

    /// The slots of experts, if there are any.
    pub(crate) fn slots(&self) -> Option<&Slots> {
        self.slots.as_ref().map(|(slots, _)| slots)
    }

    /// An empty share of the budget, for a session or an engine.
    pub(crate) fn nothing_taken(&self) -> MemoryShare {
        self.slots.as_ref().map_or(MemoryShare::default(), |(_, budget)| budget.nothing())
    }

    /// Chooses experts of the layer whose weights are at `place`, and starts reading those in slots that are missing.
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

    /// Brings the weights of a layer, if the layers are streamed. They stay in memory until the result is dropped, and those of the next layers are
    /// read meanwhile. Returns early if `give_up` returns true. What could not be read fails the step at its end.
    pub(crate) fn hold_layer(
        &self,
        layer: usize,
        give_up: &dyn Fn() -> bool,
    ) -> Option<HeldGroup<'_>> {
        /// Maximum bytes that are read ahead: enough to keep a disk busy while a layer is computed. They take the place of weights that would stay, so
        /// with little memory they are a small part of it.
        const AHEAD: u64 = 64 << 20;
        let slots = self.slots().filter(|slots| slots.are_whole())?;
        let group = layer % slots.layout().groups();
        let mut held = slots.hold(group, 0..slots.layout().pieces_of(group).len());
        held.read_on(AHEAD.min(slots.sizes().bytes / 64));
        while !held.all_here() && !give_up() {
            held.wait_for_more();
        }
        Some(held)
    }

    /// Checks that the maps that weights stay in are intact. A file that was copied may change.
    ///
    /// # Errors
    /// A file in use has become shorter or could not be read.
    pub(crate) fn check_maps(&self) -> Result<(), MapError> {
        let mut used = self.maps.iter().zip(&self.in_use).filter(|(_, in_use)| **in_use);
        used.try_for_each(|(map, _)| map.check())
    }

    /// The maps that weights are used from.
    fn maps_in_use(&self) -> impl Iterator<Item = &Map> {
        let shared = self.slots().is_some_and(Slots::are_shared);
        let maps = self.maps.iter().zip(&self.in_use);
        maps.filter(move |(_, in_use)| shared || **in_use).map(|(map, _)| &**map)
    }

    /// Gets ready for a step: parts of maps that could not be read will be read again. (So will experts in slots, whenever they are chosen.)
    pub(crate) fn begin_step(&self) -> Seen {
        for map in &self.maps {
            // A file that is still too short is an error of those who need it.
            let _ = map.try_again();
        }
        let faults = self.maps_in_use().map(Map::faults).sum();
        Seen { faults, failures: self.slots().map_or(0, Slots::failures) }
    }

    /// Checks that everything is reliable that was read from files since `seen`. A file that was copied may change.
    ///
    /// # Errors
    /// A file has become shorter or could not be read.
    pub(crate) fn check_step(&self, seen: Seen) -> Result<(), LoadError> {
        self.maps_in_use().try_for_each(Map::check)?;
        if let Some(slots) = self.slots()
            && slots.failures() > seen.failures
            && let Some(error) = slots.failure()
        {
            return Err(LoadError::Slots(error));
        }
        // Another step may have got the pages back that were missing in this one.
        match self.maps_in_use().map(Map::faults).sum::<usize>() > seen.faults {
            true => Ok(self.maps_in_use().try_for_each(|map| map.check_since(0))?),
            false => Ok(()),
        }
    }
}
