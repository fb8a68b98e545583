//! The tokens of a legacy file, and their form in GGUF.
//!
//! These files hold the decoded text of tokens: a byte token is one raw byte, a space is a space, the unknown
//! token is `" ⁇ "`, and begin and end of text are empty. GGUF holds the pieces of the tokenizer's model. The
//! conversion relies on the fixed first 259 ids of LLaMA's tokenizer.

use std::borrow::Cow;

use super::GgmlError;
use crate::text::shown;
pub use crate::tokenizer::TokenType;

/// One token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GgmlToken<'a> {
    /// Its decoded text.
    pub text: &'a [u8],
    /// Its priority in merging; 0 in files without scores.
    pub score: f32,
}

/// The tokens of a file.
#[derive(Clone, Debug)]
pub struct GgmlVocabulary<'a> {
    /// The tokens in the file.
    pub tokens: Vec<GgmlToken<'a>>,
    /// True if the file has scores. Without them, text is not split as in training, and the original
    /// `tokenizer.model` is needed.
    pub scored: bool,
    /// The number of tokens that the header announces, `n_vocab`. In files of GPT4All it is one more than the
    /// file has, since the last token is padding and left out.
    pub announced: u32,
}

/// A token in GGUF's form.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufToken<'a> {
    /// For `tokenizer.ggml.tokens`.
    pub text: Cow<'a, str>,
    /// For `tokenizer.ggml.scores`; 0 if the file has none, see [`GgmlVocabulary::scored`].
    pub score: f32,
    /// For `tokenizer.ggml.token_type`.
    pub ty: TokenType,
}

/// `tokenizer.ggml.unknown_token_id`.
pub const UNKNOWN: u32 = 0;
/// `tokenizer.ggml.bos_token_id`.
pub const BEGIN: u32 = 1;
/// `tokenizer.ggml.eos_token_id`.
pub const END: u32 = 2;

impl<'a> GgmlVocabulary<'a> {
    /// True if the last token is missing, as in the files of GPT4All.
    pub fn lacks_padding(&self) -> bool {
        (self.tokens.len() as u64) < u64::from(self.announced)
    }

    /// The tokens in GGUF's form, as many as the header announces: a token that the file omits becomes `<pad>`.
    ///
    /// # Errors
    /// [`GgmlError::TokenText`]: a text token is not valid text.
    pub fn to_gguf(&self) -> Result<Vec<GgufToken<'a>>, GgmlError> {
        let mut out = Vec::with_capacity(self.tokens.len() + 1);
        for (id, token) in (0..).zip(&self.tokens) {
            let (text, ty) = piece(id, token.text)?;
            out.push(GgufToken { text, score: token.score, ty });
        }
        if self.lacks_padding() {
            let text = Cow::Borrowed("<pad>");
            out.push(GgufToken { text, score: 0.0, ty: TokenType::Control });
        }
        Ok(out)
    }
}

/// The piece from which token `id` was made, which decodes to `text`.
fn piece(id: u32, text: &[u8]) -> Result<(Cow<'_, str>, TokenType), GgmlError> {
    Ok(match (id, text) {
        (UNKNOWN, _) => (Cow::Borrowed("<unk>"), TokenType::Unknown),
        (BEGIN, _) => (Cow::Borrowed("<s>"), TokenType::Control),
        (END, _) => (Cow::Borrowed("</s>"), TokenType::Control),
        (_, []) => (Cow::Borrowed(""), TokenType::Control),
        (3..=258, [byte]) => (Cow::Owned(format!("<0x{byte:02X}>")), TokenType::Byte),
        _ => {
            let bad = |_| GgmlError::TokenText { token: id, text: shown(text).into() };
            let text = std::str::from_utf8(text).map_err(bad)?;
            let text = match text.contains(' ') {
                true => Cow::Owned(text.replace(' ', "\u{2581}")),
                false => Cow::Borrowed(text),
            };
            (text, TokenType::Normal)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_become_pieces() {
        let as_gguf = |id, text| piece(id, text).map(|(text, ty)| (text.into_owned(), ty as i32));
        let is = |id, text, piece: &str, ty| assert_eq!(as_gguf(id, text), Ok((piece.into(), ty)));
        is(0, " \u{2047} ".as_bytes(), "<unk>", 2);
        is(0, b"", "<unk>", 2);
        is(1, b"", "<s>", 3);
        is(2, b"", "</s>", 3);
        is(3, b"\0", "<0x00>", 6);
        is(13, b"\n", "<0x0A>", 6);
        is(35, b" ", "<0x20>", 6);
        is(258, b"\xff", "<0xFF>", 6);
        is(259, b"  ", "\u{2581}\u{2581}", 1);
        is(260, b"a", "a", 1);
        is(263, b" a b", "\u{2581}a\u{2581}b", 1);
        is(300, b"", "", 3);
        is(4, "\u{fffd}".as_bytes(), "\u{fffd}", 1);
        let error = piece(259, b"\xff\x1b").unwrap_err().to_string();
        assert!(error.contains("token 259") && error.contains("\\xff\\u{1b}"), "{error}");
    }

    #[test]
    fn what_is_left_out_is_padding() {
        let token = GgmlToken { text: b"x", score: -1.0 };
        let vocabulary = GgmlVocabulary { tokens: vec![token; 4], scored: true, announced: 5 };
        let tokens = vocabulary.to_gguf().unwrap();
        assert_eq!((tokens.len(), tokens[3].score), (5, -1.0));
        assert_eq!((&*tokens[4].text, tokens[4].ty), ("<pad>", TokenType::Control));
        assert_eq!(GgmlVocabulary { announced: 4, ..vocabulary }.to_gguf().unwrap().len(), 4);
    }
}
