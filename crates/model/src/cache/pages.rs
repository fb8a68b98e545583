//! The memory of keys and values, in pages of positions.
//!
//! A page holds [`POSITIONS`] positions of several layers: of all that keep every position, or of all that have a window. A sequence has a table of
//! pages of either kind, in the order of its positions; pages need not be contiguous, and several sequences may read the same one.

use std::ops::Range;
use std::sync::Arc;

use alight_kernels::attention::{KvCache, KvShape, KvWriter, PageTable};

use alight_pages::{HUGE_PAGE, Map, MapError};

use super::CacheError;
use super::zeroed::Zeroed;
use crate::positions::POSITIONS;

/// Minimum alignment of a page (or a page of the system, if larger), so that it can be mapped from a file.
const ALIGNMENT: usize = 4096;

/// Minimum size that a page counts for when the number of pages that fit into some memory is computed.
const MIN_BYTES: usize = 1 << 16;

/// The first bytes are in small pages of the system: otherwise a short prompt would wait until a huge page is cleared. So are all bytes if a page of
/// positions is larger than a huge page, since the last page of a sequence would be cleared for positions that are never used.
const SMALL_PAGES_BYTES: usize = 4 << 20;

/// The shape of a layer's keys and values in a page, and the offsets of both in it.
type LayerPages = (KvShape, [usize; 2]);

/// How long the keys and values of a layer are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NeededFor {
    /// As long as their sequence is computed.
    Sequence,
    /// Until the next layer stores its own: the whole of each sequence is computed in one step, and layers share their memory.
    Layer,
}

/// The pages of all layers.
pub(crate) struct Pools {
    /// Those of layers that keep all positions.
    pub(crate) full: Pages,
    /// Those of layers with a window.
    pub(crate) window: Pages,
}

impl Pools {
    /// Checks that the data read from files is reliable.
    ///
    /// # Errors
    /// A file has become shorter, or cannot be read.
    pub(crate) fn check(&self) -> Result<(), MapError> {
        self.full.check()?;
        self.window.check()
    }

    /// Bytes that were touched, and so use memory of this process.
    pub(crate) fn touched(&self) -> usize {
        self.full.touched() + self.window.touched()
    }

    /// Returns the pages that have the keys and values of a layer, if it has any.
    pub(crate) fn of_layer(&self, layer: usize) -> &Pages {
        if self.window.has_layer(layer) { &self.window } else { &self.full }
    }
}

/// The pages of all sequences, for some layers.
pub(crate) struct Pages {
    /// By layer; `None`: no keys and values here.
    layers: Vec<Option<LayerPages>>,
    /// Of u16, `[own pages and pages of files, stride]`: a page has the keys and values of one layer, then those of the next, unless they share
    /// their memory.
    memory: Zeroed<u16>,
    stride: usize,
    /// By page: the number of users.
    uses: Vec<u32>,
    /// Pages that were released.
    free: Vec<u32>,
    /// The first page that has never been used; all later ones have not been touched either.
    fresh: u32,
    /// Pages from here on are mapped from files, and are not written.
    own: u32,
    /// The pages of each file, in order, and the number of them in use.
    of_files: Vec<(Range<u32>, usize)>,
}

impl Pages {
    /// Creates pages for at least `positions` positions, and `spare` bytes of further pages, in layers of these shapes; `None` is a layer without
    /// keys and values. Memory is allocated when it is first written. The same number of pages can additionally be mapped from files.
    ///
    /// If keys and values are needed for their layer only, a page has those of one layer at a time.
    ///
    /// # Errors
    /// The system does not provide the address space.
    pub(crate) fn new(
        positions: usize,
        spare: usize,
        shapes: &[Option<KvShape>],
        needed_for: NeededFor,
    ) -> Result<Pages, CacheError> {
        let (mut end, mut longest) = (0usize, 0);
        let layers = shapes.iter().map(|shape| {
            let shape = (*shape)?;
            let head = KvShape { kv_heads: 1, capacity: POSITIONS, ..shape };
            let [k_len, v_len] =
                [head.k_len(), head.v_len()].map(|len| len.saturating_mul(shape.kv_heads));
            let keys = match needed_for {
                NeededFor::Sequence => end,
                NeededFor::Layer => 0,
            };
            let values = keys.saturating_add(k_len);
            end = values.saturating_add(v_len);
            longest = end.max(longest);
            Some((shape, [keys, values]))
        });
        let layers = layers.collect();
        let alignment = ALIGNMENT.max(alight_pages::page_size()) / size_of::<u16>();
        let stride = longest.div_ceil(alignment).saturating_mul(alignment);
        let spare = spare / stride.saturating_mul(size_of::<u16>()).max(MIN_BYTES);
        let count = positions.div_ceil(POSITIONS).saturating_add(spare);
        let memory = Zeroed::new(stride.saturating_mul(count).saturating_mul(2))?;
        let (uses, free) = (vec![0; 2 * count], Vec::with_capacity(count));
        let own = count as u32;
        Ok(Pages { layers, memory, stride, uses, free, fresh: 0, own, of_files: Vec::new() })
    }

    /// Asks for huge pages, where pages of all layers together have `all` bytes: attending to a long text reads all of it for each token, and small
    /// pages cost up to a tenth of that time.
    pub(crate) fn ask_for_huge_pages(&mut self, all: usize) {
        let stride = self.stride();
        if (1..=HUGE_PAGE).contains(&stride) {
            // As many positions as there would be if these were the pages of all layers.
            self.memory.ask_for_huge_pages(SMALL_PAGES_BYTES / all.div_ceil(stride).max(1));
        }
    }

    /// Returns an unused page; `None` if there is none.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let page = match self.free.pop() {
            Some(page) => page,
            None if self.fresh < self.own => {
                self.fresh += 1;
                self.fresh - 1
            }
            None => return None,
        };
        self.uses[page as usize] = 1;
        Some(page)
    }

    /// The number of pages, not counting those of files.
    pub(crate) fn count(&self) -> usize {
        self.own as usize
    }

    /// Bytes that were touched, and so use memory of this process.
    pub(crate) fn touched(&self) -> usize {
        self.fresh as usize * self.stride()
    }

    /// Bytes from one page to the next.
    pub(crate) fn stride(&self) -> usize {
        self.stride * size_of::<u16>()
    }

    /// The number of users of a page.
    pub(crate) fn uses(&self, page: u32) -> u32 {
        self.uses[page as usize]
    }

    /// Adds a user to a page.
    pub(crate) fn share(&mut self, page: u32) {
        self.uses[page as usize] += 1;
    }

    /// Returns true if a page has only one user, which may then write to it.
    pub(crate) fn is_writable(&self, page: u32) -> bool {
        self.uses(page) == 1 && page < self.own
    }

    /// Bytes of memory that a page uses; those of files are in the page cache and count as 0.
    pub(crate) fn bytes(&self, page: u32) -> usize {
        if page < self.own { self.stride() } else { 0 }
    }

    /// The bytes of a page.
    pub(crate) fn bytes_of(&self, page: u32) -> &[u8] {
        &self.memory.bytes()[page as usize * self.stride()..][..self.stride()]
    }

    /// Copies one page to another.
    pub(crate) fn copy(&mut self, from: u32, to: u32) {
        let [from, to] = [from, to].map(|page| page as usize * self.stride);
        self.memory.get_mut().copy_within(from..from + self.stride, to);
    }

    /// Maps the pages at `bytes` of a file. The caller becomes a user of each of them. `None`: there are not enough pages left for files.
    ///
    /// # Errors
    /// The system cannot map them.
    pub(crate) fn put(
        &mut self,
        file: &Arc<Map>,
        bytes: Range<usize>,
    ) -> Result<Option<Range<u32>>, MapError> {
        let count = bytes.len().checked_div(self.stride()).unwrap_or(0) as u32;
        let (mut first, mut place) = (self.own, self.of_files.len());
        for (i, (taken, _)) in self.of_files.iter().enumerate() {
            if taken.start - first >= count {
                place = i;
                break;
            }
            first = taken.end;
        }
        if count == 0 || self.uses.len() - (first as usize) < count as usize {
            return Ok(None);
        }
        self.memory.put(
            first as usize * self.stride,
            file,
            bytes.start,
            bytes.len() / size_of::<u16>(),
        )?;
        let pages = first..first + count;
        self.uses[first as usize..pages.end as usize].fill(1);
        self.of_files.insert(place, (pages.clone(), count as usize));
        Ok(Some(pages))
    }

    /// Checks that the data read from files is reliable.
    ///
    /// # Errors
    /// A file has become shorter, or cannot be read.
    pub(crate) fn check(&self) -> Result<(), MapError> {
        if self.of_files.is_empty() { Ok(()) } else { self.memory.check() }
    }

    /// Removes a user from a page.
    pub(crate) fn release(&mut self, page: u32) {
        let uses = &mut self.uses[page as usize];
        *uses -= 1;
        if *uses > 0 {
            return;
        }
        if page < self.own {
            self.free.push(page);
            return;
        }
        let i = self.of_files.iter().position(|(pages, _)| pages.contains(&page));
        let i = i.expect("a page of a file");
        let (pages, left) = &mut self.of_files[i];
        *left -= 1;
        if *left == 0 {
            self.memory.take_out(pages.start as usize * self.stride);
            self.of_files.remove(i);
        }
    }

    /// Returns true if a layer has keys and values here.
    pub(crate) fn has_layer(&self, layer: usize) -> bool {
        self.layers.get(layer).is_some_and(Option::is_some)
    }

    fn table<'t>(&self, pages: &'t [u32]) -> PageTable<'t> {
        PageTable { pages, stride: self.stride }
    }

    /// The keys and values of a layer that has them, in the pages of a sequence.
    pub(crate) fn read<'a>(&'a self, layer: usize, pages: &'a [u32]) -> KvCache<'a> {
        let (shape, [k, v]) = self.layers[layer].expect(HAS_KEYS);
        let memory = self.memory.get();
        KvCache::paged(shape, &memory[k..], &memory[v..], self.table(pages))
    }

    /// Returns the writers of keys and values of a layer that has them, in the pages of any sequence: `writer_of(pages)`.
    pub(crate) fn writers<'a>(
        &'a mut self,
        layer: usize,
    ) -> impl Fn(&'a [u32]) -> KvWriter<'a> + Copy + Sync {
        let (shape, start) = self.layers[layer].expect(HAS_KEYS);
        let stride = self.stride;
        let none = PageTable { pages: &[], stride };
        let writer = KvWriter::paged(shape, self.memory.get_mut(), start, none);
        move |pages| writer.with_table(PageTable { pages, stride })
    }
}

const HAS_KEYS: &str = "a layer of attention";

#[cfg(test)]
mod tests {
    use super::*;
    use alight_kernels::Isa;
    use alight_kernels::attention::KvType;

    fn shapes(layers: usize, kv_heads: usize, [k_dim, v_dim]: [usize; 2]) -> Vec<Option<KvShape>> {
        let shape =
            KvShape { kv_heads, k_dim, v_dim, capacity: POSITIONS, shared: false, ty: KvType::F16 };
        let mut all = vec![Some(shape); layers];
        all.push(None);
        all
    }

    #[test]
    fn layers_and_pages_do_not_overlap_and_start_as_zeros() {
        let mut pages = Pages::new(200, 0, &shapes(3, 2, [4, 6]), NeededFor::Sequence).unwrap();
        let table: Vec<u32> = (0..4).map(|_| pages.take().unwrap()).collect();
        assert_eq!(pages.take(), None, "200 positions are four pages");
        let one = [1.0; 12];
        // SAFETY: one thread.
        unsafe { pages.writers(1)(&table).store(Isa::SCALAR, 2 * 64 + 19, &one[..8], &one) };
        let bits = pages.memory.get();
        let page = 3 * 2 * 64 * 10;
        assert_eq!(pages.stride, 4096, "{page}, rounded up");
        assert_eq!(bits.len(), 2 * 4 * pages.stride, "and as many of files");
        assert_eq!(bits.iter().filter(|&&b| b != 0).count(), 20);
        let layer = &bits[2 * pages.stride + page / 3..][..page / 3];
        assert_eq!(layer.iter().filter(|&&b| b != 0).count(), 20);
        let (k, v) = layer.split_at(2 * 64 * 4);
        assert_eq!([k, v].map(|part| part.iter().filter(|&&b| b != 0).count()), [8, 12]);
    }

    #[test]
    fn layers_that_are_needed_one_at_a_time_share_their_memory() {
        let mut layers = shapes(3, 2, [4, 6]);
        layers.extend(shapes(1, 4, [4, 6]));
        let mut pages = Pages::new(64, 0, &layers, NeededFor::Layer).unwrap();
        let table = [pages.take().unwrap()];
        assert_eq!(
            pages.stride,
            (4 * 64 * 10_usize).next_multiple_of(2048),
            "of the largest layer"
        );
        for (layer, heads) in [(0, 2), (2, 2), (4, 4)] {
            let one = [1.0; 24];
            let (keys, values) = (&one[..4 * heads], &one[..6 * heads]);
            // SAFETY: one thread.
            unsafe { pages.writers(layer)(&table).store(Isa::SCALAR, 19, keys, values) };
            let [k, v] = pages.layers[layer].unwrap().1;
            assert_eq!([k, v], [0, heads * 64 * 4]);
        }
    }

    #[test]
    fn a_page_has_the_bytes_of_its_type() {
        let stride = |ty| {
            let shapes = shapes(8, 2, [64, 64]);
            let shapes: Vec<_> = shapes.iter().map(|s| s.map(|s| KvShape { ty, ..s })).collect();
            Pages::new(64, 0, &shapes, NeededFor::Sequence).unwrap().stride()
        };
        let f16 = 8 * 2 * 64 * 128 * 2;
        assert_eq!([KvType::F16, KvType::F32].map(stride), [f16, 2 * f16]);
        assert_eq!(stride(KvType::Q8_0), f16 / 64 * 34);
        assert_eq!(stride(KvType::Q4R), f16 / 64 * 18);
    }

    #[test]
    fn pages_that_were_given_back_are_taken_first() {
        let mut pages = Pages::new(3 * 64, 0, &shapes(1, 1, [4, 4]), NeededFor::Sequence).unwrap();
        assert_eq!([pages.take(), pages.take()], [Some(0), Some(1)]);
        pages.release(0);
        assert_eq!([pages.take(), pages.take(), pages.take()], [Some(0), Some(2), None]);
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        let error =
            Pages::new(1 << 30, 0, &shapes(4096, 1 << 20, [1 << 20; 2]), NeededFor::Sequence)
                .err()
                .unwrap();
        assert_eq!(error.bytes, usize::MAX);
    }
}
