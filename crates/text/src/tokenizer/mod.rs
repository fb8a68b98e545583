//! Text into tokens and back, from the arrays of a GGUF file.
//!
//! There are five kinds: byte-level BPE (`tokenizer.ggml.model` = `gpt2`), SentencePiece-style merging by score (`llama`),
//! SentencePiece's unigram model (`t5`), BERT's WordPiece (`bert`), and RWKV's longest tokens (`rwkv`). A tokenizer is ready at once, because the process waits for it: the strings stay in the copy
//! of the file's header, and tables are made when a text is encoded; for a short text, only of the strings that it may need
//! ([`tables`]). There are no regular expressions and no allocations per token.
//! Agreement with llama.cpp is the aim throughout; `python -m evidence agree tokens` checks it.
//!
//! Invariants:
//! - Text never becomes control tokens unless `parse_special` requests it. (llama.cpp lets
//!   merges make one if the vocabulary happens to have the merges; here that is prevented, as
//!   in SentencePiece.)
//! - Encoding takes O(n log n) for any text and any vocabulary that fits in a file.
//! - Decoding a token allocates nothing beyond the caller's buffer.

mod alphabet;
mod beginnings;
mod bpe;
mod charsmap;
mod error;
mod finder;
mod fit;
mod pre;
mod rwkv;
mod special;
mod spm;
mod stop;
mod stream;
mod symbols;
mod table;
mod tables;
mod texts;
mod unigram;
mod vocab;
mod wordpiece;

use std::ops::Range;

use alight_formats::Pieces;
use alight_formats::gguf::Gguf;

pub use error::TokenizerError;
pub use fit::PreMisfit;
pub use stop::Stop;
pub use stream::StreamDecoder;

use beginnings::Beginnings;
use bpe::{Bpe, Manner, Merges};
use finder::{Fragment, Search};
use pre::Pre;
use special::{Defaults, SpecialIds};
pub use special::{END_IDS, InfillIds, MAX_END_IDS};
use spm::Spm;
use stop::StopCheck;
pub(crate) use stop::never;
use tables::Tables;
use texts::{StringArray, TooLarge};
use unigram::Unigram;
use vocab::{Lookup, TokenBits, Vocab, byte_of};
use wordpiece::WordPiece;

/// The longest text that can be encoded at once, in bytes: symbols are counted in 32 bits after
/// every space has become three bytes.
const MAX_TEXT: usize = 1 << 30;

/// Options for encoding a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// `None`: beginning and end of sequence as configured by the file. `Some(false)`: neither.
    /// `Some(true)`: always the beginning, and the end as configured by the file.
    pub add_bos: Option<bool>,
    /// True if the spellings of control tokens in the text become those tokens. Only for trusted
    /// text, such as a rendered chat template.
    pub parse_special: bool,
}

enum Algorithm {
    Spm,
    Unigram(Unigram),
    WordPiece(WordPiece),
    Rwkv,
    Bpe {
        merges: StringArray,
        pre: Pre,
        /// The name of the pre-tokeniser.
        name: Box<str>,
    },
}

/// A vocabulary and the rule that turns text into its tokens.
pub struct Tokenizer {
    vocab: Vocab,
    algorithm: Algorithm,
    ids: SpecialIds,
    add_bos: bool,
    add_eos: bool,
    add_separator: bool,
    add_space_prefix: bool,
    on_demand: tables::OnDemand,
}

impl Tokenizer {
    /// Builds the tokenizer of a file.
    ///
    /// # Errors
    /// See [`TokenizerError`]. Ids of special tokens that are out of range are not errors: the default
    /// of the tokenizer model replaces them, if there is one. Neither are two tokens with one text:
    /// the text becomes the first of them.
    pub fn from_gguf(gguf: &Gguf<'_>) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::from_header(gguf, &Pieces::default())
    }

    /// The same without a copy of the vocabulary; `pieces` are those of the parsed header.
    ///
    /// # Errors
    /// As [`from_gguf`](Self::from_gguf).
    pub fn from_header(gguf: &Gguf<'_>, pieces: &Pieces) -> Result<Tokenizer, TokenizerError> {
        let model: &str = gguf.require("tokenizer.ggml.model")?;
        let pre_name = gguf.get_str("tokenizer.ggml.pre")?;
        let pre = match model {
            "llama" | "t5" | "bert" | "rwkv" => None,
            "gpt2" | "gemma4" => {
                let name = match (model, pre_name) {
                    ("gemma4", _) => "gemma4",
                    // Files from before the key existed.
                    (_, None | Some("")) => "default",
                    (_, Some(name)) => name,
                };
                let found = Pre::by_name(name);
                let unknown =
                    || TokenizerError::UnknownPreTokenizer { name: vocab::lossy(name.as_bytes()) };
                Some((found.ok_or_else(unknown)?, name))
            }
            _ => {
                return Err(TokenizerError::UnknownModel {
                    name: vocab::lossy(model.as_bytes()),
                    known: "gpt2, llama, t5, bert, rwkv, gemma4",
                });
            }
        };

        let (pre, name) = pre.unzip();
        let mut vocab = Vocab::new(gguf, pieces, special::spellings())?;
        let merges = || -> Result<StringArray, TokenizerError> {
            const MERGES: &str = "tokenizer.ggml.merges";
            let merges = vocab::strings(gguf, MERGES)?.keep(pieces);
            StringArray::new(merges, |_| {}).map_err(|TooLarge| vocab::too_large(MERGES))
        };
        let merges = pre.is_some().then(merges).transpose()?;
        let defaults = defaults(pre.as_ref(), model);
        let ids = SpecialIds::find(gguf, &mut vocab, defaults)?;
        let on_demand = tables::OnDemand::default();
        let unigram = || {
            let table = &on_demand.complete(&vocab, None).tokens;
            Unigram::new(gguf, Lookup { vocab: &vocab, table })
        };
        let unigram = (model == "t5").then(unigram).transpose()?;
        let flag = |key: &str| gguf.get_bool(key);
        let add_bos = flag("tokenizer.ggml.add_bos_token")?;
        let rwkv = model == "rwkv";
        let default_bos = unigram.is_none() && !rwkv && pre.is_none_or(|pre| pre.add_bos);
        let default_space = unigram.is_none() && !rwkv && pre.is_none();
        let word_piece = (model == "bert").then(|| WordPiece::new(gguf, &vocab)).transpose()?;
        // Old files of this kind say nothing of either, or the wrong thing; the models have both.
        let both = word_piece.is_some();
        let always_bos = both || pre.is_some_and(|pre| pre.always_bos);
        let add_eos = flag("tokenizer.ggml.add_eos_token")?.unwrap_or(unigram.is_some());
        let space = flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(default_space);
        Ok(Tokenizer {
            add_bos: add_bos.unwrap_or(default_bos) || always_bos,
            add_eos: add_eos || both,
            add_separator: flag("tokenizer.ggml.add_sep_token")?.unwrap_or(false),
            // A word of WordPiece begins with a space when it is decoded.
            add_space_prefix: space || both,
            algorithm: match (unigram, word_piece, merges, pre) {
                (Some(unigram), ..) => Algorithm::Unigram(unigram),
                (_, Some(word_piece), ..) => Algorithm::WordPiece(word_piece),
                (.., Some(merges), Some(pre)) => {
                    Algorithm::Bpe { merges, pre, name: name.unwrap_or_default().into() }
                }
                _ if rwkv => Algorithm::Rwkv,
                _ => Algorithm::Spm,
            },
            vocab,
            ids,
            on_demand,
        })
    }

    /// The tokens of `text`.
    ///
    /// # Errors
    /// [`TokenizerError::NoBos`] if a beginning of sequence is to be added and there is no such
    /// token; [`TokenizerError::TextTooLong`] beyond 1 GiB.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, TokenizerError> {
        self.encode_until(text, options, never)
    }

    /// As [`encode`](Self::encode), until `stop` returns true.
    ///
    /// # Errors
    /// As [`encode`](Self::encode); [`TokenizerError::Stopped`].
    pub(crate) fn encode_until(
        &self,
        text: &str,
        options: EncodeOptions,
        stop: Stop,
    ) -> Result<Vec<u32>, TokenizerError> {
        let search = if options.parse_special { Search::Around(&[]) } else { Search::User };
        self.encode_with(search, text, options.add_bos, stop)
    }

    /// The tokens of a text that is trusted except for the ranges `plain` (in bytes, ascending,
    /// disjoint): a rendered chat template with the user's text in it. Like
    /// [`encode`](Self::encode) with `parse_special`, except that a spelling that reaches into one
    /// of these ranges remains text. The text is still encoded as a whole, so merges across the
    /// ends of the ranges are the ones that the model was trained on.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_around(
        &self,
        text: &str,
        plain: &[Range<usize>],
        add_bos: Option<bool>,
    ) -> Result<Vec<u32>, TokenizerError> {
        self.encode_around_until(text, plain, add_bos, never)
    }

    /// As [`encode_around`](Self::encode_around), until `stop` returns true.
    ///
    /// # Errors
    /// As [`encode`](Self::encode); [`TokenizerError::Stopped`].
    pub(crate) fn encode_around_until(
        &self,
        text: &str,
        plain: &[Range<usize>],
        add_bos: Option<bool>,
        stop: Stop,
    ) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with(Search::Around(plain), text, add_bos, stop)
    }

    /// The ranges of `text` that spell control tokens, in order; the text between them spells none.
    pub fn control_spellings(&self, text: &str) -> impl Iterator<Item = Range<usize>> + use<> {
        self.on_demand.with_finder(&self.vocab, text, |finder| finder.control(text))
    }

    fn encode_with(
        &self,
        search: Search<'_>,
        text: &str,
        add_bos: Option<bool>,
        stop: Stop,
    ) -> Result<Vec<u32>, TokenizerError> {
        if text.len() > MAX_TEXT {
            return Err(TokenizerError::TextTooLong { len: text.len(), limit: MAX_TEXT });
        }
        let mut out = Vec::with_capacity(text.len() / 3 + 4);
        if add_bos.unwrap_or(self.add_bos) {
            out.push(self.ids.bos.ok_or(TokenizerError::NoBos)?);
        }
        let partition = |finder: &finder::Finder| finder.partition(text, search);
        let fragments = self.on_demand.with_finder(&self.vocab, text, partition);
        let merges = match &self.algorithm {
            Algorithm::Bpe { merges, .. } => Some(merges),
            Algorithm::Spm | Algorithm::Unigram(_) | Algorithm::WordPiece(_) | Algorithm::Rwkv => {
                None
            }
        };
        let needed = || self.needed(text, &fragments);
        self.on_demand.with_tables(&self.vocab, merges, text.len(), needed, |tables| {
            self.encode_fragments(text, &fragments, tables, stop, &mut out)
        })?;
        if add_bos != Some(false) && self.add_eos {
            out.extend(self.ids.eos);
        }
        Ok(out)
    }

    /// The beginnings of all strings that are looked up for `text`: its parts as the vocabulary spells them.
    fn needed(&self, text: &str, fragments: &[Fragment]) -> Beginnings {
        let mut needed = tables::needed_for(text.len());
        let (mut escaped, mut encoded) = (String::new(), Vec::new());
        for part in parts(text, fragments) {
            match &self.algorithm {
                Algorithm::Bpe { pre, .. } if !pre.raw_bytes => {
                    encoded.clear();
                    part.bytes().for_each(|byte| alphabet::push_encoded(byte, &mut encoded));
                    needed.add_within(&encoded);
                }
                Algorithm::WordPiece(word_piece) => word_piece.words(part, |word| {
                    needed.add_within(word.unwrap_or_default().as_bytes());
                }),
                Algorithm::Rwkv => rwkv::spellings(part, |spelling| needed.add_within(spelling)),
                // Unigrams have the complete tables anyway.
                Algorithm::Bpe { .. } | Algorithm::Spm | Algorithm::Unigram(_) => {
                    escape_spaces(self.add_space_prefix, part, &mut escaped);
                    needed.add_within(escaped.as_bytes());
                }
            }
        }
        needed
    }

    fn encode_fragments(
        &self,
        text: &str,
        fragments: &[Fragment],
        tables: &Tables,
        stop: Stop,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let check = StopCheck::new(stop);
        let unless_stopped = |check: StopCheck| match check.stopped() {
            true => Err(TokenizerError::Stopped),
            false => Ok(()),
        };
        let vocab = Lookup { vocab: &self.vocab, table: &tables.tokens };
        let mut escaped = String::new();
        match &self.algorithm {
            Algorithm::Spm => {
                let mut spm = Spm::new(check);
                each(text, fragments, out, |part, out| {
                    // A part is the first one, or follows a special token.
                    escape_spaces(self.add_space_prefix, part, &mut escaped);
                    spm.encode(&escaped, vocab, self.ids.unknown, out);
                    unless_stopped(spm.check)
                })
            }
            Algorithm::Unigram(unigram) => {
                let mut buffers = unigram::Buffers::new(check);
                let (prefix, unknown) = (self.add_space_prefix, self.ids.unknown);
                each(text, fragments, out, |part, out| {
                    unigram.encode(part, prefix, vocab, unknown, &mut buffers, out)?;
                    unless_stopped(buffers.check)
                })
            }
            Algorithm::WordPiece(word_piece) => {
                let mut check = check;
                each(text, fragments, out, |part, out| {
                    word_piece.encode(part, vocab, self.ids.unknown, &mut check, out);
                    unless_stopped(check)
                })
            }
            Algorithm::Rwkv => {
                let (mut check, mut spellings) = (check, rwkv::Spellings::default());
                each(text, fragments, out, |part, out| {
                    rwkv::encode(part, vocab, self.ids.unknown, &mut spellings, &mut check, out);
                    unless_stopped(check)
                })
            }
            Algorithm::Bpe { merges, pre, .. } => {
                let manner = Manner {
                    raw_bytes: pre.raw_bytes,
                    ignore_merges: pre.ignore_merges,
                    newlines_whole: pre.newlines_whole,
                };
                let merges = Merges { texts: merges, table: &tables.merges };
                let mut bpe = Bpe::new(check);
                each(text, fragments, out, |part, out| {
                    let part = if pre.raw_bytes {
                        escape_spaces(false, part, &mut escaped);
                        escaped.as_str()
                    } else {
                        part
                    };
                    pre.split(part, |word| bpe.encode_part(word, vocab, merges, manner, out));
                    unless_stopped(bpe.check)
                })
            }
        }
    }

    /// Appends the bytes that `id` represents in the text of an answer: none for a control token,
    /// the unknown token, or an id that is not in the vocabulary. They may be an incomplete part of
    /// a character, see [`StreamDecoder`].
    pub fn decode_bytes(&self, id: u32, out: &mut Vec<u8>) {
        if !self.is_control(id) {
            self.decode_special(id, out);
        }
    }

    /// As [`decode_bytes`](Self::decode_bytes), with the spelling of control tokens.
    pub fn decode_special(&self, id: u32, out: &mut Vec<u8>) {
        let kind = self.vocab.kind(id);
        let text = self.token_text(id);
        if kind.has(TokenBits::CONTROL.or(TokenBits::UNKNOWN).or(TokenBits::USER)) {
            out.extend_from_slice(text);
        } else if kind.has(TokenBits::BYTE) {
            out.extend(byte_of(text));
        } else if kind.has(TokenBits::NORMAL) {
            match &self.algorithm {
                Algorithm::Bpe { pre, .. } if !pre.raw_bytes => alphabet::push_decoded(text, out),
                Algorithm::Rwkv => rwkv::push_unescaped(text, out),
                _ => push_unescaped(text, out),
            }
        }
    }

    /// The joint text of `ids`, without control tokens; invalid UTF-8 becomes U+FFFD. The space
    /// that the file puts before a text is removed, so the result equals the text that was encoded.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::with_capacity(ids.len() * 5);
        for &id in ids {
            self.decode_bytes(id, &mut bytes);
        }
        let text = match bytes.split_first() {
            Some((b' ', rest)) if self.add_space_prefix => rest,
            _ => &bytes,
        };
        String::from_utf8_lossy(text).into_owned()
    }

    /// Number of tokens.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// Beginning of sequence.
    pub fn bos(&self) -> Option<u32> {
        self.ids.bos
    }

    /// End of sequence.
    pub fn eos(&self) -> Option<u32> {
        self.ids.eos
    }

    /// The token that pads batches.
    pub fn padding(&self) -> Option<u32> {
        self.ids.padding
    }

    /// The token for text that has none.
    pub fn unknown(&self) -> Option<u32> {
        self.ids.unknown
    }

    /// The tokens that mark a gap to be filled. `None`: the model was not trained to fill gaps.
    pub fn infill(&self) -> Option<InfillIds> {
        self.ids.infill
    }

    /// True if the file requests a beginning of sequence before every text.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// True if the file requests an end of sequence after every text.
    pub fn adds_eos(&self) -> bool {
        self.add_eos
    }

    /// The token between two texts.
    pub fn separator(&self) -> Option<u32> {
        self.ids.separator
    }

    /// True if the file requests another separator between two texts, after the end of the first.
    pub fn adds_separator(&self) -> bool {
        self.add_separator
    }

    /// True if a character of a text may have more bytes than its token: of words that are too long, and of spaces, little is left.
    pub fn may_shorten(&self) -> bool {
        matches!(self.algorithm, Algorithm::Unigram(_) | Algorithm::WordPiece(_))
    }

    /// True if an answer ends with this token: end of sequence, of turn, of message, or one of the
    /// spellings known to mean that. The set equals llama.cpp's.
    pub fn is_end(&self, id: u32) -> bool {
        self.ids.ends.contains(&id)
    }

    /// The tokens for which [`is_end`](Self::is_end) holds, ascending.
    pub fn ends(&self) -> &[u32] {
        &self.ids.ends
    }

    /// True if the token has a spelling but no text (control and unknown tokens).
    pub fn is_control(&self, id: u32) -> bool {
        self.vocab.kind(id).has(TokenBits::CONTROL.or(TokenBits::UNKNOWN))
    }

    /// The text of a token as stored in the file (`Ġthe`, `▁the`, `<0x0A>`); empty for an id that
    /// is not in the vocabulary.
    pub fn token_text(&self, id: u32) -> &[u8] {
        self.vocab.text(id).unwrap_or_default()
    }

    /// The texts of all tokens, in the order of their ids.
    pub fn token_texts(&self) -> impl Iterator<Item = &[u8]> {
        self.vocab.texts().iter()
    }

    /// The number of bytes of the longest of these texts.
    pub fn longest_token(&self) -> usize {
        self.vocab.texts().longest()
    }

    /// The id of the token with exactly this spelling in the file: the first, if several have it.
    pub fn token_id(&self, text: &[u8]) -> Option<u32> {
        match self.on_demand.made() {
            Some(tables) => tables.tokens.find(self.vocab.texts(), text),
            None => self.vocab.id(text),
        }
    }
}

/// The special tokens of a tokenizer model if the file does not set them: llama.cpp's.
fn defaults(pre: Option<&Pre>, model: &str) -> Defaults {
    let none = Defaults::default();
    match (pre, model) {
        (None, "bert") => Defaults {
            bos: Some(101),
            eos: Some(102),
            unknown: Some(100),
            padding: Some(0),
            of_encoder: true,
        },
        (None, "rwkv") => none,
        (None, "t5") => Defaults { eos: Some(1), unknown: Some(2), padding: Some(0), ..none },
        (None, _) => Defaults { bos: Some(1), eos: Some(2), unknown: Some(0), ..none },
        (Some(_), "gemma4") => none,
        (Some(pre), _) if pre.no_default_bos => Defaults { eos: Some(11), ..none },
        (Some(_), _) => Defaults { bos: Some(11), eos: Some(11), ..none },
    }
}

/// The character for a space in SentencePiece vocabularies.
const SPACE: char = '\u{2581}';

/// Writes `text` to `out` with [`SPACE`] in place of spaces, and one before it if `prefix`. The
/// previous content of `out` is replaced.
fn escape_spaces(prefix: bool, text: &str, out: &mut String) {
    out.clear();
    out.reserve(text.len());
    if prefix {
        out.push(SPACE);
    }
    for (i, part) in text.split(' ').enumerate() {
        if i > 0 {
            out.push(SPACE);
        }
        out.push_str(part);
    }
}

fn push_unescaped(mut text: &[u8], out: &mut Vec<u8>) {
    const MARK: &[u8] = "\u{2581}".as_bytes();
    while let Some((&first, rest)) = text.split_first() {
        if let Some(rest) = text.strip_prefix(MARK) {
            out.push(b' ');
            text = rest;
        } else {
            out.push(first);
            text = rest;
        }
    }
}

/// The fragments of `text` that are plain text.
fn parts<'t>(text: &'t str, fragments: &[Fragment]) -> impl Iterator<Item = &'t str> {
    fragments.iter().filter_map(|fragment| match *fragment {
        Fragment::Token(_) => None,
        Fragment::Text(from, to) => text.get(from as usize..to as usize),
    })
}

/// Appends the tokens of all fragments to `out`; `encode` does so for plain text.
fn each(
    text: &str,
    fragments: &[Fragment],
    out: &mut Vec<u32>,
    mut encode: impl FnMut(&str, &mut Vec<u32>) -> Result<(), TokenizerError>,
) -> Result<(), TokenizerError> {
    for &fragment in fragments {
        match fragment {
            Fragment::Token(id) => out.push(id),
            Fragment::Text(from, to) => {
                encode(text.get(from as usize..to as usize).unwrap_or_default(), out)?;
            }
        }
    }
    Ok(())
}
