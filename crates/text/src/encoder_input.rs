//! The tokens that an encoder reads: those of a text, or of a pair of texts, and the ones that its family puts around them.
//!
//! A text that does not fit is shortened before the closing tokens are added, and of a pair only the second text is. A pair has the
//! form that the model was trained with, whatever the flags of its file say: `[CLS] a [SEP] b [SEP]` for BERT and its kin,
//! `<s> a </s></s> b </s>` for RoBERTa and its kin. Rerankers that are decoders have a template, `tokenizer.chat_template.rerank`,
//! with `{query}` and `{document}` in it, each replaced once.
//!
//! Invariant: a text never becomes control tokens, unless the caller requests it.

use std::ops::Range;

use crate::tokenizer::{EncodeOptions, Stop, Tokenizer, TokenizerError};
use crate::vocabulary::Vocabulary;

/// A text or a pair, as tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncoderInput {
    /// All tokens.
    pub tokens: Vec<u32>,
    /// The index of the first token of the second text, for a pair without a template.
    pub second: Option<usize>,
    /// True if tokens were left out at the end of the text, or of the second one of a pair.
    pub truncated: bool,
}

/// The maximum length of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// The maximum number of tokens.
    pub limit: usize,
    /// True if a longer text is shortened, and not refused.
    pub truncate: bool,
}

/// The reason why texts have no tokens for an encoder.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The tokenizer rejects a text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// There are too many tokens.
    #[error("the text has {tokens} tokens, and the model reads at most {limit}")]
    TooLong {
        /// The number of tokens, with those around the text.
        tokens: usize,
        /// The maximum number.
        limit: usize,
    },
    /// The first text leaves no room for the second, which alone may be shortened.
    #[error(
        "the query leaves no room for a document: it has {tokens} tokens with those around both, and the model reads at most {limit}"
    )]
    FirstTooLong {
        /// The number of tokens without the second text.
        tokens: usize,
        /// The maximum number.
        limit: usize,
    },
    /// The template of the file lacks a place for a text.
    #[error("the file's template for reranking has no {0} in it")]
    Template(&'static str),
    /// There is no token at all.
    #[error(
        "the text is empty, and the model adds no token to a text: there is nothing to compute"
    )]
    Empty,
}

const QUERY: &str = "{query}";
const DOCUMENT: &str = "{document}";

/// The tokens around one or two texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct InputFrame {
    begin: Option<u32>,
    /// Between two texts.
    between: Vec<u32>,
    end: Option<u32>,
}

impl InputFrame {
    fn of(tokenizer: &Tokenizer) -> InputFrame {
        let begin = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        let end = tokenizer.eos().filter(|_| tokenizer.adds_eos());
        let is = |token: Option<u32>, text: &[u8]| {
            token.is_some_and(|id| tokenizer.token_text(id) == text)
        };
        let separator = tokenizer.separator().or(tokenizer.eos());
        let between = if is(end, b"[SEP]") {
            vec![end]
        } else if is(begin, b"<s>") && is(end, b"</s>") {
            vec![end, end]
        } else {
            vec![end, separator.filter(|_| tokenizer.adds_separator())]
        };
        InputFrame { begin, between: between.into_iter().flatten().collect(), end }
    }
}

/// Makes inputs for one model.
#[derive(Clone, Copy)]
pub struct InputEncoder<'m> {
    vocabulary: &'m Vocabulary,
    parse_special: bool,
    stop: Stop,
}

impl<'m> InputEncoder<'m> {
    /// Creates it. With `parse_special`, names of special tokens in texts become those tokens.
    pub fn new(vocabulary: &'m Vocabulary, parse_special: bool, stop: Stop) -> InputEncoder<'m> {
        InputEncoder { vocabulary, parse_special, stop }
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// See [`InputError`].
    pub fn text(&self, text: &str, fit: Fit) -> Result<EncoderInput, InputError> {
        let frame = InputFrame::of(self.tokenizer());
        let own = self.encode(text)?;
        let around = usize::from(frame.begin.is_some()) + usize::from(frame.end.is_some());
        let (kept, truncated) = fitting(own.len(), around, fit)?;
        let all = frame.begin.into_iter().chain(own[..kept].iter().copied()).chain(frame.end);
        let tokens: Vec<u32> = all.collect();
        if tokens.is_empty() {
            return Err(InputError::Empty);
        }
        Ok(EncoderInput { tokens, second: None, truncated })
    }

    /// Tokens that the caller has made, with what stands around a text. If they are too long, the last of them stays last if it closes a text.
    ///
    /// # Errors
    /// See [`InputError`].
    pub fn tokens(&self, mut tokens: Vec<u32>, fit: Fit) -> Result<EncoderInput, InputError> {
        if tokens.is_empty() {
            return Err(InputError::Empty);
        }
        let (kept, truncated) = fitting(tokens.len(), 0, fit)?;
        let end = InputFrame::of(self.tokenizer()).end.filter(|end| tokens.last() == Some(end));
        tokens.truncate(kept);
        if let (true, Some(end), Some(last)) = (truncated, end, tokens.last_mut()) {
            *last = end;
        }
        Ok(EncoderInput { tokens, second: None, truncated })
    }

    /// The tokens of a pair: a query, and a document.
    ///
    /// # Errors
    /// See [`InputError`].
    pub fn pair(&self, query: &str, document: &str, fit: Fit) -> Result<EncoderInput, InputError> {
        if let Some(template) = self.vocabulary.rerank_template() {
            return self.in_template(template, query, document, fit);
        }
        let frame = InputFrame::of(self.tokenizer());
        let (first, second) = (self.encode(query)?, self.encode(document)?);
        let around = frame.begin.iter().len() + frame.between.len() + frame.end.iter().len();
        let (kept, truncated) = fitting_second(second.len(), first.len() + around, fit)?;
        let mut tokens = Vec::with_capacity(first.len() + around + kept);
        tokens.extend(frame.begin);
        tokens.extend(first);
        tokens.extend(frame.between);
        let begins = tokens.len();
        tokens.extend_from_slice(&second[..kept]);
        tokens.extend(frame.end);
        if tokens.is_empty() {
            return Err(InputError::Empty);
        }
        Ok(EncoderInput { tokens, second: Some(begins), truncated })
    }

    fn in_template(
        &self,
        template: &str,
        query: &str,
        document: &str,
        fit: Fit,
    ) -> Result<EncoderInput, InputError> {
        let places = [(QUERY, query), (DOCUMENT, document)];
        let mut places = places.map(|(name, text)| (template.find(name), name, text));
        places.sort_by_key(|(at, ..)| *at);
        // The text in up to three parts: before the document, with it, and after it.
        let (mut text, mut plain) = (String::new(), Vec::new());
        let (mut from, mut of_document) = (0, 0..0);
        for (at, name, own) in places {
            let at = at.ok_or(InputError::Template(name))?;
            text.push_str(&template[from..at]);
            let range = text.len()..text.len() + own.len();
            text.push_str(own);
            if name == DOCUMENT {
                of_document = range.clone();
            }
            plain.push(range);
            from = at + name.len();
        }
        text.push_str(&template[from..]);

        // The end of a document is the end of a text in the model's training, too, which has let it be cut there.
        let mut tokens = self.around(&text, &plain, 0..of_document.end)?;
        let tail = self.around(&text, &plain, of_document.end..text.len())?;
        let mut truncated = false;
        if tokens.len() + tail.len() > fit.limit {
            let before = self.around(&text, &plain, 0..of_document.start)?.len();
            let own = tokens.len().saturating_sub(before);
            let (kept, shortened) = fitting_second(own, before + tail.len(), fit)?;
            tokens.truncate(before + kept);
            truncated = shortened;
        }
        tokens.extend(tail);
        if tokens.is_empty() {
            return Err(InputError::Empty);
        }
        Ok(EncoderInput { tokens, second: None, truncated })
    }

    /// The tokens of a part of a text, which is trusted except for the ranges `plain` of the whole.
    fn around(
        &self,
        text: &str,
        plain: &[Range<usize>],
        part: Range<usize>,
    ) -> Result<Vec<u32>, TokenizerError> {
        let within = plain.iter().filter_map(|range| {
            let (from, to) = (range.start.max(part.start), range.end.min(part.end));
            (from < to).then(|| from - part.start..to - part.start)
        });
        let plain: Vec<Range<usize>> =
            if self.parse_special { Vec::new() } else { within.collect() };
        self.tokenizer().encode_around_until(&text[part], &plain, Some(false), self.stop)
    }

    fn tokenizer(&self) -> &'m Tokenizer {
        &self.vocabulary.tokenizer
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let options = EncodeOptions { add_bos: Some(false), parse_special: self.parse_special };
        self.tokenizer().encode_until(text, options, self.stop)
    }
}

/// The number of tokens, of `own`, that are kept if `around` others are added; true if that is not all.
fn fitting(own: usize, around: usize, fit: Fit) -> Result<(usize, bool), InputError> {
    let tokens = own.saturating_add(around);
    if tokens <= fit.limit {
        return Ok((own, false));
    }
    match fit.limit.checked_sub(around) {
        Some(kept) if fit.truncate => Ok((kept, true)),
        _ => Err(InputError::TooLong { tokens, limit: fit.limit }),
    }
}

/// As [`fitting`], for the second text of a pair, of which something must be left.
fn fitting_second(own: usize, others: usize, fit: Fit) -> Result<(usize, bool), InputError> {
    match fitting(own, others, fit) {
        Ok((0, true)) => Err(InputError::FirstTooLong { tokens: others, limit: fit.limit }),
        Err(_) if others >= fit.limit => {
            Err(InputError::FirstTooLong { tokens: others, limit: fit.limit })
        }
        fitted => fitted,
    }
}
