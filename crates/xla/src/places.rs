//! Matrices by their places in a file, which is an array of bytes.
//!
//! A place is four numbers: the offset's lower and upper 32 bits, the type's id in GGUF files, and the layout (0: rows, 1: tiles, 2: planes).
//! For a stack whose matrices alternate with those of others, the layout also contains twice the number of pages from one matrix to
//! the next, and is never in planes. A place is data and may have any value: all of it is checked against the array before it is used.

use alight_kernels::{Layout, Matrix, WeightType};

use crate::frame::Refusal;

/// The unit of the distance between matrices of a stack that alternate with those of others.
const PAGE: usize = 4096;

/// The `[rows, cols]` matrix at a place; `name` is its name in errors.
pub(crate) fn matrix<'a>(
    file: &'a [u8],
    place: &[u32; 4],
    rows: usize,
    cols: usize,
    name: &dyn std::fmt::Display,
) -> Result<Matrix<'a>, Refusal> {
    let [low, high, ty, layout] = *place;
    let refuse = |text: String| Refusal::argument(format!("{name}: {text}"));
    let ty = WeightType::from_gguf(ty).ok_or_else(|| {
        refuse(format!("type {ty} of GGUF has no kernels, expected one of {}", known()))
    })?;
    let layout = match layout {
        0 => Layout::Rows,
        1 => Layout::Tiles,
        2 => Layout::Planes,
        _ => {
            let text = "expected 0 (rows), 1 (tiles) or 2 (planes), and of a stack only the pages from one matrix to the next";
            return Err(refuse(format!("layout {layout}, {text}")));
        }
    };
    let offset = u64::from(high) << 32 | u64::from(low);
    let bytes = ty.row_bytes(cols).ok_or_else(|| {
        refuse(format!("{cols} columns of {ty}, expected whole blocks of {}", ty.block_len()))
    })?;
    let data = bytes.checked_mul(rows).and_then(|bytes| {
        let offset = usize::try_from(offset).ok()?;
        file.get(offset..offset.checked_add(bytes)?)
    });
    let data = data.ok_or_else(|| {
        let size = file.len();
        refuse(format!(
            "{rows} rows of {bytes} bytes ({ty}) at byte {offset}, where the file has {size} bytes"
        ))
    })?;
    Matrix::with_layout(layout, ty, data, rows, cols).map_err(|error| refuse(error.to_string()))
}

/// The place of matrix `number` of a stack of `[rows, cols]` matrices at a place.
pub(crate) fn in_stack(
    place: &[u32; 4],
    number: usize,
    rows: usize,
    cols: usize,
    name: &dyn std::fmt::Display,
) -> Result<[u32; 4], Refusal> {
    let [low, high, ty, layout] = *place;
    // A problem with the type is reported where the matrix is created.
    let bytes = WeightType::from_gguf(ty).and_then(|ty| ty.row_bytes(cols)).unwrap_or(0);
    let offset = u64::from(high) << 32 | u64::from(low);
    let matrix = bytes.checked_mul(rows);
    let one = match layout >> 1 {
        0 => matrix,
        pages => (pages as usize).checked_mul(PAGE),
    };
    if one < matrix {
        let text = "expected 0 (rows) or 1 (tiles), or that and twice the pages from a matrix to the next, which are as many as it takes";
        return Err(Refusal::argument(format!("{name}: layout {layout}, {text}")));
    }
    let before = one.and_then(|bytes| bytes.checked_mul(number));
    let offset = before.and_then(|bytes| offset.checked_add(bytes as u64)).ok_or_else(|| {
        Refusal::argument(format!(
            "{name}: {number} times {rows} rows of {bytes} bytes are no place"
        ))
    })?;
    Ok([offset as u32, (offset >> 32) as u32, ty, layout & 1])
}

/// The types that have kernels, with their ids.
fn known() -> String {
    WeightType::ALL.map(|ty| format!("{} ({ty})", ty.ggml().id())).join(", ")
}

/// The places in an array `[m, 4]`.
pub(crate) fn all<'a>(
    places: &'a [u32],
    dims: &[i64],
    count: usize,
) -> Result<&'a [[u32; 4]], Refusal> {
    let (all, rest) = places.as_chunks::<4>();
    match (dims, rest) {
        ([m, 4], []) if usize::try_from(*m) == Ok(count) => Ok(all),
        _ => Err(Refusal::argument(format!("places is {dims:?}, expected [{count}, 4]"))),
    }
}
