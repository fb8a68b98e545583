//! SentencePiece's `tokenizer.model`: one message `ModelProto` of Protocol Buffers.
//!
//! The field numbers, their types and defaults are from `sentencepiece_model.proto` of the sentencepiece
//! project; the requirements on a model are those of its reader (`model_interface.cc`): texts that are neither
//! empty nor duplicated, one unknown token, and all 256 bytes as tokens or none. Irrelevant fields are ignored.

use std::borrow::Cow;
use std::collections::HashMap;

use super::vocabulary::{Model, Special, Token, TokenType, Vocabulary, byte_of};
use super::wire::{Field, Fields};
use super::{MAX_FILE, TokenizerError as E};
use crate::text::shown;

/// The types of models, `TrainerSpec.ModelType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelType {
    /// The most probable sequence of pieces.
    Unigram,
    /// Pieces with the highest score are merged first.
    Bpe,
}

/// One token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Piece<'a> {
    /// Its text, with `▁` for spaces.
    pub text: &'a str,
    /// Its priority in merging, or its log probability.
    pub score: f32,
    /// Its type.
    pub ty: TokenType,
}

/// The contents of a file that are needed to use it.
#[derive(Clone, Debug, PartialEq)]
pub struct SentencePiece<'a> {
    /// The tokens by id.
    pub pieces: Vec<Piece<'a>>,
    /// The type of the model.
    pub kind: ModelType,
    /// True if text without a token is spelled in bytes.
    pub byte_fallback: bool,
    /// True if the space is put after words instead of before.
    pub space_after: bool,
    /// Special tokens.
    pub special: Special,
    /// Name of the normalisation, such as `identity` or `nmt_nfkc`.
    pub normalizer: &'a str,
    /// The normalisation itself, compiled.
    pub charsmap: &'a [u8],
    /// True if a space is put before every text.
    pub add_dummy_prefix: bool,
    /// True if spaces at the ends of a text are removed, and runs of spaces become one.
    pub remove_extra_whitespaces: bool,
    /// True if spaces become `▁`.
    pub escape_whitespaces: bool,
}

/// The spellings of special tokens.
struct Names<'a> {
    unknown: &'a str,
    bos: &'a str,
    eos: &'a str,
    padding: &'a str,
}

/// Reads a model.
///
/// # Errors
/// The bytes are not such a message, or break a rule of SentencePiece itself.
pub fn parse(bytes: &[u8]) -> Result<SentencePiece<'_>, E> {
    if bytes.len() > MAX_FILE {
        return Err(E::TooLong { len: bytes.len() });
    }
    let mut model = SentencePiece {
        pieces: Vec::new(),
        kind: ModelType::Unigram,
        byte_fallback: false,
        space_after: false,
        special: Special::default(),
        normalizer: "",
        charsmap: &[],
        add_dummy_prefix: true,
        remove_extra_whitespaces: true,
        escape_whitespaces: true,
    };
    let mut names = Names { unknown: "<unk>", bos: "<s>", eos: "</s>", padding: "<pad>" };
    for field in Fields::of_file("ModelProto", bytes) {
        let field = field?;
        match field.number {
            1 => {
                let id = model.pieces.len() as u64;
                model.pieces.push(piece(id, field.message("SentencePiece")?)?);
            }
            2 => trainer(field.message("TrainerSpec")?, &mut model, &mut names)?,
            3 => normalizer(field.message("NormalizerSpec")?, &mut model)?,
            _ => {}
        }
    }
    check(&mut model, &names)?;
    Ok(model)
}

fn piece<'a>(token: u64, fields: Fields<'a>) -> Result<Piece<'a>, E> {
    let mut piece = Piece { text: "", score: 0.0, ty: TokenType::Normal };
    for field in fields {
        let field = field?;
        match field.number {
            1 => {
                let bytes = field.bytes()?;
                let wrong = |_| E::TokenText { token, text: shown(bytes).into() };
                piece.text = std::str::from_utf8(bytes).map_err(wrong)?;
            }
            2 => piece.score = field.f32()?,
            3 => {
                piece.ty = match field.varint()? {
                    1 => TokenType::Normal,
                    2 => TokenType::Unknown,
                    3 => TokenType::Control,
                    4 => TokenType::UserDefined,
                    5 => TokenType::Unused,
                    6 => TokenType::Byte,
                    found => return Err(E::Type { token, found }),
                }
            }
            _ => {}
        }
    }
    if piece.text.is_empty() {
        return Err(E::EmptyText { token });
    }
    if !piece.score.is_finite() {
        return Err(E::Score { token, found: piece.score.into() });
    }
    Ok(piece)
}

fn text<'a>(field: &Field<'a>, problem: &'static str) -> Result<&'a str, E> {
    std::str::from_utf8(field.bytes()?).map_err(|_| E::Inconsistent { problem })
}

fn trainer<'a>(
    fields: Fields<'a>,
    model: &mut SentencePiece<'a>,
    names: &mut Names<'a>,
) -> Result<(), E> {
    const NAME: &str = "TrainerSpec: the spelling of a special token is not UTF-8";
    for field in fields {
        let field = field?;
        match field.number {
            3 => {
                model.kind = match field.varint()? {
                    1 => ModelType::Unigram,
                    2 => ModelType::Bpe,
                    found @ (3 | 4) => {
                        let advice = "a model of words or characters, which no GGUF file can hold";
                        return Err(E::ModelType { found, advice });
                    }
                    found => {
                        return Err(E::ModelType {
                            found,
                            advice: "expected 1 (unigram) or 2 (BPE)",
                        });
                    }
                }
            }
            24 => model.space_after = field.bool()?,
            35 => model.byte_fallback = field.bool()?,
            45 => names.unknown = text(&field, NAME)?,
            46 => names.bos = text(&field, NAME)?,
            47 => names.eos = text(&field, NAME)?,
            48 => names.padding = text(&field, NAME)?,
            _ => {}
        }
    }
    Ok(())
}

fn normalizer<'a>(fields: Fields<'a>, model: &mut SentencePiece<'a>) -> Result<(), E> {
    for field in fields {
        let field = field?;
        match field.number {
            1 => model.normalizer = text(&field, "NormalizerSpec: its name is not UTF-8")?,
            2 => model.charsmap = field.bytes()?,
            3 => model.add_dummy_prefix = field.bool()?,
            4 => model.remove_extra_whitespaces = field.bool()?,
            5 => model.escape_whitespaces = field.bool()?,
            _ => {}
        }
    }
    Ok(())
}

/// Checks SentencePiece's own requirements on a model, and sets the ids of its special tokens.
fn check(model: &mut SentencePiece<'_>, names: &Names<'_>) -> Result<(), E> {
    if model.pieces.is_empty() {
        return Err(E::Empty);
    }
    let mut ids = HashMap::with_capacity(model.pieces.len());
    let mut unknown = 0_u32;
    let mut bytes = [false; 256];
    // The file has less than 2^32 bytes, so there are fewer pieces than that.
    for (id, piece) in (0_u32..).zip(&model.pieces) {
        if let Some(first) = ids.insert(piece.text, id) {
            let (first, second) = (first.into(), id.into());
            return Err(E::DuplicateToken { first, second, text: piece.text.into() });
        }
        match piece.ty {
            TokenType::Unknown => unknown += 1,
            TokenType::Byte => match byte_of(piece.text) {
                Some(byte) => bytes[usize::from(byte)] = true,
                None => return Err(E::NotAByte { token: id.into(), text: piece.text.into() }),
            },
            _ => {}
        }
    }
    let problem = if unknown == 0 {
        "there is no unknown token (type 2), which every SentencePiece model has"
    } else if unknown > 1 {
        "there are several unknown tokens (type 2), expected one"
    } else if model.byte_fallback && bytes.contains(&false) {
        "byte_fallback is set, but not every byte is a token"
    } else if !model.byte_fallback && bytes.contains(&true) {
        "some tokens are bytes (type 6), but byte_fallback is not set"
    } else if !model.escape_whitespaces {
        "escape_whitespaces is not set, which GGUF cannot express: such a model is not supported"
    } else if model.space_after {
        "treat_whitespace_as_suffix is set, which GGUF cannot express: such a model is not supported"
    } else {
        ""
    };
    if !problem.is_empty() {
        return Err(E::Inconsistent { problem });
    }
    let find = |name: &str, ty| {
        let id = ids.get(name).copied()?;
        (model.pieces[id as usize].ty == ty).then_some(id)
    };
    model.special = Special {
        unknown: find(names.unknown, TokenType::Unknown),
        bos: find(names.bos, TokenType::Control),
        eos: find(names.eos, TokenType::Control),
        padding: find(names.padding, TokenType::Control),
        ..Special::default()
    };
    Ok(())
}

impl<'a> SentencePiece<'a> {
    /// Converts the model to GGUF's terms.
    pub fn vocabulary(&self) -> Vocabulary<'a> {
        self.as_it_is()
    }

    /// Converts the file of XLM-RoBERTa, whose ids are those of fairseq: `<s>`, `<pad>`, `</s>`, `<unk>`, the pieces of the file
    /// from the fourth on, and `<mask>`.
    ///
    /// # Errors
    /// The first three pieces are others.
    pub fn xlm_roberta(&self) -> Result<Vocabulary<'a>, E> {
        const BEFORE: [(&str, TokenType); 4] = [
            ("<s>", TokenType::Control),
            ("<pad>", TokenType::Control),
            ("</s>", TokenType::Control),
            ("<unk>", TokenType::Unknown),
        ];
        let first: Vec<&str> = self.pieces.iter().take(3).map(|piece| piece.text).collect();
        if first != ["<unk>", "<s>", "</s>"] {
            let problem =
                "the first tokens are others than <unk>, <s> and </s>, which XLM-RoBERTa's are";
            return Err(E::Inconsistent { problem });
        }
        let mut all = self.as_it_is();
        let special = BEFORE.into_iter().chain([("<mask>", TokenType::Control)]);
        let special = special.map(|(text, ty)| Token { id: 0, text: text.into(), score: 0.0, ty });
        let mut special: Vec<Token<'a>> = special.collect();
        let mask = special.split_off(BEFORE.len());
        all.tokens = special.into_iter().chain(all.tokens.drain(3..)).chain(mask).collect();
        (0..).zip(&mut all.tokens).for_each(|(id, token)| token.id = id);
        all.special = Special {
            bos: Some(0),
            eos: Some(2),
            unknown: Some(3),
            padding: Some(1),
            ..Special::default()
        };
        (all.add_bos, all.add_eos) = (Some(true), Some(true));
        Ok(all)
    }

    fn as_it_is(&self) -> Vocabulary<'a> {
        let mut notes = Vec::new();
        // For unigram models, GGUF has these settings.
        let unigram = self.kind == ModelType::Unigram;
        if !self.charsmap.is_empty() && !unigram {
            notes.push(format!(
                "the tokenizer normalises text ({}), which GGUF files of this kind cannot say: text in \
                 other forms is cut otherwise",
                shown(self.normalizer.as_bytes())
            ));
        }
        if self.remove_extra_whitespaces && !unigram {
            notes.push(
                "the tokenizer leaves out spaces at the ends of a text and where there are several, \
                 which GGUF files of this kind cannot say"
                    .into(),
            );
        }
        let tokens = (0..).zip(&self.pieces).map(|(id, piece)| {
            let Piece { text, score, ty } = *piece;
            // GGUF matches these in the original text.
            let spelled = ty == TokenType::UserDefined && text.contains('▁');
            let text = if spelled { text.replace('▁', " ").into() } else { Cow::Borrowed(text) };
            Token { id, text, score, ty }
        });
        Vocabulary {
            model: match self.kind {
                ModelType::Bpe => Model::SentencePiece,
                ModelType::Unigram => Model::Unigram,
            },
            pre: "default",
            tokens: tokens.collect(),
            merges: Vec::new(),
            special: self.special,
            add_bos: None,
            add_eos: None,
            add_space_prefix: self.add_dummy_prefix,
            remove_extra_whitespaces: unigram && self.remove_extra_whitespaces,
            charsmap: Cow::Borrowed(if unigram { self.charsmap } else { &[] }),
            word_piece: None,
            notes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_xlm_roberta_are_those_of_fairseq() {
        let piece = |(text, ty)| Piece { text, score: -1.0, ty };
        let special = [
            ("<unk>", TokenType::Unknown),
            ("<s>", TokenType::Control),
            ("</s>", TokenType::Control),
        ];
        let others = [(",", TokenType::Normal), ("▁a", TokenType::Normal)];
        let file = SentencePiece {
            pieces: special.into_iter().chain(others).map(piece).collect(),
            kind: ModelType::Unigram,
            byte_fallback: false,
            space_after: false,
            special: Special::default(),
            normalizer: "nmt_nfkc",
            charsmap: &[1, 2],
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
        };
        let found = file.xlm_roberta().unwrap();
        let tokens: Vec<(u32, &str)> =
            found.tokens.iter().map(|token| (token.id, &*token.text)).collect();
        let expected = ["<s>", "<pad>", "</s>", "<unk>", ",", "▁a", "<mask>"];
        assert_eq!(tokens, (0..).zip(expected).collect::<Vec<_>>());
        assert_eq!((found.special.bos, found.special.eos), (Some(0), Some(2)));
        assert_eq!((found.add_bos, found.add_eos), (Some(true), Some(true)));
        assert_eq!((found.model, &*found.charsmap), (Model::Unigram, &[1, 2][..]));
        let other = SentencePiece { pieces: file.pieces[1..].to_vec(), ..file };
        assert!(matches!(other.xlm_roberta(), Err(E::Inconsistent { .. })));
    }
}
