//! The computed state of sequences: keys and values of attention, in pages of positions, and states of recurrent layers.
//!
//! Layers with a window have pages of their own, which a sequence gives back once no later row sees them ([`windows`]). So such a sequence, like one
//! with recurrent layers, cannot be cut anywhere: it goes back to one of its [`places`].
//!
//! Keys and values are f16. The address space of all pages is reserved and not touched: the system provides memory when a position in it is first
//! stored. Huge pages are declined, because one of them would hold many positions of a head that are not used yet.

mod pages;
mod places;
mod prefix;
mod states;
mod windows;
mod zeroed;

use std::ops::Range;

use alight_kernels::attention::{KvCache, KvShape, KvWriter, Window};
use alight_pages::MapError;

use crate::positions::{POSITIONS, Windows};
use crate::prompts::{CacheSizes, Contents, Key, PromptFile, PromptFileError};

/// The system does not provide the memory for the computed state of a sequence.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot reserve {} for keys, values and states: {source}; a smaller context (-c) needs less",
    alight_types::units::bytes(*.bytes as u64)
)]
pub struct CacheError {
    /// The number of bytes to be reserved.
    pub bytes: usize,
    /// The reason.
    pub source: std::io::Error,
}

pub(crate) use pages::NeededFor;
use pages::{Pages, Pools};
use places::{Places, SavedPlace};
use prefix::PrefixIndex;
pub use prefix::reusable;
pub(crate) use prefix::{Found, NodeId};
use states::States;
use windows::WindowPages;

/// The stored data of a layer: the shapes and sizes of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerCache {
    /// The shape of its keys and values in a page, if it has any.
    pub(crate) shape: Option<KvShape>,
    /// Its window, if it need not keep keys and values that no later row sees.
    pub(crate) window: Option<Window>,
    /// The number of elements of its state.
    pub(crate) state: usize,
}

/// The computed state of several sequences.
pub(crate) struct Cache {
    pools: Pools,
    windows: Windows,
    sequences: Vec<SequenceCache>,
    index: PrefixIndex,
}

/// The part of a prompt that is in the index: whole pages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Indexed {
    node: Option<NodeId>,
    pages: usize,
}

impl Indexed {
    /// The number of pages.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// The last of them.
    pub(crate) fn last_page(&self) -> usize {
        self.pages.saturating_sub(1)
    }
}

/// The computed state of one sequence.
struct SequenceCache {
    /// Its pages of layers that keep all positions, in the order of positions.
    pages: Vec<u32>,
    /// Those of layers with a window.
    window: WindowPages,
    states: States,
    places: Places,
}

impl SequenceCache {
    /// Removes everything.
    fn clear(&mut self, pools: &mut Pools) {
        self.pages.drain(..).for_each(|page| pools.full.release(page));
        self.window.clear(&mut pools.window);
        self.states.begin_again();
        self.places.drop_after(0, &mut pools.window);
    }

    /// Its pages of layers that have a window, or of the others.
    fn table(&self, windowed: bool) -> &[u32] {
        if windowed { self.window.table() } else { &self.pages }
    }
}

impl Cache {
    /// Creates an empty cache, with pages for `positions` positions of `sequences` sequences together, and for the prompts in an index of up to
    /// `kept` bytes, which is 0 if keys and values are needed for their layer only.
    ///
    /// # Errors
    /// The system does not provide the address space.
    pub(crate) fn new(
        positions: usize,
        sequences: usize,
        kept: usize,
        layers: &[LayerCache],
        needed_for: NeededFor,
    ) -> Result<Cache, CacheError> {
        let windows = Windows::new(layers.iter().filter_map(|layer| layer.window));
        let shapes = |windowed: bool| {
            let shape =
                |layer: &LayerCache| layer.shape.filter(|_| layer.window.is_some() == windowed);
            layers.iter().map(shape).collect::<Vec<_>>()
        };
        // Only those that are in use at the same time use memory. The last page of a place may be a copy.
        let places = sequences.saturating_mul((places::PLACES + 1) * POSITIONS);
        let window = match windows.is_empty() {
            true => Pages::new(0, 0, &[], needed_for)?,
            false => Pages::new(positions.saturating_add(places), kept, &shapes(true), needed_for)?,
        };
        let mut pools =
            Pools { full: Pages::new(positions, kept, &shapes(false), needed_for)?, window };
        let all = pools.full.stride() + pools.window.stride();
        pools.full.ask_for_huge_pages(all);
        pools.window.ask_for_huge_pages(all);
        let states = || layers.iter().map(|layer| layer.state);
        let (pages, of) = (positions.div_ceil(POSITIONS), sequences.max(1));
        let sequence = || -> Result<SequenceCache, CacheError> {
            let states = States::new(states())?;
            // Those of one sequence.
            let most = if windows.is_empty() { 0 } else { pages / of + 1 };
            let places = Places::new(&states, &windows, most)?;
            let window = WindowPages::with_capacity(most);
            Ok(SequenceCache { pages: Vec::with_capacity(pages), window, states, places })
        };
        let sequences = (0..sequences).map(|_| sequence()).collect::<Result<Vec<_>, _>>()?;
        let recurrent = states().any(|len| len > 0);
        let index = PrefixIndex::new(kept, pools.full.count(), recurrent, windows.clone());
        Ok(Cache { pools, windows, sequences, index })
    }

    /// Prepares positions `from..to` for writing: the sequence has exactly the pages of its first `to` positions that a row from `from` on sees, and
    /// the pages to be written belong to it alone. Returns false if there were not enough pages.
    ///
    /// # Panics
    /// Panics if a page was given back that a row sees: [`Cache::go_back`] says how far a sequence can be cut.
    pub(crate) fn prepare(&mut self, sequence: usize, from: usize, to: usize) -> bool {
        let Cache { pools, windows, sequences, index } = self;
        let SequenceCache { pages, window, .. } = &mut sequences[sequence];
        if !windows.is_empty() {
            if from == 0 && window.first() > 0 {
                window.clear(&mut pools.window);
            }
            assert!(window.first() <= windows.needed_from(from), "a window from {from} on");
            window.give_back(windows.kept_from(from), &mut pools.window);
            let table = window.table_mut();
            if !prepare_table(table, [from, to], (pools, |pools| &mut pools.window), index) {
                return false;
            }
        }
        prepare_table(pages, [from, to], (pools, |pools| &mut pools.full), index)
    }

    /// Removes everything that a sequence has.
    pub(crate) fn clear(&mut self, sequence: usize) {
        self.sequences[sequence].clear(&mut self.pools);
        self.index.shrink(&mut self.pools);
    }

    /// Removes everything that the sequences and the index have.
    pub(crate) fn forget(&mut self) {
        (0..self.sequences.len()).for_each(|sequence| self.clear(sequence));
        while self.index.give_up(&mut self.pools) {}
    }

    /// Saves a place that a sequence can go back to, after its first `position` tokens, which are what it has. Does nothing if it can be cut anywhere.
    pub(crate) fn save_place(&mut self, sequence: usize, position: usize) {
        let SequenceCache { window, states, places, .. } = &mut self.sequences[sequence];
        places.save(position, (states, window), &self.windows, &mut self.pools.window);
    }

    /// The position of the latest place of a sequence; 0 without one.
    pub(crate) fn latest_place(&self, sequence: usize) -> usize {
        self.sequences[sequence].places.latest()
    }

    /// Goes back to the first `n` tokens of a sequence, or if what follows them cannot be computed any more to the latest place before, or to the
    /// start. Returns the number of tokens left.
    pub(crate) fn go_back(&mut self, sequence: usize, n: usize) -> usize {
        let SequenceCache { window, states, places, .. } = &mut self.sequences[sequence];
        let pool = &mut self.pools.window;
        let needed = self.windows.needed_from(n);
        let mut left = n;
        if !states.is_empty() || !self.windows.is_empty() && n > 0 {
            if let Some(place) = places.latest_within(n).filter(|_| states.is_empty())
                && place.position >= window.first() * POSITIONS
            {
                // The two have the same pages before the place, of which the sequence has given back some.
                window.share_before(&place.window, pool);
            }
            if !states.is_empty() || window.first() > needed {
                left = match places.with_page(needed, n).filter(|_| states.is_empty()) {
                    Some(later) => {
                        window.share(&later.window, needed..n.div_ceil(POSITIONS), pool);
                        n
                    }
                    None => match places.latest_within(n) {
                        Some(SavedPlace { position, states: kept, window: pages }) => {
                            states.restore(kept);
                            window.share(pages, pages.first()..pages.table().len(), pool);
                            *position
                        }
                        None => {
                            states.begin_again();
                            window.clear(pool);
                            0
                        }
                    },
                };
            }
        }
        places.drop_after(n, pool);
        left
    }

    /// Assigns to a sequence the indexed beginning of `tokens`, if that is more than `least` of them.
    pub(crate) fn adopt(
        &mut self,
        sequence: usize,
        salt: &str,
        tokens: &[u32],
        least: usize,
    ) -> Option<(Found, Indexed)> {
        let found = self.index.find(salt, tokens);
        if found.positions <= least {
            return None;
        }
        let Cache { pools, windows, sequences, index } = self;
        let sequence = &mut sequences[sequence];
        sequence.clear(pools);
        index.pages_of(&found, &mut sequence.pages);
        sequence.pages.iter().for_each(|page| pools.full.share(*page));
        if !windows.is_empty() {
            index.windows_of(&found, &mut sequence.window);
            sequence.window.held().iter().for_each(|page| pools.window.share(*page));
        }
        if let Some(kept) = index.states_of(&found) {
            sequence.states.restore(kept);
        }
        index.shrink(pools);
        Some((found, Indexed { node: found.node, pages: found.positions / POSITIONS }))
    }

    /// Returns true if prompts are kept.
    pub(crate) fn has_index(&self) -> bool {
        self.index.is_on()
    }

    /// Bytes used by kept prompts.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.index.held()
    }

    /// Returns true if prompts are kept, and can be split only where states of recurrent layers are kept as well.
    pub(crate) fn is_recurrent(&self) -> bool {
        self.index.is_on() && self.has_states()
    }

    /// Returns true if prompts are kept, and can be split only where pages of layers with a window are kept as well.
    pub(crate) fn is_windowed(&self) -> bool {
        self.index.is_on() && !self.windows.is_empty()
    }

    /// Returns true if there are recurrent layers.
    pub(crate) fn has_states(&self) -> bool {
        self.sequences.iter().any(|s| !s.states.is_empty())
    }

    /// Prepares a sequence for drafts of up to `most` tokens.
    ///
    /// # Errors
    /// The system does not provide the address space.
    pub(crate) fn get_ready_for_drafts(
        &mut self,
        sequence: usize,
        most: usize,
    ) -> Result<(), CacheError> {
        self.sequences[sequence].states.get_ready_for_drafts(most)
    }

    /// Reverts the states of a sequence to those after row `row` of its last draft.
    pub(crate) fn back_to_draft(&mut self, sequence: usize, row: usize) {
        self.sequences[sequence].states.back_to_draft(row);
    }

    /// The number of tokens of a prompt that the index would have if recurrent states and pages of windows were available everywhere.
    pub(crate) fn attended(&mut self, salt: &str, tokens: &[u32]) -> usize {
        self.index.find(salt, tokens).attended
    }

    /// Adds the computed part of `tokens` of a sequence to the index: whole pages, or the rest as well, which the sequence must not write to any
    /// more. It may be assigned other pages with the same contents.
    pub(crate) fn add(
        &mut self,
        sequence: usize,
        salt: &str,
        tokens: &[u32],
        rest: bool,
        indexed: &mut Indexed,
    ) {
        if !self.index.is_on() {
            return;
        }
        let SequenceCache { pages: table, window, .. } = &mut self.sequences[sequence];
        let pools = &mut self.pools;
        for tokens in tokens.chunks(POSITIONS).skip(indexed.pages) {
            if tokens.len() < POSITIONS && !rest {
                break;
            }
            let own = &mut table[indexed.pages];
            let pages = (*own, window.page(indexed.pages));
            let (node, page) = self.index.add(salt, indexed.node, tokens, pages, pools);
            if page != *own && tokens.len() == POSITIONS {
                pools.full.share(page);
                pools.full.release(std::mem::replace(own, page));
            }
            *indexed = Indexed { node: Some(node), pages: indexed.pages + 1 };
        }
        self.index.shrink(pools);
    }

    /// Keeps what other prompts need to continue after the tokens in page `page` of a sequence of `len` tokens, which is in the index: pages of layers
    /// with a window, as far as the sequence still has them.
    pub(crate) fn keep_windows(
        &mut self,
        sequence: usize,
        indexed: &Indexed,
        page: usize,
        len: usize,
    ) {
        let Some(last) = indexed.pages.checked_sub(1) else { return };
        let Some(node) = indexed.node.filter(|_| self.is_windowed()) else { return };
        let window = &self.sequences[sequence].window;
        self.index.keep_windows((node, last), (page, len), window, &mut self.pools);
        self.index.shrink(&mut self.pools);
    }

    /// Keeps the recurrent states of a sequence, all of whose computed tokens are in the index. Nothing is kept if the system provides no memory for
    /// it.
    pub(crate) fn keep_states(&mut self, sequence: usize, indexed: &Indexed) {
        let Some(node) = indexed.node.filter(|node| !self.index.has_states(*node)) else { return };
        if let Ok(kept) = self.sequences[sequence].states.kept() {
            self.index.keep_states(node, kept);
            self.index.shrink(&mut self.pools);
        }
    }

    /// Checks that the data read from files is reliable.
    ///
    /// # Errors
    /// A file has become shorter, or cannot be read.
    pub(crate) fn check(&self) -> Result<(), MapError> {
        self.pools.check()
    }

    /// Bytes of memory in use: pages that have been used at least once, and states of sequences and of prompts.
    pub(crate) fn touched(&self) -> usize {
        let in_use = self.sequences.iter().filter(|sequence| !sequence.pages.is_empty());
        let states: usize = in_use.map(|sequence| sequence.states.bytes()).sum();
        self.pools.touched() + states + self.index.held_states()
    }

    /// The sizes of its pages and states.
    pub(crate) fn sizes(&self) -> CacheSizes<'_> {
        CacheSizes {
            page: self.pools.full.stride(),
            window_page: self.pools.window.stride(),
            states: self.sequences.first().map_or(0, |s| s.states.bytes()),
            windows: &self.windows,
        }
    }

    /// Maps the first `positions` positions of a prompt file of the same shape into a sequence. Returns `false` if there are not enough pages left
    /// for files.
    ///
    /// # Errors
    /// The file is damaged, or cannot be mapped. The sequence is then empty.
    pub(crate) fn restore(
        &mut self,
        sequence: usize,
        file: &PromptFile,
        positions: usize,
    ) -> Result<bool, PromptFileError> {
        self.clear(sequence);
        let restored = self.restore_parts(sequence, file, positions);
        if !matches!(restored, Ok(true)) {
            self.clear(sequence);
        }
        restored
    }

    /// As [`Cache::restore`], into an empty sequence, of which something is left after an error and after `false`.
    fn restore_parts(
        &mut self,
        sequence: usize,
        file: &PromptFile,
        positions: usize,
    ) -> Result<bool, PromptFileError> {
        let Cache { pools, windows, sequences, .. } = self;
        let SequenceCache { pages, window, states, .. } = &mut sequences[sequence];
        let count = positions.div_ceil(POSITIONS);
        if !states.is_empty() {
            states.fill(|bytes| file.read_states(bytes))?;
        }
        if pools.full.stride() == 0 {
            // No layer keeps all positions, so a page has nothing.
            while pages.len() < count {
                let Some(page) = pools.full.take() else { return Ok(false) };
                pages.push(page);
            }
        } else if !map_pages(&mut pools.full, file, 0..count, pages)? {
            return Ok(false);
        }
        let first = file.first_window();
        if windows.is_empty() || first >= count {
            window.begin_at(if windows.is_empty() { 0 } else { count });
            return Ok(true);
        }
        window.begin_at(first);
        let run = file.window_run(first..count);
        map_pages(&mut pools.window, file, run, window.table_mut())
    }

    /// The computed beginning of a sequence's prompt, to be written to a file. A sequence that cannot be cut anywhere gives that of a place.
    pub(crate) fn contents<'c>(
        &'c self,
        sequence: usize,
        key: Key,
        name: &'c str,
        tokens: &'c [u32],
    ) -> Option<Contents<'c>> {
        let SequenceCache { pages: table, states, places, window } = &self.sequences[sequence];
        // The last token of a prompt is always computed.
        let most = tokens.len() - usize::from(!states.is_empty() && !tokens.is_empty());
        let mut place = None;
        let (mut window, mut tokens) = (window, tokens);
        if !(states.is_empty() && self.windows.is_empty()) {
            let latest = places.latest_within(most)?;
            place = Some((latest.states.all(), latest.position)).filter(|_| !states.is_empty());
            if !self.windows.is_empty() {
                (window, tokens) = (&latest.window, &tokens[..latest.position]);
            }
        }
        let pages = table.get(..tokens.len().div_ceil(POSITIONS))?;
        let pages = pages.iter().map(|page| self.pools.full.bytes_of(*page)).collect();
        let windows = window.held().iter().map(|page| self.pools.window.bytes_of(*page));
        let windows = match self.windows.is_empty() {
            true => Vec::new(),
            false => windows.collect(),
        };
        Some(Contents { key, name, tokens, pages, windows, states: place })
    }

    /// The indexed beginning of a prompt, to be written to a file.
    pub(crate) fn indexed_contents<'c>(
        &'c mut self,
        salt: &str,
        key: Key,
        name: &'c str,
        tokens: &'c [u32],
    ) -> Option<Contents<'c>> {
        let found = self.index.find(salt, tokens);
        let (mut table, mut window) = (Vec::new(), WindowPages::default());
        self.index.pages_of(&found, &mut table);
        if !self.windows.is_empty() {
            self.index.windows_of(&found, &mut window);
        }
        let pages = table.iter().map(|page| self.pools.full.bytes_of(*page)).collect();
        let windows = window.held().iter().map(|page| self.pools.window.bytes_of(*page)).collect();
        let kept = self.index.states_of(&found);
        let states = kept.map(|kept| (kept.all(), found.positions));
        let tokens = &tokens[..found.positions];
        (!tokens.is_empty()).then_some(Contents { key, name, tokens, pages, windows, states })
    }

    /// Drops the indexed beginning of a prompt, except for what other prompts share with it. Returns the number of tokens dropped.
    pub(crate) fn forget_prompt(&mut self, salt: &str, tokens: &[u32]) -> usize {
        self.index.forget(salt, tokens, &mut self.pools)
    }

    /// The state of a sequence in a layer.
    pub(crate) fn state(&mut self, layer: usize, sequence: usize) -> &mut [f32] {
        self.sequences[sequence].states.layer(layer)
    }

    /// Called when a mixer has updated a part of a layer's state after a row of a sequence. The part is kept if the row belongs to a draft and later
    /// rows may have to be taken back.
    pub(crate) fn keep_of_draft(
        &mut self,
        layer: usize,
        (sequence, row): (usize, Option<usize>),
        part: Range<usize>,
    ) {
        if let Some(row) = row {
            self.sequences[sequence].states.keep_of_draft(layer, row, part);
        }
    }

    /// The keys and values of a sequence in a layer that has them.
    pub(crate) fn kv(&self, layer: usize, sequence: usize) -> KvCache<'_> {
        let table = self.sequences[sequence].table(self.pools.window.has_layer(layer));
        self.pools.of_layer(layer).read(layer, table)
    }

    /// Returns the writers of keys and values of a layer that has them: `writer_of(sequence)`.
    pub(crate) fn writers<'a>(
        &'a mut self,
        layer: usize,
    ) -> impl Fn(usize) -> KvWriter<'a> + Copy + Sync {
        let Cache { pools, sequences, .. } = self;
        let (windowed, sequences) = (pools.window.has_layer(layer), &*sequences);
        let pool = if windowed { &mut pools.window } else { &mut pools.full };
        let writer = pool.writers(layer);
        move |sequence: usize| writer(sequences[sequence].table(windowed))
    }
}

/// Prepares positions `from..to` of a table for writing, as [`Cache::prepare`] does. The table's pages are in `pool(pools)`.
fn prepare_table(
    table: &mut Vec<u32>,
    [from, to]: [usize; 2],
    (pools, pool): (&mut Pools, fn(&mut Pools) -> &mut Pages),
    index: &mut PrefixIndex,
) -> bool {
    let count = to.div_ceil(POSITIONS);
    for page in table.drain(count.min(table.len())..) {
        pool(pools).release(page);
    }
    for i in from / POSITIONS..count {
        let shared = table.get(i).copied();
        if shared.is_some_and(|page| pool(pools).is_writable(page)) {
            continue;
        }
        let page = loop {
            match pool(pools).take() {
                Some(page) => break page,
                None if index.give_up(pools) => {}
                None => return false,
            }
        };
        let Some(shared) = shared else {
            table.push(page);
            continue;
        };
        let pages = pool(pools);
        if i * POSITIONS < from {
            pages.copy(shared, page);
        }
        pages.release(shared);
        table[i] = page;
    }
    true
}

/// Maps pages of a file, the `range`-th of all that it has, and appends them to a table. Returns `false` if there are not enough pages left for files.
///
/// # Errors
/// The file is damaged, or cannot be mapped.
fn map_pages(
    pool: &mut Pages,
    file: &PromptFile,
    range: Range<usize>,
    table: &mut Vec<u32>,
) -> Result<bool, PromptFileError> {
    let Some(pages) = pool.put(&file.map, file.bytes_of(range.clone()))? else {
        return Ok(false);
    };
    table.extend(pages.clone());
    match pages.zip(range).all(|(page, i)| file.is_page(i, pool.bytes_of(page))) {
        true => Ok(true),
        false => {
            let what = "the checksum of a page is wrong".to_owned();
            Err(PromptFileError::Damaged { what })
        }
    }
}

#[cfg(test)]
mod tests;
