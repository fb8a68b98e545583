//! Results against f64 arithmetic with the roundings of docs/explanation/collective.md, on every SIMD level and algorithm; and the same bits
//! on all of them and on all ranks.

use alight_collective::{Algorithm, Element, Options, Spec};
use alight_kernels::Isa;

use crate::common::{Inputs, numbers, ordinal, round, run, run_placed};

/// `[new residual, normed]` of a call.
fn oracle(spec: &Spec, inputs: &Inputs) -> [Vec<f64>; 2] {
    let element = spec.element;
    let f32 = |x: f64| f64::from(x as f32);
    let partials: Vec<_> = inputs.partials.iter().map(|x| numbers(element, x)).collect();
    let residual = numbers(element, &inputs.residual);
    let weight = numbers(spec.weight, &inputs.weight);
    let post_weight = numbers(spec.weight, &inputs.post_weight);
    let bias = f64::from(u8::from(spec.bias));
    let norm = |row: &[f64], weight: &[f64]| -> Vec<f64> {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
        let scale = f32(1.0 / (mean + f64::from(spec.epsilon)).sqrt());
        let one = |(x, w): (&f64, &f64)| round(element, f32(x * scale) * f32(bias + w));
        row.iter().zip(weight).map(one).collect()
    };
    let (mut new, mut normed) = (vec![], vec![]);
    for row in 0..spec.rows {
        let at = |i: usize| row * spec.hidden + i;
        let sum =
            |i: usize| partials[1..].iter().fold(partials[0][at(i)], |s, x| f32(s + x[at(i)]));
        let mut sum: Vec<f64> = (0..spec.hidden).map(|i| round(element, sum(i))).collect();
        if spec.post_norm {
            sum = norm(&sum, &post_weight);
        }
        let add = |(i, x): (usize, &f64)| round(element, residual[at(i)] + x);
        let row: Vec<f64> = sum.iter().enumerate().map(add).collect();
        normed.extend(norm(&row, &weight));
        new.extend(row);
    }
    [new, normed]
}

/// Checks `found` against `expected` to `ulps`.
fn close(element: Element, found: &[u8], expected: &[f64], ulps: i64, what: &str) {
    for (i, (found, expected)) in numbers(element, found).iter().zip(expected).enumerate() {
        let off = (ordinal(element, *found) - ordinal(element, *expected)).abs();
        assert!(off <= ulps, "{what}: element {i} is {found}, expected {expected}");
    }
}

fn check(ranks: usize, spec: &Spec) {
    let inputs = Inputs::random(ranks, spec, spec.hidden as u64 * 31 + ranks as u64);
    let [new, normed] = oracle(spec, &inputs);
    let mut first = None;
    for isa in Isa::available() {
        for algorithm in [Algorithm::OneShot, Algorithm::CombineOnce, Algorithm::Split] {
            let mut options = Options::new(ranks, spec.bytes().unwrap());
            (options.isa, options.algorithm, options.block) = (isa, Some(algorithm), 0);
            // All, some, none.
            let results = run(options.clone(), spec, &inputs).into_iter().enumerate();
            for which in [1, 2] {
                let placed = run_placed(options.clone(), spec, &inputs, |rank| rank % which == 0);
                let same = placed.into_iter().map(Result::unwrap).zip(results.clone());
                let what = format!("in place: {ranks} ranks, {spec}, {isa}, {algorithm:?}");
                same.for_each(|(placed, (_, found))| assert_eq!(Ok(placed), found, "{what}"));
            }
            for (rank, result) in results {
                let result = result.unwrap();
                let what = format!("{ranks} ranks, {spec}, {isa}, {algorithm:?}, rank {rank}");
                // Without a post-norm nothing of the new residual depends on the order of a sum of squares.
                let ulps = i64::from(spec.post_norm);
                close(spec.element, &result.0, &new, ulps, &format!("new residual, {what}"));
                if !spec.post_norm {
                    close(spec.element, &result.1, &normed, 1, &format!("norm, {what}"));
                } else {
                    // The norm of the residual that was found, so that an ulp there is not counted twice.
                    let again = Inputs {
                        partials: vec![vec![0; result.0.len()]],
                        residual: result.0.clone(),
                        ..inputs.clone()
                    };
                    let plain = Spec { post_norm: false, ..*spec };
                    let [_, normed] = oracle(&plain, &again);
                    close(spec.element, &result.1, &normed, 1, &format!("norm, {what}"));
                }
                assert_eq!(first.get_or_insert_with(|| result.clone()), &result, "bits, {what}");
            }
        }
    }
}

#[test]
fn every_type_shape_and_norm() {
    use Element::{Bf16, F16, F32};
    for (element, weight) in [(Bf16, Bf16), (Bf16, F32), (F16, F16), (F16, F32), (F32, F32)] {
        for (bias, post_norm) in [(false, false), (true, false), (false, true), (true, true)] {
            for (ranks, rows, hidden) in
                [(1, 1, 1), (2, 3, 15), (3, 1, 16), (4, 2, 17), (8, 2, 100)]
            {
                let spec = Spec { rows, hidden, element, weight, bias, epsilon: 1e-6, post_norm };
                check(ranks, &spec);
            }
        }
    }
}

#[test]
fn rows_of_a_real_model() {
    for element in [Element::Bf16, Element::F32] {
        for (ranks, post_norm) in [(2, false), (8, true)] {
            let spec = Spec {
                rows: 2,
                hidden: 4608,
                element,
                weight: element,
                bias: true,
                epsilon: 1e-6,
                post_norm,
            };
            check(ranks, &spec);
        }
    }
}

#[test]
fn the_order_of_the_sum_is_that_of_the_ranks() {
    // In f32, 1 + 2^24 + -2^24 is 0, and 2^24 + -2^24 + 1 is 1.
    let spec = Spec {
        rows: 1,
        hidden: 1,
        element: Element::F32,
        weight: Element::F32,
        bias: false,
        epsilon: 1.0,
        post_norm: false,
    };
    for (parts, expected) in
        [([1.0, 16777216.0, -16777216.0], 0.0f32), ([16777216.0, -16777216.0, 1.0], 1.0)]
    {
        let inputs = Inputs {
            partials: parts.iter().map(|x: &f32| x.to_ne_bytes().to_vec()).collect(),
            residual: vec![0; 4],
            weight: vec![0; 4],
            post_weight: vec![0; 4],
        };
        for result in run(Options::new(3, 4), &spec, &inputs) {
            assert_eq!(result.unwrap().0, expected.to_ne_bytes());
        }
    }
}

/// Infinities and NaNs stay what they are: nothing hides an overflow.
#[test]
fn what_is_not_finite_stays_so() {
    let spec = Spec {
        rows: 1,
        hidden: 33,
        element: Element::Bf16,
        weight: Element::Bf16,
        bias: false,
        epsilon: 1e-6,
        post_norm: false,
    };
    for isa in Isa::available() {
        let mut inputs = Inputs::random(2, &spec, 5);
        // A NaN with all bits set, which rounding by adding would turn into zero.
        inputs.partials[0][2..4].copy_from_slice(&0xffff_u16.to_ne_bytes());
        inputs.partials[1][64..66].copy_from_slice(&0x7f80_u16.to_ne_bytes());
        let mut options = Options::new(2, 66);
        options.isa = isa;
        for result in run(options, &spec, &inputs) {
            let (new, normed) = result.unwrap();
            let (new, normed) = (numbers(spec.element, &new), numbers(spec.element, &normed));
            assert!(new[1].is_nan() && new[32] == f64::INFINITY && new[0].is_finite(), "{isa}");
            assert!(normed.iter().all(|x| x.is_nan()), "{isa}");
        }
    }
}

/// A NaN of f32 with all bits set would become zero if it were rounded like a number.
#[test]
fn a_weight_that_is_no_number_shows() {
    let spec = Spec {
        rows: 1,
        hidden: 20,
        element: Element::Bf16,
        weight: Element::F32,
        bias: false,
        epsilon: 1e-6,
        post_norm: false,
    };
    let mut inputs = Inputs::random(2, &spec, 5);
    for element in [3, 18] {
        inputs.weight[4 * element..][..4].copy_from_slice(&0x7fff_ffff_u32.to_ne_bytes());
    }
    for isa in Isa::available() {
        let mut options = Options::new(2, 40);
        options.isa = isa;
        for result in run(options, &spec, &inputs) {
            let normed = numbers(spec.element, &result.unwrap().1);
            let nans: Vec<_> = (0..20).filter(|i| normed[*i].is_nan()).collect();
            assert_eq!(nans, [3, 18], "{isa}");
        }
    }
}
