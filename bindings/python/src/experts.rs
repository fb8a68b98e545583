//! Experts in slots for the JAX engine, on CPU devices.

use std::sync::Arc;

use alight_formats::packed::PART_ALIGNMENT;
use alight_pages::slots::SlotOptions;
use alight_xla::store::{Stack, Store};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error;
use crate::tensor::Tensor;

/// Experts of a model that memory cannot hold: they are read around the page cache when they are chosen. Programs tell it by its number,
/// and it is there as long as this object.
#[pyclass(frozen, module = "alight")]
pub struct ExpertStore(Arc<Store>);

#[pymethods]
impl ExpertStore {
    /// For layers with a stack `[experts, rows, columns]` of gates, of ups and of downs each, all of one file; of rank `i` for its
    /// experts `(first, count, whether it is of this process)`. All slots together take `memory` bytes at most.
    #[new]
    fn new(
        py: Python<'_>,
        layers: Vec<[Py<Tensor>; 3]>,
        ranks: Vec<(usize, usize, bool)>,
        memory: u64,
    ) -> PyResult<ExpertStore> {
        let first = layers.first().map(|stacks| stacks[0].get());
        let first = first.ok_or_else(|| PyValueError::new_err("a store of no layer"))?;
        // The JAX engine computes with models of one file.
        let map = &first.files[0];
        let stack = |tensor: &Py<Tensor>| tensor.get().info.stack();
        let stacks = layers
            .iter()
            .map(|[gate, up, down]| Ok::<_, PyErr>([stack(gate)?, stack(up)?, stack(down)?]));
        let stacks = stacks.collect::<PyResult<Vec<_>>>()?;
        let ranks: Vec<_> =
            ranks.into_iter().map(|(first, count, here)| (first..first + count, here)).collect();
        py.detach(|| {
            let file = (map.file(), map.path().to_owned());
            let options = SlotOptions::default();
            match Store::new(file, &stacks, &ranks, PART_ALIGNMENT, memory, options) {
                Ok(store) => Ok(ExpertStore(store)),
                Err(problem) => {
                    Err(error::NO_MEMORY.err(format!("{}: {problem}", map.path().display())))
                }
            }
        })
    }

    /// What programs call it.
    #[getter]
    fn number(&self) -> u64 {
        self.0.number()
    }

    /// Six sums over the ranks of this process: experts, slots, experts that were chosen, chosen experts that were in a slot (hits), bytes that
    /// were read, and reads.
    #[getter]
    fn counts(&self) -> (usize, usize, u64, u64, u64, u64) {
        self.0.report().iter().fold((0, 0, 0, 0, 0, 0), |all, (sizes, counts)| {
            (
                all.0 + sizes.pieces,
                all.1 + sizes.slots,
                all.2 + counts.wanted,
                all.3 + counts.hits,
                all.4 + counts.read_bytes,
                all.5 + counts.reads,
            )
        })
    }
}

impl crate::tensor::Info {
    /// The location of the matrices of a stack.
    fn stack(&self) -> PyResult<Stack> {
        let Some(count) = self.experts() else {
            let text = format!("tensor '{}': expected a stack [experts, rows, columns]", self.name);
            return Err(PyValueError::new_err(text));
        };
        let bytes = self.nbytes / count;
        let spread = self.spread();
        Ok(Stack { offset: spread.offset, bytes, stride: spread.stride().unwrap_or(bytes) })
    }
}
