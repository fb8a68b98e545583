//! The work of a load: pieces of the files, in the order in which the forward pass reads them, and the memory that will hold each matrix.

use std::ops::Range;

use alight_kernels::WeightType;
use alight_kernels::tiles::TILE_ROWS;
use alight_pages::{Prefetch, ReadMethod};

use crate::store::{Storage, StoreSizes, arrival};
use crate::tensors::MatrixRef;
use crate::weights::{EmbeddingTables, Weights};

/// Bytes of cached pages that are touched at a time; a load can be stopped in between.
const WARM_STEP: usize = 16 << 20;
/// Bytes that each of the threads that read a cold map ahead reads at a time: the read-ahead of the disk that this was measured on (3B, cold, 4
/// threads: 1.16 s, and 1.54 s with 2 MiB).
const COLD_STEP: usize = 8 << 20;
/// Bytes that are read at a time into an image of the file.
const COPY_STEP: usize = 2 << 20;
/// Approximate bytes that are packed at a time: whole tiles.
const PACK_STEP: usize = 1 << 20;
/// Alignment of packed matrices in their region: pairs of cache lines.
const ALIGN: usize = 128;

/// How one file is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadMethod {
    pub(super) read: ReadMethod,
    /// The prefetch of the map, if weights stay in it.
    pub(super) prefetch: Prefetch,
    /// The same where a token reads only some of the weights (experts).
    pub(super) prefetch_chosen: Prefetch,
    /// True if the file is still being received: nothing of its map may be read that no section has waited for.
    pub(super) is_incoming: bool,
}

/// A piece of a file and its processing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoadJob {
    /// The index of the file.
    pub(super) shard: usize,
    /// The range of bytes in it.
    pub(super) source: Range<usize>,
    /// The section that it belongs to; `None`: nothing waits for it.
    pub(super) section: Option<usize>,
    pub(super) work: Work,
}

/// The processing of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// It stays in the map; its pages are loaded.
    Touch,
    /// It is copied to the same offset in the image of its file.
    Copy,
    /// Whole tiles of a matrix, which are packed to this offset in the region of tiles.
    Pack { ty: WeightType, cols: usize, to: usize },
}

/// The plan of a load.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// In order of use; experts that are loaded after the weights that every step waits for are last.
    pub(super) jobs: Vec<LoadJob>,
    /// Number of pieces of each section.
    pub(super) missing: Vec<u32>,
    /// The first section of the experts that are loaded after the rest, for which not every step waits.
    pub(super) first_behind: usize,
    /// Bytes of the region of packed matrices.
    pub(super) tiles: usize,
    /// Number of matrices that are packed.
    pub(super) packed: usize,
    /// By file: the ranges that stay in its map.
    pub(super) kept: Vec<Vec<Range<usize>>>,
    /// By file: true if it needs an image.
    pub(super) images: Vec<bool>,
    /// The section of the output matrix.
    pub(super) output_section: usize,
    /// This section has one piece that is not a job: locking all memory.
    pub(super) sealed: Option<usize>,
}

impl Plan {
    /// Assigns memory to every matrix, and records it in `weights`. `methods`: one for each file.
    pub(super) fn new(weights: &mut Weights, methods: &[LoadMethod], repack: bool) -> Plan {
        let layers = weights.layers.len();
        let mut plan = Plan {
            missing: vec![0; arrival::experts(layers, layers)],
            first_behind: arrival::experts(layers, 0),
            kept: vec![Vec::new(); methods.len()],
            images: vec![false; methods.len()],
            output_section: arrival::output(layers),
            ..Plan::default()
        };
        // The embedding is copied first, because the first token needs a row of it. So is it received. An embedding that stays in the map of a
        // complete file comes last: no section waits for the few rows that are needed. An embedding that is not also the output is not packed: rows are slower to read from tiles, and nothing
        // else reads it.
        let tied = weights.tied;
        plan.settle(&mut weights.embed, methods, repack && tied);
        let is_incoming = |matrix: &MatrixRef| methods[matrix.file_range().0].is_incoming;
        let embedding_in_map =
            weights.embed.storage() == Storage::Map && !is_incoming(&weights.embed);
        if !embedding_in_map {
            plan.section(&[&weights.embed], methods, Some(arrival::EMBEDDING), None);
        }
        if let Some(inputs) = &mut weights.token_inputs {
            // A token reads only a row of the table: it stays in the map, and none of it is loaded, but of a file that is being received.
            if let Some(table) = &inputs.table {
                let (shard, bytes) = table.file_range();
                plan.kept[shard].push(bytes);
                if is_incoming(table) && methods[shard].read == ReadMethod::Mmap {
                    plan.section(&[table], methods, Some(arrival::EMBEDDING), None);
                }
            }
            plan.settle(&mut inputs.projection.matrix, methods, repack);
            plan.section(&[&inputs.projection.matrix], methods, Some(arrival::EMBEDDING), None);
        }
        // Of the tables a token reads a row each. The head is small.
        let tables = weights.tables.iter_mut().flat_map(EmbeddingTables::matrices_mut);
        for matrix in tables.chain(weights.head.matrices_mut()) {
            plan.settle(matrix, methods, false);
            plan.section(&[&*matrix], methods, Some(arrival::EMBEDDING), None);
        }
        if let Some(alt_up) = &mut weights.alt_up {
            for matrix in alt_up.matrices_mut() {
                plan.settle(matrix, methods, repack);
            }
            plan.section(&alt_up.matrices(), methods, Some(arrival::EMBEDDING), None);
        }
        let count = weights.layers_in_file();
        let (in_file, later) = weights.layers.split_at_mut(count);
        for (i, layer) in in_file.iter_mut().enumerate() {
            for matrix in layer.matrices_mut() {
                plan.settle(matrix, methods, repack);
            }
            let experts = Some(arrival::experts(layers, i));
            plan.section(&layer.matrices(), methods, Some(arrival::layer(i)), experts);
        }
        // Later passes read the same memory.
        for (layer, same) in later.iter_mut().zip(in_file.iter().cycle()) {
            for (matrix, same) in layer.matrices_mut().into_iter().zip(same.matrices()) {
                matrix.clone_from(same);
            }
        }
        if let Some(output) = &mut weights.output {
            match tied {
                false => plan.settle(&mut output.matrix, methods, repack),
                true => output.matrix = weights.embed.clone(),
            }
            match tied && !embedding_in_map {
                true => plan.output_section = arrival::EMBEDDING,
                false => {
                    plan.section(&[&output.matrix], methods, Some(arrival::output(layers)), None)
                }
            }
        }
        // The sort is stable: each kind stays in order of use. Pieces of a file in memory, which no section waits for, are held as long as
        // another file is received for the first answer: the pieces of that come before them.
        let (first_behind, comes) = (plan.first_behind, methods.iter().any(|m| m.is_incoming));
        plan.jobs.sort_by_key(|job| job.section.map_or(comes, |section| section >= first_behind));
        if embedding_in_map && !tied {
            plan.section(&[&weights.embed], methods, None, None);
        }
        plan
    }

    /// The memory needed by the plan.
    pub(super) fn store_sizes(&self) -> StoreSizes {
        let in_use = self.kept.iter().map(|kept| !kept.is_empty()).collect();
        StoreSizes { images: self.images.clone(), tiles: self.tiles, in_use, asks_ahead: false }
    }

    /// Returns true if a piece is loaded after the pieces that every step waits for.
    pub(super) fn is_behind(&self, job: &LoadJob) -> bool {
        job.section.is_none_or(|section| section >= self.first_behind)
    }

    /// Bytes of the pieces that every step waits for.
    pub(super) fn waited_for(&self) -> u64 {
        self.jobs
            .iter()
            .filter(|job| job.section.is_some_and(|section| section < self.first_behind))
            .map(|job| job.source.len() as u64)
            .sum()
    }

    /// All memory will be locked at the end. The last layer becomes ready only after that, so that every step fails if locking fails.
    pub(super) fn seal(&mut self) {
        let last = self.first_behind - 2;
        self.missing[last] += 1;
        self.sealed = Some(last);
    }

    /// Assigns memory to one matrix.
    fn settle(&mut self, matrix: &mut MatrixRef, methods: &[LoadMethod], repack: bool) {
        let (shard, bytes) = matrix.file_range();
        if matches!(matrix.storage(), Storage::Slots(_)) {
            return;
        }
        if repack && matrix.packable() {
            let at = self.tiles.next_multiple_of(ALIGN);
            self.tiles = at + bytes.len();
            self.packed += 1;
            matrix.set_storage(Storage::Tiles(at));
        } else if methods[shard].read == ReadMethod::Mmap {
            self.kept[shard].push(bytes);
            matrix.set_storage(Storage::Map);
        } else {
            self.images[shard] = true;
            matrix.set_storage(Storage::Image);
        }
    }

    /// Adds the pieces of the matrices of one section, and of their experts, if these come later.
    fn section(
        &mut self,
        matrices: &[&MatrixRef],
        methods: &[LoadMethod],
        section: Option<usize>,
        experts: Option<usize>,
    ) {
        let before = self.jobs.len();
        let at = |storage: Storage| matrices.iter().filter(move |m| m.storage() == storage);
        let prefetch = |m: &MatrixRef| match (m.comes_later(), methods[m.file_range().0]) {
            (false, method) => method.prefetch,
            (true, method) => method.prefetch_chosen,
        };
        // While a request is waiting, a cold disk should not be busy with experts that have not been chosen.
        let is_behind =
            |m: &MatrixRef| m.fits_slots() && matches!(prefetch(m), Prefetch::ReadThreads(_));
        for later in [false, true] {
            let touched = at(Storage::Map).filter(|m| prefetch(m) != Prefetch::None);
            let touched = touched.filter(|m| is_behind(m) == later);
            // Padding and norms between matrices are loaded with them.
            for (shard, run) in runs(touched.map(|m| m.file_range()), 64 << 10) {
                let (step, section) = match methods[shard].prefetch {
                    Prefetch::ReadThreads(_) => (COLD_STEP, if later { experts } else { section }),
                    Prefetch::Populate | Prefetch::None => (WARM_STEP, None),
                };
                self.cut(shard, run, step, section, Work::Touch);
            }
        }
        // Here the gaps are left out: they might be part of another piece, and nothing may be written twice. Adjacent experts are one run, since
        // their ranges overlap.
        let mut copied: Vec<_> = at(Storage::Image).map(|m| m.file_range()).collect();
        copied.sort_by_key(|(shard, bytes)| (*shard, bytes.start));
        for (shard, run) in runs(copied.into_iter(), 0) {
            self.cut(shard, run, COPY_STEP, section, Work::Copy);
        }
        for matrix in matrices {
            let Storage::Tiles(to) = matrix.storage() else { continue };
            let ((ty, _), (shard, bytes)) = (matrix.kind(), matrix.file_range());
            let cols = matrix.cols();
            let tile = bytes.len() / matrix.all_rows() * TILE_ROWS;
            let step = (PACK_STEP / tile).max(1) * tile;
            for at in bytes.clone().step_by(step) {
                let source = at..bytes.end.min(at + step);
                let work = Work::Pack { ty, cols, to: to + (at - bytes.start) };
                self.jobs.push(LoadJob { shard, source, section, work });
            }
        }
        // Within a section, in the order of the files.
        self.jobs[before..].sort_by_key(|job| (job.shard, job.source.start));
        for job in &self.jobs[before..] {
            if let Some(section) = job.section {
                self.missing[section] += 1;
            }
        }
    }

    /// Splits a run at multiples of `step` in the file.
    fn cut(
        &mut self,
        shard: usize,
        run: Range<usize>,
        step: usize,
        section: Option<usize>,
        work: Work,
    ) {
        let mut at = run.start;
        while at < run.end {
            let end = (at + 1).next_multiple_of(step).min(run.end);
            self.jobs.push(LoadJob { shard, source: at..end, section, work });
            at = end;
        }
    }
}

/// Merges ranges of one file that overlap, are contiguous, or have a gap of less than `near` bytes.
fn runs(
    ranges: impl Iterator<Item = (usize, Range<usize>)>,
    near: usize,
) -> Vec<(usize, Range<usize>)> {
    let mut runs: Vec<(usize, Range<usize>)> = Vec::new();
    for (shard, bytes) in ranges {
        match runs.last_mut() {
            Some((s, run))
                if *s == shard
                    && bytes.start + near >= run.start
                    && bytes.start <= run.end + near =>
            {
                run.start = run.start.min(bytes.start);
                run.end = run.end.max(bytes.end);
            }
            _ => runs.push((shard, bytes)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_with_small_gaps_are_joined() {
        let far = 10 << 20;
        let near = 64 << 10;
        let ranges = [(0, 100..200), (0, 232..300), (0, far..far + 5), (1, 0..50)];
        assert_eq!(runs(ranges.into_iter(), near), [(0, 100..300), (0, far..far + 5), (1, 0..50)]);
        // Files that store a layer's tensors in an order other than that of use.
        let ranges = [(0, 500..600), (0, 400..500), (0, 300..400)];
        assert_eq!(runs(ranges.into_iter(), near), [(0, 300..600)]);
        let ranges = [(0, 100..200), (0, 200..300), (0, 304..400), (0, 50..100)];
        assert_eq!(runs(ranges.into_iter(), 0), [(0, 100..300), (0, 304..400), (0, 50..100)]);
    }

    #[test]
    fn cuts_are_at_whole_steps_of_the_file() {
        let mut plan = Plan::default();
        plan.cut(2, 100..2500, 1000, Some(1), Work::Copy);
        let ranges: Vec<_> = plan.jobs.iter().map(|job| job.source.clone()).collect();
        assert_eq!(ranges, [100..1000, 1000..2000, 2000..2500]);
    }

    /// Experts are loaded when they are chosen, and after the rest only if all fit.
    #[test]
    fn experts_are_brought_behind_the_rest_and_only_if_all_fit() {
        let (first, last) = (3400, 3400 + 8 * 34 * 4096);
        let always = MatrixRef::made_up(0..first, 1, 1);
        let experts = MatrixRef::made_up(first..last, 8, 2);
        let after = MatrixRef::made_up(last..last + 3400, 1, 1);
        for (prefetch_chosen, later) in
            [(Prefetch::None, vec![]), (Prefetch::ReadThreads(2), vec![(first, last)])]
        {
            let prefetch = Prefetch::ReadThreads(2);
            let method = LoadMethod {
                read: ReadMethod::Mmap,
                prefetch,
                prefetch_chosen,
                is_incoming: false,
            };
            let mut plan = Plan { missing: vec![0; 2], ..Plan::default() };
            plan.section(&[&always, &experts, &after], &[method], Some(0), Some(1));
            let ends = |job: &LoadJob| (job.source.start, job.source.end);
            let of = |section| plan.jobs.iter().filter(move |job| job.section == Some(section));
            let found: Vec<(usize, usize)> = of(0).map(ends).collect();
            assert_eq!(found, [(0, first), (last, last + 3400)]);
            assert!(plan.jobs.iter().all(|job| job.work == Work::Touch));
            assert_eq!(plan.missing, [found.len() as u32, later.len() as u32]);
            assert_eq!(of(1).map(ends).collect::<Vec<_>>(), later);
            assert_eq!(plan.jobs.len(), found.len() + later.len());
        }
    }

    /// Threads write neighbouring pieces of a copy.
    #[test]
    fn no_byte_of_experts_side_by_side_is_copied_twice() {
        let (part, step, stride) = (2040, 2048, 8192);
        let experts = |place: usize| {
            let start = stride + place * step;
            let all = MatrixRef::made_up(start..start + 3 * stride + part, 4, 2);
            let mut all = all.with_stride(stride);
            all.set_storage(Storage::Image);
            assert_eq!(all.len(), 4 * part as u64);
            assert_eq!(all.expert_range(2, 4), start + 2 * stride..start + 2 * stride + part);
            all
        };
        let [gate, up, down] = [0, 1, 2].map(experts);
        // The weights that all tokens use are read between gate and down.
        let mut shared = MatrixRef::made_up(0..3400, 1, 1);
        shared.set_storage(Storage::Image);
        let prefetch = Prefetch::None;
        let method = LoadMethod {
            read: ReadMethod::Direct,
            prefetch,
            prefetch_chosen: prefetch,
            is_incoming: false,
        };
        let mut plan = Plan { missing: vec![0], ..Plan::default() };
        plan.section(&[&gate, &up, &shared, &down], &[method], Some(0), None);
        let found: Vec<_> = plan.jobs.iter().map(|job| job.source.clone()).collect();
        assert_eq!(found, [0..3400, stride..4 * stride + 2 * step + part]);
        assert_eq!(plan.missing, [2]);
    }
}
