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
    /// What is done to every element.
    pub(crate) change: Change,
    /// How the elements of a row, or of a matrix, are put in another order.
    pub(crate) order: Order,
}

/// What is done to every element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Change {
    None,
    /// Is added.
    Add(f32),
    /// −e to its power, computed in f64.
    NegativeExp,
}

impl Change {
    /// Applies it.
    pub(crate) fn apply(self, values: &mut [f32]) {
        match self {
            Change::None => {}
            Change::Add(more) => values.iter_mut().for_each(|value| *value += more),
            Change::NegativeExp => {
                values.iter_mut().for_each(|value| *value = -f64::from(*value).exp() as f32);
            }
        }
    }
}

/// The order of elements in the new tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// That of the source.
    Same,
    /// The columns of each row are those of the source's, in this order: (first, how many).
    Columns(Vec<(u64, u64)>),
    /// Each matrix of so many columns is the transpose of one of so many rows.
    Transposed { rows: u64, columns: u64 },
}

impl Order {
    /// Puts the elements of one unit, of `size` bytes each, in this order.
    pub(crate) fn arrange(&self, unit: &[u8], size: usize, out: &mut Vec<u8>) {
        out.clear();
        match self {
            Order::Same => out.extend_from_slice(unit),
            Order::Columns(runs) => {
                for (first, count) in runs {
                    let first = *first as usize * size;
                    out.extend_from_slice(&unit[first..first + *count as usize * size]);
                }
            }
            Order::Transposed { rows, columns } => {
                let (rows, columns) = (*rows as usize, *columns as usize);
                for column in 0..columns {
                    for row in 0..rows {
                        let at = (row * columns + column) * size;
                        out.extend_from_slice(&unit[at..at + size]);
                    }
                }
            }
        }
    }

    /// True if a unit of so many elements has this order.
    pub(crate) fn fits(&self, elements: u64) -> bool {
        match self {
            Order::Same => true,
            Order::Columns(runs) => {
                let mut sorted = runs.clone();
                sorted.sort_unstable();
                let end = sorted.iter().try_fold(0u64, |end, (first, count)| {
                    (*first == end).then(|| end.checked_add(*count)).flatten()
                });
                end == Some(elements)
            }
            Order::Transposed { rows, columns } => rows.checked_mul(*columns) == Some(elements),
        }
    }
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
        ItemData::Pieces(vec![Piece::new(file, offset, (rows, columns), 0)])
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
    /// Bytes from the beginning of one row to that of the next, where something else is between them.
    pub(crate) stride: Option<u64>,
    /// Where its rows are columns of the source: bytes from the beginning of one row of the source to that of the next. It
    /// has so many of these as `columns` says.
    pub(crate) across: Option<u64>,
    /// Where what belongs to its blocks begins, if that is not with them ([`Elements::Mxfp4Apart`]).
    pub(crate) scales: Option<Scales>,
    /// The scales of its elements, if they are [`Elements::Fp8`].
    pub(crate) tiles: Option<Tiles>,
}

/// Scales of blocks that are in a tensor of their own: a byte for each block of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scales {
    /// Number of the file.
    pub(crate) file: usize,
    /// Where in the file those of the piece's first row begin, in bytes.
    pub(crate) offset: u64,
    /// Bytes from the beginning of one row's to that of the next's.
    pub(crate) stride: u64,
}

/// How much the columns of a tensor count, each of whose matrices was measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Importance {
    /// Number of the file.
    pub(crate) file: usize,
    /// Where sums of squares begin in it, in bytes: F32 `[matrices, columns]`.
    pub(crate) offset: u64,
    pub(crate) columns: u64,
    /// Rows of a matrix.
    pub(crate) rows: u64,
    /// Of how many inputs they are, `[matrices]`; of none all columns count alike.
    pub(crate) counts: Vec<f32>,
}

/// The scales of a matrix of elements of one byte: one for each tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiles {
    /// Number of the file.
    pub(crate) file: usize,
    /// Where in the file they begin, in bytes: `[rows / tile.0, columns / tile.1]`, rounded up.
    pub(crate) offset: u64,
    /// Their type: F32 or BF16.
    pub(crate) ty: GgmlType,
    /// Where in its file the matrix begins, in bytes.
    pub(crate) start: u64,
    /// Columns of the matrix.
    pub(crate) columns: u64,
    /// Rows and columns of a tile.
    pub(crate) tile: (u64, u64),
}

impl Tiles {
    /// Row and column of the element at this byte of the file of the matrix.
    pub(crate) fn position(&self, byte: u64) -> (u64, u64) {
        let element = byte.saturating_sub(self.start);
        (element / self.columns.max(1), element % self.columns.max(1))
    }
}

impl Piece {
    /// So many rows and columns from byte `offset` of a file on, of which the first is the row `first_row` of the tensor.
    pub(crate) fn new(
        file: usize,
        offset: u64,
        (rows, columns): (u64, u64),
        first_row: u64,
    ) -> Piece {
        let (first_column, stride, across, scales, tiles) = (0, None, None, None, None);
        Piece {
            file,
            offset,
            rows,
            columns,
            first_row,
            first_column,
            stride,
            across,
            scales,
            tiles,
        }
    }
}

/// What elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elements {
    /// As in GGUF.
    Gguf(GgmlType),
    /// Of a time before.
    Legacy(Era, LegacyType),
    /// MXFP4 as gpt-oss is published: 16 bytes of a block's elements, two neighbours in each, and the scales elsewhere.
    Mxfp4Apart,
    /// F8_E4M3, with a scale for each tile of the matrix elsewhere ([`Tiles`]).
    Fp8,
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

    /// True if its elements are floats of 64 bits, and become shorter.
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
            Elements::Gguf(ty) if ty == self.to && self.is_unchanged() => Some(Transform::Copy),
            Elements::Gguf(GgmlType::F64) => floats,
            Elements::Gguf(ty) => WeightType::of(ty).and(floats),
            Elements::Legacy(era, ty) if ty.current() == self.to && self.is_unchanged() => {
                match era.upgrade(ty)? {
                    BlockUpgrade::Copy => Some(Transform::Copy),
                    BlockUpgrade::Move | BlockUpgrade::Rescale | BlockUpgrade::Decode => {
                        Some(Transform::UpgradeLegacy(era, ty))
                    }
                }
            }
            Elements::Legacy(_, ty) => WeightType::of(ty.current()).and(floats),
            Elements::Mxfp4Apart if self.to == GgmlType::MXFP4 && self.is_unchanged() => {
                Some(Transform::Copy)
            }
            Elements::Mxfp4Apart | Elements::Fp8 => floats,
        }
    }

    /// True if elements keep their values, and blocks their places.
    fn is_unchanged(&self) -> bool {
        self.change == Change::None && (self.order == Order::Same || self.from.block() == 1)
    }
}

impl Elements {
    /// Bytes of `elements` elements, if these are whole blocks.
    pub(crate) fn bytes(self, elements: u64) -> Option<u64> {
        match self {
            Elements::Gguf(ty) => ty.row_bytes(elements),
            Elements::Legacy(era, ty) => era.sizes(ty, elements).map(|(bytes, _)| bytes),
            Elements::Mxfp4Apart => {
                GgmlType::MXFP4.row_bytes(elements).map(|bytes| bytes / 17 * 16)
            }
            Elements::Fp8 => Some(elements),
        }
    }

    /// Elements that cannot be taken apart.
    pub(crate) fn block(self) -> u64 {
        match self {
            Elements::Gguf(ty) => ty.block_len(),
            Elements::Legacy(era, ty) => era.block(ty).map_or(1, |(elements, _)| elements),
            Elements::Mxfp4Apart => GgmlType::MXFP4.block_len(),
            Elements::Fp8 => 1,
        }
    }

    /// What they are in a file of today.
    pub(crate) fn current(self) -> GgmlType {
        match self {
            Elements::Gguf(ty) => ty,
            Elements::Legacy(_, ty) => ty.current(),
            Elements::Mxfp4Apart => GgmlType::MXFP4,
            Elements::Fp8 => GgmlType::BF16,
        }
    }

    /// True if a row can only be read as a whole.
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
            Elements::Mxfp4Apart => GgmlType::MXFP4.fmt(f),
            Elements::Fp8 => f.pad("F8_E4M3"),
        }
    }
}
