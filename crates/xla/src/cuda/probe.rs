//! Whether the collective works among some GPUs, found out by trying it.

use std::time::Duration;

use alight_collective::{Element, Spec};

use super::communicator::{Arrays, Communicator};
use super::driver::Driver;
use super::error::CudaError;
use super::kernel::{Shape, Variant};

/// Tries the collective among the GPUs `ordinals`: everything that it needs, from the driver to what a peer's write and the wait
/// for it really do. Each rank adds another power of two, so that a missing one is seen. `limit` is how long a rank waits for another.
pub fn probe(ordinals: &[i64], limit: Duration) -> Result<(), CudaError> {
    let driver = Driver::get()?;
    super::nvrtc::available()?;
    let spec = Spec {
        rows: 2,
        hidden: 256,
        element: Element::F32,
        weight: Element::F32,
        bias: true,
        epsilon: 0.0,
        post_norm: false,
    };
    let shape = Shape::of(&spec)?;
    let count = spec.rows * spec.hidden;
    let bytes = count * 4;
    let communicator = Communicator::new(ordinals, bytes, limit)?;
    let (mut memories, mut streams) = (vec![], vec![]);
    for (rank, ordinal) in ordinals.iter().enumerate() {
        let value = (1u32 << rank) as f32;
        let partial: Vec<u8> = (0..count).flat_map(|_| value.to_ne_bytes()).collect();
        // Operand, residual and weight (zeros), and two results that hold something else.
        let memory = driver.allocate(*ordinal, 5 * bytes)?;
        memory.write(0, &partial)?;
        memory.write(3 * bytes, &vec![0xff; 2 * bytes])?;
        Variant::of(&spec, &shape).load(driver, *ordinal)?;
        memories.push(memory);
        streams.push(driver.stream(*ordinal)?);
    }
    let call = |rank: usize, ordinal: i64| {
        let at = |place: usize| memories[rank].address() + (place * bytes) as u64;
        let arrays = Arrays {
            partial: at(0),
            residual: at(1),
            weight: at(2),
            post_weight: 0,
            normed: at(3),
            new_residual: at(4),
        };
        let params = communicator.params(rank, &spec, &arrays)?;
        let function = Variant::of(&spec, &shape).load(driver, ordinal)?;
        // SAFETY: the arrays lie in `memories`, which lives until the streams are empty, as does the communicator.
        driver.on(ordinal, || unsafe {
            communicator.launch(function, &shape, &params, 1, streams[rank])
        })
    };
    // Two calls, one for each buffer.
    let ranks = || ordinals.iter().copied().enumerate();
    let called = (0..2).try_for_each(|_| ranks().try_for_each(|(rank, at)| call(rank, at)));
    // Whatever went wrong: what was launched uses the memory.
    let waited: Vec<_> = ranks().map(|(rank, at)| driver.wait(at, streams[rank])).collect();
    called?;
    waited.into_iter().collect::<Result<(), _>>()?;
    let wrong = || CudaError::Wrong { ordinals: ordinals.to_vec() };
    if communicator.error().is_some() {
        return Err(wrong());
    }
    let expected = ((1u32 << ordinals.len()) - 1) as f32;
    for memory in &memories {
        let mut results = vec![0; 2 * bytes];
        memory.read(3 * bytes, &mut results)?;
        let (normed, new) = results.split_at(bytes);
        let is = |bytes: &[u8], value: f32| bytes.chunks_exact(4).all(|x| x == value.to_ne_bytes());
        if !is(normed, 1.0) || !is(new, expected) {
            return Err(wrong());
        }
    }
    Ok(())
}
