//! Parses bytes into a checked [`Ggml`].
//!
//! Time and memory are linear in the parts that were read: tensors, and tokens, which the file must be large
//! enough to hold. Data is skipped.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::vocabulary::{GgmlToken, GgmlVocabulary};
use super::{
    ALIGNMENT, Era, Ggml, GgmlError, GgmlField, GgmlTensor, Hparams, MAX_LAYERS, MAX_NAME,
    MAX_TENSORS, MAX_TOKEN, MAX_VOCAB, MAX_VOCAB_BYTES, Magic,
};
use crate::Source;
use crate::source::Window;
use crate::text::shown;

/// The name of the first tensor that every converter writes.
const FIRST: &[u8] = b"tok_embeddings.weight";

/// Reads and checks the header, the vocabulary and all descriptions of tensors.
///
/// `file` is the whole file; the data of tensors is not read.
///
/// # Errors
/// [`GgmlError`] has a variant for each way in which they can be wrong. Never panics.
pub fn parse<'a>(file: impl Source<'a>) -> Result<Ggml<'a>, GgmlError> {
    read(&file)
}

fn read<'a>(file: &dyn Source<'a>) -> Result<Ggml<'a>, GgmlError> {
    let mut reader = Reader { window: Window::new(file, u64::MAX) };
    let (magic, version, era) = magic(&mut reader)?;
    let hparams = hparams(&mut reader)?;
    let vocabulary = vocabulary(&mut reader, &hparams, magic != Magic::Ggml)?;
    let tensors_start = reader.window.pos();
    let (tensors, names) = tensors(&mut reader, magic == Magic::Ggjt, era)?;
    Ok(Ggml { magic, version, era, hparams, vocabulary, tensors_start, tensors, names })
}

/// Reads little-endian numbers and text, and skips other bytes.
struct Reader<'s, 'a> {
    window: Window<'s, 'a>,
}

impl<'a> Reader<'_, 'a> {
    fn left(&self) -> u64 {
        self.window.left()
    }

    /// The error that fewer than `needed` bytes are left.
    fn short(&self, place: GgmlField, what: &'static str, needed: u64) -> GgmlError {
        let (at, available) = (self.window.pos(), self.left());
        GgmlError::Truncated { place, what, at, needed, available }
    }

    /// Returns the next `len` bytes.
    fn take<P: FnOnce() -> GgmlField>(
        &mut self,
        len: u64,
        what: &'static str,
        place: P,
    ) -> Result<&'a [u8], GgmlError> {
        self.window.take(len).ok_or_else(|| self.short(place(), what, len))
    }

    /// Skips `len` bytes.
    fn skip<P: FnOnce() -> GgmlField>(
        &mut self,
        len: u64,
        what: &'static str,
        place: P,
    ) -> Result<(), GgmlError> {
        self.window.skip(len).ok_or_else(|| self.short(place(), what, len))
    }

    fn array<const N: usize, P: FnOnce() -> GgmlField>(
        &mut self,
        what: &'static str,
        place: P,
    ) -> Result<[u8; N], GgmlError> {
        let bytes = self.take(N as u64, what, place)?;
        // It has the requested length.
        Ok(bytes.first_chunk().copied().unwrap_or([0; N]))
    }

    fn u32<P: FnOnce() -> GgmlField>(
        &mut self,
        what: &'static str,
        place: P,
    ) -> Result<u32, GgmlError> {
        self.array(what, place).map(u32::from_le_bytes)
    }

    fn i32<P: FnOnce() -> GgmlField>(
        &mut self,
        what: &'static str,
        place: P,
    ) -> Result<i32, GgmlError> {
        self.array(what, place).map(i32::from_le_bytes)
    }
}

/// Reads the magic and the version, and returns the era of the blocks that they imply.
fn magic(reader: &mut Reader<'_, '_>) -> Result<(Magic, Option<u32>, Era), GgmlError> {
    let found = reader.array("magic", || GgmlField::Header)?;
    let magic = match &found {
        b"lmgg" => return Ok((Magic::Ggml, None, Era::Pairs)),
        b"fmgg" => Magic::Ggmf,
        b"tjgg" => Magic::Ggjt,
        b"algg" => return Err(GgmlError::Lora),
        b"nsgg" => return Err(GgmlError::Session),
        b"ggml" => return Err(GgmlError::BigEndian { magic: "ggml" }),
        b"ggmf" => return Err(GgmlError::BigEndian { magic: "ggmf" }),
        b"ggjt" => return Err(GgmlError::BigEndian { magic: "ggjt" }),
        b"ggla" => return Err(GgmlError::BigEndian { magic: "ggla" }),
        b"ggsn" => return Err(GgmlError::BigEndian { magic: "ggsn" }),
        _ => return Err(GgmlError::BadMagic { found }),
    };
    let version = reader.u32("version", || GgmlField::Header)?;
    let era = match (magic, version) {
        (_, 1) => Era::Pairs,
        (Magic::Ggjt, 2) => Era::Halves,
        (Magic::Ggjt, 3) => Era::Current,
        _ => {
            let expected = if magic == Magic::Ggjt { "1, 2 or 3" } else { "1" };
            return Err(GgmlError::Version { magic, found: version, expected });
        }
    };
    Ok((magic, Some(version), era))
}

/// Reads the seven numbers.
fn hparams(reader: &mut Reader<'_, '_>) -> Result<Hparams, GgmlError> {
    let mut number = |what, min: i32, max: i32| {
        let found = reader.i32(what, || GgmlField::Header)?;
        match u32::try_from(found) {
            Ok(number) if (min..=max).contains(&found) => Ok(number),
            _ => Err(GgmlError::Hparam { what, found, min, max }),
        }
    };
    let n_vocab = number("n_vocab", 1, MAX_VOCAB)?;
    let n_embd = number("n_embd", 1, i32::MAX)?;
    let n_mult = number("n_mult", 1, i32::MAX)?;
    let n_head = number("n_head", 1, i32::MAX)?;
    let n_layer = number("n_layer", 1, MAX_LAYERS)?;
    if !n_embd.is_multiple_of(n_head) {
        return Err(GgmlError::Heads { n_head, n_embd });
    }
    // The quotient of two such numbers.
    let n_rot = number("n_rot", 1, (n_embd / n_head) as i32)?;
    let ftype = number("ftype", 0, i32::MAX)?;
    Ok(Hparams { n_vocab, n_embd, n_mult, n_head, n_layer, n_rot, ftype })
}

/// Reads the tokens, with scores if the file has any.
fn vocabulary<'a>(
    reader: &mut Reader<'_, 'a>,
    hparams: &Hparams,
    scored: bool,
) -> Result<GgmlVocabulary<'a>, GgmlError> {
    let count = hparams.n_vocab;
    let limit = reader.left() / if scored { 8 } else { 4 };
    // One less, for files that omit the last.
    if u64::from(count) > limit + 1 {
        return Err(GgmlError::TokenCount { found: count, limit });
    }
    // The file could hold them. Still, memory for many is only allocated when they are found.
    let mut tokens = Vec::with_capacity(count.min(4096) as usize);
    let start = reader.window.pos();
    for index in 0..count {
        let place = || GgmlField::Token(index);
        if index + 1 == count && tensors_begin(reader) {
            break;
        }
        let len = reader.u32("length", place)?;
        let len = u64::from(len);
        // Running past the end of the file is another error.
        if len <= reader.left() && len > u64::from(MAX_TOKEN) {
            return Err(GgmlError::TokenLength { place: place(), found: len, limit: MAX_TOKEN });
        }
        if reader.window.pos() - start + len > MAX_VOCAB_BYTES && len <= reader.left() {
            return Err(GgmlError::VocabularyLength { place: place(), limit: MAX_VOCAB_BYTES });
        }
        let text = reader.take(len, "text", place)?;
        let score = if scored { f32::from_le_bytes(reader.array("score", place)?) } else { 0.0 };
        tokens.push(GgmlToken { text, score });
    }
    Ok(GgmlVocabulary { tokens, scored, announced: count })
}

/// Returns true if the description of the first tensor follows: two dimensions, the length of its name, and,
/// after type and extents, the name. In GPT4All's files it replaces the last token.
fn tensors_begin(reader: &mut Reader<'_, '_>) -> bool {
    let bytes = reader.window.fill(20 + FIRST.len() as u64);
    let Some((head, rest)) = bytes.and_then(|bytes| bytes.split_first_chunk::<20>()) else {
        return false;
    };
    let len = (FIRST.len() as u32).to_le_bytes();
    head[..4] == 2_u32.to_le_bytes() && head[4..8] == len && rest.starts_with(FIRST)
}

type Tensors<'a> = (Vec<GgmlTensor<'a>>, HashMap<&'a str, u32>);

/// Reads all tensors up to the end of the file.
fn tensors<'a>(
    reader: &mut Reader<'_, 'a>,
    padded: bool,
    era: Era,
) -> Result<Tensors<'a>, GgmlError> {
    let mut tensors: Vec<GgmlTensor<'a>> = Vec::new();
    let mut names = HashMap::new();
    while reader.left() > 0 {
        let index = tensors.len();
        if index == MAX_TENSORS {
            return Err(GgmlError::TensorCount { limit: MAX_TENSORS });
        }
        let tensor = tensor(reader, index, padded, era)?;
        match names.entry(tensor.name) {
            Entry::Vacant(free) => free.insert(index as u32),
            Entry::Occupied(first) => {
                let (name, first) = (tensor.name.into(), *first.get() as usize);
                return Err(GgmlError::DuplicateTensor { name, first, second: index });
            }
        };
        tensors.push(tensor);
    }
    Ok((tensors, names))
}

/// Reads one tensor; skips its data.
fn tensor<'a>(
    reader: &mut Reader<'_, 'a>,
    index: usize,
    padded: bool,
    era: Era,
) -> Result<GgmlTensor<'a>, GgmlError> {
    let place = || GgmlField::TensorNumber(index);
    let dims = reader.i32("number of dimensions", place)?;
    if !(1..=2).contains(&dims) {
        return Err(GgmlError::Dimensions { place: place(), found: dims });
    }
    let name_len = reader.i32("length of the name", place)?;
    let len = u32::try_from(name_len).ok().filter(|len| (1..=MAX_NAME).contains(len));
    let Some(len) = len else {
        return Err(GgmlError::NameLength { place: place(), found: name_len, limit: MAX_NAME });
    };
    let type_id = reader.i32("type", place)?;
    let mut ne = [1; 2];
    for (index, extent) in ne.iter_mut().enumerate().take(dims as usize) {
        let found = reader.i32("dimension", place)?;
        match u64::try_from(found) {
            Ok(number) if number > 0 => *extent = number,
            _ => return Err(GgmlError::Dimension { place: place(), index, found }),
        }
    }
    let name = name(reader.take(u64::from(len), "name", place)?, place)?;

    let place = || GgmlField::Tensor(name.into());
    let ty =
        era.type_of(type_id).map_err(|reason| GgmlError::TensorType { place: place(), reason })?;
    if dims == 1 && ty != super::LegacyType::F32 {
        return Err(GgmlError::VectorType { place: place(), found: ty });
    }
    // `type_of` has checked that the era has the type.
    let (block, block_bytes) = era.block(ty).unwrap_or((1, 1));
    if !ne[0].is_multiple_of(block) {
        return Err(GgmlError::PartialBlock { place: place(), found: ne[0], block, ty });
    }
    let nbytes = (ne[0] / block)
        .checked_mul(block_bytes)
        .and_then(|row| row.checked_mul(ne[1]))
        .filter(|bytes| i64::try_from(*bytes).is_ok())
        .ok_or_else(|| GgmlError::ShapeOverflow { place: place(), ne })?;
    if padded {
        let padding = reader.window.pos().next_multiple_of(ALIGNMENT) - reader.window.pos();
        reader.skip(padding, "padding", place)?;
    }
    let offset = reader.window.pos();
    reader.skip(nbytes, "data", place)?;
    Ok(GgmlTensor { name, n_dims: dims as u32, ne, ty, offset, nbytes })
}

/// Checks a name: UTF-8, no zero byte.
fn name(bytes: &[u8], place: impl Fn() -> GgmlField) -> Result<&str, GgmlError> {
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        return Err(GgmlError::NulInName { place: place(), text: shown(bytes).into(), at });
    }
    std::str::from_utf8(bytes).map_err(|error| GgmlError::NotUtf8 {
        place: place(),
        text: shown(bytes).into(),
        at: error.valid_up_to(),
    })
}
