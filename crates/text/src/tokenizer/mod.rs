//! Text into tokens and back, from the arrays that a GGUF file carries.
//!
//! Three kinds: byte-level BPE (`tokenizer.ggml.model` = `gpt2`), SentencePiece-style merging by
//! score (`llama`), and SentencePiece's unigram model (`t5`). Built in milliseconds, because the process waits for it: one flat store of
//! texts and one open-addressing index, no regular expressions, nothing allocated per token.
//! Agreement with llama.cpp is the aim throughout; `python -m evidence agree tokens` shows it.
//!
//! Invariants:
//! - Control tokens never come out of text unless `parse_special` asks for it. (llama.cpp lets
//!   merges make one if the vocabulary happens to have the merges; here that is barred, as it is
//!   in SentencePiece.)
//! - Encoding takes O(n log n) for any text and any vocabulary that fits in a file.
//! - Decoding a token allocates nothing beyond the caller's buffer.

mod alphabet;
mod bpe;
mod charsmap;
mod error;
mod finder;
mod pre;
mod special;
mod spm;
mod stream;
mod symbols;
mod table;
mod unigram;
mod vocab;

use std::ops::Range;

use alight_formats::gguf::{Array, Gguf, GgufError};

pub use error::TokenizerError;
pub use stream::StreamDecoder;

use bpe::{Bpe, Manner, Merges};
use finder::{Finder, Fragment, Search};
use pre::Pre;
use special::{Defaults, SpecialIds};
use spm::Spm;
use unigram::Unigram;
use vocab::{Kind, Vocab, byte_of};

/// The longest text that can be encoded at once, in bytes: symbols are counted in 32 bits after
/// every space has become three bytes.
const MAX_TEXT: usize = 1 << 30;

/// How a text is encoded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// `None`: beginning and end of sequence as the file says. `Some(false)`: neither.
    /// `Some(true)`: the beginning in any case, the end as the file says.
    pub add_bos: Option<bool>,
    /// Whether the spellings of control tokens in the text become those tokens. Only for text
    /// that is trusted, such as a rendered chat template.
    pub parse_special: bool,
}

enum Algorithm {
    Spm,
    Unigram(Unigram),
    Bpe { merges: Merges, pre: Pre },
}

/// A vocabulary and the rule by which text becomes its tokens.
pub struct Tokenizer {
    vocab: Vocab,
    algorithm: Algorithm,
    ids: SpecialIds,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
    finder: Finder,
}

impl Tokenizer {
    /// Builds the tokenizer of a file.
    ///
    /// # Errors
    /// See [`TokenizerError`]. Ids of special tokens that are out of range are not errors: the
    /// default of the tokenizer model takes their place, or nothing.
    pub fn from_gguf(gguf: &Gguf<'_>) -> Result<Tokenizer, TokenizerError> {
        let model: &str = gguf.require("tokenizer.ggml.model")?;
        let pre_name = gguf.get_str("tokenizer.ggml.pre")?;
        let pre = match model {
            "llama" | "t5" => None,
            "gpt2" | "gemma4" => {
                let name = match (model, pre_name) {
                    ("gemma4", _) => "gemma4",
                    // Files from before the key existed.
                    (_, None | Some("")) => "default",
                    (_, Some(name)) => name,
                };
                let found = Pre::by_name(name);
                Some(found.ok_or_else(|| TokenizerError::UnknownPreTokenizer {
                    name: vocab::lossy(name.as_bytes()),
                })?)
            }
            _ => {
                return Err(TokenizerError::UnknownModel {
                    name: vocab::lossy(model.as_bytes()),
                    known: "gpt2, llama, t5, gemma4",
                });
            }
        };

        // The two big tables do not depend on each other.
        let merges = || -> Result<Option<Merges>, TokenizerError> {
            if pre.is_none() {
                return Ok(None);
            }
            let (count, merges) = strings(gguf, "tokenizer.ggml.merges")?;
            Merges::new(count, merges).map(Some)
        };
        let (mut vocab, merges) = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("alight-merges".into());
            let other = pre.map(|_| thread.spawn_scoped(scope, merges));
            let vocab = read_vocab(gguf);
            let merges = match other {
                // A panic there would be a defect of ours: let it be seen.
                Some(Ok(other)) => other.join().unwrap_or_else(|p| std::panic::resume_unwind(p)),
                // The system gives no more threads.
                Some(Err(_)) => merges(),
                None => Ok(None),
            };
            Ok::<_, TokenizerError>((vocab?, merges?))
        })?;

        let defaults = defaults(pre.as_ref(), model);
        let ids = SpecialIds::find(gguf, &mut vocab, defaults)?;
        let unigram = (model == "t5").then(|| Unigram::new(gguf, &vocab)).transpose()?;
        let flag = |key: &str| gguf.get_bool(key);
        let add_bos = flag("tokenizer.ggml.add_bos_token")?;
        let default_bos = unigram.is_none() && pre.is_none_or(|pre| pre.add_bos);
        let default_space = unigram.is_none() && pre.is_none();
        Ok(Tokenizer {
            finder: Finder::new(&vocab)?,
            add_bos: add_bos.unwrap_or(default_bos) || pre.is_some_and(|pre| pre.always_bos),
            add_eos: flag("tokenizer.ggml.add_eos_token")?.unwrap_or(unigram.is_some()),
            add_space_prefix: flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(default_space),
            algorithm: match (unigram, merges, pre) {
                (Some(unigram), ..) => Algorithm::Unigram(unigram),
                (None, Some(merges), Some(pre)) => Algorithm::Bpe { merges, pre },
                _ => Algorithm::Spm,
            },
            vocab,
            ids,
        })
    }

    /// The tokens of `text`.
    ///
    /// # Errors
    /// [`TokenizerError::NoBos`] if a beginning of sequence is to be added and there is no such
    /// token; [`TokenizerError::TextTooLong`] beyond 1 GiB.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, TokenizerError> {
        let search = if options.parse_special { Search::Around(&[]) } else { Search::User };
        self.encode_with(search, text, options.add_bos)
    }

    /// The tokens of a text that is trusted but for the ranges `plain` (in bytes, ascending,
    /// disjoint): a rendered chat template with what the user wrote in it. As
    /// [`encode`](Self::encode) with `parse_special`, except that a spelling which reaches into
    /// one of these ranges stays text. The text is still encoded as a whole, so merges across the
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
        self.encode_with(Search::Around(plain), text, add_bos)
    }

    /// Where `text` spells control tokens, in order; what is between them spells none.
    pub fn control_spellings(&self, text: &str) -> impl Iterator<Item = Range<usize>> + use<> {
        self.finder.control(text)
    }

    fn encode_with(
        &self,
        search: Search<'_>,
        text: &str,
        add_bos: Option<bool>,
    ) -> Result<Vec<u32>, TokenizerError> {
        if text.len() > MAX_TEXT {
            return Err(TokenizerError::TextTooLong { len: text.len(), limit: MAX_TEXT });
        }
        let mut out = Vec::with_capacity(text.len() / 3 + 4);
        if add_bos.unwrap_or(self.add_bos) {
            out.push(self.ids.bos.ok_or(TokenizerError::NoBos)?);
        }
        let fragments = self.finder.partition(text, search);
        match &self.algorithm {
            Algorithm::Spm => self.encode_spm(text, &fragments, &mut out),
            Algorithm::Unigram(unigram) => {
                self.encode_unigram(text, &fragments, unigram, &mut out)?;
            }
            Algorithm::Bpe { merges, pre } => {
                self.encode_bpe(text, &fragments, merges, pre, &mut out);
            }
        }
        if add_bos != Some(false) && self.add_eos {
            out.extend(self.ids.eos);
        }
        Ok(out)
    }

    fn encode_spm(&self, text: &str, fragments: &[Fragment], out: &mut Vec<u32>) {
        let mut spm = Spm::default();
        let mut escaped = String::new();
        for &fragment in fragments {
            match fragment {
                Fragment::Token(id) => out.push(id),
                Fragment::Text(from, to) => {
                    let part = text.get(from as usize..to as usize).unwrap_or_default();
                    escaped.clear();
                    // A text fragment is the first, or follows a special token.
                    if self.add_space_prefix {
                        escaped.push(SPACE);
                    }
                    escape_spaces(part, &mut escaped);
                    spm.encode(&escaped, &self.vocab, self.ids.unknown, out);
                }
            }
        }
    }

    fn encode_unigram(
        &self,
        text: &str,
        fragments: &[Fragment],
        unigram: &Unigram,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let mut buffers = unigram::Buffers::default();
        for &fragment in fragments {
            match fragment {
                Fragment::Token(id) => out.push(id),
                Fragment::Text(from, to) => {
                    let part = text.get(from as usize..to as usize).unwrap_or_default();
                    let (prefix, unknown) = (self.add_space_prefix, self.ids.unknown);
                    unigram.encode(part, prefix, &self.vocab, unknown, &mut buffers, out)?;
                }
            }
        }
        Ok(())
    }

    fn encode_bpe(
        &self,
        text: &str,
        fragments: &[Fragment],
        merges: &Merges,
        pre: &Pre,
        out: &mut Vec<u32>,
    ) {
        let manner = Manner {
            raw_bytes: pre.raw_bytes,
            ignore_merges: pre.ignore_merges,
            newlines_whole: pre.newlines_whole,
        };
        let mut bpe = Bpe::default();
        let mut escaped = String::new();
        for &fragment in fragments {
            match fragment {
                Fragment::Token(id) => out.push(id),
                Fragment::Text(from, to) => {
                    let mut part = text.get(from as usize..to as usize).unwrap_or_default();
                    if pre.raw_bytes {
                        escaped.clear();
                        escape_spaces(part, &mut escaped);
                        part = &escaped;
                    }
                    pre.split(part, |word| {
                        bpe.encode_part(word, &self.vocab, merges, manner, out);
                    });
                }
            }
        }
    }

    /// Appends the bytes that `id` stands for in the text of an answer: nothing for a control
    /// token, the unknown token, or an id that is not in the vocabulary. They may be an incomplete
    /// part of a character, see [`StreamDecoder`].
    pub fn decode_bytes(&self, id: u32, out: &mut Vec<u8>) {
        if !self.is_control(id) {
            self.decode_special(id, out);
        }
    }

    /// As [`decode_bytes`](Self::decode_bytes), with the spelling of control tokens.
    pub fn decode_special(&self, id: u32, out: &mut Vec<u8>) {
        let kind = self.vocab.kind(id);
        let text = self.token_text(id);
        if kind.has(Kind::CONTROL.or(Kind::UNKNOWN).or(Kind::USER)) {
            out.extend_from_slice(text);
        } else if kind.has(Kind::BYTE) {
            out.extend(byte_of(text));
        } else if kind.has(Kind::NORMAL) {
            match &self.algorithm {
                Algorithm::Bpe { pre, .. } if !pre.raw_bytes => alphabet::push_decoded(text, out),
                _ => push_unescaped(text, out),
            }
        }
    }

    /// The text of `ids` together, without control tokens; what is not UTF-8 becomes U+FFFD. As
    /// in the text that was encoded, the space that the file puts before a text is left out.
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

    /// What pads batches.
    pub fn padding(&self) -> Option<u32> {
        self.ids.padding
    }

    /// What stands for text that has no token.
    pub fn unknown(&self) -> Option<u32> {
        self.ids.unknown
    }

    /// Whether the file asks for a beginning of sequence before every text.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether the file asks for an end of sequence after every text.
    pub fn adds_eos(&self) -> bool {
        self.add_eos
    }

    /// Whether an answer ends with this token: end of sequence, of turn, of message, or one of
    /// the spellings known to mean that. The same set as llama.cpp's.
    pub fn is_end(&self, id: u32) -> bool {
        self.ids.ends.contains(&id)
    }

    /// The tokens for which [`is_end`](Self::is_end) holds, ascending.
    pub fn ends(&self) -> &[u32] {
        &self.ids.ends
    }

    /// Whether the token has a spelling but no text (control and unknown tokens).
    pub fn is_control(&self, id: u32) -> bool {
        self.vocab.kind(id).has(Kind::CONTROL.or(Kind::UNKNOWN))
    }

    /// The text of a token as the file has it (`Ġthe`, `▁the`, `<0x0A>`); empty for an id that is
    /// not in the vocabulary.
    pub fn token_text(&self, id: u32) -> &[u8] {
        self.vocab.text(id).unwrap_or_default()
    }

    /// The id of exactly this spelling in the file.
    pub fn token_id(&self, text: &[u8]) -> Option<u32> {
        self.vocab.id(text)
    }
}

/// The special tokens of a tokenizer model where the file does not say: llama.cpp's.
fn defaults(pre: Option<&Pre>, model: &str) -> Defaults {
    let none = Defaults::default();
    match (pre, model) {
        (None, "t5") => Defaults { eos: Some(1), unknown: Some(2), padding: Some(0), ..none },
        (None, _) => Defaults { bos: Some(1), eos: Some(2), unknown: Some(0), ..none },
        (Some(_), "gemma4") => none,
        (Some(pre), _) if pre.no_default_bos => Defaults { eos: Some(11), ..none },
        (Some(_), _) => Defaults { bos: Some(11), eos: Some(11), ..none },
    }
}

/// What stands for a space in SentencePiece vocabularies.
const SPACE: char = '\u{2581}';

fn escape_spaces(text: &str, out: &mut String) {
    out.reserve(text.len());
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

/// The number of strings under `key`, and the strings.
fn strings<'a>(
    gguf: &Gguf<'a>,
    key: &'static str,
) -> Result<(usize, impl Iterator<Item = &'a [u8]>), GgufError> {
    let strings = gguf.require::<alight_formats::gguf::Strings<'a>>(key)?;
    Ok((strings.len(), strings))
}

fn read_vocab(gguf: &Gguf<'_>) -> Result<Vocab, TokenizerError> {
    let (count, tokens) = strings(gguf, "tokenizer.ggml.tokens")?;
    const TYPES: &str = "tokenizer.ggml.token_type";
    const SCORES: &str = "tokenizer.ggml.scores";
    let wrong = |key: &str, array: &Array<'_>, expected| GgufError::WrongElementType {
        key: key.into(),
        found: array.elem_type(),
        expected,
    };
    let types = match gguf.get_array(TYPES)? {
        None => None,
        Some(array) => {
            let values = array.iter_i32().ok_or_else(|| wrong(TYPES, &array, "i32"))?;
            Some((array.len(), values))
        }
    };
    let Some(array) = gguf.get_array(SCORES)? else {
        return Vocab::new(count, tokens, types, None::<(usize, std::iter::Empty<f32>)>);
    };
    if let Some(values) = array.iter_f32() {
        Vocab::new(count, tokens, types, Some((array.len(), values)))
    } else if let Some(values) = array.iter_i32() {
        let values = values.map(|score| score as f32);
        Vocab::new(count, tokens, types, Some((array.len(), values)))
    } else {
        Err(wrong(SCORES, &array, "f32 or i32").into())
    }
}
