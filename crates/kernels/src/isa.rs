//! The SIMD levels, chosen at run time.
//!
//! A default build of this crate runs on any x86-64, any aarch64 and, through the scalar level, on any other
//! CPU: nothing here depends on `cfg(target_feature)`.

use std::fmt;
use std::str::FromStr;

/// The name of a SIMD level of kernels, whether or not this machine has it. Ordered from the most portable to the fastest. Results have the same bits at
/// every level but [`SimdLevel::Amx`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SimdLevel {
    /// Portable Rust. The only intrinsics are those that every CPU of the architecture has (SSE2), where LLVM does not find them.
    Scalar,
    /// NEON with dot products of bytes (ARMv8.2 with dotprod: Neoverse N1, Cortex-A76, Apple M1 and later).
    Neon,
    /// The same with i8mm (products of small matrices of bytes) for prefill products (Neoverse V1 and N2, Apple M2 and later).
    I8mm,
    /// AVX2 with FMA and F16C (Intel Haswell, AMD Zen and later).
    Avx2,
    /// The same with AVX-VNNI for products (Intel Alder Lake, Lunar Lake, Sierra Forest and later).
    AvxVnni,
    /// AVX-512 F/BW/VL/DQ with VNNI and VBMI (Intel Ice Lake, AMD Zen 4 and later).
    Avx512,
    /// The same with AMX tiles of bytes for prefill products (Intel Sapphire Rapids and later).
    AmxInt8,
    /// The same as AVX-512 with AMX tiles of bf16 for prefill products, which has bits of its own. Errors are smaller, but short prompts are slower, since converting their
    /// weights to bf16 takes longer than multiplying them.
    Amx,
}

impl SimdLevel {
    /// Every SIMD level, from the most portable to the fastest.
    pub const ALL: [SimdLevel; 8] = [
        SimdLevel::Scalar,
        SimdLevel::Neon,
        SimdLevel::I8mm,
        SimdLevel::Avx2,
        SimdLevel::AvxVnni,
        SimdLevel::Avx512,
        SimdLevel::AmxInt8,
        SimdLevel::Amx,
    ];

    /// The level that this one extends, whose kernels it uses except where its own instructions are faster; itself if there is none. Code without
    /// kernels for every level selects by this.
    pub fn base(self) -> SimdLevel {
        match self {
            SimdLevel::I8mm => SimdLevel::Neon,
            SimdLevel::AvxVnni => SimdLevel::Avx2,
            SimdLevel::AmxInt8 | SimdLevel::Amx => SimdLevel::Avx512,
            own => own,
        }
    }

    /// Returns true if this CPU and operating system can run the level's kernels.
    fn is_available(self) -> bool {
        match self {
            SimdLevel::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            SimdLevel::AvxVnni => {
                SimdLevel::Avx2.is_available() && is_x86_feature_detected!("avxvnni")
            }
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512 => {
                SimdLevel::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
                    && is_x86_feature_detected!("avx512vbmi")
            }
            #[cfg(target_arch = "x86_64")]
            SimdLevel::AmxInt8 => SimdLevel::Avx512.is_available() && amx::has(amx::Tiles::Int8),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Amx => SimdLevel::Avx512.is_available() && amx::has(amx::Tiles::Bf16),
            #[cfg(target_arch = "aarch64")]
            SimdLevel::Neon => {
                // Lanes of four bytes are read as numbers with the lowest byte first.
                cfg!(target_endian = "little")
                    && std::arch::is_aarch64_feature_detected!("neon")
                    && std::arch::is_aarch64_feature_detected!("dotprod")
            }
            #[cfg(target_arch = "aarch64")]
            SimdLevel::I8mm => {
                SimdLevel::Neon.is_available() && std::arch::is_aarch64_feature_detected!("i8mm")
            }
            // Levels of other CPUs.
            _ => false,
        }
    }
}

impl fmt::Display for SimdLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SimdLevel::Scalar => "scalar",
            SimdLevel::Neon => "neon",
            SimdLevel::I8mm => "i8mm",
            SimdLevel::Avx2 => "avx2",
            SimdLevel::AvxVnni => "avxvnni",
            SimdLevel::Avx512 => "avx512",
            SimdLevel::AmxInt8 => "amxint8",
            SimdLevel::Amx => "amx",
        })
    }
}

/// A SIMD level that this machine can run. Values of this type exist for no other level, so kernels need no check of their own.
///
/// ```
/// use alight_kernels::{Isa, SimdLevel};
///
/// assert_eq!(Isa::of(SimdLevel::Scalar), Some(Isa::SCALAR));
/// assert!(Isa::available().contains(&Isa::best()));
/// assert_eq!(Isa::SCALAR.bits(), SimdLevel::Scalar);
/// // No machine has both.
/// assert!(Isa::of(SimdLevel::Avx2).is_none() || Isa::of(SimdLevel::Neon).is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Isa(SimdLevel);

impl Isa {
    /// The level that every machine can run.
    pub const SCALAR: Isa = Isa(SimdLevel::Scalar);

    /// Returns the level, if this CPU and operating system can run it.
    pub fn of(level: SimdLevel) -> Option<Isa> {
        level.is_available().then_some(Isa(level))
    }

    /// Returns the fastest SIMD level that this CPU and operating system support, except for [`SimdLevel::Amx`], which you have to request: the
    /// result of a row of a prompt must not depend on the length of the prompt, and short prompts are slower with it.
    pub fn best() -> Isa {
        let common = |isa: &Isa| isa.0 != SimdLevel::Amx;
        Isa::available().into_iter().rev().find(common).unwrap_or(Isa::SCALAR)
    }

    /// Returns every SIMD level that can run here, from the most portable to the fastest.
    pub fn available() -> Vec<Isa> {
        SimdLevel::ALL.into_iter().filter_map(Isa::of).collect()
    }

    /// Its name.
    pub fn level(self) -> SimdLevel {
        self.0
    }

    /// [`SimdLevel::base`], which can run here, too.
    pub fn base(self) -> SimdLevel {
        self.0.base()
    }

    /// Returns the level whose bits all results have: [`SimdLevel::Scalar`], the reference, except for [`SimdLevel::Amx`].
    pub fn bits(self) -> SimdLevel {
        if self.0 == SimdLevel::Amx { self.0 } else { SimdLevel::Scalar }
    }
}

impl FromStr for Isa {
    type Err = String;

    fn from_str(s: &str) -> Result<Isa, String> {
        let list = |names: Vec<String>| names.join(", ");
        let named = SimdLevel::ALL.into_iter().find(|level| level.to_string() == s);
        let level = named.ok_or_else(|| {
            let all = list(SimdLevel::ALL.iter().map(SimdLevel::to_string).collect());
            format!("unknown instruction set '{s}': expected one of {all}")
        })?;
        Isa::of(level).ok_or_else(|| {
            let here = list(Isa::available().iter().map(Isa::to_string).collect());
            format!("this CPU cannot run the {level} kernels; it can run {here}")
        })
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(target_arch = "x86_64")]
mod amx {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    use std::sync::OnceLock;

    /// The data types that a CPU with AMX can multiply, each with a bit of leaf 7.
    #[derive(Clone, Copy)]
    pub(super) enum Tiles {
        Bf16 = 22,
        Int8 = 25,
    }

    /// Returns true if the CPU has such tiles, and the system saves them for each thread and lets this process use them. Both are queried the first
    /// time only: in a virtual machine `cpuid` takes microseconds, and the best level is queried often.
    pub(super) fn has(tiles: Tiles) -> bool {
        static USABLE: OnceLock<u32> = OnceLock::new();
        let usable = *USABLE.get_or_init(|| {
            const TILE: u32 = 1 << 24;
            let features = features();
            if features & TILE != 0 && is_kept() && is_permitted() { features } else { 0 }
        });
        usable & 1 << tiles as u32 != 0
    }

    /// Returns the bits of leaf 7 that describe AMX, among others.
    fn features() -> u32 {
        // Leaf 0 gives the number of leaves.
        if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).edx } else { 0 }
    }

    /// Returns true if the system has enabled the registers, and their shapes, in the state that it saves for a thread.
    fn is_kept() -> bool {
        const OSXSAVE: u32 = 1 << 27;
        const SHAPES_AND_DATA: u64 = 3 << 17;
        #[target_feature(enable = "xsave")]
        fn enabled() -> u64 {
            // SAFETY: called only where the system has enabled XSAVE; register 0 exists then.
            unsafe { _xgetbv(0) }
        }
        // SAFETY: OSXSAVE means that the system has enabled XSAVE.
        __cpuid(1).ecx & OSXSAVE != 0 && unsafe { enabled() } & SHAPES_AND_DATA == SHAPES_AND_DATA
    }

    /// Linux saves a thread's tiles only for processes that have requested it, once for all threads.
    #[cfg(target_os = "linux")]
    fn is_permitted() -> bool {
        const ARCH_PRCTL: i64 = 158;
        const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
        const TILE_DATA: i64 = 18;
        let answer: i64;
        // SAFETY: takes numbers only, and changes nothing except the stack space that signals need. A system that does not know the call returns an
        // error.
        unsafe {
            std::arch::asm!(
                "syscall",
                inlateout("rax") ARCH_PRCTL => answer,
                in("rdi") ARCH_REQ_XCOMP_PERM,
                in("rsi") TILE_DATA,
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack),
            );
        }
        answer == 0
    }

    /// Unknown for other systems.
    #[cfg(not(target_os = "linux"))]
    fn is_permitted() -> bool {
        false
    }
}
