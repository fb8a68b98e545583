//! Loads weights in the background, while the forward pass follows.
//!
//! For each file the policy of `pages` decides from the facts how it is read. A [`Plan`] assigns memory to each matrix, and orders the pieces of the
//! files to be loaded; a separate thread (and its helpers) carries it out; [`Arrival`] reports to the forward pass which sections are ready, and lets
//! it wait for the others. The forward pass does not wait for weights in a warm map: the page tables are filled ahead, or by faults. Nor does it wait
//! for experts of a cold map, unless it has chosen most of a layer's: it requests the missing ones, which are read with priority
//! ([`Store::priority`]), and all others are loaded afterwards.
//!
//! Invariants:
//! - A weight is in memory once: in the map, in an image of the file, or packed. While weights are
//!   packed from a map, its pages are given back piece by piece.
//! - A piece is written once, by one thread, before it is counted; it is read only when its section is ready.
//! - A failed load is an error of the next step. If a file could not be read, the step after that begins the load again where it has
//!   failed. Dropping a [`Loader`] ends the load within a few pieces.

mod ahead;
mod bring;
mod experts;
mod plan;
mod reclaim;
mod report;
mod resident;
mod shortage;
mod streamed;

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

pub use alight_pages::Load;
use alight_pages::policy::REMOTE_THREADS;
use alight_pages::slots::SlotOptions;
use alight_pages::{
    Choice, Facts, LoadRequest, Map, Prefetch, ReadMethod, check_lock, choose, swap_free,
};

pub(crate) use ahead::Ahead;
pub use experts::SlotsReport;
pub(crate) use experts::layers_with_experts;
use plan::{LoadMethod, Plan};
use reclaim::Reclaim;
pub use report::{FileReport, LoadReport};
pub(crate) use resident::resident;
pub use resident::{PartName, ResidentPart};

use crate::store::{Arrival, LoadError, Loading, Storage, Store, StoreSizes};
use crate::tensors::MatrixRef;
use crate::weights::Weights;

/// When matrices are packed on their way into memory: a different order of the same bits, which the kernels read faster, in memory of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Repack {
    /// If a copy was requested ([`Load::Direct`] and [`Load::Read`]): memory for it was not asked for otherwise.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

impl Repack {
    /// All variants.
    pub const ALL: [Repack; 3] = [Repack::Auto, Repack::On, Repack::Off];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Repack::Auto => "auto",
            Repack::On => "on",
            Repack::Off => "off",
        }
    }
}

impl FromStr for Repack {
    type Err = String;

    fn from_str(text: &str) -> Result<Repack, String> {
        let all = Repack::ALL;
        all.into_iter()
            .find(|repack| repack.name() == text)
            .ok_or_else(|| format!("expected one of {}", all.map(Repack::name).join(", ")))
    }
}

/// The caller's options for a load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) load: Load,
    pub(crate) repack: Repack,
    /// Give the pages of a map back once their contents have been packed.
    pub(crate) reclaim: bool,
    /// Lock the weights that a step reads.
    pub(crate) lock: bool,
    /// Limit on the memory to be used, in bytes.
    pub(crate) memory: Option<u64>,
    /// How experts that are loaded on demand are read.
    pub(crate) slots: SlotOptions,
    /// Approximate memory of one sequence in bytes, without weights.
    pub(crate) sequence_bytes: u64,
}

/// A load in the background. Dropping it ends the load.
pub(crate) struct Loader {
    shared: Arc<LoadState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct LoadState {
    store: Arc<Store>,
    plan: Plan,
    /// By file.
    methods: Vec<LoadMethod>,
    /// By job of the plan: true once it is done.
    done: Vec<AtomicBool>,
    stop: AtomicBool,
    /// By file, if pages of its map are given back.
    reclaim: Vec<Option<Reclaim>>,
    repacked: AtomicU64,
    /// By file: the offset of its first weights.
    headers: Vec<usize>,
    /// True if experts are loaded after the weights that every token reads, so that chosen ones need not be requested once all have been loaded.
    brings_behind: bool,
    /// Matrices to lock when everything is loaded.
    lock: Vec<MatrixRef>,
    report: Mutex<LoadReport>,
}

impl Loader {
    /// Assigns memory to the weights, records that in `weights`, and starts to load them. Threads that map a file ahead end when the load begins.
    ///
    /// # Errors
    /// The facts about a file cannot be read, or there is no memory for a copy.
    pub(crate) fn start(
        maps: Vec<Arc<Map>>,
        facts: Vec<Facts>,
        weights: &mut Weights,
        wanted: Wanted,
        ahead: Option<Ahead>,
    ) -> Result<(Arc<Store>, Loader), LoadError> {
        let mut report = decide(&maps, facts, weights, wanted);
        let slots = shortage::plan(&mut report, weights, &wanted, &maps)?;
        let files = report.files.iter_mut().zip(&maps);
        let methods: Vec<LoadMethod> =
            files.map(|(file, map)| method(file, weights, map)).collect();
        if let Some(table) = weights.token_inputs.as_ref().and_then(|inputs| inputs.table.as_ref())
        {
            let (shard, table) = table.file_range();
            if methods[shard].read != ReadMethod::Mmap {
                // It stays in the map nevertheless, and no piece of the plan waits for it.
                maps[shard].wait(&table, &|| false)?;
            }
        }
        let mut plan = Plan::new(weights, &methods, report.repack);
        if wanted.lock {
            plan.seal();
        }
        let pieces = |shard| plan.jobs.iter().filter(move |job| job.shard == shard);
        let packs = |job: &&plan::LoadJob| matches!(job.work, plan::Work::Pack { .. });
        let reclaim = maps.iter().enumerate().map(|(shard, map)| {
            let from_map =
                methods[shard].read == ReadMethod::Mmap && pieces(shard).any(|job| packs(&job));
            (wanted.reclaim && from_map).then(|| {
                let pending = pieces(shard).filter(packs).map(|job| job.source.clone());
                Reclaim::new(pending, &plan.kept[shard], map.len())
            })
        });
        let reclaim = reclaim.collect();
        let mut headers: Vec<usize> = maps.iter().map(|map| map.len()).collect();
        for matrix in weights.matrices() {
            let (shard, bytes) = matrix.file_range();
            headers[shard] = headers[shard].min(bytes.start);
        }
        check_memory(&report, weights, wanted.lock)?;
        let slots = slots.map(|planned| shortage::slots(&planned, &maps)).transpose()?;
        let arrival = Arrival::new(&plan.missing, plan.first_behind, plan.waited_for());
        let output = plan.output_section;
        let in_map = |matrix: &&MatrixRef| matrix.fits_slots() && matrix.storage() == Storage::Map;
        let chosen = weights.matrices().filter(in_map);
        let chosen: Vec<Prefetch> =
            chosen.map(|matrix| methods[matrix.file_range().0].prefetch_chosen).collect();
        let asks_ahead = chosen.iter().any(|prefetch| *prefetch != Prefetch::Populate);
        let sizes = StoreSizes { asks_ahead, ..plan.store_sizes() };
        let store = Arc::new(Store::new(maps, sizes, slots, arrival, output)?);
        if store.is_incoming() {
            store.priority().hold();
        }
        let (packed, jobs) = (plan.packed, plan.jobs.len());
        let shared = Arc::new(LoadState {
            store: Arc::clone(&store),
            plan,
            methods,
            done: (0..jobs).map(|_| AtomicBool::new(false)).collect(),
            stop: AtomicBool::new(false),
            reclaim,
            repacked: AtomicU64::new(0),
            headers,
            brings_behind: asks_ahead && !chosen.contains(&Prefetch::None),
            lock: if wanted.lock { weights.matrices().cloned().collect() } else { Vec::new() },
            report: Mutex::new(LoadReport { packed, ..report }),
        });
        let loader = Loader { shared, thread: Mutex::default() };
        *loader.thread() = loader.begin(ahead);
        Ok((store, loader))
    }

    /// Loads what is missing, on a new thread.
    fn begin(&self, ahead: Option<Ahead>) -> Option<JoinHandle<()>> {
        let theirs = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("alight-load".into());
        let thread = thread.spawn(move || {
            drop(ahead);
            theirs.bring();
        });
        if thread.is_err() {
            // The system provides no more threads, so the load runs here, before this call returns.
            self.shared.bring();
        }
        thread.ok()
    }

    /// Of a file that is being received, everything is received from now on, after what is needed now.
    pub(crate) fn receive_rest(&self) {
        self.shared.store.priority().release();
    }

    /// After a load that has failed because a file could not be read: begins it again for what is missing.
    pub(crate) fn try_again(&self) {
        let arrival = self.shared.store.arrival();
        if !arrival.has_failed() {
            return;
        }
        let mut thread = self.thread();
        if arrival.check().is_err_and(|error| error.unread().is_some()) {
            // After a failure it ends at once.
            if let Some(ending) = thread.take() {
                let _ = ending.join();
            }
            arrival.begin_again();
            *thread = self.begin(None);
        }
    }

    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when everything has been loaded.
    pub(crate) fn wait(&self) -> Result<(), Arc<LoadError>> {
        self.receive_rest();
        self.shared.store.arrival().wait_over()
    }

    /// The progress of the load, while weights are missing that the forward pass waits for.
    pub(crate) fn loading(&self) -> Option<Loading> {
        self.shared.store.arrival().loading()
    }

    /// Returns true if weights that no step waits for are still being loaded.
    pub(crate) fn brings_behind(&self) -> bool {
        self.shared.brings_behind && !self.shared.store.arrival().is_over()
    }

    /// The decisions, and the progress so far.
    pub(crate) fn report(&self) -> LoadReport {
        let shared = &self.shared;
        let report = shared.report().clone();
        LoadReport {
            bytes_repacked: shared.repacked.load(Ordering::Relaxed),
            bytes_given_back: shared.reclaim.iter().flatten().map(Reclaim::given).sum(),
            waited: shared.store.arrival().waited(),
            slots: shared.store.slots().map(|slots| SlotsReport {
                sizes: slots.sizes(),
                shared: slots.are_shared(),
                streamed: slots.are_whole(),
                counts: slots.counts(),
            }),
            ..report
        }
    }

    /// Gives back the pages of the headers of files whose weights were copied: they are no longer read.
    pub(crate) fn give_back_headers(&self) {
        for (shard, map) in self.shared.store.maps().iter().enumerate() {
            if !self.shared.store.in_use(shard) {
                map.give_back(0..self.shared.headers[shard]);
            }
        }
    }

    /// For files that are read around the page cache and of which nothing was cached before: evicts from the page cache the pages that were read for
    /// headers and vectors, read-ahead included.
    pub(crate) fn leave_as_found(&self) {
        let report = self.shared.report();
        for (map, file) in self.shared.store.maps().iter().zip(&report.files) {
            if file.choice.method == ReadMethod::Direct && file.facts.cached == 0 {
                map.give_back(0..map.len());
                // Where the system does not support it, the pages stay, which does no other harm.
                let _ = alight_pages::give_up(map.file());
            }
        }
    }
}

/// How a file is read. In a model with experts, the weights that every token reads come first; experts are loaded when they are chosen, and after the
/// rest if all fit into memory. The report includes this.
fn method(file: &mut FileReport, weights: &Weights, map: &Map) -> LoadMethod {
    let Choice { method: read, prefetch: all, .. } = file.choice;
    let is_incoming = map.incoming().is_some();
    let mut method = LoadMethod { read, prefetch: all, prefetch_chosen: all, is_incoming };
    if is_incoming {
        file.choice.reason.push_str(
            " It is still being received: what every token reads comes in the order of use, experts come when they are chosen, and the others \
             after the first answer has begun.",
        );
    }
    if is_incoming && read == ReadMethod::Mmap {
        // Also of a file in memory, or one that does not fit: nothing may be read before it has come.
        method.prefetch = Prefetch::ReadThreads(REMOTE_THREADS);
        if all != Prefetch::None {
            method.prefetch_chosen = method.prefetch;
        }
        return method;
    }
    let always = weights.matrices().filter(|matrix| !matrix.comes_later());
    let always: u64 = always.map(MatrixRef::len).sum();
    let chosen = weights.matrices().any(MatrixRef::fits_slots);
    let streamed = weights.matrices().any(|matrix| matrix.streamed);
    if (chosen || streamed) && read == ReadMethod::Mmap && all == Prefetch::None {
        let request = LoadRequest { load: Load::Mmap, copied: false, weights: always };
        method.prefetch = match choose(&file.facts, &request).prefetch {
            // Its pages are cached, and the choice was still not to load ahead.
            Prefetch::Populate => Prefetch::None,
            prefetch => prefetch,
        };
    }
    let chosen_come = match method.prefetch_chosen {
        _ if streamed => return method,
        Prefetch::None if method.prefetch != Prefetch::None => "when they are chosen",
        Prefetch::ReadThreads(_) if chosen => "when they are chosen, the others after that",
        _ => return method,
    };
    let always = always as f64 / 1e9;
    let more = format!(
        " What every token reads, {always:.2} GB, is read ahead; experts come {chosen_come}."
    );
    file.choice.reason.push_str(&more);
    method
}

/// The facts about a file. Call it before anything of the file is read, because reading changes them.
pub(crate) fn facts(map: &Map) -> Result<Facts, LoadError> {
    let of = |source| LoadError::Facts { path: map.path().into(), source };
    let facts = Facts::of(map.file()).map_err(of)?;
    // The page cache of a file that is being received has its holes, too.
    let cached = if map.incoming().is_some() { 0 } else { facts.cached };
    Ok(Facts { cached, ..facts })
}

/// Checks that the copies of weights, and the locked memory, fit into the available memory. Nothing has been read yet; a load that continued without
/// enough memory would be killed half way.
fn check_memory(report: &LoadReport, weights: &Weights, lock: bool) -> Result<(), LoadError> {
    let Some(first) = report.files.first() else { return Ok(()) };
    let (mut copied, mut mapped) = (0, 0);
    for matrix in weights.matrices() {
        match matrix.storage() {
            Storage::Map => mapped += matrix.len(),
            Storage::Image | Storage::Tiles(_) => copied += matrix.len(),
            // They use the memory that remains.
            Storage::Slots(_) => {}
        }
    }
    let lock_error = |source| LoadError::Lock { path: first.path.clone(), source };
    if lock {
        check_lock(copied + mapped).map_err(lock_error)?;
    }
    // Cached pages already have their memory, and locking uses no more.
    let cached: u64 = report.files.iter().map(|file| file.facts.cached).sum();
    let locked = if lock { mapped.saturating_sub(cached) } else { 0 };
    let needed = copied + locked;
    let Some(facts) = report.files.iter().map(|file| &file.facts).min_by_key(|f| f.available)
    else {
        return Ok(());
    };
    // Locked pages are not swapped out.
    let available = facts.available.saturating_add(if lock { 0 } else { swap_free() });
    if needed <= available {
        return Ok(());
    }
    let (path, limit) = (first.path.clone(), facts.limit_source.clone());
    Err(LoadError::NotEnoughMemory { path, needed, available, limit })
}

/// Decides from the facts how each file is read, and whether matrices are packed.
fn decide(maps: &[Arc<Map>], facts: Vec<Facts>, weights: &Weights, wanted: Wanted) -> LoadReport {
    let (mut bytes, mut packable) = (vec![0u64; maps.len()], false);
    for matrix in weights.matrices() {
        bytes[matrix.file_range().0] += matrix.len();
        packable |= matrix.packable();
    }
    // All files share the memory.
    let all = bytes.iter().sum();
    let choices = |copied| {
        let request = LoadRequest { load: wanted.load, copied, weights: all };
        facts.iter().map(|facts| choose(facts, &request)).collect::<Vec<_>>()
    };
    let copied = matches!(wanted.load, Load::Direct | Load::Read);
    let (repack, reason) = match wanted.repack {
        _ if !packable => (false, "No matrix has a packed form that it is not in already."),
        Repack::On => (true, "--repack on was given."),
        Repack::Off => (false, "--repack off was given."),
        Repack::Auto if copied => (true, "--load asks for a copy of the weights."),
        Repack::Auto => (false, "The weights stay in the file's order: no copy was asked for."),
    };
    let choice = choices(repack);
    let files = maps.iter().zip(bytes).zip(facts.iter().zip(choice));
    let files = files.map(|((map, weights), (facts, choice))| FileReport {
        path: map.path().into(),
        weights,
        facts: facts.clone(),
        choice,
    });
    LoadReport {
        files: files.collect(),
        repack,
        repack_reason: reason.to_owned(),
        packed: 0,
        bytes_repacked: 0,
        bytes_given_back: 0,
        bytes_read: 0,
        bytes_locked: 0,
        engine: None,
        direct: false,
        fallbacks: Vec::new(),
        took: None,
        waited: std::time::Duration::ZERO,
        slots: None,
    }
}

/// Marks a load as finished when it is dropped, however the load ended.
struct FinishOnDrop<'a>(&'a Arrival);

impl Drop for FinishOnDrop<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(LoadError::Stopped);
        }
        self.0.end();
    }
}

impl LoadState {
    /// Runs on the load thread: carries out the plan, locks, and records the outcome.
    fn bring(&self) {
        let began = Instant::now();
        let arrival = self.store.arrival();
        let finish = FinishOnDrop(arrival);
        let brought = self.carry_out();
        if brought.is_ok() && self.brings_behind {
            self.store.stop_asking();
            self.read_anew();
        }
        let result = brought.and_then(|()| self.lock_all());
        match result {
            // Locked bytes have already been counted.
            Ok(()) => self.plan.sealed.into_iter().for_each(|section| arrival.arrived(section, 0)),
            Err(error) => arrival.fail(error),
        }
        self.report().took = Some(began.elapsed());
        drop(finish);
        self.receive_rest();
    }

    /// Has the rest of files received that are still coming: what no section waits for.
    fn receive_rest(&self) {
        if self.store.is_incoming() && !self.store.arrival().has_failed() {
            self.store.priority().let_pass();
            if !self.stop.load(Ordering::Relaxed) {
                self.store
                    .maps()
                    .iter()
                    .filter_map(|map| map.incoming())
                    .for_each(|map| map.take_rest());
            }
        }
    }

    /// Locks the weights that a step reads, if the caller requested it.
    fn lock_all(&self) -> Result<(), LoadError> {
        let mut bytes = 0;
        for matrix in &self.lock {
            if self.stop.load(Ordering::Relaxed) {
                return Err(LoadError::Stopped);
            }
            // The contents of slots change; the weights that every token reads are locked.
            if matches!(matrix.storage(), Storage::Slots(_)) {
                continue;
            }
            let (shard, range) = matrix.file_range();
            let map = &self.store.maps()[shard];
            bytes += matrix.len();
            let locked = match (matrix.storage(), self.store.image(shard), self.store.tiles()) {
                (Storage::Tiles(at), _, Some(tiles)) => tiles.lock_range(at..at + range.len()),
                (Storage::Image, Some(image), _) => image.lock_range(range),
                _ => map.lock(range),
            };
            let named = |source| LoadError::Lock { path: map.path().into(), source };
            locked.map_err(named)?;
        }
        self.report().bytes_locked = bytes;
        Ok(())
    }

    fn report(&self) -> MutexGuard<'_, LoadReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.store.priority().release();
        if let Some(thread) = self.thread().take() {
            let _ = thread.join();
        }
    }
}
