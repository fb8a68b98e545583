//! The tokens: text, kind and score of each, and the ids of texts.
//!
//! Texts and scores stay in the copy of the file's header. One pass over them yields the data that every model needs at once:
//! the kinds, and a table of the tokens with a meaning of their own ([`known`](Vocab::known)). Tables of other tokens are made
//! when a text is encoded ([`super::tables`]).
//!
//! Invariants: of several tokens with one text, that text becomes the first, and likewise for special tokens with one
//! spelling; a token of kind byte is `<0xHH>`; there is one kind per token, and one score per token if there are scores at
//! all.

use alight_formats::Pieces;
use alight_formats::gguf::{Array, Gguf, GgufError, KeptArray, ValueType};

use super::beginnings::Beginnings;
use super::error::TokenizerError;
use super::table::{Entry, Table};
use super::texts::{Beginning, StringArray, TooLarge};

/// The kind of a token, as bits; a token may have several once the well-known texts are marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TokenBits(pub(crate) u8);

impl TokenBits {
    pub(crate) const NORMAL: TokenBits = TokenBits(1);
    pub(crate) const UNKNOWN: TokenBits = TokenBits(2);
    pub(crate) const CONTROL: TokenBits = TokenBits(4);
    pub(crate) const USER: TokenBits = TokenBits(8);
    pub(crate) const BYTE: TokenBits = TokenBits(16);
    /// Type 5 (unused) and everything undefined: such a token has no text of its own.
    pub(crate) const NOTHING: TokenBits = TokenBits(0);
    /// White space to the left of the token belongs to it.
    pub(crate) const STRIP_LEFT: TokenBits = TokenBits(64);
    /// White space to the right of the token belongs to it.
    pub(crate) const STRIP_RIGHT: TokenBits = TokenBits(128);

    pub(crate) const fn or(self, other: TokenBits) -> TokenBits {
        TokenBits(self.0 | other.0)
    }

    pub(crate) const fn without(self, other: TokenBits) -> TokenBits {
        TokenBits(self.0 & !other.0)
    }

    #[inline]
    pub(crate) const fn has(self, any_of: TokenBits) -> bool {
        self.0 & any_of.0 != 0
    }

    /// Converts the numbers of `tokenizer.ggml.token_type`.
    fn from_number(number: i32) -> TokenBits {
        match number {
            1 => TokenBits::NORMAL,
            2 => TokenBits::UNKNOWN,
            3 => TokenBits::CONTROL,
            4 => TokenBits::USER,
            6 => TokenBits::BYTE,
            _ => TokenBits::NOTHING,
        }
    }
}

/// The tokens of one model.
pub(crate) struct Vocab {
    texts: StringArray,
    kinds: Vec<TokenBits>,
    /// Elements are f32 or i32.
    scores: Option<KeptArray>,
    /// The special tokens, and those that are looked up by their spelling.
    known: Table,
    /// The spellings that are looked up: every token that begins like one of them is in `known`.
    asked: Beginnings,
}

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";

/// Maximum total bytes of the spellings of special tokens. The largest vocabularies have some hundred kilobytes.
pub(crate) const MAX_SPELLINGS: usize = 16 << 20;

/// Kinds whose tokens are found by their spelling, if at all.
pub(crate) const SPECIAL: TokenBits = TokenBits::CONTROL.or(TokenBits::UNKNOWN).or(TokenBits::USER);

impl Vocab {
    /// Reads the tokens of a file. Types and scores are optional; if they exist there must be at least as many as tokens.
    /// `spellings` are those that will be looked up.
    pub(crate) fn new<'s>(
        gguf: &Gguf<'_>,
        pieces: &Pieces,
        spellings: impl Iterator<Item = &'s str>,
    ) -> Result<Vocab, TokenizerError> {
        let tokens = strings(gguf, TOKENS)?;
        let wrong = |key: &str, array: &Array<'_>, expected| GgufError::WrongElementType {
            key: key.into(),
            found: array.elem_type(),
            expected,
        };
        let types = gguf.get_array(TYPES)?;
        let types = types.map(|array| array.iter_i32().ok_or_else(|| wrong(TYPES, &array, "i32")));
        let types = types.transpose()?;
        let scores = gguf.get_array(SCORES)?;
        if let Some(array) =
            scores.filter(|array| !matches!(array.elem_type(), ValueType::F32 | ValueType::I32))
        {
            return Err(wrong(SCORES, &array, "f32 or i32").into());
        }
        let count = tokens.len();
        if count == 0 {
            return Err(TokenizerError::EmptyVocabulary);
        }
        let short = |key, found| TokenizerError::ShortArray { key, found, expected: count };
        let kinds: Vec<TokenBits> = match types {
            Some(types) if types.len() < count => return Err(short(TYPES, types.len())),
            Some(types) => types.take(count).map(TokenBits::from_number).collect(),
            None => vec![TokenBits::NORMAL; count],
        };
        if let Some(scores) = scores.filter(|scores| scores.len() < count) {
            return Err(short(SCORES, scores.len()));
        }

        let mut asked = Beginnings::with_room_for(0);
        spellings.for_each(|spelling| asked.add(spelling.as_bytes()));
        let (mut entries, mut bad, mut spelled) = (Vec::new(), None, 0);
        let texts = StringArray::new(tokens.keep(pieces), |text| {
            let kind = kinds[text.number as usize];
            if kind.has(SPECIAL) || asked.may_have(text.beginning) {
                entries.push(Entry::of(text));
            }
            if kind.has(SPECIAL) {
                spelled += text.bytes.len();
            }
            if kind.has(TokenBits::BYTE) && bad.is_none() && byte_of(text.bytes).is_none() {
                bad = Some((text.number, lossy(text.bytes)));
            }
        });
        let texts = texts.map_err(|TooLarge| too_large(TOKENS))?;
        if let Some((id, text)) = bad {
            return Err(TokenizerError::BadByteToken { id, text });
        }
        if spelled > MAX_SPELLINGS {
            return Err(TokenizerError::SpecialTooLong { bytes: spelled, limit: MAX_SPELLINGS });
        }
        let known = Table::new(&texts, entries);
        let scores = scores.map(|scores| scores.keep(pieces));
        Ok(Vocab { texts, kinds, scores, known, asked })
    }

    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }

    /// The texts of all tokens.
    pub(crate) fn texts(&self) -> &StringArray {
        &self.texts
    }

    pub(crate) fn text(&self, id: u32) -> Option<&[u8]> {
        self.texts.get(id)
    }

    /// The special tokens, with their texts.
    pub(crate) fn special(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.known.iter(&self.texts).filter(|(id, _)| self.kind(*id).has(SPECIAL))
    }

    /// The id of exactly this text, whatever kind of token it is. Fast for special tokens and for the spellings that are
    /// looked up when a model is opened; any other is searched in the whole vocabulary.
    pub(crate) fn id(&self, text: &[u8]) -> Option<u32> {
        if self.asked.may_have(Beginning::of(text)) {
            return self.known.find(&self.texts, text);
        }
        self.texts.iter().position(|other| other == text).map(|id| id as u32)
    }

    pub(crate) fn kind(&self, id: u32) -> TokenBits {
        self.kinds.get(id as usize).copied().unwrap_or(TokenBits::NOTHING)
    }

    /// Does nothing for an id that is not in the vocabulary.
    pub(crate) fn set_kind(&mut self, id: u32, kind: TokenBits) {
        if let Some(slot) = self.kinds.get_mut(id as usize) {
            *slot = kind;
        }
    }

    /// Never NaN, never −0; 0 if the file has no scores.
    #[inline]
    pub(crate) fn score(&self, id: u32) -> f32 {
        let Some(scores) = &self.scores else { return 0.0 };
        let scores = scores.get();
        let Some(bytes) = scores.bytes().as_chunks::<4>().0.get(id as usize) else { return 0.0 };
        match scores.elem_type() {
            ValueType::F32 => clean_score(f32::from_le_bytes(*bytes)),
            _ => i32::from_le_bytes(*bytes) as f32,
        }
    }
}

#[cfg(test)]
impl Vocab {
    /// Creates tokens with these texts and types, as a file has them; without types, all are normal.
    pub(crate) fn of(texts: &[impl AsRef<[u8]>], types: &[i32]) -> Result<Vocab, TokenizerError> {
        use alight_formats::gguf;

        let mut file = gguf::write::Builder::new();
        file.strs(TOKENS, texts);
        if !types.is_empty() {
            file.i32s(TYPES, types);
        }
        let file = file.header();
        Vocab::new(&gguf::parse(&file).unwrap(), &Pieces::default(), std::iter::empty())
    }
}

/// The tokens of a vocabulary that a text can become, by their texts.
#[derive(Clone, Copy)]
pub(crate) struct Lookup<'v> {
    pub(crate) vocab: &'v Vocab,
    /// Contains every token whose text will be looked up.
    pub(crate) table: &'v Table,
}

impl Lookup<'_> {
    /// The id of exactly this text, whatever kind of token it is.
    #[inline]
    pub(crate) fn id(&self, text: &[u8]) -> Option<u32> {
        self.table.find(&self.vocab.texts, text)
    }

    /// The id of this text if plain text may turn into that token: control tokens, the unknown
    /// token and byte tokens never result from their own spelling.
    #[inline]
    pub(crate) fn plain_id(&self, text: &[u8]) -> Option<u32> {
        let id = self.id(text)?;
        let barred = TokenBits::CONTROL.or(TokenBits::UNKNOWN).or(TokenBits::BYTE);
        (!self.kind(id).has(barred)).then_some(id)
    }

    pub(crate) fn kind(&self, id: u32) -> TokenBits {
        self.vocab.kind(id)
    }

    #[inline]
    pub(crate) fn score(&self, id: u32) -> f32 {
        self.vocab.score(id)
    }
}

/// The strings under `key`.
pub(crate) fn strings<'a>(gguf: &Gguf<'a>, key: &'static str) -> Result<Array<'a>, GgufError> {
    // Read as strings first, for the error.
    gguf.require::<alight_formats::gguf::Strings<'a>>(key)?;
    gguf.require(key)
}

pub(crate) fn too_large(key: &'static str) -> TokenizerError {
    TokenizerError::VocabularyTooLarge { key, limit: u64::from(u32::MAX) }
}

/// Scores are only compared: a NaN becomes the lowest, −0 becomes 0.
#[inline]
fn clean_score(score: f32) -> f32 {
    if score.is_nan() { f32::NEG_INFINITY } else { score + 0.0 }
}

/// The byte that `<0xHH>` spells.
pub(crate) fn byte_of(text: &[u8]) -> Option<u8> {
    let &[b'<', b'0', b'x', high, low, b'>'] = text else {
        return None;
    };
    let digit = |c: u8| (c as char).to_digit(16);
    Some((digit(high)? << 4 | digit(low)?) as u8)
}

/// `<0xHH>` with capital digits.
pub(crate) fn spell_byte(byte: u8) -> [u8; 6] {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    [b'<', b'0', b'x', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)], b'>']
}

pub(crate) fn lossy(text: &[u8]) -> String {
    const MAX_CHARS: usize = 80;
    let shown = String::from_utf8_lossy(&text[..text.len().min(MAX_CHARS)]);
    if text.len() > MAX_CHARS { format!("{shown}…") } else { shown.into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_by_their_text_and_their_id() {
        let texts: Vec<String> = (0..500).map(|i| format!("token {i}")).collect();
        let types: Vec<i32> = (0..500).map(|i| if i % 7 == 0 { 3 } else { 1 }).collect();
        let vocab = Vocab::of(&texts, &types).unwrap();
        for (id, text) in (0..).zip(&texts) {
            assert_eq!(
                (vocab.id(text.as_bytes()), vocab.text(id)),
                (Some(id), Some(text.as_bytes()))
            );
        }
        assert_eq!((vocab.id(b"token"), vocab.text(500)), (None, None));
        let special = vocab.special().map(|(id, _)| id);
        assert!(special.eq((0..500).step_by(7)));
    }

    #[test]
    fn what_would_take_all_memory_is_refused() {
        let long = "x".repeat(MAX_SPELLINGS + 1);
        let expected = TokenizerError::SpecialTooLong { bytes: long.len(), limit: MAX_SPELLINGS };
        assert_eq!(Vocab::of(&[long], &[3]).err(), Some(expected));
    }
}
