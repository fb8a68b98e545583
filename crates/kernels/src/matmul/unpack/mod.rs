//! How each SIMD tier reads the quantised formats. Shared by the dot products and the panels of
//! the matrix product; the portable form is [`crate::quant`].

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_blocks;
#[cfg(target_arch = "x86_64")]
mod avx512_superblocks;
