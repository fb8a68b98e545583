//! What must not disturb the protocol, and what must be noticed.

use std::time::{Duration, Instant};

use alight_collective::{Element, Options, Spec, ThreadGroup};
use alight_xla::cuda::kernel::{BLOCKS, CALL, DONE, RANKS};

use super::oracle::{Inputs, numbers, reference};
use super::{Checked, Extent, Ranks, said, small};

const LIMIT: Duration = Duration::from_secs(20);

/// Each rank in turn is late in each phase; operands are overwritten as soon as a rank has returned, and arguments change.
pub fn delays(extent: Extent) -> Checked {
    let ranks = extent.ranks.min(4);
    let spec = small(3);
    let all = Ranks::new(ranks, spec.bytes().unwrap(), LIMIT)?;
    let bytes = spec.bytes().unwrap();
    let mut seed = 0;
    for late in 0..ranks as u32 {
        for phase in 0..4 {
            for _ in 0..3 {
                seed += 1;
                let inputs = Inputs::random(ranks, &spec, seed);
                all.set(&inputs)?;
                // Two calls without waiting between them: the others run ahead, as far as they may.
                for _ in 0..2 {
                    all.launch_apart(&spec, |params| {
                        (params.delay_rank, params.delay_phase, params.delay) =
                            (late, phase, 2_000_000);
                    })?;
                }
                for rank in 0..ranks {
                    all.poison_operand(rank, bytes)?;
                }
                all.wait()?;
                all.check(&spec, &inputs, &format!("rank {late} late in phase {phase}"))?;
            }
        }
    }
    Ok(())
}

/// Shapes that change from call to call, on one communicator, with more and fewer blocks.
pub fn alternating(extent: Extent) -> Checked {
    let ranks = extent.ranks.min(4);
    let shape = |rows, hidden, element, post_norm| Spec {
        rows,
        hidden,
        element,
        weight: element,
        post_norm,
        ..small(1)
    };
    let specs = [
        shape(1, 512, Element::Bf16, false),
        shape(7, 64, Element::F32, true),
        shape(2, 100, Element::F16, false),
        shape(1, 33, Element::F32, false),
        shape(16, 32, Element::Bf16, true),
    ];
    let all = Ranks::new(ranks, 4096, LIMIT)?;
    for call in 0..extent.calls.min(500) {
        let spec = &specs[(call * call + call / 3) % specs.len()];
        let inputs = Inputs::random(ranks, spec, call as u64);
        all.set(&inputs)?;
        all.launch_apart(spec, |_| {})?;
        all.wait()?;
        all.check(spec, &inputs, &format!("call {call} of changing shapes"))?;
    }
    Ok(())
}

/// The counter of calls passes 2^32 calls, and wraps.
pub fn wrapping(extent: Extent) -> Checked {
    let ranks = extent.ranks.min(4);
    let spec = small(2);
    for calls in [(1u64 << 32) - 5, (1 << 31) - 5, (u64::MAX / CALL) - 4] {
        let all = Ranks::new(ranks, spec.bytes().unwrap(), LIMIT)?;
        let done = calls.wrapping_mul(CALL);
        for rank in 0..ranks {
            // As it is after so many calls: the counter, and what has arrived of every rank at every block.
            let workspace = all.communicator.workspace(rank);
            workspace.write(DONE, &done.to_ne_bytes()).map_err(said)?;
            let arrived: Vec<u8> = (0..RANKS * BLOCKS).flat_map(|_| done.to_ne_bytes()).collect();
            workspace.write(8 * (2 + BLOCKS), &arrived).map_err(said)?;
        }
        for call in 0..12 {
            let inputs = Inputs::random(ranks, &spec, call);
            all.set(&inputs)?;
            all.launch_apart(&spec, |params| {
                (params.delay_rank, params.delay_phase, params.delay) =
                    (call as u32 % 2, call as u32 % 4, 200_000);
            })?;
            all.wait()?;
            all.check(&spec, &inputs, &format!("call {call} after {calls}"))?;
        }
    }
    Ok(())
}

/// A rank that never comes: an error within the limit, results that are no numbers, and no call passes afterwards.
pub fn missing(extent: Extent) -> Checked {
    let ranks = extent.ranks.min(4);
    let spec = small(2);
    // So long that the others come within it, on a busy machine too.
    let limit = Duration::from_secs(2);
    let all = Ranks::new(ranks, spec.bytes().unwrap(), limit)?;
    all.set(&Inputs::random(ranks, &spec, 1))?;
    let gone = ranks - 1;
    // A graph of another call, to be replayed when no host looks any more.
    let (function, shape) = all.function(&spec)?;
    let stream = all.streams[0];
    let params = all.params(0, &spec)?;
    let graph = all.driver.on(0, || {
        all.driver.capture(stream, || {
            // SAFETY: the arrays are there as long as the graph is used.
            unsafe { all.communicator.launch(function, &shape, &params, 1, stream) }
        })
    });
    let graph = graph.map_err(said)?;
    let start = Instant::now();
    for rank in 0..gone {
        all.launch(&spec, &all.params(rank, &spec)?, 1)?;
    }
    let error = all.wait().err().ok_or("a call without one of its ranks has no error")?;
    let took = start.elapsed();
    if !error.contains(&format!("for rank {gone}")) || took < limit || took > limit * 10 {
        return Err(format!("after {took:?} of at most {limit:?}: {error}"));
    }
    let nothing = |what: &str| -> Checked {
        let (new, normed) = all.get(0, spec.bytes().unwrap())?;
        let none = |bytes: &[u8]| numbers(spec.element, bytes).iter().all(|x| x.is_nan());
        if none(&new) && none(&normed) {
            Ok(())
        } else {
            Err(format!("{what}: results look like numbers"))
        }
    };
    nothing("after the error")?;
    if all.launch(&spec, &params, 1).is_ok() {
        return Err("a call after an error is not refused".into());
    }
    all.set(&Inputs::random(ranks, &spec, 2))?;
    let start = Instant::now();
    all.driver.on(0, || all.driver.replay(graph, stream)).map_err(said)?;
    all.driver.wait(0, stream).map_err(said)?;
    if start.elapsed() > limit {
        return Err(format!("a replay after an error takes {:?}", start.elapsed()));
    }
    nothing("a replay after the error")
}

/// Two calls of one rank at the same time.
pub fn in_flight(extent: Extent) -> Checked {
    let spec = small(2);
    let all = Ranks::new(extent.ranks.min(2), spec.bytes().unwrap(), Duration::from_secs(5))?;
    all.set(&Inputs::random(all.count(), &spec, 1))?;
    let (function, shape) = all.function(&spec)?;
    let params = all.params(0, &spec)?;
    let start = Instant::now();
    for stream in [0, 1] {
        // A slow launch may see the error already.
        let _ = all.launch_on(function, &shape, &params, 1, all.streams[stream]);
    }
    let error = all.wait().err().unwrap_or_default();
    if !error.contains("two calls") || start.elapsed() > Duration::from_secs(4) {
        return Err(format!("after {:?}: {error:?}", start.elapsed()));
    }
    Ok(())
}

/// Many calls without waiting, ranks apart: each takes the norm of the call before as its residual.
pub fn chained(extent: Extent) -> Checked {
    let ranks = extent.ranks.min(4);
    let spec = small(2);
    let all = Ranks::new(ranks, spec.bytes().unwrap(), LIMIT)?;
    let inputs = Inputs::random(ranks, &spec, 77);
    all.set(&inputs)?;
    let (function, shape) = all.function(&spec)?;
    for call in 0..extent.calls {
        for rank in 0..ranks {
            let mut params = all.params(rank, &spec)?;
            // There and back, in place.
            params.normed = params.residual;
            all.launch_on(function, &shape, &params, 1, all.streams[rank])?;
        }
        // As much as a queue holds.
        if call % 256 == 255 {
            all.wait()?;
        }
    }
    all.wait()?;
    let expected = after(&spec, &inputs, extent.calls);
    for rank in 0..ranks {
        let (new, _) = all.get(rank, spec.bytes().unwrap())?;
        if new != expected {
            return Err(format!("rank {rank} has gone astray within {} calls", extent.calls));
        }
    }
    ended(&all, extent.calls as u64)
}

/// A graph of two calls, replayed without a host: the same chain.
pub fn replays(extent: Extent) -> Checked {
    for ranks in [2, 4, 8] {
        let ranks = ranks.min(extent.ranks);
        let spec = Spec { element: Element::Bf16, weight: Element::Bf16, hidden: 512, ..small(2) };
        let all = Ranks::new(ranks, spec.bytes().unwrap(), LIMIT)?;
        let inputs = Inputs::random(ranks, &spec, 78);
        all.set(&inputs)?;
        let (function, shape) = all.function(&spec)?;
        let mut params = all.params(0, &spec)?;
        params.normed = params.residual;
        let stream = all.streams[0];
        let graph = all.driver.on(0, || {
            all.driver.capture(stream, || {
                for _ in 0..2 {
                    // SAFETY: the arrays are there as long as the graph is used.
                    unsafe {
                        all.communicator.launch(function, &shape, &params, ranks as u32, stream)?
                    };
                }
                Ok(())
            })
        });
        let graph = graph.map_err(said)?;
        for replay in 0..extent.replays {
            all.driver.on(0, || all.driver.replay(graph, stream)).map_err(said)?;
            if replay % 256 == 255 {
                all.wait()?;
            }
        }
        all.wait()?;
        let expected = after(&spec, &inputs, 2 * extent.replays);
        for rank in 0..ranks {
            if all.get(rank, spec.bytes().unwrap())?.0 != expected {
                return Err(format!(
                    "rank {rank} of {ranks} has gone astray within {} replays",
                    extent.replays
                ));
            }
        }
        let account = all.communicator.account().map_err(said)?;
        if account.launched != 0 || account.captured != 2 * ranks as u64 {
            return Err(format!("the graph was not what ran: {account:?}"));
        }
        ended(&all, 2 * extent.replays as u64)?;
    }
    Ok(())
}

fn ended(all: &Ranks, calls: u64) -> Checked {
    let account = all.communicator.account().map_err(said)?;
    if account.ended != calls {
        return Err(format!("{} calls have ended, expected {calls}", account.ended));
    }
    Ok(())
}

/// The new residual after so many calls whose residual is the norm of the one before.
fn after(spec: &Spec, inputs: &Inputs, calls: usize) -> Vec<u8> {
    // The sum is always the same: what a call without a residual gives, as the operand of a rank alone.
    let zeros = vec![0; inputs.residual.len()];
    let sum = reference(spec, &Inputs { residual: zeros.clone(), ..inputs.clone() }).0;
    let group = ThreadGroup::new(Options::new(1, sum.len())).unwrap();
    let (mut residual, mut new, mut normed) = (inputs.residual.clone(), zeros.clone(), zeros);
    for _ in 0..calls {
        let args = alight_collective::Args {
            partial: Some(&sum),
            residual: Some(&residual),
            weight: &inputs.weight,
            post_weight: None,
            normed: &mut normed,
            new_residual: &mut new,
        };
        group.allreduce_norm(0, 1, spec, args).unwrap();
        std::mem::swap(&mut residual, &mut normed);
    }
    new
}
