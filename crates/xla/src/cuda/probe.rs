//! Tests if the collective works among some GPUs, by trying it.

use std::time::Duration;

use alight_collective::{Element, Spec};

use super::communicator::{Arrays, Communicator};
use super::driver::Driver;
use super::error::CudaError;
use super::kernel::{Shape, Variant};

const ROWS: usize = 2;
const HIDDEN: usize = 256;
/// Bytes of an operand of the trial.
pub(super) const BYTES: usize = ROWS * HIDDEN * 4;

/// Tries the collective among the GPUs `ordinals` of this process, with everything it needs, from the driver to the actual effect
/// of a peer's write and of the wait for it. `limit` is the time that a rank waits for another.
pub fn probe(ordinals: &[i64], limit: Duration) -> Result<(), CudaError> {
    // The driver first: without a GPU, that is the error to report, with or without a compiler.
    Driver::get()?;
    super::nvrtc::available()?;
    let communicator = Communicator::new(ordinals, BYTES, limit)?;
    let ours: Vec<_> = ordinals.iter().copied().enumerate().collect();
    let wrong = || CudaError::Wrong { ordinals: ordinals.to_vec() };
    match run(&communicator, ordinals.len(), &ours) {
        Ok(()) if communicator.error().is_some() => Err(wrong()),
        Err(CudaError::Wrong { .. }) => Err(wrong()),
        other => other,
    }
}

/// Runs two calls of `ours`, the ranks of this process and their GPUs, among `ranks`. Each rank adds another power of two, so that
/// a missing one is detected.
pub(super) fn run(
    communicator: &Communicator,
    ranks: usize,
    ours: &[(usize, i64)],
) -> Result<(), CudaError> {
    let driver = Driver::get()?;
    let spec = Spec {
        rows: ROWS,
        hidden: HIDDEN,
        element: Element::F32,
        weight: Element::F32,
        bias: true,
        epsilon: 0.0,
        post_norm: false,
    };
    let shape = Shape::of(&spec)?;
    let (mut memories, mut streams) = (vec![], vec![]);
    for (rank, ordinal) in ours {
        let value = (1u32 << rank) as f32;
        let partial: Vec<u8> = (0..ROWS * HIDDEN).flat_map(|_| value.to_ne_bytes()).collect();
        // Operand, residual and weight (zeros), and two results filled with another value.
        let memory = driver.allocate(*ordinal, 5 * BYTES)?;
        memory.write(0, &partial)?;
        memory.write(3 * BYTES, &vec![0xff; 2 * BYTES])?;
        // This query loads the kernel; otherwise the driver would load it at the first launch, and might wait for a rank that is
        // already waiting.
        let function = Variant::of(&spec, &shape).load(driver, *ordinal)?;
        driver.resident(*ordinal, function, shape.threads)?;
        memories.push(memory);
        streams.push(driver.stream(*ordinal)?);
    }
    let call = |at: usize| {
        let (rank, ordinal) = ours[at];
        let place = |place: usize| memories[at].address() + (place * BYTES) as u64;
        let arrays = Arrays {
            partial: place(0),
            residual: place(1),
            weight: place(2),
            post_weight: 0,
            normed: place(3),
            new_residual: place(4),
            index: (0, 0),
        };
        let params = communicator.params(rank, &spec, &arrays)?;
        let function = Variant::of(&spec, &shape).load(driver, ordinal)?;
        // SAFETY: the arrays are in `memories`, which lives until the streams are empty, as does the communicator.
        driver.on(ordinal, || unsafe {
            communicator.launch(function, &shape, &params, 1, streams[at])
        })
    };
    // Two calls, one for each buffer.
    let called = (0..2).try_for_each(|_| (0..ours.len()).try_for_each(&call));
    // Also after an error: launched work uses the memory.
    let waited: Vec<_> =
        ours.iter().zip(&streams).map(|((_, at), stream)| driver.wait(*at, *stream)).collect();
    called?;
    waited.into_iter().collect::<Result<(), _>>()?;
    let expected = ((1u32 << ranks) - 1) as f32;
    for memory in &memories {
        let mut results = vec![0; 2 * BYTES];
        memory.read(3 * BYTES, &mut results)?;
        let (normed, new) = results.split_at(BYTES);
        let is = |bytes: &[u8], value: f32| bytes.chunks_exact(4).all(|x| x == value.to_ne_bytes());
        if !is(normed, 1.0) || !is(new, expected) {
            return Err(CudaError::Wrong { ordinals: ours.iter().map(|(_, at)| *at).collect() });
        }
    }
    Ok(())
}
