//! Block types: one file and one line of the [registry] for each.
//!
//! A type's file holds everything specific to it: the formula and its source, its geometry, the parts of a packed tile, the
//! portable decoding of 32 weights, the SIMD code that reads its rows ([`avx2_rows`], [`avx512_rows`], `neon_rows`) and tiles
//! ([`avx2_tiles`], [`avx512_tiles`], `neon_tiles`; in portable code [`tile_groups`]), and its quantisation. Hooks left to
//! [`decoded!`](decoded) are derived from the portable decoding, so that a type works on every SIMD level, in rows and in tiles,
//! on the day it is added; hooks of its own then make it fast, by measurement. `docs/how-to/block-type.md` describes how to add
//! one.
//!
//! Every type has the same view: 32 weights are 32 unsigned codes `q`, one or two scales `d` (one per 32 or per 16 weights) and
//! zero, one or two offsets `m`; weight `i` is `d[i / 16]·(q[i] − ZERO) + m[i / 16]`.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2_rows;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2_tiles;
#[cfg(target_arch = "x86_64")]
mod avx2_units;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512_rows;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512_tiles;
#[cfg(target_arch = "x86_64")]
mod avx512_units;
mod codebook;
pub(crate) mod decoded;
mod grids;
#[cfg(target_arch = "aarch64")]
mod neon_derived;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon_rows;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon_tiles;
mod nibbles_256;
mod nibbles_32;
#[cfg(target_arch = "x86_64")]
mod plain_tiles;
mod shared;
mod tile_groups;
#[cfg(target_arch = "x86_64")]
pub(crate) mod units;

use crate::fields::Field;
use crate::fields::TILE_ROWS;
pub(crate) use crate::fit::levels::IQ4_CODES;
use crate::half::f32_to_f16;
use alight_types::GgmlType;
use std::fmt;
pub(crate) use tile_groups::{Line, TileGroup};

/// Declares the block types: the file of each, its [`WeightType`] and its arm in `with_block!`. Those under `rows` have no packed
/// form. The first argument is a dollar sign, for the macros that this macro defines.
macro_rules! registry {
    (
        $d:tt floats: $($float:ident)*;
        blocks { $($name:ident = $file:ident::$format:ident;)* }
        rows { $($rows:ident = $rows_file:ident::$rows_format:ident;)* }
    ) => {
        registry! { @all $d $($float)*; $($name = $file::$format;)* $($rows = $rows_file::$rows_format;)* }

        /// As [`with_block!`], for a matrix in tiles.
        macro_rules! with_tiles {
            ($d ty:expr, $d q:ident => $d body:expr, $d float:expr) => {{
                match $d ty {
                    $($crate::WeightType::$name => {
                        type $d q = $crate::blocks::$file::$format;
                        $d body
                    })*
                    $($crate::WeightType::$rows)|* => unreachable!("{} has no tiles", $d ty),
                    $($crate::WeightType::$float)|* => $d float,
                }
            }};
        }
        pub(crate) use with_tiles;

        /// As [`with_block!`], for a type that has no tiles.
        #[cfg(target_arch = "x86_64")]
        macro_rules! with_rows {
            ($d ty:expr, $d q:ident => $d body:expr) => {{
                match $d ty {
                    $($crate::WeightType::$rows => {
                        type $d q = $crate::blocks::$rows_file::$rows_format;
                        $d body
                    })*
                    other => unreachable!("{other} has tiles"),
                }
            }};
        }
        #[cfg(target_arch = "x86_64")]
        pub(crate) use with_rows;
    };
    (@all $d:tt $($float:ident)*; $($name:ident = $file:ident::$format:ident;)*) => {
        $(pub(crate) mod $file;)*

        /// A weight type that has kernels. The names are ggml's; a block's layout is described in the type's file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types)]
        pub enum WeightType {
            $(#[doc = concat!("Plain ", stringify!($float), ".")] $float,)*
            $(#[doc = concat!("See `blocks/", stringify!($file), ".rs`.")] $name,)*
        }

        impl WeightType {
            /// Every type, in the order of the GGUF ids.
            pub const ALL: [WeightType; [$(GgmlType::$float,)* $(GgmlType::$name),*].len()] =
                by_id([$(WeightType::$float,)* $(WeightType::$name),*]);

            /// Returns the GGUF type, which has the id and the geometry.
            pub const fn ggml(self) -> GgmlType {
                match self {
                    $(WeightType::$float => GgmlType::$float,)*
                    $(WeightType::$name => GgmlType::$name,)*
                }
            }
        }

        $(const _: () = {
            check::<$file::$format>();
            assert!($file::$format::TYPE.id() == GgmlType::$name.id());
        };)*

        /// Runs `$body` with `$q` as the [`BlockFormat`] of a quantised [`WeightType`], and `$float` for the others.
        macro_rules! with_block {
            ($d ty:expr, $d q:ident => $d body:expr, $d float:expr) => {{
                match $d ty {
                    $($crate::WeightType::$name => {
                        type $d q = $crate::blocks::$file::$format;
                        $d body
                    })*
                    $($crate::WeightType::$float)|* => $d float,
                }
            }};
        }
        pub(crate) use with_block;
    };
}

registry! { $
    floats: F32 F16 BF16;
    blocks {
        Q4_0 = q4_0::Q4_0;
        Q4_1 = q4_1::Q4_1;
        Q5_0 = q5_0::Q5_0;
        Q5_1 = q5_1::Q5_1;
        Q8_0 = q8_0::Q8_0;
        Q4_K = q4_k::Q4K;
        Q5_K = q5_k::Q5K;
        Q6_K = q6_k::Q6K;
        Q2_K = q2_k::Q2K;
        Q3_K = q3_k::Q3K;
        MXFP4 = mxfp4::Mxfp4;
        IQ4_NL = iq4_nl::Iq4Nl;
        IQ4_XS = iq4_xs::Iq4Xs;
        NVFP4 = nvfp4::Nvfp4;
        TQ1_0 = tq1_0::Tq1_0;
        TQ2_0 = tq2_0::Tq2_0;
        Q1_0 = q1_0::Q1_0;
        Q2_0 = q2_0::Q2_0;
    }
    rows {
        IQ3_XXS = iq3_xxs::Iq3Xxs;
        IQ3_S = iq3_s::Iq3S;
        IQ2_XXS = iq2_xxs::Iq2Xxs;
        IQ2_XS = iq2_xs::Iq2Xs;
        IQ2_S = iq2_s::Iq2S;
        IQ1_S = iq1_s::Iq1S;
        IQ1_M = iq1_m::Iq1M;
    }
}

/// 32 consecutive weights, unpacked: weight `i` is `d[i / 16]·(q[i] − ZERO) + m[i / 16]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group32 {
    /// The codes, in the order of the weights.
    pub q: [u8; 32],
    /// One scale per 16 weights (the same twice if the type has one per 32).
    pub d: [f32; 2],
    /// One offset per 16 weights (the same twice if the type has one per 32; 0 if it has none).
    pub m: [f32; 2],
}

/// A block type.
pub(crate) trait BlockFormat: Sized {
    /// Its type in GGUF, which has the geometry.
    const TYPE: GgmlType;
    /// Weights per block, a divisor of 256.
    const BLOCK: usize = Self::TYPE.block_len() as usize;
    /// Bytes per block.
    const BYTES: usize = Self::TYPE.block_bytes() as usize;
    /// Subtracted from a code. `−ZERO` and `MAX_CODE − ZERO` fit a signed byte.
    const ZERO: i32;
    /// The largest code.
    const MAX_CODE: i32;
    /// Scales per 32 weights: 1 or 2.
    const SCALES: usize;
    /// Offsets per 32 weights: 0, 1 or 2.
    const OFFSETS: usize;
    /// The parts of the block in the order of a packed tile; together they are all its bytes. Empty for a type without a packed
    /// form (`alight_types::packed::has_tiles`).
    const FIELDS: &'static [Field] = &[];
    /// The scales at fixed positions of the block.
    const SCALE_FIELDS: &'static [ScaleField];

    /// Unpacks weights `32·g .. 32·g + 32` of a block.
    fn group(block: &[u8], g: usize) -> Group32;

    /// Unpacks weights `32·g .. 32·g + 32` of every row of a unit of a tile, for the portable products. By default as
    /// [`group`](Self::group), row by row; a type can have a faster way. The offsets of `to` are unchanged if the type has none.
    #[inline(always)]
    fn tile_group(unit: &[u8], g: usize, to: &mut TileGroup) {
        *to = decoded::tile_group::<Self, TILE_ROWS>(unit, g, 0);
    }

    /// True if floats can be quantised to this type.
    const QUANTIZES: bool = false;

    /// Quantises `BLOCK` floats to a block. `weights` `[BLOCK]` are the factors of each float's error, in addition to its size;
    /// empty if all are equal. Types that do not search for their scale ignore them.
    #[inline(always)]
    fn quantize(_x: &[f32], _weights: &[f32], _block: &mut [u8]) {
        unreachable!("{} is only read", Self::TYPE)
    }
}

/// The formula that turns codes into weights; several types share one. Once its codes are in a panel, nothing else about a type
/// matters: products with panels are functions of a formula, not of a type.
pub(crate) trait Formula {
    /// [`BlockFormat::SCALES`].
    const SCALES: usize;
    /// [`BlockFormat::OFFSETS`].
    const OFFSETS: usize;
    /// True if [`BlockFormat::ZERO`] is not 0. The panel holds its value.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    const ZERO: bool;
}

/// The formula with these numbers of scales and offsets per 32 weights, with or without a zero point.
pub(crate) struct FormulaOf<const SCALES: usize, const OFFSETS: usize, const ZERO: bool>;

impl<const SCALES: usize, const OFFSETS: usize, const ZERO: bool> Formula
    for FormulaOf<SCALES, OFFSETS, ZERO>
{
    const SCALES: usize = SCALES;
    const OFFSETS: usize = OFFSETS;
    const ZERO: bool = ZERO;
}

/// Returns the number of a type's formula. (The compiler discards the branches for other numbers before it generates code for
/// them.)
pub(crate) const fn formula_number<Q: BlockFormat>() -> u8 {
    match (Q::SCALES, Q::OFFSETS, Q::ZERO != 0) {
        (1, 0, true) => 0,
        (1, 1, false) => 1,
        (2, 0, true) => 2,
        (2, 2, false) => 3,
        _ => panic!("a new formula, which takes a line here and one in `with_formula!`"),
    }
}

/// Runs `$body` with `$f` as the [`Formula`] of block type `$q`.
macro_rules! with_formula {
    ($q:ty, $f:ident => $body:expr) => {{
        use $crate::blocks::{FormulaOf, formula_number};
        match const { formula_number::<$q>() } {
            0 => {
                type $f = FormulaOf<1, 0, true>;
                $body
            }
            1 => {
                type $f = FormulaOf<1, 1, false>;
                $body
            }
            2 => {
                type $f = FormulaOf<2, 0, true>;
                $body
            }
            _ => {
                type $f = FormulaOf<2, 2, false>;
                $body
            }
        }
    }};
}
pub(crate) use with_formula;

/// True if products of the SIMD levels keep a scale and an offset for every 16 weights instead of every 32.
#[cfg(target_arch = "x86_64")]
pub(crate) const fn per_16<Q: BlockFormat>() -> bool {
    Q::SCALES == 2 || Q::OFFSETS == 2
}

/// Checks the constants of a type.
const fn check<Q: BlockFormat>() {
    assert!(256 % Q::BLOCK == 0 && Q::BLOCK % 32 == 0);
    assert!(Q::BYTES <= MAX_BYTES && 256 / Q::BLOCK * Q::BYTES <= MAX_BYTES_OF_256);
    assert!(Q::ZERO >= 0 && Q::ZERO <= 128 && Q::MAX_CODE - Q::ZERO <= 127 && Q::MAX_CODE <= 255);
    assert!(Q::SCALES == 1 || Q::SCALES == 2);
    assert!(Q::OFFSETS <= 2);
    formula_number::<Q>();
    assert!(alight_types::packed::has_tiles(Q::TYPE) != Q::FIELDS.is_empty());
}

/// Maximum number of bytes of a block.
pub(crate) const MAX_BYTES: usize = 256;

/// Maximum number of bytes of 256 weights. (Q8_0 has this many.)
pub(crate) const MAX_BYTES_OF_256: usize = 272;

/// A scale at a fixed position of a block. Tests and scripts replace these in blocks of random bytes, to get weights of a
/// sensible size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleField {
    /// An f16 at this byte.
    F16(usize),
    /// A byte that is the exponent of a power of two: 127 or 128 means 1.
    Exponent(usize),
    /// A byte that is half of an unsigned 8-bit float, 4 bits of exponent and 3 of mantissa.
    E4M3(usize),
    /// An f16 in the high nibbles of four 16-bit numbers from this byte on, the lowest first.
    F16Nibbles(usize),
}

impl ScaleField {
    /// Writes a scale of about `d`; a scale without a sign gets the magnitude.
    pub fn set(self, block: &mut [u8], d: f32) {
        let bits = f32_to_f16(d).to_le_bytes();
        match self {
            ScaleField::F16(at) => block[at..at + 2].copy_from_slice(&bits),
            ScaleField::Exponent(at) => block[at] = (127.0 + libm::log2f(d.abs()).floor()) as u8,
            // Twice the scale; f32's exponent bias is larger by 120.
            ScaleField::E4M3(at) => {
                let bits = (2.0 * d.abs()).to_bits() >> 20;
                block[at] = bits.saturating_sub(120 << 3).min(0x7e) as u8;
            }
            ScaleField::F16Nibbles(at) => {
                for (i, byte) in block[at..at + 8].iter_mut().skip(1).step_by(2).enumerate() {
                    *byte = *byte & 15 | (bits[i / 2] >> (4 * (i % 2))) << 4;
                }
            }
        }
    }
}

/// Sorts the types by id.
const fn by_id<const N: usize>(mut types: [WeightType; N]) -> [WeightType; N] {
    let mut i = 1;
    while i < N {
        let mut j = i;
        while j > 0 && types[j - 1].ggml().id() > types[j].ggml().id() {
            let larger = types[j - 1];
            types[j - 1] = types[j];
            types[j] = larger;
            j -= 1;
        }
        i += 1;
    }
    types
}

impl WeightType {
    /// Returns the type of the kernels for a GGUF type, if there are kernels for it.
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

    /// Returns the type with this id in GGUF files, if there are kernels for it.
    pub const fn from_gguf(id: u32) -> Option<WeightType> {
        match GgmlType::from_id(id) {
            Ok(ty) => WeightType::of(ty),
            Err(_) => None,
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

    /// True if the weights are plain floats rather than quantised blocks.
    pub const fn is_float(self) -> bool {
        self.block_len() == 1
    }

    /// True if floats can be quantised to this type with [`quantize_row`](crate::quantize_row). Some types are only read.
    pub const fn quantizes(self) -> bool {
        with_block!(self, Q => Q::QUANTIZES, true)
    }

    /// Positions of the scales of a block that are fixed; empty for plain floats.
    pub const fn scale_fields(self) -> &'static [ScaleField] {
        with_block!(self, Q => Q::SCALE_FIELDS, &[])
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.ggml(), f)
    }
}
