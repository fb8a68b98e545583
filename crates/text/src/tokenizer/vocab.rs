//! The tokens: text, kind and score of each, and the id of a text.
//!
//! Built in one pass over the arrays of the file into one flat store. Invariants: every text that
//! is not empty is unique; a token of kind byte is `<0xHH>`; there is one kind per token, and one
//! score per token if there are scores at all.

use super::error::TokenizerError;
use super::table::Strings;

/// What a token is, as bits; a token may have several once the well-known texts are marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kind(pub(crate) u8);

impl Kind {
    pub(crate) const NORMAL: Kind = Kind(1);
    pub(crate) const UNKNOWN: Kind = Kind(2);
    pub(crate) const CONTROL: Kind = Kind(4);
    pub(crate) const USER: Kind = Kind(8);
    pub(crate) const BYTE: Kind = Kind(16);
    /// Type 5 (unused) and everything undefined: such a token has no text of its own.
    pub(crate) const NOTHING: Kind = Kind(0);
    /// White space to the left of the token belongs to it.
    pub(crate) const STRIP_LEFT: Kind = Kind(64);
    /// White space to the right of the token belongs to it.
    pub(crate) const STRIP_RIGHT: Kind = Kind(128);

    pub(crate) const fn or(self, other: Kind) -> Kind {
        Kind(self.0 | other.0)
    }

    pub(crate) const fn without(self, other: Kind) -> Kind {
        Kind(self.0 & !other.0)
    }

    #[inline]
    pub(crate) const fn has(self, any_of: Kind) -> bool {
        self.0 & any_of.0 != 0
    }

    /// From the numbers of `tokenizer.ggml.token_type`.
    fn from_number(number: i32) -> Kind {
        match number {
            1 => Kind::NORMAL,
            2 => Kind::UNKNOWN,
            3 => Kind::CONTROL,
            4 => Kind::USER,
            6 => Kind::BYTE,
            _ => Kind::NOTHING,
        }
    }
}

/// The tokens of one model.
pub(crate) struct Vocab {
    texts: Strings,
    kinds: Vec<Kind>,
    scores: Vec<f32>,
    /// Length in bytes of the longest text.
    longest: usize,
}

impl Vocab {
    /// Reads `count` tokens. `types` and `scores` are optional; where they exist they must not
    /// be shorter than the tokens.
    pub(crate) fn new<'a>(
        count: usize,
        tokens: impl Iterator<Item = &'a [u8]>,
        types: Option<(usize, impl Iterator<Item = i32>)>,
        scores: Option<(usize, impl Iterator<Item = f32>)>,
    ) -> Result<Vocab, TokenizerError> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        const TYPES: &str = "tokenizer.ggml.token_type";
        const SCORES: &str = "tokenizer.ggml.scores";
        if count == 0 {
            return Err(TokenizerError::EmptyVocabulary);
        }
        let short = |key, found| TokenizerError::ShortArray { key, found, expected: count };
        let kinds: Vec<Kind> = match types {
            Some((found, _)) if found < count => return Err(short(TYPES, found)),
            Some((_, types)) => types.take(count).map(Kind::from_number).collect(),
            None => vec![Kind::NORMAL; count],
        };
        let scores: Vec<f32> = match scores {
            Some((found, _)) if found < count => return Err(short(SCORES, found)),
            Some((_, scores)) => scores.take(count).map(clean_score).collect(),
            None => Vec::new(),
        };

        let mut repeated: Option<(u32, u32)> = None;
        // Some converters leave holes: several tokens without a text do not count as repeated.
        let texts = Strings::new(count, tokens, |first, second, text| {
            if !text.is_empty() {
                repeated.get_or_insert((first, second));
            }
        });
        let texts = texts.map_err(|_| TokenizerError::VocabularyTooLarge {
            key: TOKENS,
            limit: u64::from(u32::MAX),
        })?;
        if let Some((first, second)) = repeated {
            let text = texts.get(first).unwrap_or_default();
            return Err(TokenizerError::DuplicateToken { first, second, text: lossy(text) });
        }
        for (id, kind) in (0..).zip(&kinds) {
            if kind.has(Kind::BYTE) {
                let text = texts.get(id).unwrap_or_default();
                if byte_of(text).is_none() {
                    return Err(TokenizerError::BadByteToken { id, text: lossy(text) });
                }
            }
        }
        let longest = texts.longest();
        Ok(Vocab { texts, kinds, scores, longest })
    }

    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }

    /// The id of exactly this text, whatever kind of token it is.
    #[inline]
    pub(crate) fn id(&self, text: &[u8]) -> Option<u32> {
        if text.len() > self.longest {
            return None;
        }
        self.texts.find(text)
    }

    /// The id of this text if plain text may turn into that token: control tokens, the unknown
    /// token and byte tokens never come from their own spelling.
    #[inline]
    pub(crate) fn plain_id(&self, text: &[u8]) -> Option<u32> {
        let id = self.id(text)?;
        let barred = Kind::CONTROL.or(Kind::UNKNOWN).or(Kind::BYTE);
        (!self.kinds[id as usize].has(barred)).then_some(id)
    }

    pub(crate) fn text(&self, id: u32) -> Option<&[u8]> {
        self.texts.get(id)
    }

    pub(crate) fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or(Kind::NOTHING)
    }

    /// Does nothing for an id that is not in the vocabulary.
    pub(crate) fn set_kind(&mut self, id: u32, kind: Kind) {
        if let Some(slot) = self.kinds.get_mut(id as usize) {
            *slot = kind;
        }
    }

    pub(crate) fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// Never NaN, never −0.
    #[inline]
    pub(crate) fn score(&self, id: u32) -> f32 {
        self.scores.get(id as usize).copied().unwrap_or(0.0)
    }
}

/// Scores are only compared: a NaN becomes the lowest, −0 becomes 0.
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
    const MOST: usize = 80;
    let shown = String::from_utf8_lossy(&text[..text.len().min(MOST)]);
    if text.len() > MOST { format!("{shown}…") } else { shown.into_owned() }
}
