//! Finds the first weight that is not a number.

use alight_formats::gguf::TensorInfo;
use alight_kernels::tiles::TILE_ROWS;
use alight_kernels::{Layout, WeightType, dequantize_row};
use alight_pages::Map;

/// The name of the first tensor of `files` with a weight that is not a finite number; `None` if there is none, or the files can
/// no longer be read. Reads all files, in memory of sixteen rows, or of a group of planes.
pub(crate) fn not_finite<'m>(mut files: impl Iterator<Item = &'m Map>) -> Option<String> {
    files.find_map(|map| {
        let copy = alight_files::copy(map);
        let gguf = alight_files::parse(map, &copy).ok()?;
        let bad = gguf.tensors.iter().find(|tensor| !is_finite(map, tensor))?;
        Some(bad.name.to_owned())
    })
}

/// True if all weights of `tensor` are finite, as far as they can be read.
fn is_finite(map: &Map, tensor: &TensorInfo<'_>) -> bool {
    let Some(ty) = WeightType::from_gguf(tensor.ty.id()) else { return true };
    let (cols, row) = (tensor.ne[0] as usize, tensor.row_bytes() as usize);
    // The number of rows read at a time is that of a tile, or what is stored together.
    let layout = Layout::from(tensor.packed);
    let most = row * layout.rows_together(ty, cols).max(TILE_ROWS);
    let mut stored = vec![0; most];
    let mut rows = vec![0; most];
    let mut weights = vec![0.0; cols];
    let mut runs = tensor.pieces().flat_map(|piece| {
        let end = piece.end;
        piece.step_by(most).map(move |at| (at, (end - at).min(most as u64) as usize))
    });
    runs.all(|(at, len)| {
        let stored = &mut stored[..len];
        if map.read(stored, at).is_err() {
            return true;
        }
        let rows = &mut rows[..stored.len()];
        layout.unpack(ty, cols, stored, rows);
        rows.chunks_exact(row).all(|row| {
            dequantize_row(ty, row, &mut weights);
            weights.iter().all(|weight| weight.is_finite())
        })
    })
}
