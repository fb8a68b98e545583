//! Merges a model from its parts: `ggml-model.bin`, `ggml-model.bin.1` and so on, or a single file.
//!
//! Every part repeats header and vocabulary and holds a piece of every matrix. The axis along which a matrix
//! was split follows from its name; vectors are in every part. [`merge`] checks that the parts belong together
//! and are complete, and that the tensors are those of a LLaMA model in their full shapes. For each tensor it
//! returns the location of its pieces and their destination. Pieces of a matrix split by rows follow one
//! another; those of one split by columns interleave, row by row.

mod error;
mod names;

use std::collections::HashSet;
use std::ops::Range;

pub use error::PartsError;
pub use names::{Split, gguf_name, layer_names, split_of};

use super::{Era, Ggml, GgmlTensor, Hparams, LegacyType};
use names::{EMBEDDING, expected};

/// The model that the parts form together. Borrows the names from the first.
#[derive(Clone, Debug)]
pub struct MergedModel<'a> {
    /// The numbers of the header, the same in all parts.
    pub hparams: Hparams,
    /// The layout of blocks, the same in all parts.
    pub era: Era,
    /// Number of parts.
    pub parts: u32,
    /// Intermediate size: the number of rows of `w1`.
    pub n_ff: u64,
    /// Number of key and value heads, from the rows of `wk`; divides `n_head`.
    pub n_head_kv: u32,
    /// The tensors in the order in which a forward pass needs them.
    pub tensors: Vec<MergedTensor<'a>>,
    /// Tensors that a model does not need: tables of rotary embeddings, which follow from the header.
    pub skipped: Vec<&'a str>,
}

/// A whole tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedTensor<'a> {
    /// Its name in the parts; [`gguf_name`] returns the one in GGUF.
    pub name: &'a str,
    /// Type of the elements.
    pub ty: LegacyType,
    /// 1 or 2.
    pub n_dims: u32,
    /// Full extents, innermost first.
    pub ne: [u64; 2],
    /// How it was split.
    pub split: Split,
    /// The pieces from the parts, in order; for [`Split::Replicated`] only the one of the first part.
    pub pieces: Vec<RowPiece>,
    /// For [`Split::Replicated`], the number of each part except the first, and the range of the same bytes in
    /// it; see [`check_replicas`].
    pub replicas: Vec<(u32, Range<u64>)>,
}

/// The piece of a tensor in one part: `rows` contiguous rows of `row_bytes` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPiece {
    /// Number of the part, from 0.
    pub part: u32,
    /// The offset of its bytes in the part, from the start of the file.
    pub offset: u64,
    /// Number of rows.
    pub rows: u64,
    /// Bytes of a row in the part, in the blocks of the file's era.
    pub row_bytes: u64,
    /// Elements of a row in the part.
    pub columns: u64,
    /// The row of the whole tensor that its first row maps to.
    pub first_row: u64,
    /// The column of the whole tensor that its first element maps to; a multiple of a block.
    pub first_column: u64,
}

impl RowPiece {
    /// The range of its bytes in the part.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.rows * self.row_bytes
    }
}

impl MergedTensor<'_> {
    /// True if its bytes are those of the pieces concatenated, instead of interleaved row by row.
    pub fn is_sequence(&self) -> bool {
        self.pieces.iter().all(|piece| piece.columns == self.ne[0])
    }

    /// Bytes of a row and of the whole tensor, in its GGUF type.
    pub fn current_bytes(&self) -> (u64, u64) {
        let row = self.ty.current().row_bytes(self.ne[0]).unwrap_or(0);
        (row, row * self.ne[1])
    }

    /// The destination of `piece` in the GGUF tensor, in bytes: the offset of its first row from the tensor's
    /// start, the bytes of its row, and the stride between rows.
    pub fn destination(&self, piece: &RowPiece) -> (u64, u64, u64) {
        let (stride, _) = self.current_bytes();
        let bytes = |elements| self.ty.current().row_bytes(elements).unwrap_or(0);
        (piece.first_row * stride + bytes(piece.first_column), bytes(piece.columns), stride)
    }
}

/// Returns the number of parts of the model whose first or only part is `first`: the embedding is split by
/// columns, so it is the full width divided by the width in this part. If a file has no embedding, the number
/// follows from the sizes of LLaMA 1.
///
/// # Errors
/// [`PartsError::Width`]: the full width is not a multiple of the width in this part.
pub fn count(first: &Ggml<'_>) -> Result<u32, PartsError> {
    let n_embd = first.hparams.n_embd;
    let Some(embedding) = first.tensor(EMBEDDING) else {
        return Ok(match n_embd {
            5120 => 2,
            6656 => 4,
            8192 => 8,
            _ => 1,
        });
    };
    let found = embedding.ne[0];
    match u32::try_from(u64::from(n_embd) / found) {
        Ok(count) if count > 0 && u64::from(n_embd).is_multiple_of(found) => Ok(count),
        _ => Err(PartsError::Width { found, n_embd }),
    }
}

/// The name of part `part` of a model whose first part is called `first`: the others append `.1` and so on.
pub fn part_name(first: &str, part: u32) -> String {
    if part == 0 { first.into() } else { format!("{first}.{part}") }
}

/// Checks that `parts`, in order, form a whole model, and returns its layout.
///
/// # Errors
/// [`PartsError`] has a variant for each way in which they do not.
pub fn merge<'a>(parts: &[Ggml<'a>]) -> Result<MergedModel<'a>, PartsError> {
    let first = parts.first().ok_or(PartsError::None)?;
    for (part, other) in (1..).zip(&parts[1..]) {
        same_header(first, other, part)?;
    }
    let n_parts = count(first)?;
    if parts.len() as u64 != u64::from(n_parts) {
        return Err(PartsError::Count { found: parts.len(), expected: n_parts });
    }

    let hparams = first.hparams;
    let wide = |name: &str| Ok(find(parts, 0, name)?.ne[1] * u64::from(n_parts));
    let n_ff = wide("layers.0.feed_forward.w1.weight")?;
    let kv_rows = wide("layers.0.attention.wk.weight")?;
    let head_dim = u64::from(hparams.head_dim());
    let n_head_kv = match u32::try_from(kv_rows / head_dim) {
        Ok(heads)
            if heads > 0
                && kv_rows.is_multiple_of(head_dim)
                && hparams.n_head.is_multiple_of(heads) =>
        {
            heads
        }
        _ => return Err(PartsError::KvHeads { rows: kv_rows, head_dim, n_head: hparams.n_head }),
    };

    let mut tensors = Vec::new();
    let mut known = HashSet::new();
    for (name, ne, n_dims) in expected(&hparams, n_ff, kv_rows) {
        let tensor = whole(parts, &name, ne, n_dims)?;
        known.insert(tensor.name);
        tensors.push(tensor);
    }
    let mut skipped = Vec::new();
    for (part, file) in (0..).zip(parts) {
        for tensor in file.tensors.iter().filter(|tensor| !known.contains(tensor.name)) {
            match split_of(tensor.name, tensor.n_dims) {
                Some(Split::Skipped) if part == 0 => skipped.push(tensor.name),
                Some(Split::Skipped) => {}
                _ => return Err(PartsError::Unknown { part, name: tensor.name.into() }),
            }
        }
    }
    let era = first.era;
    Ok(MergedModel { hparams, era, parts: n_parts, n_ff, n_head_kv, tensors, skipped })
}

/// Checks that the vectors are the same in all parts. `files` are the bytes of the parts; only those of the
/// vectors are touched, a few kilobytes each.
///
/// # Errors
/// [`PartsError::ReplicaDiffers`], and [`PartsError::Bytes`] if these are not the bytes that were parsed.
pub fn check_replicas(model: &MergedModel<'_>, files: &[&[u8]]) -> Result<(), PartsError> {
    let bytes = |part: u32, range: Range<u64>| {
        let file = files.get(part as usize);
        file.and_then(|file| file.get(range.start as usize..range.end as usize))
            .ok_or(PartsError::Bytes { part })
    };
    for tensor in &model.tensors {
        let [piece] = &tensor.pieces[..] else { continue };
        for (part, range) in &tensor.replicas {
            let (ours, theirs) = (bytes(piece.part, piece.range())?, bytes(*part, range.clone())?);
            if let Some(at) = ours.iter().zip(theirs).position(|(a, b)| a != b) {
                let (part, element) = (*part, at as u64 / 4);
                return Err(PartsError::ReplicaDiffers { part, name: tensor.name.into(), element });
            }
        }
    }
    Ok(())
}

/// Checks that part number `part` begins as the first part does.
fn same_header(first: &Ggml<'_>, other: &Ggml<'_>, part: u32) -> Result<(), PartsError> {
    let kind = |file: &Ggml<'_>| match file.version {
        Some(version) => format!("{} version {version}, blocks {}", file.magic, file.era),
        None => format!("{}, blocks {}", file.magic, file.era),
    };
    let (found, expected) = (kind(other), kind(first));
    if found != expected {
        return Err(PartsError::Kind { part, found, expected });
    }
    let (a, b) = (&other.hparams, &first.hparams);
    let numbers = [
        ("n_vocab", a.n_vocab, b.n_vocab),
        ("n_embd", a.n_embd, b.n_embd),
        ("n_mult", a.n_mult, b.n_mult),
        ("n_head", a.n_head, b.n_head),
        ("n_layer", a.n_layer, b.n_layer),
        ("n_rot", a.n_rot, b.n_rot),
        ("ftype", a.ftype, b.ftype),
    ];
    if let Some((what, found, expected)) = numbers.into_iter().find(|(_, a, b)| a != b) {
        return Err(PartsError::Hparam { part, what, found, expected });
    }
    let (theirs, ours) = (&other.vocabulary.tokens, &first.vocabulary.tokens);
    let differs =
        |(a, b): (&super::vocabulary::GgmlToken<'_>, &super::vocabulary::GgmlToken<'_>)| {
            a.text != b.text || a.score.to_bits() != b.score.to_bits()
        };
    let token = theirs.iter().zip(ours).position(differs);
    let token = token.or((theirs.len() != ours.len()).then(|| theirs.len().min(ours.len())));
    match token {
        Some(token) => Err(PartsError::Vocabulary { part, token }),
        None => Ok(()),
    }
}

/// Returns the tensor called `name` of a part.
fn find<'p, 'a>(
    parts: &'p [Ggml<'a>],
    part: u32,
    name: &str,
) -> Result<&'p GgmlTensor<'a>, PartsError> {
    parts
        .get(part as usize)
        .and_then(|file| file.tensor(name))
        .ok_or_else(|| PartsError::Missing { part, name: name.into() })
}

/// Returns the tensor called `name`, of the full shape `ne`, with its pieces.
fn whole<'a>(
    parts: &[Ggml<'a>],
    name: &str,
    ne: [u64; 2],
    n_dims: u32,
) -> Result<MergedTensor<'a>, PartsError> {
    let first = find(parts, 0, name)?;
    let split = split_of(name, n_dims).unwrap_or(Split::Rows);
    let n_parts = parts.len() as u64;
    let axis = match split {
        Split::Columns => Some(0),
        Split::Rows => Some(1),
        Split::Replicated | Split::Skipped => None,
    };
    let mut expected = ne;
    if let Some(axis) = axis {
        if !ne[axis].is_multiple_of(n_parts) {
            let (full, parts) = (ne[axis], parts.len());
            return Err(PartsError::Indivisible { name: name.into(), axis, full, parts });
        }
        expected[axis] /= n_parts;
    }
    let mut tensor = MergedTensor {
        name: first.name,
        ty: first.ty,
        n_dims,
        ne,
        split,
        pieces: Vec::new(),
        replicas: Vec::new(),
    };
    for part in 0..parts.len() as u32 {
        let found = find(parts, part, name)?;
        if found.ty != first.ty {
            let (found, expected) = (found.ty, first.ty);
            return Err(PartsError::Type { part, name: name.into(), found, expected });
        }
        if found.n_dims != n_dims || found.ne != expected {
            let expected = expected[..n_dims as usize].into();
            let found = found.shape().into();
            return Err(PartsError::Shape { part, name: name.into(), found, expected });
        }
        if axis.is_none() && part > 0 {
            tensor.replicas.push((part, found.offset..found.offset + found.nbytes));
            continue;
        }
        let first_of = |which| match axis == Some(which) {
            true => u64::from(part) * expected[which],
            false => 0,
        };
        tensor.pieces.push(RowPiece {
            part,
            offset: found.offset,
            rows: found.ne[1],
            row_bytes: found.row_bytes(),
            columns: found.ne[0],
            first_row: first_of(1),
            first_column: first_of(0),
        });
    }
    Ok(tensor)
}
