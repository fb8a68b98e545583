//! Kernels on the threads of the pool: [`alight_kernels::parallel`], which divides the work, with the pool as its threads.
//! Nothing here allocates.

use std::ops::Range;

use alight_kernels::Isa;
use alight_kernels::attention::{AttentionLimits, AttentionScratch};
use alight_kernels::matmul::{ActivationFormats, Activations, MatmulScratch, RowCounts};
use alight_kernels::parallel::{
    self, ColumnsFn, Cost, Cut, Extras, JoinFn, PackFn, Packing, Place, Product, RowFn, Rows,
    Scratch as KernelScratch, Threads,
};

use super::batch::Batch;
use super::buffers::Scratch;
use super::row_adapters::{Corrections, Multiplied, RowAdapters, RowOf};
use crate::cache::Cache;
use crate::cancel::Cancel;
use crate::tensors::{LinearView, Projection};
use crate::threads::{PerThread, Pool};

/// The kernels' SIMD level, the threads that they run on, and the adapters of the rows.
#[derive(Clone, Copy)]
pub(crate) struct Compute<'m> {
    pub(crate) pool: &'m Pool,
    pub(crate) isa: Isa,
    /// When it is cancelled, what is left of a region is not computed, and its results mean nothing.
    pub(crate) cancel: &'m Cancel,
    pub(crate) adapters: &'m RowAdapters,
}

/// The threads of the pool, each with its own memory.
pub(crate) struct PoolThreads<'a> {
    pool: &'a Pool,
    cancel: &'a Cancel,
    scratch: &'a PerThread<Scratch>,
}

// SAFETY: the pool runs every unit at most once and returns after the last.
unsafe impl Threads for PoolThreads<'_> {
    type Scratch = Scratch;

    fn run(&mut self, units: usize, cost: Cost, f: &(dyn Fn(Range<usize>, &mut Scratch) + Sync)) {
        let unit = |range: Range<usize>, thread: usize| {
            if self.cancel.is_cancelled() {
                return;
            }
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
    /// The buffer is large enough for the largest calls of the model.
    fn with_products(&mut self, count: usize, f: impl FnOnce(&mut MatmulScratch, &mut [f32])) {
        f(&mut self.matmul, &mut self.products[..count]);
    }

    /// The buffer is large enough for the largest calls of the model.
    fn with_attention(&mut self, _: AttentionLimits, f: impl FnOnce(&mut AttentionScratch)) {
        f(&mut self.attention);
    }
}

impl<'m> Compute<'m> {
    /// Returns the pool's threads with their memory.
    pub(crate) fn threads<'t>(&self, scratch: &'t PerThread<Scratch>) -> PoolThreads<'t>
    where
        'm: 't,
    {
        PoolThreads { pool: self.pool, cancel: self.cancel, scratch }
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

    /// Packs `n` rows of `cols` activations for the matrices that will be multiplied with them: `f` computes each row from its
    /// rows in the buffers, and passes it to its last argument.
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
        let formats = self.adapters.formats(formats);
        parallel::pack(threads, self.isa, (n, cols), buffers, (acts, formats), f);
    }

    /// Packs `n` rows of a buffer unchanged.
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

    /// Multiplies the packed activations with groups of projections, in one region. A unit computes the same rows of all
    /// projections of a group, which have the same number of rows, and then calls `then` on its results for each token.
    pub(crate) fn multiply<const G: usize, const M: usize>(
        &self,
        groups: [[&LinearView<'_>; M]; G],
        outputs: [[Rows<'_>; M]; G],
        acts: &Activations,
        threads: &PerThread<Scratch>,
        then: Option<&ColumnsFn<'_, M>>,
    ) {
        let threads = &mut self.threads(threads);
        let linears = groups.as_flattened();
        linears.iter().for_each(|linear| linear.measure(acts));
        let row_of = |token| Some(token);
        let corrections = self.corrections(Multiplied::All(linears), &row_of, acts);
        let correct = std::array::from_fn::<_, G, _>(|g| {
            std::array::from_fn::<_, M, _>(|m| {
                let (corrections, linear) = (&corrections, groups[g][m]);
                move |token: usize, rows: Range<usize>, products: &mut [f32]| {
                    let place = (token, g * M + m);
                    corrections.add(place, linear.number(), (rows.start, 1), products);
                }
            })
        });
        let mut linears = linears.iter().zip(correct.as_flattened());
        let products = outputs.map(|group| {
            group.map(|rows| {
                let (linear, correct) = linears.next().expect("a projection per output");
                let changed = !corrections.is_empty() && self.adapters.changes(linear.number().0);
                let correct = changed.then_some(correct as _);
                Product::new(linear.matrix, rows).with(Extras { bias: linear.bias, correct })
            })
        });
        parallel::multiply(threads, &products, acts, then);
    }

    /// Multiplies the packed activations with projections that have the same number of rows, joins the products, and packs the result, which
    /// replaces the first products.
    pub(crate) fn multiply_and_pack<const M: usize>(
        &self,
        linears: [&LinearView<'_>; M],
        acts: &Activations,
        threads: &PerThread<Scratch>,
        join: &JoinFn<'_, M>,
        to: &Packing<'_>,
    ) {
        let threads = &mut self.threads(threads);
        linears.iter().for_each(|linear| linear.measure(acts));
        let row_of = |token| Some(token);
        let corrections = self.corrections(Multiplied::All(&linears), &row_of, acts);
        let correct = std::array::from_fn::<_, M, _>(|i| {
            let (corrections, linear) = (&corrections, linears[i]);
            move |token: usize, rows: Range<usize>, products: &mut [f32]| {
                corrections.add((token, i), linear.number(), (rows.start, 1), products);
            }
        });
        let extras: [Extras<'_>; M] = std::array::from_fn(|i| Extras {
            bias: linears[i].bias,
            correct: (!corrections.is_empty()).then_some(&correct[i] as _),
        });
        let matrices = linears.map(|linear| &linear.matrix);
        if extras.iter().all(Extras::is_empty) {
            parallel::multiply_and_pack(threads, matrices, acts, join, to);
            return;
        }
        let isa = self.isa;
        let join = |columns: Range<usize>, mut products: [&mut [f32]; M]| {
            for (extras, products) in extras.iter().zip(&mut products) {
                for (t, row) in products.chunks_exact_mut(columns.len()).enumerate() {
                    extras.add(isa, t, columns.clone(), row);
                }
            }
            join(columns, products);
        };
        parallel::multiply_and_pack(threads, matrices, acts, &join, to);
    }

    /// Stores keys and values of the rows of a batch in the pages of their sequences, after `prepare(row, [q, k, v])` has computed
    /// queries, keys and values.
    pub(crate) fn store_rows(
        &self,
        cache: &mut Cache,
        layer: usize,
        batch: &Batch,
        rows: [Rows<'_>; 3],
        threads: &PerThread<Scratch>,
        prepare: &(dyn Fn(usize, [&mut [f32]; 3]) + Sync),
    ) {
        let writer = cache.writers(layer);
        let target = |row: usize| {
            let (sequence, position) = batch.place(row);
            (writer(sequence), position)
        };
        let count = (batch.counts().all(), batch.following());
        let threads = &mut self.threads(threads);
        // SAFETY: a batch has each position of a sequence once, sequences write only into their own pages (shared pages are full), and
        // the cache is borrowed exclusively.
        unsafe { parallel::store_rows(threads, self.isa, &target, count, rows, prepare) };
    }

    /// Multiplies the packed activations with one projection.
    pub(crate) fn project(
        &self,
        w: &LinearView<'_>,
        out: Rows<'_>,
        acts: &Activations,
        threads: &PerThread<Scratch>,
    ) {
        self.multiply([[w]], [[out]], acts, threads, None);
    }

    /// Measures the inputs of the projections that the slots of places go through, if that was asked for, and returns what the adapters of the rows that
    /// slots are of add to their products.
    pub(crate) fn slot_corrections<'c, 'l>(
        &self,
        projection: &'c (dyn Fn(usize) -> Projection<'l> + Sync),
        (acts, places): (&'c Activations, &'c [Place]),
        row_of: &'c RowOf<'c>,
    ) -> Corrections<'c, 'l>
    where
        'm: 'c,
    {
        places.iter().for_each(|place| projection(place.matrix).measure(acts, place));
        self.corrections(Multiplied::Placed(projection, places), row_of, acts)
    }

    /// Returns what the adapters of rows add to the products of projections.
    fn corrections<'c, 'l>(
        &self,
        multiplied: Multiplied<'c, 'l>,
        row_of: &'c RowOf<'c>,
        acts: &'c Activations,
    ) -> Corrections<'c, 'l>
    where
        'm: 'c,
    {
        Corrections::new((self.adapters, row_of), multiplied, acts)
    }
}
