//! Kernels over the threads of the pool: [`alight_kernels::parallel`], which cuts the work, with the pool as its
//! threads. Nothing here allocates.

use std::ops::Range;

use alight_kernels::Isa;
use alight_kernels::attention::{AttentionLimits, AttentionScratch};
use alight_kernels::matmul::{ActivationFormats, Activations, MatmulScratch, Matrix, RowCounts};
use alight_kernels::parallel::{
    self, ColumnsFn, Cost, Cut, JoinFn, PackFn, Packing, Product, RowFn, Rows,
    Scratch as KernelScratch, Threads,
};

use super::batch::Batch;
use super::buffers::Scratch;
use crate::cache::Cache;
use crate::threads::{PerThread, Pool};

/// The kernels' SIMD level, and the threads that they run on.
#[derive(Clone, Copy)]
pub(crate) struct Compute<'m> {
    pub(crate) pool: &'m Pool,
    pub(crate) isa: Isa,
}

/// The threads of the pool, each with memory of its own.
pub(crate) struct PoolThreads<'a> {
    pool: &'a Pool,
    scratch: &'a PerThread<Scratch>,
}

// SAFETY: the pool runs every unit once and returns after the last.
unsafe impl Threads for PoolThreads<'_> {
    type Scratch = Scratch;

    fn run(&mut self, units: usize, cost: Cost, f: &(dyn Fn(Range<usize>, &mut Scratch) + Sync)) {
        let unit = |range: Range<usize>, thread: usize| {
            // SAFETY: a thread runs one unit at a time, nothing of its scratch outlives the call of `f`, and buffers, which
            // hold the scratch, are in one region at a time.
            f(range, unsafe { self.scratch.get(thread) });
        };
        match cost.alone {
            true => unit(0..units, 0),
            false => self.pool.run(units, cost.take, &unit),
        }
    }
}

impl KernelScratch for Scratch {
    /// The buffer was made for the largest calls of the model.
    fn with_products(&mut self, count: usize, f: impl FnOnce(&mut MatmulScratch, &mut [f32])) {
        f(&mut self.matmul, &mut self.products[..count]);
    }

    /// It was made for the largest calls of the model.
    fn with_attention(&mut self, _: AttentionLimits, f: impl FnOnce(&mut AttentionScratch)) {
        f(&mut self.attention);
    }
}

impl<'m> Compute<'m> {
    /// The pool's threads with their memory.
    pub(crate) fn threads<'t>(&self, scratch: &'t PerThread<Scratch>) -> PoolThreads<'t>
    where
        'm: 't,
    {
        PoolThreads { pool: self.pool, scratch }
    }

    /// Calls `f` for each of `n` rows.
    pub(crate) fn each_row<const N: usize>(
        &self,
        n: usize,
        buffers: [Rows<'_>; N],
        threads: &PerThread<Scratch>,
        f: &RowFn<'_, Scratch, N>,
    ) {
        parallel::each_row(&mut self.threads(threads), n, Cut::default(), buffers, f);
    }

    /// Packs `n` rows of `cols` activations for the matrices that will be multiplied with them: `f` makes each row of
    /// its rows in the buffers, and hands it to its last argument.
    #[allow(clippy::too_many_arguments)] // Sizes, inputs, output, and what it is done with.
    pub(crate) fn pack<const N: usize>(
        &self,
        n: RowCounts,
        cols: usize,
        buffers: [Rows<'_>; N],
        acts: &mut Activations,
        formats: ActivationFormats,
        threads: &PerThread<Scratch>,
        f: &PackFn<'_, Scratch, N>,
    ) {
        let threads = &mut self.threads(threads);
        parallel::pack(threads, self.isa, (n, cols), buffers, (acts, formats), f);
    }

    /// Packs `n` rows as they are in a buffer.
    pub(crate) fn pack_rows(
        &self,
        n: RowCounts,
        rows: Rows<'_>,
        acts: &mut Activations,
        formats: ActivationFormats,
        threads: &PerThread<Scratch>,
    ) {
        let width = rows.width();
        self.pack(n, width, [rows], acts, formats, threads, &|_, [row], _, put| put(row));
    }

    /// Multiplies the packed activations with groups of matrices, in one region. A unit computes the same rows of all
    /// matrices of a group, which have equally many, and then calls `then` on what it has computed for each token.
    pub(crate) fn multiply<const G: usize, const M: usize>(
        &self,
        groups: [[&Matrix<'_>; M]; G],
        outputs: [[Rows<'_>; M]; G],
        acts: &Activations,
        threads: &PerThread<Scratch>,
        then: Option<&ColumnsFn<'_, M>>,
    ) {
        let mut matrices = groups.as_flattened().iter();
        let products = outputs.map(|group| {
            group.map(|rows| Product::new(**matrices.next().expect("a matrix per output"), rows))
        });
        parallel::multiply(&mut self.threads(threads), &products, acts, then);
    }

    /// Multiplies the packed activations with matrices that have equally many rows, joins the products, and packs what the first have
    /// become.
    pub(crate) fn multiply_and_pack<const M: usize>(
        &self,
        matrices: [&Matrix<'_>; M],
        acts: &Activations,
        threads: &PerThread<Scratch>,
        join: &JoinFn<'_, M>,
        to: &Packing<'_>,
    ) {
        parallel::multiply_and_pack(&mut self.threads(threads), matrices, acts, join, to);
    }

    /// Stores keys and values of the rows of a batch in the pages of their sequences, where queries, keys and values are first made by
    /// `prepare(row, [q, k, v])`.
    pub(crate) fn store_rows(
        &self,
        cache: &mut Cache,
        layer: usize,
        batch: &Batch,
        rows: [Rows<'_>; 3],
        threads: &PerThread<Scratch>,
        prepare: &(dyn Fn(usize, [&mut [f32]; 3]) + Sync),
    ) {
        let Cache { pages, sequences, .. } = cache;
        let writer = pages.writers(layer);
        let target = |row: usize| {
            let (sequence, position) = batch.place(row);
            (writer(&sequences[sequence].pages), position)
        };
        let count = (batch.counts().all(), batch.following());
        let threads = &mut self.threads(threads);
        // SAFETY: a batch has each position of a sequence once, sequences write into pages of their own (those that they share are full),
        // and the cache is borrowed exclusively.
        unsafe { parallel::store_rows(threads, self.isa, &target, count, rows, prepare) };
    }

    /// Multiplies the packed activations with one matrix.
    pub(crate) fn project(
        &self,
        w: &Matrix<'_>,
        out: Rows<'_>,
        acts: &Activations,
        threads: &PerThread<Scratch>,
    ) {
        self.multiply([[w]], [[out]], acts, threads, None);
    }
}
