//! Shared by the tests: a small deterministic random number generator, and random weights.

use alight_kernels::{Isa, ScaleField, WeightType};

/// True if less has to do, since an emulator runs the tests: set by `evidence check aarch64` and `check x86-levels`.
pub fn few() -> bool {
    std::env::var_os("ALIGHT_TEST_FEW").is_some()
}

/// The levels that can run here, or with [`few`] the best of them.
pub fn levels() -> Vec<Isa> {
    if few() { vec![Isa::best()] } else { Isa::available() }
}

/// Returns the result of `f` at the portable level. The results of all other levels must have the same bits, or NaN in the same places.
pub fn at_all_levels(what: &str, f: impl Fn(Isa) -> Vec<f32>) -> Vec<f32> {
    let portable = f(Isa::SCALAR);
    for isa in levels() {
        let found = f(isa);
        assert_eq!(found.len(), portable.len(), "{what} at {isa}");
        for (i, (found, portable)) in found.iter().zip(&portable).enumerate() {
            let same = found.to_bits() == portable.to_bits() || found.is_nan() && portable.is_nan();
            assert!(same, "{what} [{i}]: {found:e} at {isa}, {portable:e} at the portable level");
        }
    }
    portable
}

/// [`at_all_levels`] of a function that changes `x`.
pub fn changed_at_all_levels(what: &str, x: &[f32], f: impl Fn(Isa, &mut [f32])) -> Vec<f32> {
    at_all_levels(what, |isa| {
        let mut x = x.to_vec();
        f(isa, &mut x);
        x
    })
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In `low..high`.
    pub fn range(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low) as u64) as usize
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal.
    pub fn normal(&mut self) -> f32 {
        let (u, v) = (1.0 - self.unit(), self.unit());
        ((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
    }

    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.range(0, from.len())]
    }
}

/// In `low..high`.
pub fn uniform(rng: &mut Rng, low: f32, high: f32) -> f32 {
    low + (high - low) * rng.unit() as f32
}

/// Random blocks with sane scales: random bytes, then every scale replaced.
pub fn random_blocks(rng: &mut Rng, ty: WeightType, rows: usize, cols: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; ty.row_bytes(cols).unwrap() * rows];
    if ty.is_float() {
        for (i, b) in bytes.chunks_exact_mut(ty.block_bytes()).enumerate() {
            let v = uniform(rng, -1.0, 1.0) * if i % 97 == 0 { 30.0 } else { 1.0 };
            match ty {
                WeightType::F32 => b.copy_from_slice(&v.to_le_bytes()),
                WeightType::F16 => {
                    b.copy_from_slice(&alight_kernels::half::f32_to_f16(v).to_le_bytes())
                }
                _ => b.copy_from_slice(&alight_kernels::half::f32_to_bf16(v).to_le_bytes()),
            }
        }
        return bytes;
    }
    for b in bytes.iter_mut() {
        *b = rng.next() as u8;
    }
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        for field in ty.scale_fields() {
            match *field {
                ScaleField::Exponent(at) => block[at] = rng.range(118, 125) as u8,
                field => field.set(block, uniform(rng, -0.05, 0.05)),
            }
        }
    }
    bytes
}
