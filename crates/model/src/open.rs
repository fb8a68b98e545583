//! Opening a model: map, parse, check, and build the tokenizer, with as little waiting as possible.
//!
//! The tokenizer is built on another thread while this one checks the tensors. More threads load the weights in the order in which the forward pass
//! will read them (see `load`), and continue after [`Model::open`] has returned. Nothing here waits for them.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use alight_files::Headers;
use alight_formats::Pieces;
use alight_formats::gguf::Gguf;
use alight_formats::split::Catalog;
use alight_kernels::{ARITHMETIC, Isa};
use alight_pages::slots::SlotOptions;
use alight_pages::{Facts, Map};
use alight_text::{Tokenizer, Vocabulary};
use sha2::{Digest, Sha256};

use crate::adapters::Adaptable;
use crate::content::{self, ModelContent};
use crate::describe;
use crate::error::ModelError;
use crate::load::{self, Ahead, Load, LoadReport, Loader, Repack, ResidentPart, Wanted};
use crate::positions::POSITIONS;
use crate::prompts::{Key, Rounding};
use crate::spec::ModelSpec;
use crate::store::{ExpertTrace, Loading, PROGRAM, Seen, Store};
use crate::threads::Pool;
use crate::weights::{Weights, not_finite};

/// Maximum number of positions of a sequence if none is requested, and if the model was trained for that many.
pub const DEFAULT_CONTEXT: usize = 4096;

/// How to open a model.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Threads of the token loop; `None`: [`Pool::default_threads`].
    pub threads: Option<usize>,
    /// The SIMD level of kernels; `None`: the best that this CPU has.
    pub isa: Option<Isa>,
    /// How the weights are read from the files.
    pub load: Load,
    /// When they are packed while they are loaded.
    pub repack: Repack,
    /// True if pages of a map are given back once their contents have been packed.
    pub reclaim: bool,
    /// True if the weights that a step reads are locked in memory once they are loaded.
    pub lock: bool,
    /// Limit in bytes on the memory of weights and of the data of a sequence; `None`: the available memory. The experts of a mixture of experts that
    /// does not fit are loaded when they are chosen.
    pub memory: Option<u64>,
    /// True if files are refused whose metadata makes answers doubtful ([`Model::warnings`]).
    pub strict: bool,
    /// How those experts are read. For tests and measurements.
    pub slots: SlotOptions,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            threads: None,
            isa: None,
            load: Load::Auto,
            repack: Repack::Auto,
            reclaim: true,
            lock: false,
            memory: None,
            strict: false,
            slots: SlotOptions::default(),
        }
    }
}

/// The durations of the steps of [`Model::open`]. `tokenizer` overlaps with `weights`.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenTimings {
    /// Starting the threads of the pool.
    pub threads: Duration,
    /// Opening and mapping the files.
    pub map: Duration,
    /// Parsing their headers.
    pub header: Duration,
    /// Checking hyper-parameters and tensors.
    pub weights: Duration,
    /// Building the tokenizer.
    pub tokenizer: Duration,
    /// Loading the weights, in the background; `None` while that continues.
    pub load: Option<Duration>,
    /// The whole call.
    pub total: Duration,
}

/// A model in mapped files, ready for sessions.
///
/// Any number of sessions can share it. Its pool runs one region at a time: sessions that are fed
/// from several threads at once are correct, but share the threads unevenly.
pub struct Model {
    // First, because dropping it ends the threads that load the weights.
    loader: Loader,
    store: Arc<Store>,
    spec: ModelSpec,
    weights: Weights,
    vocabulary: Arc<Vocabulary>,
    name: String,
    parameters: u64,
    pool: Pool,
    isa: Isa,
    timings: OpenTimings,
    content: OnceLock<ModelContent>,
    /// The tensors that adapters can change.
    pub(crate) adaptable: OnceLock<Adaptable>,
    identity: OnceLock<[u8; 32]>,
}

impl Model {
    /// Opens the model in the file at `path`, together with all other shards if that is one of several.
    ///
    /// # Errors
    /// See [`ModelError`]; every message names the file.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Model, ModelError> {
        Model::open_by(&|path| Ok(Arc::new(Map::open(path)?)), path, options)
    }

    /// Opens the model in the files of these maps, all shards of it, which may still be being received ([`Map::of_incoming`]): the headers
    /// and the vectors are waited for here, other weights by the steps that need them. Experts that no token has chosen are received
    /// after the first answer has begun, or after [`receive_rest`](Model::receive_rest).
    ///
    /// # Errors
    /// See [`ModelError`]; every message names the file.
    ///
    /// # Panics
    /// If there is no map.
    pub fn open_mapped(maps: &[Arc<Map>], options: &OpenOptions) -> Result<Model, ModelError> {
        let of = |path: &Path| match maps.iter().find(|map| map.path() == path) {
            Some(map) => Ok(Arc::clone(map)),
            None => Ok(Arc::new(Map::open(path)?)),
        };
        Model::open_by(&of, maps[0].path(), options)
    }

    /// Opens the model at `path`, of whose files `map` returns the maps.
    fn open_by(
        map: &dyn Fn(&Path) -> Result<Arc<Map>, ModelError>,
        path: &Path,
        options: &OpenOptions,
    ) -> Result<Model, ModelError> {
        let began = Instant::now();
        let isa = options.isa.unwrap_or_else(Isa::best);
        let pool = Pool::new(options.threads.unwrap_or_else(Pool::default_threads));
        let mut timings = OpenTimings { threads: began.elapsed(), ..OpenTimings::default() };

        let clock = Instant::now();
        let first = map(path)?;
        // Queried before anything is read, which would change it.
        let mut facts = vec![load::facts(&first)?];
        let OpenOptions { load, repack, memory, .. } = *options;
        let ahead = Ahead::of(&first, &facts[0], load, repack, memory);
        timings.map = clock.elapsed();
        let clock = Instant::now();
        let copy = alight_files::copy(&first);
        let gguf = alight_files::parse(&first, &copy)?;
        let shards = alight_files::shards(&first, &gguf)?;
        timings.header = clock.elapsed();
        let opening = Opening { path, options, isa, pool, timings, began, ahead };
        let Some(paths) = shards else {
            let maps = vec![Arc::clone(&first)];
            let headers = Headers::merge(&maps, vec![gguf])?;
            return Model::assemble(opening, maps, facts, headers, &copy.pieces());
        };
        let clock = Instant::now();
        let (mut maps, mut all_facts) = (Vec::new(), Vec::new());
        for shard in &paths {
            if shard.file_name() == path.file_name() {
                maps.push(Arc::clone(&first));
                all_facts.append(&mut facts);
            } else {
                let map = map(shard)?;
                all_facts.push(load::facts(&map)?);
                maps.push(map);
            }
        }
        let mut opening = opening;
        opening.timings.map += clock.elapsed();
        let clock = Instant::now();
        let kept = maps.clone();
        let copies = alight_files::copies(&kept);
        let headers = alight_files::headers(&kept, &copies)?;
        opening.timings.header += clock.elapsed();
        Model::assemble(opening, maps, all_facts, headers, &copies[0].pieces())
    }

    /// Builds the model from its mapped files and their headers; `pieces` are those of the first, which has the vocabulary.
    fn assemble(
        opening: Opening<'_>,
        maps: Vec<Arc<Map>>,
        facts: Vec<Facts>,
        headers: Headers<'_>,
        pieces: &Pieces,
    ) -> Result<Model, ModelError> {
        let Opening { path, options, isa, pool, mut timings, began, ahead } = opening;
        let Headers { files, catalog } = headers;
        let gguf = &files[0];
        let (built, checked) = thread::scope(|scope| {
            let tokenizer = thread::Builder::new()
                .name("alight-vocab".into())
                .spawn_scoped(scope, || Vocabulary::from_header(gguf, pieces));
            let checked = check(path, gguf, &catalog, &maps, facts, options, ahead);
            let built = match tokenizer {
                Ok(handle) => handle.join().unwrap_or_else(|p| std::panic::resume_unwind(p)),
                // The system provides no more threads.
                Err(_) => Vocabulary::from_header(gguf, pieces),
            };
            (built, checked)
        });
        // An error in the header comes first, then one in the vocabulary. But a file that has been truncated since it was mapped is the cause of
        // both.
        maps.iter().try_for_each(|map| map.check())?;
        let checked = checked?;
        let vocabulary =
            built.map_err(|source| ModelError::Tokenizer { path: path.into(), source })?;
        if options.strict {
            let warnings = describe::warnings(&checked.spec, &vocabulary.tokenizer);
            if !warnings.is_empty() {
                return Err(ModelError::Doubtful { path: path.into(), warnings });
            }
        }
        timings.weights = checked.took;
        timings.tokenizer = vocabulary.took;
        let name = describe::name(path);
        let parameters = catalog.tensors.iter().map(|t| t.info.elements()).sum();
        drop(files);
        if options.reclaim {
            checked.loader.give_back_headers();
        }
        checked.loader.leave_as_found();
        timings.total = began.elapsed();
        Ok(Model {
            loader: checked.loader,
            store: checked.store,
            spec: checked.spec,
            weights: checked.weights,
            vocabulary: Arc::new(vocabulary),
            name,
            parameters,
            pool,
            isa,
            timings,
            content: OnceLock::new(),
            adaptable: OnceLock::new(),
            identity: OnceLock::new(),
        })
    }

    /// The [hash](ModelContent::hash) of its content, the same for all of its files. Different models have different hashes, unless they differ only in a few
    /// weights of a matrix. A model that cannot be read has one of its own: the next step reports the error.
    pub fn identity(&self) -> [u8; 32] {
        *self.identity.get_or_init(|| match self.content() {
            Ok(content) => content.hash,
            Err(_) => Sha256::digest(RandomState::new().hash_one(0).to_le_bytes()).into(),
        })
    }

    /// The content of the files, whatever their layout: a packed file is the same model as its source. It is read the first time only.
    ///
    /// # Errors
    /// A file has changed, or cannot be read.
    pub fn content(&self) -> Result<&ModelContent, ModelError> {
        if let Some(content) = self.content.get() {
            return Ok(content);
        }
        let content = content::read(self.store.maps())?;
        Ok(self.content.get_or_init(|| content))
    }

    /// Returns true if the kernels read weights in tiles: those of a packed file, or those that were packed while they were loaded.
    pub fn has_tiles(&self, content: &ModelContent) -> bool {
        content.packed || self.store.is_repacked()
    }

    /// The specification of the network.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.vocabulary.tokenizer
    }

    /// The tokenizer with the chat template.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// The shared vocabulary, which may outlive the model.
    pub fn shared_vocabulary(&self) -> Arc<Vocabulary> {
        Arc::clone(&self.vocabulary)
    }

    /// The vocabulary, to give it another chat template or format than the file's.
    ///
    /// # Panics
    /// If the [shared vocabulary](Model::shared_vocabulary) has been handed out already.
    pub fn vocabulary_mut(&mut self) -> &mut Vocabulary {
        Arc::get_mut(&mut self.vocabulary).expect("the vocabulary is not shared yet")
    }

    /// Reasons in the metadata to doubt answers, a sentence each ([`describe::warnings`]).
    pub fn warnings(&self) -> Vec<String> {
        describe::warnings(&self.spec, &self.vocabulary.tokenizer)
    }

    /// Checks that all weights are finite numbers. Reads all files, in little memory. (Weights that are not are noticed without this
    /// when something is computed with them.)
    ///
    /// # Errors
    /// [`ModelError::NotFinite`] names the first tensor with another one.
    pub fn check_tensors(&self) -> Result<(), ModelError> {
        let path = || self.files().next().unwrap_or(Path::new("")).to_owned();
        match self.first_not_finite() {
            Some(tensor) => Err(ModelError::NotFinite { path: path(), tensor }),
            None => Ok(()),
        }
    }

    /// The first tensor with a weight that is not a finite number.
    pub(crate) fn first_not_finite(&self) -> Option<String> {
        not_finite(self.store().maps().iter().map(|map| &**map))
    }

    /// The name of the model: that of its file, without the extension.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The files, in the order of the shards.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.store.maps().iter().map(|map| map.path())
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.store.maps().iter().map(|map| map.len() as u64).sum()
    }

    /// The number of weights in all tensors.
    pub fn parameters(&self) -> u64 {
        self.parameters
    }

    /// Bytes of the matrices that one decoded token reads: all layers and the output, not the embedding (of which it reads one row).
    pub fn decode_bytes(&self) -> u64 {
        self.weights.decode_bytes()
    }

    /// Multiply-accumulates of those matrices for one token.
    pub fn decode_macs(&self) -> u64 {
        self.prefill_macs() + self.weights.output.as_ref().map_or(0, |output| output.matrix.macs())
    }

    /// Multiply-accumulates of the layers' matrices for one token, without the output's.
    pub fn prefill_macs(&self) -> u64 {
        self.weights.prefill_macs()
    }

    /// The key of prompts computed by this model: it covers the model, this program's arithmetic, rounding, whether the sequence is long to a model
    /// that rotates long ones differently, and the salt of the users who share them. The layout of the file and the CPU change no bit.
    pub(crate) fn prompt_key(&self, rounding: Rounding, long: bool, salt: &str) -> Key {
        let mut hash = Sha256::new();
        hash.update(self.identity());
        let version = env!("CARGO_PKG_VERSION");
        let bits = self.isa.bits();
        let by = format!("{version} {ARITHMETIC} {bits} {rounding:?} {POSITIONS} {long} {salt}");
        hash.update(by.as_bytes());
        hash.finalize().into()
    }

    /// The SIMD level of kernels in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Number of threads of the token loop.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The thread pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The durations of the steps of opening.
    pub fn timings(&self) -> OpenTimings {
        OpenTimings { load: self.loader.report().took, ..self.timings }
    }

    /// How the weights are loaded: the facts, the choice and its reason, and the progress so far.
    pub fn load_report(&self) -> LoadReport {
        self.loader.report()
    }

    /// The progress of the load, while a step may have to wait for weights. Cheap enough to be called often.
    pub fn loading(&self) -> Option<Loading> {
        self.loader.loading()
    }

    /// Returns true if a file is still being received.
    pub fn is_incoming(&self) -> bool {
        self.store.is_incoming()
    }

    /// Has everything received from now on, after what is needed now. Before the first answer has begun, only what it needs is.
    pub fn receive_rest(&self) {
        self.loader.receive_rest();
    }

    /// Returns when all files have been received.
    ///
    /// # Errors
    /// They will not be.
    pub(crate) fn wait_received(&self) -> Result<(), ModelError> {
        self.receive_rest();
        let mut maps = self.store.maps().iter();
        Ok(maps.try_for_each(|map| map.wait(&(0..map.len()), &|| false).map(drop))?)
    }

    /// Returns true if weights that no step waits for are still being read: experts of a cold file that have not been chosen.
    pub fn brings_behind(&self) -> bool {
        self.loader.brings_behind()
    }

    /// A number that grows while something is computed or loaded: with each layer of a step, and with each piece of a file. Where it stays the same
    /// during a step, the step is stuck.
    pub fn progress(&self) -> Arc<AtomicU64> {
        Arc::clone(self.store.progress())
    }

    /// Starts to record which experts are chosen.
    pub fn record_experts(&self) {
        self.store.recorder().begin(load::layers_with_experts(&self.weights));
    }

    /// Ends the recording, and returns it.
    pub fn recorded_experts(&self) -> ExpertTrace {
        self.store.recorder().end()
    }

    /// The resident share of each part of the model, in the order in which a token reads them. Nothing is read for it, and the page cache stays as it
    /// is. It queries the system about each matrix, and in a mixture of experts about each expert: microseconds each.
    pub fn resident(&self) -> Vec<ResidentPart> {
        load::resident(&self.weights, &self.store)
    }

    /// Unmaps the pages of the files from this process, for a time in which nothing is computed. The page cache keeps them as far as the system has
    /// memory, and pages that are used again are mapped again. Copied weights stay.
    pub fn rest(&self) {
        for map in self.store.maps() {
            map.give_back(0..map.len());
        }
    }

    /// Returns when all weights that a step reads have been loaded. You need not call it before feeding a session, which itself waits for the weights
    /// it reads.
    ///
    /// # Errors
    /// They cannot be loaded.
    pub fn wait_loaded(&self) -> Result<(), ModelError> {
        self.loader.wait()?;
        self.check()
    }

    /// Checks that everything read from the files so far is reliable.
    ///
    /// # Errors
    /// A file has become shorter since it was mapped, or a page of it could not be read.
    pub fn check(&self) -> Result<(), ModelError> {
        self.store.check_maps()?;
        Ok(self.store.arrival().check()?)
    }

    /// Gets ready for a step: what could not be read before is read again. Costs next to nothing if everything could be.
    pub(crate) fn begin_step(&self) -> Seen {
        let seen = self.store.begin_step();
        self.loader.try_again();
        seen
    }

    /// Checks that everything that a step has read since it began is reliable.
    ///
    /// # Errors
    /// A file has become shorter since it was mapped, or a part of it could not be read.
    pub(crate) fn check_step(&self, seen: Seen) -> Result<(), ModelError> {
        self.store.check_step(seen)?;
        Ok(self.store.arrival().check()?)
    }

    pub(crate) fn weights(&self) -> &Weights {
        &self.weights
    }

    pub(crate) fn weights_mut(&mut self) -> &mut Weights {
        &mut self.weights
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }
}

/// The state after the files have been mapped, without their contents.
struct Opening<'o> {
    path: &'o Path,
    options: &'o OpenOptions,
    isa: Isa,
    pool: Pool,
    timings: OpenTimings,
    began: Instant,
    ahead: Option<Ahead>,
}

/// Result of validation.
struct Checked {
    spec: ModelSpec,
    weights: Weights,
    store: Arc<Store>,
    loader: Loader,
    took: Duration,
}

fn check(
    path: &Path,
    gguf: &Gguf<'_>,
    catalog: &Catalog<'_>,
    maps: &[Arc<Map>],
    facts: Vec<Facts>,
    options: &OpenOptions,
    ahead: Option<Ahead>,
) -> Result<Checked, ModelError> {
    let clock = Instant::now();
    let path = || -> PathBuf { path.into() };
    let mut spec =
        ModelSpec::from_gguf(gguf).map_err(|source| ModelError::Spec { path: path(), source })?;
    ask_for_vectors(catalog, maps);
    let mut weights = Weights::load(&mut spec, catalog, maps)
        .map_err(|source| ModelError::Weights { path: path(), source })?;
    let took = clock.elapsed();
    let OpenOptions { load, repack, reclaim, lock, memory, slots, .. } = *options;
    let wanted = Wanted {
        load,
        repack,
        reclaim,
        lock,
        memory,
        slots,
        sequence_bytes: sequence_bytes(&spec),
    };
    let (store, loader) = Loader::start(maps.to_vec(), facts, &mut weights, wanted, ahead)?;
    Ok(Checked { spec, weights, store, loader, took })
}

/// Of files that are still being received, asks for the vectors, which are all over them and read one by one.
fn ask_for_vectors(catalog: &Catalog<'_>, maps: &[Arc<Map>]) {
    for tensor in &catalog.tensors {
        let (info, incoming) = (&tensor.info, maps[tensor.shard].incoming());
        if let Some(incoming) = incoming.filter(|_| info.ne[1..].iter().all(|ne| *ne == 1)) {
            incoming.ask_now(info.offset..info.offset + info.nbytes);
        }
    }
}

/// Approximate memory of a sequence of the usual length in bytes, without weights: keys and values, and the fixed memory of the program.
fn sequence_bytes(spec: &ModelSpec) -> u64 {
    let positions = spec.context.min(DEFAULT_CONTEXT);
    let kept = spec.stored().map(|stored| stored.bytes * stored.kept_of(positions));
    kept.sum::<usize>() as u64 + PROGRAM
}
