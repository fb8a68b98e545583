//! Random arguments, numbers of bytes, and a group of threads.

use alight_collective::{Args, CollectiveError, Element, Options, Spec, ThreadGroup};
use alight_kernels::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// The arguments of all ranks.
#[derive(Clone)]
pub struct Inputs {
    pub partials: Vec<Vec<u8>>,
    pub residual: Vec<u8>,
    pub weight: Vec<u8>,
    pub post_weight: Vec<u8>,
}

/// (new residual, normed).
pub type Results = (Vec<u8>, Vec<u8>);

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
    pub fn number(&mut self) -> f32 {
        let sum: f32 = (0..4).map(|_| (self.next() >> 40) as f32 / (1 << 24) as f32 - 0.5).sum();
        if self.next().is_multiple_of(100) { sum * 40.0 } else { sum }
    }

    pub fn bytes(&mut self, element: Element, count: usize) -> Vec<u8> {
        (0..count).flat_map(|_| to_bytes(element, self.number())).collect()
    }
}

pub fn to_bytes(element: Element, x: f32) -> Vec<u8> {
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

/// To the element's type and back, to nearest even, by f64 arithmetic on the spacing of numbers.
pub fn round(element: Element, x: f64) -> f64 {
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

/// One call of one rank.
pub fn call(
    group: &ThreadGroup,
    rank: usize,
    run: i64,
    spec: &Spec,
    inputs: &Inputs,
) -> Result<Results, CollectiveError> {
    placed(group, rank, run, spec, inputs, false)
}

/// One call of one rank, in place or not.
pub fn placed(
    group: &ThreadGroup,
    rank: usize,
    run: i64,
    spec: &Spec,
    inputs: &Inputs,
    in_place: bool,
) -> Result<Results, CollectiveError> {
    with_args(rank, spec, inputs, in_place, |args| group.allreduce_norm(rank, run, spec, args))
}

/// The results of a call with the arguments of a rank, in place or not.
pub fn with_args(
    rank: usize,
    spec: &Spec,
    inputs: &Inputs,
    in_place: bool,
    call: impl FnOnce(Args<'_>) -> Result<(), CollectiveError>,
) -> Result<Results, CollectiveError> {
    let length = inputs.residual.len();
    // In place, or not.
    let mut new_residual = if in_place { inputs.residual.clone() } else { vec![0xaa; length] };
    let mut normed = if in_place { inputs.partials[rank].clone() } else { vec![0xaa; length] };
    let args = Args {
        partial: (!in_place).then_some(&inputs.partials[rank]),
        residual: (!in_place).then_some(&inputs.residual),
        weight: &inputs.weight,
        post_weight: spec.post_norm.then_some(&inputs.post_weight),
        normed: &mut normed,
        new_residual: &mut new_residual,
    };
    call(args)?;
    Ok((new_residual, normed))
}

/// One call of all ranks.
pub fn run(
    options: Options,
    spec: &Spec,
    inputs: &Inputs,
) -> Vec<Result<Results, CollectiveError>> {
    let group = ThreadGroup::new(options).unwrap();
    ranks(&group, |rank| call(&group, rank, 7, spec, inputs))
}

/// One call of all ranks, each of which has its results in place or not.
pub fn run_placed(
    options: Options,
    spec: &Spec,
    inputs: &Inputs,
    in_place: impl Fn(usize) -> bool + Sync,
) -> Vec<Result<Results, CollectiveError>> {
    let group = ThreadGroup::new(options).unwrap();
    ranks(&group, |rank| placed(&group, rank, 7, spec, inputs, in_place(rank)))
}

/// Does something as every rank, each on its thread.
pub fn ranks<T: Send>(group: &ThreadGroup, one: impl Fn(usize) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> =
            (0..group.ranks()).map(|rank| scope.spawn(move || one(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
