//! The measured peak performance of this core: the limits that benchmarks are compared with.
//!
//! Each function does a fixed amount of work on the calling thread; the caller runs it on any number of threads, measures the time, and takes
//! the best of several runs.

use crate::isa::{Isa, SimdLevel};
#[cfg(target_arch = "x86_64")]
use crate::{lanes::avx2::in_order, matmul::amx};

/// Returns the multiply-accumulates that [`int8_products`] performs per call with `rounds`.
pub fn int8_macs(isa: Isa, rounds: usize) -> u64 {
    rounds as u64
        * 12
        * match isa.level() {
            SimdLevel::Amx => 16 * 16 * 32,
            SimdLevel::AmxInt8 => 16 * 16 * 64,
            SimdLevel::Avx512 => 64,
            // Eight products between two sums of 32 bits.
            SimdLevel::Avx2 => 8 * 32,
            SimdLevel::AvxVnni | SimdLevel::I8mm => 32,
            SimdLevel::Neon => 16,
            SimdLevel::Scalar => 1,
        }
}

/// Runs 12 independent chains of byte multiply-accumulates for `rounds` rounds, as in the level's matrix product (`vpdpbusd` of 512 or 256
/// bits; `vpmaddubsw`, whose sums of 16 bits are added; whole tiles, of bf16 with [`SimdLevel::Amx`]; `smmla` or `sdot`; plain integers),
/// without accessing memory. Returns a value that depends on all of them.
pub fn int8_products(isa: Isa, rounds: usize) -> i32 {
    match isa.level() {
        // SAFETY: an `Isa` can run here.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512 => unsafe { int8_avx512(rounds) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::AmxInt8 => unsafe { amx::products_of_bytes(rounds) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Amx => unsafe { amx::products_of_bf16(rounds) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::AvxVnni => unsafe { int8_avx_vnni(rounds) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 => unsafe { int8_avx2(rounds) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        SimdLevel::I8mm => unsafe { int8_pairs(rounds) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        SimdLevel::Neon => unsafe { int8_neon(rounds) },
        _ => {
            let mut acc = [1i32; 12];
            for r in 0..rounds {
                for (i, a) in acc.iter_mut().enumerate() {
                    *a = a.wrapping_add((*a as u8 as i32) * ((r + i) as i8 as i32));
                }
            }
            acc.iter().fold(0, |s, &a| s.wrapping_add(a))
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn int8_avx512(rounds: usize) -> i32 {
    use std::arch::x86_64::*;
    let mut acc = [_mm512_setzero_si512(); 12];
    let (w, x) = (_mm512_set1_epi8(3), _mm512_set1_epi8(rounds as i8));
    for _ in 0..rounds {
        for a in &mut acc {
            *a = _mm512_dpbusd_epi32(*a, w, x);
        }
    }
    let mut sum = _mm512_setzero_si512();
    for a in acc {
        sum = _mm512_add_epi32(sum, a);
    }
    _mm512_reduce_add_epi32(sum)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn int8_avx2(rounds: usize) -> i32 {
    use std::arch::x86_64::*;
    let mut acc = [_mm256_setzero_si256(); 12];
    let (w, x) = (_mm256_set1_epi8(3), _mm256_set1_epi8(rounds as i8));
    let ones = _mm256_set1_epi16(1);
    for _ in 0..rounds {
        for a in &mut acc {
            let mut narrow = _mm256_setzero_si256();
            for _ in 0..8 {
                // In order, so that it cannot be hoisted.
                narrow = _mm256_add_epi16(narrow, _mm256_maddubs_epi16(w, in_order(x)));
            }
            *a = _mm256_add_epi32(*a, _mm256_madd_epi16(narrow, ones));
        }
    }
    all_256(acc)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avxvnni")]
unsafe fn int8_avx_vnni(rounds: usize) -> i32 {
    use std::arch::x86_64::*;
    let mut acc = [_mm256_setzero_si256(); 12];
    let (w, x) = (_mm256_set1_epi8(3), _mm256_set1_epi8(rounds as i8));
    for _ in 0..rounds {
        for a in &mut acc {
            *a = _mm256_dpbusd_avx_epi32(*a, w, x);
        }
    }
    all_256(acc)
}

/// The sum of all chains.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn all_256(acc: [std::arch::x86_64::__m256i; 12]) -> i32 {
    use std::arch::x86_64::*;
    let mut out = [0i32; 8];
    let mut sum = _mm256_setzero_si256();
    for a in acc {
        sum = _mm256_add_epi32(sum, a);
    }
    // SAFETY: 32 bytes of `out`.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), sum) };
    out.iter().fold(0, |s, &a| s.wrapping_add(a))
}

/// 12 chains of products of 16 bytes, by an instruction of a level.
#[cfg(target_arch = "aarch64")]
macro_rules! chains {
    ($name:ident, $features:literal, $product:path) => {
        #[target_feature(enable = $features)]
        unsafe fn $name(rounds: usize) -> i32 {
            use std::arch::aarch64::*;
            let mut acc = [vdupq_n_s32(0); 12];
            let (w, x) = (vdupq_n_s8(3), vdupq_n_s8(rounds as i8));
            for _ in 0..rounds {
                for a in &mut acc {
                    // The assembly cannot be hoisted: it depends on the chain.
                    *a = $product(*a, w, x);
                }
            }
            let mut sum = vdupq_n_s32(0);
            for a in acc {
                sum = vaddq_s32(sum, a);
            }
            vaddvq_s32(sum)
        }
    };
}
#[cfg(target_arch = "aarch64")]
chains!(int8_neon, "neon,dotprod", crate::sdot::sdot);
#[cfg(target_arch = "aarch64")]
chains!(int8_pairs, "neon,i8mm", crate::sdot::smmla);

/// Reads all of `buffer` once, as fast as one core can, and returns a value that depends on it. Time it on a buffer much larger than the
/// last-level cache for the memory's read bandwidth.
pub fn read(isa: Isa, buffer: &[u8]) -> u64 {
    match isa.base() {
        // SAFETY: an `Isa` can run here.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512 => unsafe { read_avx512(buffer) },
        _ => {
            let mut acc = [0u64; 8];
            for line in buffer.chunks_exact(64) {
                for (a, b) in acc.iter_mut().zip(line.chunks_exact(8)) {
                    *a ^= u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
                }
            }
            acc.iter().fold(0, |s, &a| s ^ a)
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn read_avx512(buffer: &[u8]) -> u64 {
    use std::arch::x86_64::*;
    let mut acc = [_mm512_setzero_si512(); 8];
    for lines in buffer.chunks_exact(512) {
        for (i, a) in acc.iter_mut().enumerate() {
            // SAFETY: 64 bytes of the chunk, and a prefetch, which may point anywhere.
            unsafe {
                let p = lines.as_ptr().add(64 * i);
                _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(4096).cast());
                *a = _mm512_xor_si512(*a, _mm512_loadu_si512(p.cast()));
            }
        }
    }
    let mut sum = _mm512_setzero_si512();
    for a in acc {
        sum = _mm512_xor_si512(sum, a);
    }
    _mm512_reduce_or_epi64(sum) as u64
}
