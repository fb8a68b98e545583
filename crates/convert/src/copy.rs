//! The job itself: pieces of a source, one behind the other, hashed, transformed, and written where
//! they belong.

use std::fs::File;
use std::path::Path;

use alight_kernels::{WeightType, tiles};
use alight_pages::Map;
use sha2::{Digest, Sha256};

use crate::pipe::pipe;
use crate::sink::Sink;
use crate::{ConvertError, OnProgress, Progress, read};

/// Most bytes of a piece.
const PIECE: u64 = 4 << 20;
/// Most bytes of a tile: it is transformed as a whole. Only an absurd matrix has longer ones.
pub(crate) const MAX_TILE: u64 = 8 << 20;

/// Some bytes and what becomes of them.
pub(crate) struct Step<'a> {
    pub(crate) from: From<'a>,
    pub(crate) len: u64,
    /// Where in the new file they go; `None` for what only counts for the hash.
    pub(crate) to: Option<u64>,
    pub(crate) how: How,
}

/// Where bytes come from.
#[derive(Clone, Copy)]
pub(crate) enum From<'a> {
    Memory(&'a [u8]),
    File { map: &'a Map, at: u64 },
    Zeros,
}

/// What is done to them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    Copy,
    Pack { ty: WeightType, cols: usize },
    Unpack { ty: WeightType, cols: usize },
}

impl How {
    /// Bytes that have to stay together. At most [`MAX_TILE`].
    fn unit(self) -> u64 {
        match self {
            How::Copy => 1,
            How::Pack { ty, cols } | How::Unpack { ty, cols } => {
                (tiles::TILE_ROWS * ty.row_bytes(cols).unwrap_or(1)) as u64
            }
        }
    }
}

/// Which bytes are hashed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hashed {
    /// As they are read.
    Source,
    /// As they are written.
    Result,
}

/// Does all of `steps`, in order. Returns the SHA-256 of the bytes that are hashed, in hexadecimal.
pub(crate) fn run(
    steps: &[Step<'_>],
    (file, path): (&File, &Path),
    hashed: Hashed,
    on_progress: &mut OnProgress<'_>,
) -> Result<String, ConvertError> {
    let total = steps.iter().map(|step| step.len).sum();
    let mut done = 0;
    let mut pieces = steps.iter().flat_map(Step::pieces);
    let (mut source_hash, mut result_hash) = (Sha256::new(), Sha256::new());
    let mut packed = Vec::new();
    let mut sink = Sink::new(file);
    let write = |source| ConvertError::Write { path: path.into(), source };
    pipe(
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
                if let How::Unpack { ty, cols } = piece.how {
                    std::mem::swap(buffer, &mut packed);
                    buffer.resize(packed.len(), 0);
                    tiles::unpack(ty, cols, &packed, buffer);
                }
                if let Some(to) = piece.to {
                    return Ok(Some((to, piece.how)));
                }
            }
            Ok(None)
        },
        |(to, how), bytes| {
            sink.seek(to).map_err(write)?;
            let put = sink.put(bytes.len(), |out| match how {
                How::Pack { ty, cols } => tiles::pack(ty, cols, bytes, out),
                How::Copy | How::Unpack { .. } => out.copy_from_slice(bytes),
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
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

impl<'a> Step<'a> {
    /// The step in pieces that fit a buffer.
    fn pieces(&self) -> impl Iterator<Item = Step<'a>> + use<'a> {
        let unit = self.how.unit();
        let most = (PIECE / unit).max(1) * unit;
        let (from, len, to, how) = (self.from, self.len, self.to, self.how);
        (0..len.div_ceil(most)).map(move |i| {
            let start = i * most;
            let n = most.min(len - start);
            let from = match from {
                // As long as the step, so both fit.
                From::Memory(bytes) => From::Memory(&bytes[start as usize..(start + n) as usize]),
                From::File { map, at } => From::File { map, at: at + start },
                From::Zeros => From::Zeros,
            };
            Step { from, len: n, to: to.map(|to| to + start), how }
        })
    }

    /// Makes `buffer` the bytes of this piece.
    fn load(&self, buffer: &mut Vec<u8>) -> Result<(), ConvertError> {
        match self.from {
            From::Memory(bytes) => {
                buffer.clear();
                buffer.extend_from_slice(bytes);
            }
            From::File { map, at } => {
                buffer.resize(self.len as usize, 0);
                read::exact(map, at, buffer)?;
            }
            From::Zeros => {
                buffer.clear();
                buffer.resize(self.len as usize, 0);
            }
        }
        Ok(())
    }
}
