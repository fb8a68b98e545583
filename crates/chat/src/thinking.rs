//! A limit on the tokens of thinking. At the limit, the family's own mark ends the thinking, and no other begins.
//!
//! Invariant: what is forced follows from the tokens of the prompt and of the answer alone. Whether thinking is open is known from the
//! parser that also divides the answer for its client.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use alight_model::Constraint;
use alight_text::output::{Format, Parser, Reader, Tools};
use alight_text::{EncodeOptions, Tokenizer, Vocabulary};

/// gpt-oss writes the channel of a message after this token, and thinks in messages of this channel.
const CHANNEL: &str = "<|channel|>";
const THINKING_CHANNEL: &[u8] = b"analysis";

/// The vocabulary of a model that is never closed, or of one that may be.
#[derive(Clone)]
pub enum VocabularyHandle {
    /// As long as the process.
    Static(&'static Vocabulary),
    /// As long as a handle.
    Shared(Arc<Vocabulary>),
}

impl Deref for VocabularyHandle {
    type Target = Vocabulary;

    fn deref(&self) -> &Vocabulary {
        match self {
            VocabularyHandle::Static(vocabulary) => vocabulary,
            VocabularyHandle::Shared(vocabulary) => vocabulary,
        }
    }
}

impl From<&'static Vocabulary> for VocabularyHandle {
    fn from(vocabulary: &'static Vocabulary) -> VocabularyHandle {
        VocabularyHandle::Static(vocabulary)
    }
}

impl From<Arc<Vocabulary>> for VocabularyHandle {
    fn from(vocabulary: Arc<Vocabulary>) -> VocabularyHandle {
        VocabularyHandle::Shared(vocabulary)
    }
}

/// The limit on the thinking of an answer.
#[derive(Clone)]
pub struct ThinkingBudget {
    tokens: usize,
    vocabulary: VocabularyHandle,
    tools: Option<Tools>,
}

impl ThinkingBudget {
    /// Creates a limit of this many tokens, without the marks; `tools` are those that the answer may call.
    pub fn new(
        tokens: usize,
        vocabulary: impl Into<VocabularyHandle>,
        tools: Option<Tools>,
    ) -> ThinkingBudget {
        ThinkingBudget { tokens, vocabulary: vocabulary.into(), tools }
    }

    /// Returns the constraint of the answer to this prompt, which `inner` constrains as well.
    pub fn constraint(
        self,
        prompt: &[u32],
        inner: Option<Box<dyn Constraint>>,
    ) -> Box<dyn Constraint> {
        let ThinkingBudget { tokens, vocabulary, tools } = self;
        let (format, tokenizer) = (vocabulary.output_format(), &vocabulary.tokenizer);
        let parser = Parser::after(format, tokenizer, prompt);
        let parser = match tools {
            Some(tools) => parser.with_tools(tools).in_pieces(),
            None => parser,
        };
        Box::new(LimitedThinking {
            inner,
            parser,
            left: tokens,
            closing: VecDeque::new(),
            opens: Opens::new(format, tokenizer),
            last: None,
            reader: Reader::new(format, vocabulary.clone()),
            vocabulary,
        })
    }
}

impl fmt::Debug for ThinkingBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThinkingBudget").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

/// The tokens with which a family begins to think.
struct Opens {
    /// They do so only after this token.
    after: Option<u32>,
    tokens: Vec<u32>,
}

impl Opens {
    fn new(format: Format, tokenizer: &Tokenizer) -> Opens {
        if format == Format::Harmony {
            let begins = |id: &u32| {
                let mut bytes = Vec::new();
                tokenizer.decode_bytes(*id, &mut bytes);
                let (bytes, name) = (&bytes[..], THINKING_CHANNEL);
                !bytes.is_empty() && (name.starts_with(bytes) || bytes.starts_with(name))
            };
            let tokens = (0..tokenizer.vocab_size() as u32).filter(begins).collect();
            return Opens { after: tokenizer.token_id(CHANNEL.as_bytes()), tokens };
        }
        let pairs = format.notation().thinking.iter();
        // A mark of several tokens is not held back: the thinking that it opens ends at once.
        let tokens = pairs.filter_map(|pair| tokenizer.token_id(pair.open.as_bytes())).collect();
        Opens { after: None, tokens }
    }
}

/// An answer whose thinking is limited.
struct LimitedThinking {
    inner: Option<Box<dyn Constraint>>,
    vocabulary: VocabularyHandle,
    reader: Reader<VocabularyHandle>,
    parser: Parser,
    /// The number of tokens that it may still think.
    left: usize,
    /// The rest of the mark that ends the thinking.
    closing: VecDeque<u32>,
    opens: Opens,
    /// The last token.
    last: Option<u32>,
}

impl LimitedThinking {
    /// Begins to end the thinking if its tokens are used up. A character is not cut.
    fn close(&mut self) -> Result<(), Box<str>> {
        if self.left > 0 || !self.closing.is_empty() || self.reader.is_in_character() {
            return Ok(());
        }
        let Some(mark) = self.parser.open_thinking() else { return Ok(()) };
        let options = EncodeOptions { add_bos: Some(false), parse_special: true };
        let tokens =
            self.vocabulary.tokenizer.encode(mark, options).map_err(|error| error.to_string())?;
        self.closing = tokens.into();
        Ok(())
    }
}

impl Constraint for LimitedThinking {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), Box<str>> {
        self.close()?;
        if let Some(&next) = self.closing.front() {
            let others = logits.iter_mut().enumerate().filter(|(id, _)| *id != next as usize);
            others.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
            return Ok(());
        }
        if let Some(inner) = &mut self.inner {
            inner.mask(logits)?;
        }
        let opens = self.opens.after.is_none_or(|after| self.last == Some(after));
        if self.left == 0 && opens && self.parser.may_think() {
            for id in &self.opens.tokens {
                if let Some(logit) = logits.get_mut(*id as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) {
        if let Some(inner) = &mut self.inner {
            inner.accept(token);
        }
        if self.closing.pop_front().is_some_and(|next| next != token) {
            // A bias has ruled the mark out.
            self.closing.clear();
        }
        self.last = Some(token);
        let was_open = self.parser.open_thinking().is_some();
        self.parser.push(self.reader.push(token), &mut |_| ());
        if was_open && self.parser.open_thinking().is_some() {
            self.left = self.left.saturating_sub(1);
        }
    }
}

impl fmt::Debug for LimitedThinking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitedThinking").field("left", &self.left).finish_non_exhaustive()
    }
}
