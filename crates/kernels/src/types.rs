//! The weight types that the kernels compute on, and the geometry of their blocks.
//!
//! Layouts are those of GGUF (ggml's block structs); sizes are in bytes and little-endian.

use alight_types::GgmlType;
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

    /// The kernels' name for a type of GGUF, if there are kernels for it.
    pub const fn of(ty: GgmlType) -> Option<WeightType> {
        let mut i = 0;
        while i < WeightType::ALL.len() {
            if WeightType::ALL[i].ggml().id() == ty.id() {
                return Some(WeightType::ALL[i]);
            }
            i += 1;
        }
        None
    }

    /// The type that has this id in GGUF files, if there are kernels for it.
    pub const fn from_gguf(id: u32) -> Option<WeightType> {
        match GgmlType::from_id(id) {
            Ok(ty) => WeightType::of(ty),
            Err(_) => None,
        }
    }

    /// GGUF's name for this type, which knows its id and its geometry.
    pub const fn ggml(self) -> GgmlType {
        match self {
            WeightType::F32 => GgmlType::F32,
            WeightType::F16 => GgmlType::F16,
            WeightType::BF16 => GgmlType::BF16,
            WeightType::Q4_0 => GgmlType::Q4_0,
            WeightType::Q4_1 => GgmlType::Q4_1,
            WeightType::Q5_0 => GgmlType::Q5_0,
            WeightType::Q5_1 => GgmlType::Q5_1,
            WeightType::Q8_0 => GgmlType::Q8_0,
            WeightType::Q4_K => GgmlType::Q4_K,
            WeightType::Q5_K => GgmlType::Q5_K,
            WeightType::Q6_K => GgmlType::Q6_K,
        }
    }

    /// Weights per block.
    pub const fn block_len(self) -> usize {
        self.ggml().block_len() as usize
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        self.ggml().block_bytes() as usize
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
