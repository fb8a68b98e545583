//! A tensor of the new file, and what it is made of.

use std::fmt;

use alight_formats::GgmlType;
use alight_formats::ggml::blocks::BlockUpgrade;
use alight_formats::ggml::{Era, LegacyType};
use alight_kernels::WeightType;

/// A tensor of the new file.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// Its name.
    pub(crate) name: String,
    /// Extents, innermost first.
    pub(crate) ne: Vec<u64>,
    /// What its elements are in the source.
    pub(crate) from: Elements,
    /// What they become.
    pub(crate) to: GgmlType,
    /// Where they are.
    pub(crate) data: ItemData,
    /// For the rows of this many heads: the two halves of each head's rows are to alternate. (Row
    /// `k · d/2 + j` of a head of `d` rows becomes row `2j + k`.)
    pub(crate) heads: Option<u64>,
    /// Is added to every element.
    pub(crate) add: f32,
}

/// Where the elements of a tensor are.
#[derive(Clone, Debug)]
pub(crate) enum ItemData {
    /// In files. Together the pieces are the whole tensor, once.
    Pieces(Vec<Piece>),
    /// Here: one row.
    Values(Vec<f32>),
}

impl ItemData {
    /// All of a tensor of these extents (innermost first), in one piece from byte `offset` of a file on.
    pub(crate) fn whole(file: usize, offset: u64, ne: &[u64]) -> ItemData {
        let (columns, rows) = (ne.first().copied().unwrap_or(1), ne.iter().skip(1).product());
        let (first_row, first_column) = (0, 0);
        ItemData::Pieces(vec![Piece { file, offset, rows, columns, first_row, first_column }])
    }
}

/// What one file contributes to a tensor: `rows` contiguous rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Number of the file.
    pub(crate) file: usize,
    /// Where in the file it begins, in bytes.
    pub(crate) offset: u64,
    /// Number of rows.
    pub(crate) rows: u64,
    /// Elements of a row.
    pub(crate) columns: u64,
    /// The row of the whole tensor that its first row is.
    pub(crate) first_row: u64,
    /// The column of the whole tensor that its first element is.
    pub(crate) first_column: u64,
}

/// What elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elements {
    /// As in GGUF.
    Gguf(GgmlType),
    /// Of a time before.
    Legacy(Era, LegacyType),
}

/// How elements become those of the new tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transform {
    /// Their bytes stay as they are.
    Copy,
    /// Blocks from before GGUF become GGUF's.
    UpgradeLegacy(Era, LegacyType),
    /// They are decoded to f32, and made into blocks of this type.
    ViaF32(WeightType),
}

impl Item {
    /// Elements of a row.
    pub(crate) fn columns(&self) -> u64 {
        self.ne.first().copied().unwrap_or(1)
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> u64 {
        self.ne.iter().skip(1).product()
    }

    /// Bytes of the new tensor.
    pub(crate) fn nbytes(&self) -> u64 {
        // Checked when its place was planned.
        self.to.row_bytes(self.columns()).unwrap_or(0) * self.rows()
    }

    /// Bytes that are read for it.
    pub(crate) fn source_bytes(&self) -> u64 {
        match &self.data {
            ItemData::Values(_) => 0,
            ItemData::Pieces(pieces) => {
                let bytes =
                    |piece: &Piece| self.from.bytes(piece.columns).unwrap_or(0) * piece.rows;
                pieces.iter().map(bytes).sum()
            }
        }
    }

    /// Whether its elements are floats of 64 bits, and become shorter.
    pub(crate) fn loses_range(&self) -> bool {
        self.from == Elements::Gguf(GgmlType::F64) && self.to != GgmlType::F64
    }

    /// How its elements become those of the new tensor; `None` if they cannot.
    pub(crate) fn transform(&self) -> Option<Transform> {
        if matches!(self.data, ItemData::Values(_)) {
            return (self.to == GgmlType::F32).then_some(Transform::Copy);
        }
        let floats = WeightType::of(self.to).filter(|ty| ty.quantizes()).map(Transform::ViaF32);
        match self.from {
            Elements::Gguf(ty) if ty == self.to && self.add == 0.0 => Some(Transform::Copy),
            Elements::Gguf(GgmlType::F64) => floats,
            Elements::Gguf(ty) => WeightType::of(ty).and(floats),
            Elements::Legacy(era, ty) if ty.current() == self.to && self.add == 0.0 => {
                match era.upgrade(ty)? {
                    BlockUpgrade::Copy => Some(Transform::Copy),
                    BlockUpgrade::Move | BlockUpgrade::Rescale | BlockUpgrade::Decode => {
                        Some(Transform::UpgradeLegacy(era, ty))
                    }
                }
            }
            Elements::Legacy(_, ty) => WeightType::of(ty.current()).and(floats),
        }
    }
}

impl Elements {
    /// Bytes of `elements` elements, if these are whole blocks.
    pub(crate) fn bytes(self, elements: u64) -> Option<u64> {
        match self {
            Elements::Gguf(ty) => ty.row_bytes(elements),
            Elements::Legacy(era, ty) => era.sizes(ty, elements).map(|(bytes, _)| bytes),
        }
    }

    /// Elements that cannot be taken apart.
    pub(crate) fn block(self) -> u64 {
        match self {
            Elements::Gguf(ty) => ty.block_len(),
            Elements::Legacy(era, ty) => era.block(ty).map_or(1, |(elements, _)| elements),
        }
    }

    /// What they are in a file of today.
    pub(crate) fn current(self) -> GgmlType {
        match self {
            Elements::Gguf(ty) => ty,
            Elements::Legacy(_, ty) => ty.current(),
        }
    }

    /// Whether a row can only be read as a whole.
    pub(crate) fn whole_rows(self) -> bool {
        matches!(self, Elements::Legacy(Era::Rows, ty) if ty != LegacyType::F32 && ty != LegacyType::F16)
    }
}

impl fmt::Display for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Elements::Gguf(ty) => ty.fmt(f),
            Elements::Legacy(era, ty) if era.upgrade(*ty) == Some(BlockUpgrade::Copy) => ty.fmt(f),
            Elements::Legacy(_, ty) => f.pad(&format!("old {ty}")),
        }
    }
}
