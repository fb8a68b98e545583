//! Results on every type, shape and number of ranks.

use std::time::Duration;

use alight_collective::{Element, Spec};

use super::oracle::{Inputs, distance, reference};
use super::{Checked, Extent, Ranks};

const LIMIT: Duration = Duration::from_secs(20);

/// Within 1 ulp of f64 arithmetic, the same bits on all ranks, on a second call, and as the collective among threads.
pub fn everything(extent: Extent) -> Checked {
    use Element::{Bf16, F16, F32};
    let mut shapes = vec![(1, 1, 1), (2, 3, 15), (3, 1, 64), (4, 2, 100), (8, 2, 264), (2, 70, 32)];
    if extent.large {
        // Models' sizes, two and four vectors of a thread, the longest rows that begin at multiples of 16 bytes, and ragged ones.
        shapes.extend([
            (8, 1, 4608),
            (8, 4, 4608),
            (4, 32, 4608),
            (2, 8, 8192),
            (4, 2, 10240),
            (8, 5, 4609),
        ]);
    } else {
        shapes.push((2, 1, 5136));
    }
    let mut cases = vec![];
    for (element, weight) in [(Bf16, Bf16), (Bf16, F32), (F16, F16), (F16, F32), (F32, F32)] {
        for (bias, post_norm) in [(false, false), (true, false), (false, true), (true, true)] {
            for (ranks, rows, hidden) in &shapes {
                let spec = Spec {
                    rows: *rows,
                    hidden: *hidden,
                    element,
                    weight,
                    bias,
                    epsilon: 1e-6,
                    post_norm,
                };
                // On the emulated GPU the combinations are not all tried on all shapes.
                if extent.large || *hidden < 5000 || (bias && post_norm) {
                    cases.push(((*ranks).min(extent.ranks), spec));
                }
            }
        }
    }
    let (mut worst, mut differ) = ((0, 0), 0);
    for (ranks, spec) in &cases {
        let all = Ranks::new(*ranks, spec.bytes().unwrap().max(4 * spec.hidden), LIMIT)?;
        let inputs = Inputs::random(*ranks, spec, spec.hidden as u64 * 31 + *ranks as u64);
        all.set(&inputs)?;
        all.launch_together(spec)?;
        all.wait()?;
        let first = all.get(0, inputs.residual.len())?;
        let (new, norm) = distance(spec, &inputs, &first);
        let most = i64::from(spec.post_norm);
        if new > most || norm > 1 {
            return Err(format!(
                "{ranks} ranks, {spec}: {new} and {norm} ulps from f64, at most {most} and 1"
            ));
        }
        worst = (worst.0.max(new), worst.1.max(norm));
        all.launch_together(spec)?;
        all.wait()?;
        for rank in 0..*ranks {
            if all.get(rank, inputs.residual.len())? != first {
                return Err(format!(
                    "{ranks} ranks, {spec}: rank {rank} has other bits than rank 0 had in the call before"
                ));
            }
        }
        differ += usize::from(first != reference(spec, &inputs));
    }
    println!(
        "  {} cases, each twice: at most {} ulp (new residual) and {} (norm) from f64; {differ} differ from the CPU's bits",
        cases.len(),
        worst.0,
        worst.1
    );
    match differ {
        0 => Ok(()),
        _ => Err("results differ from the collective among threads".into()),
    }
}

/// Infinities and NaNs stay what they are, and hold nobody up: there are no sentinels in the data.
pub fn not_finite(extent: Extent) -> Checked {
    for element in [Element::Bf16, Element::F16, Element::F32] {
        let spec = Spec { element, weight: element, bias: false, rows: 2, ..super::small(2) };
        let ranks = extent.ranks.min(4);
        let all = Ranks::new(ranks, spec.bytes().unwrap().max(4 * spec.hidden), LIMIT)?;
        for bits in [[0xff; 4], [0, 0, 0x80, 0xff], [0, 0, 0x80, 0x7f], [0, 0, 0, 0x80]] {
            let mut inputs = Inputs::random(ranks, &spec, 5);
            let half = match element {
                Element::F16 => [bits[2] & 0xfc, bits[3] | (bits[2] >> 1 & 0x40)],
                _ => [bits[2], bits[3]],
            };
            let one: &[u8] = if element == Element::F32 { &bits } else { &half };
            // All of the first row, on all ranks.
            let row = spec.hidden * element.size();
            for partial in &mut inputs.partials {
                partial[..row].copy_from_slice(&one.repeat(spec.hidden));
            }
            all.set(&inputs)?;
            all.launch_together(&spec)?;
            all.wait()?;
            let (new, normed) = all.get(ranks - 1, inputs.residual.len())?;
            let expected = reference(&spec, &inputs);
            let same = |a: &[u8], b: &[u8]| {
                let pairs = super::oracle::numbers(element, a)
                    .into_iter()
                    .zip(super::oracle::numbers(element, b));
                pairs.into_iter().all(|(a, b)| a == b || a.is_nan() && b.is_nan())
            };
            if !same(&new, &expected.0) || !same(&normed, &expected.1) {
                return Err(format!(
                    "{element} with rows of {one:x?}: other results than the CPU's"
                ));
            }
        }
    }
    Ok(())
}
