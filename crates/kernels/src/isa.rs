//! The SIMD levels, chosen at run time.
//!
//! A default build of this crate runs on any x86-64 (and, through the scalar level, on any other
//! CPU): nothing here depends on `cfg(target_feature)`. The place for NEON is a fourth variant.

use std::fmt;
use std::str::FromStr;

/// One SIMD level of kernels. Ordered from the most portable to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Portable Rust, no intrinsics.
    Scalar,
    /// AVX2 with FMA and F16C (Intel Haswell, AMD Zen and later).
    Avx2,
    /// AVX-512 F/BW/VL/DQ with VNNI and VBMI (Intel Ice Lake, AMD Zen 4 and later).
    Avx512,
}

impl Isa {
    /// The fastest SIMD level that this CPU and operating system support.
    pub fn best() -> Isa {
        if Isa::Avx512.is_available() {
            Isa::Avx512
        } else if Isa::Avx2.is_available() {
            Isa::Avx2
        } else {
            Isa::Scalar
        }
    }

    /// Every SIMD level that can run here, from the most portable to the fastest.
    pub fn available() -> Vec<Isa> {
        [Isa::Scalar, Isa::Avx2, Isa::Avx512].into_iter().filter(|i| i.is_available()).collect()
    }

    /// Whether this CPU and operating system can run the level's kernels.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
                    && is_x86_feature_detected!("avx512vbmi")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Panics unless the SIMD level can run here. Every dispatch into a `#[target_feature]` function
    /// rests on this having been checked when the value was made, so constructors of long-lived
    /// objects call it once.
    pub fn assert_available(self) {
        assert!(self.is_available(), "this CPU cannot run the {self} kernels");
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        })
    }
}

impl FromStr for Isa {
    type Err = String;

    fn from_str(s: &str) -> Result<Isa, String> {
        match s {
            "scalar" => Ok(Isa::Scalar),
            "avx2" => Ok(Isa::Avx2),
            "avx512" => Ok(Isa::Avx512),
            _ => Err(format!("unknown instruction set '{s}': expected scalar, avx2 or avx512")),
        }
    }
}
