//! Variants without a part of the protocol: with each of them the same checks must fail, or they would show nothing.

use std::time::Duration;

use super::oracle::Inputs;
use super::{Checked, Extent, Ranks, small};

/// Two calls with other operands, one right after the other, with a rank that is late in `phase`.
fn scene(all: &Ranks, phase: u32) -> Checked {
    // The rows are as long as a block has threads, so that the late thread has a part in them.
    let spec = small(1);
    for seed in 0..4 {
        let inputs = Inputs::random(all.count(), &spec, seed);
        all.set(&inputs)?;
        all.launch_apart(&spec, |params| {
            (params.delay_rank, params.delay_phase, params.delay) = (0, phase, 30_000_000);
        })?;
        // Overwrites operands, and lets the ranks that are not late go on to a call with those.
        for rank in 1..all.count() {
            all.poison_operand(rank, spec.bytes().unwrap())?;
        }
        // The results of the late rank are looked at, so the call after it writes elsewhere.
        for rank in 0..all.count() {
            let mut params = all.params(rank, &spec)?;
            params.normed = params.partial;
            params.new_residual = params.residual;
            all.launch(&spec, &params, 1)?;
        }
        all.wait()?;
        all.check(&spec, &inputs, &format!("late in phase {phase}"))?;
    }
    Ok(())
}

/// The right kernel passes what the broken ones fail.
pub fn all_fail(extent: Extent) -> Checked {
    let ranks = extent.ranks.min(2);
    let make = || Ranks::new(ranks, small(1).bytes().unwrap(), Duration::from_secs(10));
    for phase in 0..4 {
        scene(&make()?, phase).map_err(|error| format!("the right kernel fails: {error}"))?;
    }
    for (how, phase) in [("ALIGHT_NO_WAIT", 0), ("ALIGHT_ONE_BUFFER", 2), ("ALIGHT_EARLY_FLAG", 0)]
    {
        match scene(&make()?.broken(how), phase) {
            Ok(()) => return Err(format!("{how} passes: the check shows nothing")),
            Err(error) => println!("  {how} fails, as it must: {error}"),
        }
    }
    Ok(())
}
