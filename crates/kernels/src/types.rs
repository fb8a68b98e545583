//! The weight types that the kernels compute on, and the geometry of their blocks.
//!
//! Layouts are those of GGUF (ggml's block structs); sizes are in bytes and little-endian.

use std::fmt;

/// A weight type that has kernels. The names are ggml's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
pub enum WeightType {
    /// 32-bit IEEE float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// bfloat16: the upper half of an f32.
    BF16,
    /// 32 weights: f16 d, 16 bytes of nibbles; w = (q − 8)·d.
    Q4_0,
    /// 32 weights: f16 d, f16 m, 16 bytes of nibbles; w = q·d + m.
    Q4_1,
    /// 32 weights: f16 d, 32 fifth bits, 16 bytes of nibbles; w = (q − 16)·d.
    Q5_0,
    /// 32 weights: f16 d, f16 m, 32 fifth bits, 16 bytes of nibbles; w = q·d + m.
    Q5_1,
    /// 32 weights: f16 d, 32 × i8; w = q·d.
    Q8_0,
    /// 256 weights in 8 groups of 32: f16 d, f16 dmin, 12 bytes of 6-bit scales and minima,
    /// 128 bytes of nibbles; w = q·d·sc − dmin·m.
    Q4_K,
    /// As Q4_K with 32 bytes of fifth bits before the nibbles.
    Q5_K,
    /// 256 weights in 16 groups of 16: 128 bytes of low nibbles, 64 bytes of upper bit pairs,
    /// 16 × i8 scales, f16 d; w = (q − 32)·d·sc.
    Q6_K,
}

/// How the weights of a matrix are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// GGUF's: row after row of blocks.
    Rows,
    /// Packed: tiles of 16 interleaved rows, see [`crate::tiles`].
    Tiles,
}

impl WeightType {
    /// Every type, in the order of their GGUF ids.
    pub const ALL: [WeightType; 11] = [
        WeightType::F32,
        WeightType::F16,
        WeightType::Q4_0,
        WeightType::Q4_1,
        WeightType::Q5_0,
        WeightType::Q5_1,
        WeightType::Q8_0,
        WeightType::Q4_K,
        WeightType::Q5_K,
        WeightType::Q6_K,
        WeightType::BF16,
    ];

    /// The type that has this id in GGUF files, if there are kernels for it.
    pub const fn from_gguf(id: u32) -> Option<WeightType> {
        Some(match id {
            0 => WeightType::F32,
            1 => WeightType::F16,
            2 => WeightType::Q4_0,
            3 => WeightType::Q4_1,
            6 => WeightType::Q5_0,
            7 => WeightType::Q5_1,
            8 => WeightType::Q8_0,
            12 => WeightType::Q4_K,
            13 => WeightType::Q5_K,
            14 => WeightType::Q6_K,
            30 => WeightType::BF16,
            _ => return None,
        })
    }

    /// Weights per block.
    pub const fn block_len(self) -> usize {
        match self {
            WeightType::F32 | WeightType::F16 | WeightType::BF16 => 1,
            WeightType::Q4_0
            | WeightType::Q4_1
            | WeightType::Q5_0
            | WeightType::Q5_1
            | WeightType::Q8_0 => 32,
            WeightType::Q4_K | WeightType::Q5_K | WeightType::Q6_K => 256,
        }
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        match self {
            WeightType::F32 => 4,
            WeightType::F16 | WeightType::BF16 => 2,
            WeightType::Q4_0 => 18,
            WeightType::Q4_1 => 20,
            WeightType::Q5_0 => 22,
            WeightType::Q5_1 => 24,
            WeightType::Q8_0 => 34,
            WeightType::Q4_K => 144,
            WeightType::Q5_K => 176,
            WeightType::Q6_K => 210,
        }
    }

    /// Bytes of a row of `k` weights, or `None` if `k` is not a whole number of blocks.
    pub const fn row_bytes(self, k: usize) -> Option<usize> {
        if !k.is_multiple_of(self.block_len()) {
            return None;
        }
        (k / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Whether the weights are plain floats rather than quantised blocks.
    pub const fn is_float(self) -> bool {
        self.block_len() == 1
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
