//! What is right: f64 arithmetic with the roundings of docs/collective.md, and the collective among threads, by bits.

use alight_collective::{Args, Clique, Element, Options, Spec};
use alight_kernels::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// The arguments of all ranks.
#[derive(Clone)]
pub struct Inputs {
    pub partials: Vec<Vec<u8>>,
    pub residual: Vec<u8>,
    pub weight: Vec<u8>,
    pub post_weight: Vec<u8>,
}

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// About normal, with one large number in a hundred.
    fn number(&mut self) -> f32 {
        let sum: f32 = (0..4).map(|_| (self.next() >> 40) as f32 / (1 << 24) as f32 - 0.5).sum();
        if self.next().is_multiple_of(100) { sum * 40.0 } else { sum }
    }

    pub fn bytes(&mut self, element: Element, count: usize) -> Vec<u8> {
        (0..count).flat_map(|_| to_bytes(element, self.number())).collect()
    }
}

fn to_bytes(element: Element, x: f32) -> Vec<u8> {
    match element {
        Element::Bf16 => f32_to_bf16(x).to_ne_bytes().to_vec(),
        Element::F16 => f32_to_f16(x).to_ne_bytes().to_vec(),
        Element::F32 => x.to_ne_bytes().to_vec(),
    }
}

pub fn numbers(element: Element, bytes: &[u8]) -> Vec<f64> {
    let short = |b: &[u8]| u16::from_ne_bytes([b[0], b[1]]);
    let one = |b: &[u8]| match element {
        Element::Bf16 => bf16_to_f32(short(b)),
        Element::F16 => f16_to_f32(short(b)),
        Element::F32 => f32::from_ne_bytes([b[0], b[1], b[2], b[3]]),
    };
    bytes.chunks_exact(element.size()).map(|b| f64::from(one(b))).collect()
}

/// The place of a number among all of its type: neighbours differ by one.
pub fn ordinal(element: Element, x: f64) -> i64 {
    let (bits, top) = match element {
        Element::Bf16 => (i64::from(f32_to_bf16(x as f32)), 1 << 15),
        Element::F16 => (i64::from(f32_to_f16(x as f32)), 1 << 15),
        Element::F32 => (i64::from((x as f32).to_bits()), 1 << 31),
    };
    if bits >= top { top - bits } else { bits }
}

impl Inputs {
    pub fn random(ranks: usize, spec: &Spec, seed: u64) -> Inputs {
        let mut random = Random(seed);
        let count = spec.rows * spec.hidden;
        Inputs {
            partials: (0..ranks).map(|_| random.bytes(spec.element, count)).collect(),
            residual: random.bytes(spec.element, count),
            weight: random.bytes(spec.weight, spec.hidden),
            post_weight: random.bytes(spec.weight, spec.hidden),
        }
    }
}

/// (new residual, normed) by the collective among threads.
pub fn reference(spec: &Spec, inputs: &Inputs) -> (Vec<u8>, Vec<u8>) {
    let ranks = inputs.partials.len();
    let clique = Clique::new(Options::new(ranks, inputs.residual.len())).unwrap();
    let one = |rank: usize| {
        let (mut new_residual, mut normed) =
            (vec![0; inputs.residual.len()], vec![0; inputs.residual.len()]);
        let args = Args {
            partial: Some(&inputs.partials[rank]),
            residual: Some(&inputs.residual),
            weight: &inputs.weight,
            post_weight: spec.post_norm.then_some(&inputs.post_weight),
            normed: &mut normed,
            new_residual: &mut new_residual,
        };
        clique.allreduce_norm(rank, 1, spec, args).unwrap();
        (new_residual, normed)
    };
    let one = &one;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || one(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).next_back().unwrap()
    })
}

/// To the element's type and back, to nearest even, by f64 arithmetic on the spacing of numbers.
fn round(element: Element, x: f64) -> f64 {
    let (digits, lowest) = match element {
        Element::F32 => return f64::from(x as f32),
        Element::Bf16 => (8, -126),
        Element::F16 => (11, -14),
    };
    // The operation rounds to f32 before it rounds to the element's type.
    let x = f64::from(x as f32);
    if x == 0.0 {
        return x;
    }
    let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    let unit = 2f64.powi(exponent.max(lowest) - digits + 1);
    (x / unit).round_ties_even() * unit
}

fn norm(spec: &Spec, row: &[f64], weight: &[f64]) -> Vec<f64> {
    let f32 = |x: f64| f64::from(x as f32);
    let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
    let scale = f32(1.0 / (mean + f64::from(spec.epsilon)).sqrt());
    let bias = f64::from(u8::from(spec.bias));
    row.iter()
        .zip(weight)
        .map(|(x, w)| round(spec.element, f32(x * scale) * f32(bias + w)))
        .collect()
}

/// How far results are from f64 arithmetic: in ulps, of the new residual, and of the norm of that new residual.
pub fn distance(spec: &Spec, inputs: &Inputs, found: &(Vec<u8>, Vec<u8>)) -> (i64, i64) {
    let element = spec.element;
    let f32 = |x: f64| f64::from(x as f32);
    let partials: Vec<_> = inputs.partials.iter().map(|x| numbers(element, x)).collect();
    let residual = numbers(element, &inputs.residual);
    let weight = numbers(spec.weight, &inputs.weight);
    let post_weight = numbers(spec.weight, &inputs.post_weight);
    let (new, normed) = (numbers(element, &found.0), numbers(element, &found.1));
    let (mut worst_new, mut worst_norm) = (0, 0);
    for row in 0..spec.rows {
        let at = |i: usize| row * spec.hidden + i;
        let sum =
            |i: usize| partials[1..].iter().fold(partials[0][at(i)], |s, x| f32(s + x[at(i)]));
        let mut sum: Vec<f64> = (0..spec.hidden).map(|i| round(element, sum(i))).collect();
        if spec.post_norm {
            sum = norm(spec, &sum, &post_weight);
        }
        for (i, x) in sum.iter().enumerate() {
            let expected = round(element, residual[at(i)] + x);
            worst_new =
                worst_new.max((ordinal(element, new[at(i)]) - ordinal(element, expected)).abs());
        }
        let row_found = &new[row * spec.hidden..][..spec.hidden];
        for (i, x) in norm(spec, row_found, &weight).iter().enumerate() {
            worst_norm =
                worst_norm.max((ordinal(element, normed[at(i)]) - ordinal(element, *x)).abs());
        }
    }
    (worst_new, worst_norm)
}
