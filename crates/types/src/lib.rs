//! The tensor types of GGUF: every id, its name, and the geometry of its blocks; and the ids of
//! their packed forms ([`packed`]). And how numbers of bytes are written for people ([`units`]).
//!
//! **Invariant:** every fact about a type that a file depends on is defined here and nowhere else;
//! formats, kernels, convert and Python take it from here. This crate has no dependencies and no
//! `unsafe`, and must never import anything.
//!
//! Ids that used to have a meaning, and ids that only a fork writes, are refused by name: their
//! bytes would otherwise be read as another type.
//!
//! ```
//! use alight_types::GgmlType;
//!
//! let ty = GgmlType::from_id(12)?;
//! assert_eq!((ty, ty.block_len(), ty.block_bytes()), (GgmlType::Q4_K, 256, 144));
//! assert_eq!(ty.row_bytes(4096), Some(2304));
//! assert!(GgmlType::from_id(4).unwrap_err().to_string().contains("Q4_2"));
//! # Ok::<(), alight_types::TypeError>(())
//! ```

#![forbid(unsafe_code)]

pub mod packed;
pub mod units;

use std::fmt;

/// Declares [`GgmlType`]: variant, id, elements per block, bytes per block, meaning.
macro_rules! ggml_types {
    ($($variant:ident = $id:literal, $len:literal, $bytes:literal, $doc:literal;)*) => {
        /// A tensor type that a GGUF file may contain. Names are ggml's; a type listed here does
        /// not necessarily have kernels.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types)]
        #[repr(u32)]
        pub enum GgmlType {
            $(#[doc = $doc] $variant = $id,)*
        }

        impl GgmlType {
            /// Every type, in the order of the ids.
            pub const ALL: &'static [GgmlType] = &[$(GgmlType::$variant),*];

            const fn known(id: u32) -> Option<GgmlType> {
                match id {
                    $($id => Some(GgmlType::$variant),)*
                    _ => None,
                }
            }

            /// Elements per block; a row is a whole number of blocks.
            pub const fn block_len(self) -> u64 {
                match self {
                    $(GgmlType::$variant => $len,)*
                }
            }

            /// Bytes per block.
            pub const fn block_bytes(self) -> u64 {
                match self {
                    $(GgmlType::$variant => $bytes,)*
                }
            }

            /// ggml's name of the type.
            pub const fn name(self) -> &'static str {
                match self {
                    $(GgmlType::$variant => stringify!($variant),)*
                }
            }
        }
    };
}

ggml_types! {
    F32 = 0, 1, 4, "32-bit IEEE float.";
    F16 = 1, 1, 2, "16-bit IEEE float.";
    Q4_0 = 2, 32, 18, "4 bits, one scale.";
    Q4_1 = 3, 32, 20, "4 bits, scale and minimum.";
    Q5_0 = 6, 32, 22, "5 bits, one scale.";
    Q5_1 = 7, 32, 24, "5 bits, scale and minimum.";
    Q8_0 = 8, 32, 34, "8 bits, one scale.";
    Q8_1 = 9, 32, 36, "8 bits, scale and sum: an activation type, rare in files.";
    Q2_K = 10, 256, 84, "2 bits in super-blocks.";
    Q3_K = 11, 256, 110, "3 bits in super-blocks.";
    Q4_K = 12, 256, 144, "4 bits in super-blocks.";
    Q5_K = 13, 256, 176, "5 bits in super-blocks.";
    Q6_K = 14, 256, 210, "6 bits in super-blocks.";
    Q8_K = 15, 256, 292, "8 bits in super-blocks: an activation type, rare in files.";
    IQ2_XXS = 16, 256, 66, "2.06 bits, code book.";
    IQ2_XS = 17, 256, 74, "2.31 bits, code book.";
    IQ3_XXS = 18, 256, 98, "3.06 bits, code book.";
    IQ1_S = 19, 256, 50, "1.56 bits, code book.";
    IQ4_NL = 20, 32, 18, "4 bits, fixed non-linear levels.";
    IQ3_S = 21, 256, 110, "3.44 bits, code book.";
    IQ2_S = 22, 256, 82, "2.56 bits, code book.";
    IQ4_XS = 23, 256, 136, "4.25 bits, fixed non-linear levels in super-blocks.";
    I8 = 24, 1, 1, "8-bit integer.";
    I16 = 25, 1, 2, "16-bit integer.";
    I32 = 26, 1, 4, "32-bit integer.";
    I64 = 27, 1, 8, "64-bit integer.";
    F64 = 28, 1, 8, "64-bit IEEE float.";
    IQ1_M = 29, 256, 56, "1.75 bits, code book.";
    BF16 = 30, 1, 2, "bfloat16: the upper half of an f32.";
    TQ1_0 = 34, 256, 54, "Ternary, 1.69 bits.";
    TQ2_0 = 35, 256, 66, "Ternary, 2.06 bits.";
    MXFP4 = 39, 32, 17, "4-bit float with a shared power-of-two scale.";
    NVFP4 = 40, 64, 36, "4-bit float, four groups of 16 with an E4M3 scale each.";
    Q1_0 = 41, 128, 18, "1 bit, one scale.";
    Q2_0 = 42, 64, 18, "2 bits, one scale.";
}

impl GgmlType {
    /// Returns the type of an id in a file.
    ///
    /// # Errors
    /// Removed ids, ids private to a fork, and ids without a meaning.
    pub const fn from_id(id: u32) -> Result<GgmlType, TypeError> {
        if let Some(ty) = Self::known(id) {
            return Ok(ty);
        }
        let removed = match id {
            4 => "Q4_2",
            5 => "Q4_3",
            31 => "Q4_0_4_4",
            32 => "Q4_0_4_8",
            33 => "Q4_0_8_8",
            36 => "IQ4_NL_4_4",
            37 => "IQ4_NL_4_8",
            38 => "IQ4_NL_8_8",
            _ => "",
        };
        if !removed.is_empty() {
            return Err(TypeError::Removed { id, name: removed });
        }
        if let Some(name) = fork_name(id) {
            return Err(TypeError::Private { id, name });
        }
        Err(TypeError::Unknown { id })
    }

    /// The id of this type in a file.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// Bytes of one row of `elements` elements, or `None` if they are not whole blocks or the size
    /// does not fit in 64 bits.
    pub const fn row_bytes(self, elements: u64) -> Option<u64> {
        if !elements.is_multiple_of(self.block_len()) {
            return None;
        }
        (elements / self.block_len()).checked_mul(self.block_bytes())
    }

    /// True for the types that pack several elements into a block.
    pub const fn is_quantised(self) -> bool {
        self.block_len() > 1
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Returns ik_llama.cpp's name for an id that only it writes: 133–158 (types of its own) and
/// 202–399 (rows interleaved for one instruction set). Ids in those ranges that it has not named
/// are still its own.
const fn fork_name(id: u32) -> Option<&'static str> {
    Some(match id {
        133 => "Q6_0",
        134 => "IQ1_BN",
        135 => "IQ2_BN",
        137 => "IQ2_K",
        138 => "IQ3_K",
        139 => "IQ4_K",
        140 => "IQ5_K",
        141 => "IQ6_K",
        144 => "IQ4_KS",
        145 => "IQ2_KS",
        146 => "IQ4_KSS",
        148 => "Q8_K32",
        151 => "Q8_KV",
        152 => "IQ5_KS",
        153 => "IQ2_KT",
        154 => "IQ3_KT",
        155 => "IQ4_KT",
        156 => "IQ3_KS",
        157 => "IQ2_KL",
        158 => "IQ1_KT",
        202 => "Q4_0_R8",
        206 => "Q5_0_R4",
        208 => "Q8_0_R8",
        210 => "Q2_K_R4",
        211 => "Q3_K_R4",
        212 => "Q4_K_R4",
        213 => "Q5_K_R4",
        214 => "Q6_K_R4",
        216 => "IQ2_XXS_R4",
        217 => "IQ2_XS_R4",
        218 => "IQ3_XXS_R4",
        219 => "IQ1_S_R4",
        220 => "IQ4_NL_R4",
        221 => "IQ3_S_R4",
        222 => "IQ2_S_R4",
        223 => "IQ4_XS_R8",
        229 => "IQ1_M_R4",
        230 => "BF16_R16",
        233 => "Q6_0_R4",
        335 => "IQ2_BN_R4",
        337 => "IQ2_K_R4",
        338 => "IQ3_K_R4",
        339 => "IQ4_K_R4",
        340 => "IQ5_K_R4",
        344 => "IQ4_KS_R4",
        352 => "IQ5_KS_R4",
        397 => "Q8_K_R16",
        398 => "Q8_KV_R8",
        399 => "Q8_K_R8",
        133..=158 | 202..=399 => "unnamed",
        _ => return None,
    })
}

/// Why a type id is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TypeError {
    /// The id had a meaning that ggml has since removed.
    Removed {
        /// The id in the file.
        id: u32,
        /// Its former name.
        name: &'static str,
    },
    /// The id is one that only the fork ik_llama.cpp writes.
    Private {
        /// The id in the file.
        id: u32,
        /// The fork's name for it, or "unnamed".
        name: &'static str,
    },
    /// The id marks the tensor as packed, but its type has no packed form.
    NotPackable {
        /// The id in the file.
        id: u32,
        /// The type in its lower half.
        ty: GgmlType,
    },
    /// The id has no meaning.
    Unknown {
        /// The id in the file.
        id: u32,
    },
}

impl fmt::Display for TypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TypeError::Removed { id, name } => write!(
                f,
                "type {id} ({name}) has been removed from GGUF; the file must be converted again"
            ),
            TypeError::Private { id, name } => {
                write!(
                    f,
                    "type {id} ({name}) is private to ik_llama.cpp, no other program reads it"
                )
            }
            TypeError::NotPackable { id, ty } => {
                write!(f, "type {id} stands for packed {ty}, and {ty} has no packed form")
            }
            TypeError::Unknown { id } => {
                let last = GgmlType::ALL[GgmlType::ALL.len() - 1].id();
                write!(f, "type {id} is unknown; known ids are 0 to {last}")
            }
        }
    }
}

impl std::error::Error for TypeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_is_known_or_refused_for_its_own_reason() {
        for id in 0..1000 {
            match (id, GgmlType::from_id(id)) {
                (4 | 5 | 31..=33 | 36..=38, Err(TypeError::Removed { .. })) => {}
                (133..=158 | 202..=399, Err(TypeError::Private { .. })) => {}
                (0..=42, Ok(ty)) => {
                    assert_eq!(ty.id(), id);
                    assert_eq!(format!("{ty:?}"), ty.name());
                }
                (43.., Err(TypeError::Unknown { .. })) => {}
                (_, other) => panic!("id {id}: {other:?}"),
            }
        }
        assert_eq!(GgmlType::ALL.len(), 43 - 8);
    }

    #[test]
    fn refusals_carry_the_name() {
        let text = |id| GgmlType::from_id(id).unwrap_err().to_string();
        assert!(text(4).contains("Q4_2") && text(5).contains("Q4_3"));
        assert!(text(31).contains("Q4_0_4_4") && text(38).contains("IQ4_NL_8_8"));
        assert!(text(202).contains("Q4_0_R8") && text(399).contains("Q8_K_R8"));
        assert!(text(300).contains("ik_llama.cpp") && text(43).contains("unknown"));
        assert!(text(u32::MAX).contains("4294967295"));
    }

    #[test]
    fn a_row_is_whole_blocks() {
        assert_eq!(GgmlType::Q4_K.row_bytes(512), Some(288));
        assert_eq!(GgmlType::Q4_K.row_bytes(511), None);
        assert_eq!(GgmlType::F64.row_bytes(u64::MAX), None);
        assert_eq!(GgmlType::F32.row_bytes(0), Some(0));
    }
}
