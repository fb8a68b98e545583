//! What the kernels must show, on a GPU (`examples/cuda_check.rs`) and on the emulated one (`tests/cuda_emulated.rs`): `blocks` those of
//! weights in blocks, `pool` the same out of slots, the others that of the collective, whose ranks are all played by one GPU.
#![allow(dead_code)]

pub mod adversaries;
pub mod agreement;
pub mod blocks;
pub mod controls;
pub mod oracle;
pub mod pool;

use std::sync::Arc;
use std::time::Duration;

use alight_collective::{Element, Spec};
use alight_xla::cuda::kernel::{Params, Shape, Variant};
use alight_xla::cuda::{Arrays, Communicator, CudaError, Driver, Function, Memory, Stream};

use oracle::Inputs;

/// What a check says that failed.
pub type Checked = Result<(), String>;

/// How much is done: the emulated GPU is slow.
#[derive(Clone, Copy)]
pub struct Extent {
    /// Largest number of ranks.
    pub ranks: usize,
    /// Calls of a long run.
    pub calls: usize,
    /// Replays of a graph.
    pub replays: usize,
    /// Hidden sizes of real models too.
    pub large: bool,
}

pub fn said(error: CudaError) -> String {
    error.to_string()
}

/// A shape with 64 threads, each with one vector.
pub fn small(rows: usize) -> Spec {
    Spec {
        rows,
        hidden: 256,
        element: Element::F32,
        weight: Element::F32,
        bias: true,
        epsilon: 1e-6,
        post_norm: false,
    }
}

/// Ranks that one GPU plays, each with a stream and arrays of its own.
pub struct Ranks {
    pub driver: &'static Driver,
    pub communicator: Arc<Communicator>,
    pub streams: Vec<Stream>,
    capacity: usize,
    /// Of all ranks one after the other, in this order: partial, residual, normed, new residual; then both weights, of one.
    memory: Memory,
    more: Vec<&'static str>,
}

impl Ranks {
    /// Room for operands of `capacity` bytes, and for weights as large.
    pub fn new(ranks: usize, capacity: usize, limit: Duration) -> Result<Ranks, String> {
        let driver = Driver::get().map_err(said)?;
        let capacity = capacity.next_multiple_of(256);
        let communicator = Communicator::new(&vec![0; ranks], capacity, limit).map_err(said)?;
        let memory = driver.allocate(0, (4 * ranks + 4) * capacity).map_err(said)?;
        let streams =
            (0..ranks).map(|_| driver.stream(0)).collect::<Result<_, _>>().map_err(said)?;
        Ok(Ranks { driver, communicator, streams, capacity, memory, more: vec!["ALIGHT_DELAYS"] })
    }

    /// A broken variant.
    pub fn broken(mut self, how: &'static str) -> Ranks {
        self.more.push(how);
        self
    }

    pub fn count(&self) -> usize {
        self.streams.len()
    }

    fn offset(&self, array: usize, rank: usize) -> usize {
        (array * self.count() + rank) * self.capacity
    }

    fn weights(&self) -> usize {
        self.offset(4, 0)
    }

    pub fn function(&self, spec: &Spec) -> Result<(Function, Shape), String> {
        let shape = Shape::of(spec).map_err(said)?;
        let function =
            Variant::of(spec, &shape).with(&self.more).load(self.driver, 0).map_err(said)?;
        Ok((function, shape))
    }

    pub fn params(&self, rank: usize, spec: &Spec) -> Result<Params, String> {
        let at = |offset: usize| self.memory.address() + offset as u64;
        let arrays = Arrays {
            partial: at(self.offset(0, rank)),
            residual: at(self.offset(1, rank)),
            weight: at(self.weights()),
            post_weight: if spec.post_norm { at(self.weights() + 2 * self.capacity) } else { 0 },
            normed: at(self.offset(2, rank)),
            new_residual: at(self.offset(3, rank)),
            index: (0, 0),
        };
        let mut params = self.communicator.params(rank, spec, &arrays).map_err(said)?;
        params.stride = self.capacity as u64;
        Ok(params)
    }

    /// Writes the arguments of all ranks, and NaN over the results.
    pub fn set(&self, inputs: &Inputs) -> Checked {
        for rank in 0..self.count() {
            self.write(self.offset(0, rank), &inputs.partials[rank])?;
            self.write(self.offset(1, rank), &inputs.residual)?;
            let nothing = vec![0xff; inputs.residual.len()];
            self.write(self.offset(2, rank), &nothing)?;
            self.write(self.offset(3, rank), &nothing)?;
        }
        self.write(self.weights(), &inputs.weight)?;
        self.write(self.weights() + 2 * self.capacity, &inputs.post_weight)
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Checked {
        self.memory.write(offset, bytes).map_err(said)
    }

    /// Sets the operand of a rank to NaN when its stream comes here.
    pub fn poison_operand(&self, rank: usize, bytes: usize) -> Checked {
        let at = self.offset(0, rank);
        self.memory.fill_later(at, bytes, 0xff, self.streams[rank]).map_err(said)
    }

    /// (new residual, normed) of a rank.
    pub fn get(&self, rank: usize, bytes: usize) -> Result<(Vec<u8>, Vec<u8>), String> {
        let (mut new, mut normed) = (vec![0; bytes], vec![0; bytes]);
        self.memory.read(self.offset(3, rank), &mut new).map_err(said)?;
        self.memory.read(self.offset(2, rank), &mut normed).map_err(said)?;
        Ok((new, normed))
    }

    /// One kernel for ranks from `params.rank` on, on that rank's stream.
    pub fn launch(&self, spec: &Spec, params: &Params, ranks: u32) -> Checked {
        let (function, shape) = self.function(spec)?;
        let stream = self.streams[params.rank as usize];
        self.launch_on(function, &shape, params, ranks, stream)
    }

    pub fn launch_on(
        &self,
        function: Function,
        shape: &Shape,
        params: &Params,
        ranks: u32,
        stream: Stream,
    ) -> Checked {
        self.driver
            // SAFETY: all arrays lie in `memory`, which is freed when the GPU has nothing to do.
            .on(0, || unsafe { self.communicator.launch(function, shape, params, ranks, stream) })
            .map_err(said)
    }

    /// One kernel that plays all ranks. All its blocks must run at once, or it would wait for ever.
    pub fn launch_together(&self, spec: &Spec) -> Checked {
        let (function, shape) = self.function(spec)?;
        let resident = self.driver.resident(0, function, shape.threads).map_err(said)?;
        let blocks = shape.blocks as usize * self.count();
        if blocks > resident {
            return Err(format!("{blocks} blocks, and the GPU runs {resident} at once"));
        }
        self.launch(spec, &self.params(0, spec)?, self.count() as u32)
    }

    /// A kernel for each rank, on its stream.
    pub fn launch_apart(&self, spec: &Spec, change: impl Fn(&mut Params)) -> Checked {
        for rank in 0..self.count() {
            let mut params = self.params(rank, spec)?;
            change(&mut params);
            self.launch(spec, &params, 1)?;
        }
        Ok(())
    }

    pub fn wait(&self) -> Checked {
        for stream in &self.streams {
            self.driver.wait(0, *stream).map_err(said)?;
        }
        match self.communicator.error() {
            None => Ok(()),
            Some(error) => Err(said(error)),
        }
    }

    /// That every rank has the results of the reference, to the bit.
    pub fn check(&self, spec: &Spec, inputs: &Inputs, what: &str) -> Checked {
        let expected = oracle::reference(spec, inputs);
        for rank in 0..self.count() {
            let found = self.get(rank, inputs.residual.len())?;
            if found != expected {
                let at = found.0.iter().zip(&expected.0).position(|(a, b)| a != b);
                let norm = found.1.iter().zip(&expected.1).position(|(a, b)| a != b);
                return Err(format!(
                    "{what}: rank {rank} of {} differs from the reference, {spec}: the new residual at byte {at:?}, the norm at {norm:?}",
                    self.count()
                ));
            }
        }
        Ok(())
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for stream in &self.streams {
            let _ = self.driver.wait(0, *stream);
        }
    }
}
