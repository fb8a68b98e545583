//! SentencePiece's unigram model: text is normalised, and then cut into the tokens with the largest sum of scores.
//!
//! Scores are logarithms of probabilities; the sums are f64, as in Hugging Face's library. A character that no token spells
//! becomes the unknown token, whose score is ten below the lowest; consecutive ones become one. If the vocabulary has all bytes,
//! their tokens replace it, as in SentencePiece.
//!
//! The rules are SentencePiece's (`unigram_model.cc`, `normalizer.cc`). llama.cpp differs in two points: it has no bytes for
//! unknown characters, and where spaces are merged, it puts one before the first word even if the file requests none.
//!
//! Invariant: a token has at most [`MAX_PIECE`] bytes, so encoding takes time and memory proportional to the text.

use alight_formats::gguf::{Gguf, GgufError, ValueType};

use super::SPACE;
use super::charsmap::CharsMap;
use super::error::TokenizerError;
use super::stop::StopCheck;
use super::symbols::char_len;
use super::vocab::{Lookup, TokenBits, spell_byte};

/// Maximum bytes of a token that text may become. (SentencePiece's own default limit is 16 characters.)
const MAX_PIECE: usize = 256;

/// Maximum bytes of a normalised text: every space has become three.
const MAX_NORMALISED: usize = super::MAX_TEXT * SPACE.len_utf8();

/// The difference between the lowest score and that of the unknown token.
const UNKNOWN_PENALTY: f32 = 10.0;

/// The parts of the model other than its vocabulary.
pub(crate) struct Unigram {
    charsmap: Option<CharsMap>,
    /// True if spaces at the ends, and all but one of several, are left out.
    merge_spaces: bool,
    unknown_score: f64,
    /// True if all bytes are tokens.
    bytes: bool,
    /// By the hash of the first four bytes: the maximum length of a token with that beginning, in bytes.
    longest: Vec<u16>,
}

/// The best way to cut a text up to some offset.
#[derive(Clone, Copy)]
struct Best {
    /// The sum of its scores.
    score: f64,
    /// The last token; `None`: an unknown character.
    id: Option<u32>,
    /// Its length in bytes.
    len: u32,
}

/// The buffers of one call of encode.
#[derive(Default)]
pub(crate) struct Buffers {
    normalised: Vec<u8>,
    best: Vec<Best>,
    pub(crate) check: StopCheck,
}

impl Buffers {
    pub(crate) fn new(check: StopCheck) -> Buffers {
        Buffers { check, ..Buffers::default() }
    }
}

impl Unigram {
    /// Reads the model's metadata other than the vocabulary.
    ///
    /// # Errors
    /// A key of another type; [`TokenizerError::CharsMap`]; [`TokenizerError::PieceTooLong`].
    pub(crate) fn new(gguf: &Gguf<'_>, vocab: Lookup<'_>) -> Result<Unigram, TokenizerError> {
        let mut longest = vec![0; 1 << 16];
        let mut lowest = f32::MAX;
        for (id, text) in (0..).zip(vocab.vocab.texts().iter()) {
            let kind = vocab.kind(id);
            if kind.has(TokenBits::NORMAL) {
                // Other kinds never come from text. The unknown score must be finite, so that every offset is reached.
                lowest = Some(vocab.score(id))
                    .filter(|score| score.is_finite())
                    .map_or(lowest, |score| lowest.min(score));
                if text.len() > MAX_PIECE {
                    let (len, limit) = (text.len(), MAX_PIECE);
                    return Err(TokenizerError::PieceTooLong { id, len, limit });
                }
            }
            if let Some(slot) = start_of(text).filter(|_| text.len() <= MAX_PIECE) {
                longest[slot] = text.len().max(usize::from(longest[slot])) as u16;
            }
        }
        Ok(Unigram {
            charsmap: charsmap(gguf)?,
            merge_spaces: gguf
                .get_bool("tokenizer.ggml.remove_extra_whitespaces")?
                .unwrap_or(false),
            unknown_score: f64::from(lowest - UNKNOWN_PENALTY),
            bytes: (0..=255).all(|byte| byte_id(vocab, byte).is_some()),
            longest,
        })
    }

    /// Appends the tokens of `text`, with a space before it if `prefix`.
    ///
    /// # Errors
    /// [`TokenizerError::TextTooLong`] if normalising has made it too long.
    pub(crate) fn encode(
        &self,
        text: &str,
        prefix: bool,
        vocab: Lookup<'_>,
        unknown: Option<u32>,
        buffers: &mut Buffers,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        self.normalise(text, prefix, &mut buffers.normalised);
        let len = buffers.normalised.len();
        if len > MAX_NORMALISED {
            return Err(TokenizerError::TextTooLong { len, limit: MAX_NORMALISED });
        }
        self.cut(&buffers.normalised, vocab, &mut buffers.best, &mut buffers.check);
        if buffers.check.stopped() {
            return Err(TokenizerError::Stopped);
        }
        let first = out.len();
        let (mut end, mut after_unknown) = (len, false);
        while end > 0 {
            let last = buffers.best[end];
            let start = end - last.len as usize;
            match last.id {
                Some(id) => out.push(id),
                None if self.bytes => {
                    let piece = buffers.normalised[start..end].iter().rev();
                    out.extend(piece.filter_map(|byte| byte_id(vocab, *byte)));
                }
                None if after_unknown => {}
                None => out.extend(unknown),
            }
            (end, after_unknown) = (start, last.id.is_none());
        }
        out[first..].reverse();
        Ok(())
    }

    /// Normalises `text`: replaced by the map, spaces as U+2581. Stops once it is too long.
    fn normalise(&self, text: &str, prefix: bool, out: &mut Vec<u8>) {
        const MARK: &[u8] = "\u{2581}".as_bytes();
        out.clear();
        if prefix && !self.merge_spaces && !text.is_empty() {
            out.extend(MARK);
        }
        // True if a merged space precedes the next character.
        let mut space = prefix;
        let mut at = 0;
        while at < text.len() && out.len() <= MAX_NORMALISED {
            let (read, part) = self.next(text, at);
            at += read;
            for &byte in part {
                match (byte, self.merge_spaces) {
                    (b' ', true) => space |= !out.is_empty(),
                    (b' ', false) => out.extend(MARK),
                    (_, merge) => {
                        if merge && space {
                            out.extend(MARK);
                            space = false;
                        }
                        out.push(byte);
                    }
                }
            }
        }
    }

    /// The number of bytes of `text` that come next, and their replacement.
    fn next<'t>(&'t self, text: &'t str, at: usize) -> (usize, &'t [u8]) {
        let rest = &text.as_bytes()[at..];
        if let Some(found) = self.charsmap.as_ref().and_then(|map| map.longest(rest)) {
            return found;
        }
        // Only a map that splits characters leads into one.
        if !text.is_char_boundary(at) {
            return (1, "\u{fffd}".as_bytes());
        }
        let len = char_len(rest[0]).min(rest.len());
        (len, &rest[..len])
    }

    /// Finds the best cut up to each character boundary of `text`; `best` has an element for each offset.
    fn cut(&self, text: &[u8], vocab: Lookup<'_>, best: &mut Vec<Best>, check: &mut StopCheck) {
        best.clear();
        best.resize(text.len() + 1, Best { score: f64::NEG_INFINITY, id: None, len: 0 });
        best[0].score = 0.0;
        let next = |at: usize| (at + char_len(text[at])).min(text.len());
        let mut at = 0;
        while at < text.len() && !check.step() {
            let score = best[at].score;
            let mut reach = |end: usize, id: Option<u32>, more: f64| {
                let score = score + more;
                if score > best[end].score {
                    best[end] = Best { score, id, len: (end - at) as u32 };
                }
            };
            let most = self.longest(&text[at..]);
            let (mut end, mut alone) = (next(at), false);
            let first = end;
            while end - at <= most {
                let found = vocab.plain_id(&text[at..end]).map(|id| (id, score_of(vocab, id)));
                if let Some((id, score)) = found.filter(|(_, score)| score.is_finite()) {
                    alone |= end == first;
                    reach(end, Some(id), score);
                }
                if end == text.len() {
                    break;
                }
                end = next(end);
            }
            if !alone {
                reach(first, None, self.unknown_score);
            }
            at = first;
        }
    }

    /// The maximum length in bytes of a token that `text` begins with.
    fn longest(&self, text: &[u8]) -> usize {
        start_of(text).map_or(3, |slot| usize::from(self.longest[slot]).max(3))
    }
}

/// The hash of the first four bytes, if there are four.
fn start_of(text: &[u8]) -> Option<usize> {
    let first = u32::from_le_bytes(*text.first_chunk()?);
    Some((first.wrapping_mul(0x9e37_79b1) >> 16) as usize)
}

/// The score of a token that text becomes. User-defined tokens have the best possible score.
fn score_of(vocab: Lookup<'_>, id: u32) -> f64 {
    if vocab.kind(id).has(TokenBits::USER) { 0.0 } else { f64::from(vocab.score(id)) }
}

fn byte_id(vocab: Lookup<'_>, byte: u8) -> Option<u32> {
    vocab.id(&spell_byte(byte)).filter(|id| vocab.kind(*id).has(TokenBits::BYTE))
}

/// The map of the file, which may be an array of either byte type.
fn charsmap(gguf: &Gguf<'_>) -> Result<Option<CharsMap>, TokenizerError> {
    const KEY: &str = "tokenizer.ggml.precompiled_charsmap";
    let Some(array) = gguf.get_array(KEY)?.filter(|array| !array.is_empty()) else {
        return Ok(None);
    };
    match array.elem_type() {
        ValueType::U8 | ValueType::I8 => CharsMap::parse(array.bytes()).map(Some),
        found => {
            let expected = "u8 or i8";
            Err(GgufError::WrongElementType { key: KEY.into(), found, expected }.into())
        }
    }
}
