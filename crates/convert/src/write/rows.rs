//! Maps rows of a source to rows of the new tensor.

use super::item::{Elements, Item, ItemData, Order, Piece};

/// Maximum number of elements of a unit, if its rows can be divided.
const UNIT: u64 = 8192;

/// A tensor split into units, each of which becomes one unit of the new tensor, independent and
/// contiguous: rows, or parts of rows if all rows are whole in the source and stay in order.
#[derive(Clone, Debug)]
pub(crate) struct Units {
    /// Elements of a unit.
    pub(crate) elements: u64,
    /// Bytes of a unit in the new file.
    pub(crate) bytes: u64,
    /// The pieces, with units as rows.
    pub(crate) pieces: Vec<Piece>,
    /// Units of one head, if the halves of each are to alternate.
    head: Option<u64>,
}

/// Consecutive units of one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The piece.
    pub(crate) piece: Piece,
    /// Number of units of the piece before it.
    pub(crate) skip: u64,
    /// Number of units.
    pub(crate) count: u64,
    /// The tensor's unit at which the first one is placed.
    pub(crate) first: u64,
    /// Distance between the tensor's units for successive ones.
    pub(crate) step: u64,
}

impl Units {
    /// Splits `item` into units. Its pieces have been checked: they cover all of it, in rows of whole
    /// blocks.
    pub(crate) fn of(item: &Item) -> Units {
        let (columns, rows) = shape(item);
        let pieces: Vec<Piece> = match &item.data {
            ItemData::Pieces(pieces) => pieces.iter().map(|piece| turned(item, piece)).collect(),
            ItemData::Bytes(_) => Vec::new(),
        };
        let whole = pieces.iter().all(|piece| piece.columns == columns);
        let mut elements = columns;
        let is_together = |piece: &Piece| {
            piece.stride.is_none() && piece.across.is_none() && piece.scales.is_none()
        };
        let together = item.order == Order::Same && pieces.iter().all(is_together);
        if whole && together && item.heads.is_none() && !item.from.whole_rows() {
            elements = unit(columns, item);
        }
        let per_row = columns / elements.max(1);
        let pieces = match per_row {
            0 | 1 => pieces,
            n => pieces.iter().map(|piece| divided(piece, n)).collect(),
        };
        Units {
            elements,
            bytes: item.to.row_bytes(elements).unwrap_or(0),
            pieces,
            head: item.heads.map(|heads| rows / heads.max(1)),
        }
    }

    /// Returns the sources of the units from `from` to `to`.
    pub(crate) fn runs(&self, from: u64, to: u64) -> Vec<Run> {
        let mut runs = Vec::new();
        match self.head {
            None => self.cut(from, from, to - from, 1, &mut runs),
            Some(head) => {
                let half = head / 2;
                for start in (from / head * head..to).step_by(head as usize) {
                    for k in 0..2 {
                        // Units start + 2j + k of the range come from units start + k · half + j.
                        let first = from.saturating_sub(start + k).div_ceil(2);
                        let end = (to.min(start + head) - start).saturating_sub(k).div_ceil(2);
                        let count = end.saturating_sub(first);
                        let (source, dest) = (start + k * half + first, start + 2 * first + k);
                        self.cut(source, dest, count, 2, &mut runs);
                    }
                }
            }
        }
        runs
    }

    /// Appends the runs of the pieces that hold `count` units of the source from `source` on.
    fn cut(&self, source: u64, dest: u64, count: u64, step: u64, runs: &mut Vec<Run>) {
        let end = source + count;
        for piece in &self.pieces {
            let (from, to) = (source.max(piece.first_row), end.min(piece.first_row + piece.rows));
            if from < to {
                let first = dest + (from - source) * step;
                let (skip, count) = (from - piece.first_row, to - from);
                runs.push(Run { piece: *piece, skip, count, first, step });
            }
        }
    }
}

/// Returns columns and rows. A vector whose elements belong to the rows of heads counts as one column, and so does a tensor
/// assembled from single elements.
fn shape(item: &Item) -> (u64, u64) {
    if let ItemData::Pieces(pieces) = &item.data
        && item.heads.is_none()
        && pieces.iter().all(|piece| piece.columns == 1)
    {
        return (1, item.columns() * item.rows());
    }
    if let Order::Transposed { rows, columns } = item.order {
        // A unit is a whole matrix.
        let unit = rows.saturating_mul(columns).max(1);
        return (unit, item.columns().saturating_mul(item.rows()) / unit);
    }
    match (item.heads, item.columns(), item.rows()) {
        (Some(_), columns, 1) => (1, columns),
        (_, columns, rows) => (columns, rows),
    }
}

/// Returns the piece in the terms of [`shape`].
fn turned(item: &Item, piece: &Piece) -> Piece {
    if item.heads.is_none() || item.rows() != 1 {
        return *piece;
    }
    let (rows, first_row) = (piece.columns, piece.first_column);
    Piece { rows, columns: 1, first_row, first_column: 0, ..*piece }
}

/// Returns the elements of a unit: a row, or its largest equal part that is short enough and
/// consists of whole blocks before and after.
fn unit(columns: u64, item: &Item) -> u64 {
    // Of any two types, one block size divides the other.
    let block = item.from.block().max(item.to.block_len()).max(1);
    let divides = |n: &u64| columns.is_multiple_of(*n) && (columns / n).is_multiple_of(block);
    let enough = columns.div_ceil(UNIT);
    // Blocks always divide a row.
    (enough..enough + 4096).find(divides).map_or(block, |n| columns / n)
}

/// Returns the piece with rows split into `n`.
fn divided(piece: &Piece, n: u64) -> Piece {
    Piece {
        rows: piece.rows * n,
        columns: piece.columns / n,
        first_row: piece.first_row * n,
        ..*piece
    }
}

/// True if the pieces cover the whole tensor, each element once, in whole blocks, and heads are
/// whole.
pub(crate) fn fit(item: &Item) -> bool {
    let (columns, rows) = shape(item);
    let pieces: Vec<Piece> = match &item.data {
        ItemData::Bytes(bytes) => {
            let row = item.to.row_bytes(item.columns());
            return row.and_then(|row| row.checked_mul(item.rows())) == Some(bytes.len() as u64);
        }
        ItemData::Pieces(pieces) => pieces.iter().map(|piece| turned(item, piece)).collect(),
    };
    let heads = item.heads.is_none_or(|heads| {
        heads > 0 && rows.is_multiple_of(heads) && (rows / heads).is_multiple_of(2)
    });
    let blocks = |from: Elements, n| from.bytes(n).is_some() && item.to.row_bytes(n).is_some();
    let inside = pieces.iter().all(|piece| {
        let bytes = item.from.bytes(piece.columns).and_then(|row| row.checked_mul(piece.rows));
        piece.first_row.checked_add(piece.rows).is_some_and(|end| end <= rows)
            && piece.first_column.checked_add(piece.columns).is_some_and(|end| end <= columns)
            && blocks(item.from, piece.first_column)
            && (piece.across.is_none() || item.from.block() == 1)
            && bytes.and_then(|bytes| bytes.checked_add(piece.offset)).is_some()
    });
    let area = |piece: &Piece| u128::from(piece.rows) * u128::from(piece.columns);
    let covered: u128 = pieces.iter().map(area).sum();
    heads
        && item.order.fits(columns)
        && (item.order == Order::Same || pieces.iter().all(|piece| piece.columns == columns))
        && item.to.row_bytes(item.columns()).is_some()
        && blocks(item.from, columns)
        && inside
        && apart(pieces, columns)
        && covered == u128::from(rows) * u128::from(columns)
}

/// True if no element is in two of the pieces, which have been checked to end within the tensor.
fn apart(mut pieces: Vec<Piece>, columns: u64) -> bool {
    // One piece for each head or expert, of which there may be many.
    if pieces.iter().all(|piece| piece.columns == columns) {
        pieces.sort_by_key(|piece| (piece.first_row, piece.rows));
        let mut pairs = pieces.windows(2);
        return pairs.all(|pair| pair[0].first_row + pair[0].rows <= pair[1].first_row);
    }
    // One piece for each file of a model, of which there are few.
    pieces.iter().enumerate().all(|(i, a)| {
        pieces[..i].iter().all(|b| {
            a.first_row + a.rows <= b.first_row
                || b.first_row + b.rows <= a.first_row
                || a.first_column + a.columns <= b.first_column
                || b.first_column + b.columns <= a.first_column
        })
    })
}
