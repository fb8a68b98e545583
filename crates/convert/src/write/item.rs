//! A tensor of the new file, and its sources.

use std::fmt;
use std::sync::Arc;

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
    /// Their type in the source.
    pub(crate) from: Elements,
    /// Their new type.
    pub(crate) to: GgmlType,
    /// Where its elements are stored.
    pub(crate) data: ItemData,
    /// Number of heads for which the two halves of each head's rows are to alternate. (Row `k · d/2
    /// + j` of a head of `d` rows becomes row `2j + k`.)
    pub(crate) heads: Option<u64>,
    /// Change to every element.
    pub(crate) change: Change,
    /// New order of the elements of a row, or of a matrix.
    pub(crate) order: Order,
}

/// A change to every element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Change {
    None,
    /// Adds this.
    Add(f32),
    /// −e to the power of the element, computed in f64.
    NegativeExp,
}

impl Change {
    /// Applies the change.
    pub(crate) fn apply(self, values: &mut [f32]) {
        match self {
            Change::None => {}
            Change::Add(more) => values.iter_mut().for_each(|value| *value += more),
            Change::NegativeExp => {
                values.iter_mut().for_each(|value| *value = -libm::exp(f64::from(*value)) as f32);
            }
        }
    }
}

/// The order of elements in the new tensor, relative to the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The same order.
    Same,
    /// The columns of each source row, in this order: (first, count).
    Columns(Vec<(u64, u64)>),
    /// Each matrix with `columns` columns is the transpose of one with `rows` rows.
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

    /// True if a unit of `elements` elements can have this order.
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

/// The place of a tensor's elements.
#[derive(Clone, Debug)]
pub(crate) enum ItemData {
    /// In files. Together the pieces cover the whole tensor, each element once.
    Pieces(Vec<Piece>),
    /// In memory: the bytes of the new tensor.
    Bytes(Arc<[u8]>),
}

impl ItemData {
    /// Numbers in memory, of a tensor that is F32.
    pub(crate) fn of_floats(values: &[f32]) -> ItemData {
        ItemData::Bytes(values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    /// Returns a whole tensor of these extents (innermost first), in one piece from byte `offset` of a
    /// file on.
    pub(crate) fn whole(file: usize, offset: u64, ne: &[u64]) -> ItemData {
        let (columns, rows) = (ne.first().copied().unwrap_or(1), ne.iter().skip(1).product());
        ItemData::Pieces(vec![Piece::new(file, offset, (rows, columns), 0)])
    }
}

/// One file's share of a tensor: `rows` contiguous rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Index of the file.
    pub(crate) file: usize,
    /// Offset in the file, in bytes.
    pub(crate) offset: u64,
    /// Number of rows.
    pub(crate) rows: u64,
    /// Elements of a row.
    pub(crate) columns: u64,
    /// The row of the whole tensor at which it starts.
    pub(crate) first_row: u64,
    /// The column of the whole tensor at which it starts.
    pub(crate) first_column: u64,
    /// Bytes from the start of one row to that of the next, if other data is between them.
    pub(crate) stride: Option<u64>,
    /// Set if its rows are columns of the source: bytes from the start of one row of the source to that of the next. The
    /// source has `columns` such rows.
    pub(crate) across: Option<u64>,
    /// The scales of its blocks, if they are stored separately ([`Elements::Mxfp4Apart`]).
    pub(crate) scales: Option<Scales>,
    /// The scales of its elements, if they are [`Elements::Fp8`].
    pub(crate) tiles: Option<Tiles>,
}

/// Scales of blocks in a tensor of their own: a byte for each block of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scales {
    /// Index of the file.
    pub(crate) file: usize,
    /// Offset in the file of the scales of the piece's first row, in bytes.
    pub(crate) offset: u64,
    /// Bytes from the start of one row's scales to that of the next.
    pub(crate) stride: u64,
}

/// The importance of a tensor's columns; each of its matrices was measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Importance {
    /// Index of the file.
    pub(crate) file: usize,
    /// Offset of the sums of squares, in bytes: F32 `[matrices, columns]`.
    pub(crate) offset: u64,
    pub(crate) columns: u64,
    /// Rows of a matrix.
    pub(crate) rows: u64,
    /// Number of inputs for each matrix, `[matrices]`; with none, all columns count equally.
    pub(crate) counts: Vec<f32>,
}

/// The scales of a matrix of one-byte elements: one for each tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiles {
    /// Index of the file.
    pub(crate) file: usize,
    /// Offset in the file, in bytes: `[rows / tile.0, columns / tile.1]`, rounded up.
    pub(crate) offset: u64,
    /// Their type: F32 or BF16.
    pub(crate) ty: GgmlType,
    /// Offset of the matrix in its file, in bytes.
    pub(crate) start: u64,
    /// Columns of the matrix.
    pub(crate) columns: u64,
    /// Rows and columns of a tile.
    pub(crate) tile: (u64, u64),
}

impl Tiles {
    /// Returns row and column of the element at this byte of the matrix's file.
    pub(crate) fn position(&self, byte: u64) -> (u64, u64) {
        let element = byte.saturating_sub(self.start);
        (element / self.columns.max(1), element % self.columns.max(1))
    }
}

impl Piece {
    /// Creates a piece of `rows` and `columns` from byte `offset` of a file on, whose first row is the row `first_row` of
    /// the tensor.
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

/// The type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elements {
    /// A GGUF type.
    Gguf(GgmlType),
    /// A type from before GGUF.
    Legacy(Era, LegacyType),
    /// MXFP4 as published for gpt-oss: 16 bytes of a block's elements, two neighbours in each, with the scales
    /// elsewhere.
    Mxfp4Apart,
    /// F8_E4M3, with a scale for each tile of the matrix elsewhere ([`Tiles`]).
    Fp8,
}

/// The conversion of elements to those of the new tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transform {
    /// The bytes are copied unchanged.
    Copy,
    /// Blocks from before GGUF become GGUF's.
    UpgradeLegacy(Era, LegacyType),
    /// Decoded to f32, and quantised to blocks of this type.
    ViaF32(WeightType),
}

impl Item {
    /// Number of elements of a row.
    pub(crate) fn columns(&self) -> u64 {
        self.ne.first().copied().unwrap_or(1)
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> u64 {
        self.ne.iter().skip(1).product()
    }

    /// Bytes of the new tensor.
    pub(crate) fn nbytes(&self) -> u64 {
        // Checked when its offset was planned.
        self.to.row_bytes(self.columns()).unwrap_or(0) * self.rows()
    }

    /// Bytes to be read for it.
    pub(crate) fn source_bytes(&self) -> u64 {
        match &self.data {
            ItemData::Bytes(_) => 0,
            ItemData::Pieces(pieces) => {
                let bytes =
                    |piece: &Piece| self.from.bytes(piece.columns).unwrap_or(0) * piece.rows;
                pieces.iter().map(bytes).sum()
            }
        }
    }

    /// True if its elements are 64-bit floats and become shorter.
    pub(crate) fn loses_range(&self) -> bool {
        self.from == Elements::Gguf(GgmlType::F64) && self.to != GgmlType::F64
    }

    /// Returns the conversion of its elements; `None` if there is none.
    pub(crate) fn transform(&self) -> Option<Transform> {
        if let ItemData::Bytes(bytes) = &self.data {
            return (bytes.len() as u64 == self.nbytes()).then_some(Transform::Copy);
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

    /// True if elements keep their values, and blocks stay where they are.
    fn is_unchanged(&self) -> bool {
        self.change == Change::None && (self.order == Order::Same || self.from.block() == 1)
    }
}

impl Elements {
    /// Returns the bytes of `elements` elements, if they are whole blocks.
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

    /// Number of elements that cannot be separated.
    pub(crate) fn block(self) -> u64 {
        match self {
            Elements::Gguf(ty) => ty.block_len(),
            Elements::Legacy(era, ty) => era.block(ty).map_or(1, |(elements, _)| elements),
            Elements::Mxfp4Apart => GgmlType::MXFP4.block_len(),
            Elements::Fp8 => 1,
        }
    }

    /// Returns their type in a current file.
    pub(crate) fn current(self) -> GgmlType {
        match self {
            Elements::Gguf(ty) => ty,
            Elements::Legacy(_, ty) => ty.current(),
            Elements::Mxfp4Apart => GgmlType::MXFP4,
            Elements::Fp8 => GgmlType::BF16,
        }
    }

    /// True if rows can only be read as a whole.
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
