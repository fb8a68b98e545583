//! The copying itself: contiguous pieces of a source are hashed, transformed and written to their
//! places.

use std::fs::File;
use std::path::Path;

use alight_kernels::{Layout, WeightType};
use alight_pages::{Map, Threads};
use sha2::{Digest, Sha256};

use crate::pipe::pipe;
use crate::sink::Sink;
use crate::{ConvertError, OnProgress, Progress, read};

/// Maximum number of bytes of a piece.
const PIECE: u64 = 4 << 20;
/// Maximum number of bytes of a tile, which is transformed as a whole. Only an absurd matrix has
/// longer ones.
pub(crate) const MAX_TILE: u64 = 8 << 20;

/// A run of bytes, and what is done to it.
pub(crate) struct Step<'a> {
    pub(crate) from: StepInput<'a>,
    pub(crate) len: u64,
    /// Offset in the new file; `None` for bytes that are only hashed.
    pub(crate) to: Option<u64>,
    pub(crate) tiling: Tiling,
}

/// The source of the bytes.
#[derive(Clone, Copy)]
pub(crate) enum StepInput<'a> {
    Memory(&'a [u8]),
    File { map: &'a Map, at: u64 },
    Zeros,
}

/// Change to the layout of weights.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tiling {
    /// Unchanged.
    Keep,
    /// Rows are packed into tiles or planes.
    Pack { to: Layout, ty: WeightType, cols: usize },
    /// Tiles or planes are unpacked into rows.
    Unpack { from: Layout, ty: WeightType, cols: usize },
}

impl Tiling {
    /// Bytes that must be transformed together. At most [`MAX_TILE`], or what a group of planes has.
    fn unit(self) -> u64 {
        match self {
            Tiling::Keep => 1,
            Tiling::Pack { to: layout, ty, cols } | Tiling::Unpack { from: layout, ty, cols } => {
                (layout.rows_together(ty, cols) * ty.row_bytes(cols).unwrap_or(1)) as u64
            }
        }
    }
}

/// The bytes that are hashed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hashed {
    /// As they are read.
    Source,
    /// As they are written.
    Result,
}

/// Performs all `steps`, in order. Returns the SHA-256 of the hashed bytes, in hexadecimal, and the threads
/// that were available.
pub(crate) fn run(
    steps: &[Step<'_>],
    (file, path): (&File, &Path),
    hashed: Hashed,
    on_progress: &mut OnProgress<'_>,
) -> Result<(String, Threads), ConvertError> {
    let total = steps.iter().map(|step| step.len).sum();
    let mut done = 0;
    let mut pieces = steps.iter().flat_map(Step::pieces);
    let (mut source_hash, mut result_hash) = (Sha256::new(), Sha256::new());
    let mut packed = Vec::new();
    let mut sink = Sink::new(file);
    let write = |source| ConvertError::Write { path: path.into(), source };
    let threads = pipe(
        |buffer| {
            for piece in pieces.by_ref() {
                if on_progress(Progress { done, total }).is_break() {
                    return Err(ConvertError::Stopped);
                }
                done += piece.len;
                piece.load(buffer)?;
                if hashed == Hashed::Source {
                    source_hash.update(&buffer);
                }
                if let Tiling::Unpack { from, ty, cols } = piece.tiling {
                    std::mem::swap(buffer, &mut packed);
                    buffer.resize(packed.len(), 0);
                    from.unpack(ty, cols, &packed, buffer);
                }
                if let Some(to) = piece.to {
                    return Ok(Some((to, piece.tiling)));
                }
            }
            Ok(None)
        },
        |(to, tiling), bytes| {
            sink.seek(to).map_err(write)?;
            let put = sink.put(bytes.len(), |out| match tiling {
                Tiling::Pack { to, ty, cols } => to.pack(ty, cols, bytes, out),
                Tiling::Keep | Tiling::Unpack { .. } => out.copy_from_slice(bytes),
            });
            put.map_err(write)?;
            if hashed == Hashed::Result {
                result_hash.update(bytes);
            }
            Ok(())
        },
    )?;
    sink.flush().map_err(write)?;
    let _ = on_progress(Progress { done, total });
    let hash = if hashed == Hashed::Source { source_hash } else { result_hash };
    Ok((hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect(), threads))
}

impl<'a> Step<'a> {
    /// Splits the step into pieces that fit a buffer.
    fn pieces(&self) -> impl Iterator<Item = Step<'a>> + use<'a> {
        let unit = self.tiling.unit();
        let most = (PIECE / unit).max(1) * unit;
        let (from, len, to, tiling) = (self.from, self.len, self.to, self.tiling);
        (0..len.div_ceil(most)).map(move |i| {
            let start = i * most;
            let n = most.min(len - start);
            let from = match from {
                // The slice is as long as the step, so `usize` suffices.
                StepInput::Memory(bytes) => {
                    StepInput::Memory(&bytes[start as usize..(start + n) as usize])
                }
                StepInput::File { map, at } => StepInput::File { map, at: at + start },
                StepInput::Zeros => StepInput::Zeros,
            };
            Step { from, len: n, to: to.map(|to| to + start), tiling }
        })
    }

    /// Fills `buffer` with the bytes of this piece.
    fn load(&self, buffer: &mut Vec<u8>) -> Result<(), ConvertError> {
        match self.from {
            StepInput::Memory(bytes) => {
                buffer.clear();
                buffer.extend_from_slice(bytes);
            }
            StepInput::File { map, at } => {
                buffer.resize(self.len as usize, 0);
                read::exact(map, at, buffer)?;
            }
            StepInput::Zeros => {
                buffer.clear();
                buffer.resize(self.len as usize, 0);
            }
        }
        Ok(())
    }
}
