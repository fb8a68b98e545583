//! The prompt: a text or a conversation turned into the token ids that a model computes.
//!
//! The chat template's own text may name special tokens; the text of messages may not, unless the caller
//! allows it. Since the template joins both into one text, every special token's name inside a message
//! is replaced by a private-use character before rendering. Where that character appears in the output,
//! the name is restored and its range recorded, and the tokenizer treats that range as plain text.

use std::collections::HashMap;
use std::ops::Range;

use serde_json::{Map, Value};

use crate::template::{self, ChatError, Message, Time};
use crate::tokenizer::{EncodeOptions, Stop, Tokenizer, TokenizerError, never};
use crate::vocabulary::{TemplateError, Vocabulary};

/// Whether a prompt is rendered by a chat template or is the bare text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Rendered by the file's chat template.
    Chat,
    /// Used unchanged.
    Raw,
}

/// The reason why a prompt has no tokens.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// A conversation, and the file has no template for it.
    #[error("the file has no chat template")]
    NoTemplate,
    /// The template is unusable.
    #[error(transparent)]
    Template(TemplateError),
    /// The template rejects this conversation.
    #[error(transparent)]
    Chat(ChatError),
    /// The tokenizer rejects this text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The conversation spells more different special tokens, and contains more different characters
    /// of the last plane of Unicode, than there are stand-ins.
    #[error(
        "the conversation has more than {limit} different names of special tokens and characters for \
         private use: leave some out"
    )]
    TooManyNames {
        /// The maximum number.
        limit: u32,
    },
    /// The template does not write the text of the last message, which was to be continued.
    #[error(
        "the file's chat template does not write the last message as it is: it cannot be continued"
    )]
    NotContinued,
    /// The text yields no token, and the file puts none before it.
    #[error("the prompt has no tokens")]
    Empty,
    /// A gap is to be filled, and the vocabulary has no tokens that mark one.
    #[error(
        "the model cannot fill a gap: its vocabulary has no tokens for the text before it, the text after it and what is \
         between (fill in the middle): use one that was trained for it, such as Qwen2.5-Coder"
    )]
    NoInfill,
    /// The rendered conversation does not fit into the context that was given to [`Encoder::within`].
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// The rendered conversation yields no token.
    #[error(
        "the file's chat template makes no text of this conversation: there is no token to begin with"
    )]
    NothingRendered,
}

/// A prompt is too long for the context, whatever its tokens are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the prompt has {bytes} bytes, and the context of {context} tokens holds {most} at most (no token of this \
     model is longer than {longest}): shorten it, or give a larger -c"
)]
pub struct TooLong {
    /// Bytes of the prompt.
    pub bytes: usize,
    /// Positions of the context.
    pub context: usize,
    /// The maximum number of bytes that fit.
    pub most: usize,
    /// Bytes of the longest token.
    pub longest: usize,
}

/// Refuses a prompt of `bytes` bytes that is too long for the context whatever its tokens are, before memory is
/// spent on finding them: a token represents no more than its own bytes.
///
/// # Errors
/// [`TooLong`].
pub fn check_length(bytes: usize, tokenizer: &Tokenizer, context: usize) -> Result<(), TooLong> {
    // Most prompts need no look at the vocabulary; and some tokenizers have a token for any number of bytes.
    if bytes <= context || tokenizer.may_shorten() {
        return Ok(());
    }
    // A character without a token becomes one unknown token.
    let longest = tokenizer.longest_token().max(char::MAX.len_utf8());
    let most = context.saturating_mul(longest);
    if bytes <= most { Ok(()) } else { Err(TooLong { bytes, context, most, longest }) }
}

/// A piece of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptPiece<'t> {
    /// A text.
    Text(&'t str),
    /// A token.
    Token(u32),
}

/// Encodes prompts for one model.
pub struct Encoder<'m> {
    vocabulary: &'m Vocabulary,
    style: Style,
    parse_special: bool,
    variables: Map<String, Value>,
    time: Option<Time>,
    context: usize,
    stop: Stop,
}

impl<'m> Encoder<'m> {
    /// Creates an encoder for a model. With `parse_special`, names of special tokens in texts and
    /// messages become those tokens.
    pub fn new(vocabulary: &'m Vocabulary, style: Style, parse_special: bool) -> Encoder<'m> {
        Encoder {
            vocabulary,
            style,
            parse_special,
            variables: Map::new(),
            time: None,
            context: usize::MAX,
            stop: never,
        }
    }

    /// Stops encoding with [`TokenizerError::Stopped`] once `stop` returns true.
    pub fn until(self, stop: Stop) -> Encoder<'m> {
        Encoder { stop, ..self }
    }

    /// Refuses a conversation that is too long for a context of this many tokens whatever its tokens are, before memory is spent on
    /// finding them.
    pub fn within(self, context: usize) -> Encoder<'m> {
        Encoder { context, ..self }
    }

    /// Gives templates these variables, except those that a conversation has.
    pub fn with_variables(self, variables: Map<String, Value>) -> Encoder<'m> {
        Encoder { variables, ..self }
    }

    /// Fixes the time that templates know, which is the present otherwise.
    pub fn at(self, time: Time) -> Encoder<'m> {
        Encoder { time: Some(time), ..self }
    }

    /// The vocabulary and the template of the model.
    pub fn vocabulary(&self) -> &'m Vocabulary {
        self.vocabulary
    }

    /// Returns whether a chat template renders the prompt.
    pub fn style(&self) -> Style {
        self.style
    }

    /// The tokens of a bare text.
    ///
    /// # Errors
    /// [`PromptError::Tokenizer`], [`PromptError::Empty`].
    pub fn raw(&self, text: &str) -> Result<Vec<u32>, PromptError> {
        self.pieces(&[PromptPiece::Text(text)])
    }

    /// The tokens of pieces that follow one another. Before the first, if it is a text, stands what [`raw`](Self::raw) has there.
    ///
    /// # Errors
    /// As [`raw`](Self::raw).
    pub fn pieces(&self, pieces: &[PromptPiece<'_>]) -> Result<Vec<u32>, PromptError> {
        let mut tokens = Vec::new();
        for (i, piece) in pieces.iter().enumerate() {
            match piece {
                PromptPiece::Text(text) if i == 0 => {
                    tokens = self.begun(self.encode(text, self.parse_special)?);
                }
                PromptPiece::Text(text) => tokens.extend(self.encode(text, self.parse_special)?),
                PromptPiece::Token(id) => tokens.push(*id),
            }
        }
        if tokens.is_empty() { Err(PromptError::Empty) } else { Ok(tokens) }
    }

    /// The tokens of a conversation; with `answer`, up to where the model's next message begins.
    ///
    /// # Errors
    /// [`PromptError::NoTemplate`], [`PromptError::Template`], [`PromptError::Chat`],
    /// [`PromptError::Tokenizer`], [`PromptError::TooLong`], [`PromptError::NothingRendered`].
    pub fn chat(&self, messages: &[Message], answer: bool) -> Result<Vec<u32>, PromptError> {
        self.chat_in(template::context(messages, answer))
    }

    /// The tokens of a conversation with tools, or with any other variables of the template: `context` is what Hugging Face's
    /// `apply_chat_template` passes to it. It has `messages`, each with `role`, `content` and perhaps `tool_calls`, whose
    /// arguments are an object; `tools`, as JSON schemas; `add_generation_prompt`; and perhaps `enable_thinking`,
    /// `reasoning_effort`, …
    ///
    /// The variables that llama-server gives to a template in addition have its defaults: `enable_thinking` is true; `date_string` (`26 Jul 2024`) and `datetime` (`Jul 26 2024`) are today's date
    /// in the local time zone. The time is taken once for a prompt.
    ///
    /// With `continue_final_message`, which is not passed to the template there either, the tokens end with the text of the last
    /// message, so that the model continues it.
    ///
    /// # Errors
    /// As [`chat`](Self::chat); [`PromptError::NotContinued`].
    pub fn chat_in(&self, context: Map<String, Value>) -> Result<Vec<u32>, PromptError> {
        let (rendered, hidden) = self.rendered(context)?;
        let (text, plain) = hidden.restore(&rendered);
        check_length(text.len(), self.tokenizer(), self.context)?;
        let tokens = self.tokenizer().encode_around_until(&text, &plain, Some(false), self.stop)?;
        let tokens = self.begun(tokens);
        if tokens.is_empty() { Err(PromptError::NothingRendered) } else { Ok(tokens) }
    }

    /// The text of a conversation as the template renders it, without looking for tokens in it. In it, a private-use character stands
    /// for each name of a special token in the messages.
    ///
    /// # Errors
    /// As [`chat_in`](Self::chat_in).
    pub fn render(&self, context: Map<String, Value>) -> Result<String, PromptError> {
        if (self.stop)() {
            return Err(TokenizerError::Stopped.into());
        }
        Ok(self.rendered(context)?.0)
    }

    fn rendered(&self, mut context: Map<String, Value>) -> Result<(String, Hidden), PromptError> {
        let template = self.vocabulary.template().ok_or(PromptError::NoTemplate)?;
        let template = template.map_err(|error| PromptError::Template(error.clone()))?;
        let continued = context.shift_remove("continue_final_message") == Some(true.into());
        for (name, value) in &self.variables {
            context.entry(name).or_insert_with(|| value.clone());
        }
        let mut hidden = Hidden::default();
        if !self.parse_special {
            for value in context.values_mut() {
                // Checks that it is not too deep to be walked.
                template::measure(value, 1).map_err(PromptError::Chat)?;
                let roles: Vec<Option<Value>> = match value.as_array() {
                    Some(items) => items.iter().map(|item| item.get("role").cloned()).collect(),
                    None => Vec::new(),
                };
                self.hide(value, &mut hidden)?;
                // Roles are set by the caller, and templates compare them.
                for (item, role) in value.as_array_mut().into_iter().flatten().zip(roles) {
                    if let (Some(object), Some(role)) = (item.as_object_mut(), role) {
                        object.insert("role".to_owned(), role);
                    }
                }
            }
        }
        if continued {
            mark_end(&mut context)?;
        }
        let time = self.time.unwrap_or_else(Time::now);
        template::complete(&mut context, time);
        let mut rendered = template.render_context_at(&context, time).map_err(PromptError::Chat)?;
        if continued {
            rendered.truncate(rendered.rfind(MARK).ok_or(PromptError::NotContinued)?);
        }
        Ok((rendered, hidden))
    }

    /// Hides the names of special tokens in all texts of a value, including the keys of objects.
    fn hide(&self, value: &mut Value, hidden: &mut Hidden) -> Result<(), PromptError> {
        let names = |text: &str| self.vocabulary.tokenizer.control_spellings(text);
        match value {
            Value::String(text) => *text = hidden.hide(text, names(text))?,
            Value::Array(items) => {
                for item in items {
                    self.hide(item, hidden)?;
                }
            }
            Value::Object(entries) => {
                let before = std::mem::take(entries);
                for (key, mut value) in before {
                    self.hide(&mut value, hidden)?;
                    entries.insert(hidden.hide(&key, names(&key))?, value);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        Ok(())
    }

    pub(crate) fn tokenizer(&self) -> &'m Tokenizer {
        &self.vocabulary.tokenizer
    }

    /// Puts the begin-of-text token in front if the file requests one. Many templates write it as
    /// well; it is not doubled.
    pub(crate) fn begun(&self, mut tokens: Vec<u32>) -> Vec<u32> {
        let tokenizer = &self.vocabulary.tokenizer;
        if tokenizer.adds_bos()
            && let Some(bos) = tokenizer.bos()
            && tokens.first() != Some(&bos)
        {
            tokens.insert(0, bos);
        }
        tokens
    }

    /// The tokens of a text, without any added at its ends: an end-of-text token after a prompt,
    /// which some files request, would leave nothing to continue.
    pub(crate) fn encode(
        &self,
        text: &str,
        parse_special: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        let options = EncodeOptions { add_bos: Some(false), parse_special };
        self.tokenizer().encode_until(text, options, self.stop)
    }
}

/// Marks the end of a message's text that is to be continued. It is neither a character nor a stand-in; if the text contains it
/// nevertheless, that occurrence precedes this one.
const MARK: char = char::MAX;

/// Marks the end of the last message's text, which the template is to write as a finished message.
fn mark_end(context: &mut Map<String, Value>) -> Result<(), PromptError> {
    context.insert("add_generation_prompt".to_owned(), false.into());
    let messages = context.get_mut("messages").and_then(Value::as_array_mut);
    match messages.and_then(|all| all.last_mut()?.get_mut("content")) {
        Some(Value::String(text)) => {
            text.push(MARK);
            Ok(())
        }
        _ => Err(PromptError::NotContinued),
    }
}

/// The first stand-in; plane 16 is private use to its end.
const FIRST: char = '\u{100000}';
const LAST: char = '\u{10FFFD}';

/// The texts that stand-in characters represent.
#[derive(Debug, Default)]
struct Hidden {
    texts: Vec<String>,
    /// Their indices in `texts`.
    indices: HashMap<String, u32>,
}

impl Hidden {
    /// Replaces the text at `names` in `content` (ranges in bytes, ascending), and any character that looks like a
    /// stand-in, with stand-ins.
    ///
    /// # Errors
    /// [`PromptError::TooManyNames`]: no stand-ins are left. Content that could not be hidden must not be rendered.
    fn hide(
        &mut self,
        content: &str,
        names: impl Iterator<Item = Range<usize>>,
    ) -> Result<String, PromptError> {
        let mut text = String::with_capacity(content.len());
        let mut from = 0;
        for name in names {
            self.between(&content[from..name.start], &mut text)?;
            text.push(self.stand_in(&content[name.clone()])?);
            from = name.end;
        }
        self.between(&content[from..], &mut text)?;
        Ok(text)
    }

    /// Copies text that spells no special token.
    fn between(&mut self, part: &str, out: &mut String) -> Result<(), PromptError> {
        for c in part.chars() {
            let forged = (FIRST..=LAST).contains(&c);
            out.push(if forged { self.stand_in(c.encode_utf8(&mut [0; 4]))? } else { c });
        }
        Ok(())
    }

    fn stand_in(&mut self, text: &str) -> Result<char, PromptError> {
        let at = match self.indices.get(text) {
            Some(&at) => at,
            None => {
                let at = self.texts.len() as u32;
                if FIRST as u32 + at > LAST as u32 {
                    return Err(PromptError::TooManyNames { limit: at });
                }
                self.texts.push(text.to_owned());
                self.indices.insert(text.to_owned(), at);
                at
            }
        };
        // Within plane 16, where every number is a character.
        Ok(char::from_u32(FIRST as u32 + at).unwrap_or(FIRST))
    }

    /// Puts the names back into a rendered text; returns it and their ranges in it, ascending.
    fn restore(&self, rendered: &str) -> (String, Vec<Range<usize>>) {
        let mut text = String::with_capacity(rendered.len() + 64);
        let mut plain = Vec::new();
        for c in rendered.chars() {
            let index = (c as u32).checked_sub(FIRST as u32);
            match index.and_then(|i| self.texts.get(i as usize)) {
                Some(name) => {
                    plain.push(text.len()..text.len() + name.len());
                    text.push_str(name);
                }
                None => text.push(c),
            }
        }
        (text, plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranges of these names, as the tokenizer returns them.
    fn names(text: &str) -> impl Iterator<Item = Range<usize>> {
        let mut found: Vec<Range<usize>> = ["<|end|>", "<s>"]
            .iter()
            .flat_map(|name| text.match_indices(name).map(|(at, name)| at..at + name.len()))
            .collect();
        found.sort_by_key(|range| range.start);
        found.into_iter()
    }

    fn hide(hidden: &mut Hidden, text: &str) -> String {
        hidden.hide(text, names(text)).unwrap()
    }

    #[test]
    fn names_in_messages_are_plain_and_names_in_the_template_are_not() {
        let mut hidden = Hidden::default();
        let a = hide(&mut hidden, "x<|end|><s>y<|end|>");
        let b = hide(&mut hidden, "<s>");
        assert_eq!(names(&a).chain(names(&b)).count(), 0);
        let (text, plain) = hidden.restore(&format!("<s>user {a}<|end|>{b}"));
        assert_eq!(text, "<s>user x<|end|><s>y<|end|><|end|><s>");
        assert_eq!(plain, [9..16, 16..19, 20..27, 34..37]);
        assert!(plain.iter().all(|r| names(&text[r.clone()]).eq(std::iter::once(0..r.len()))));
    }

    #[test]
    fn text_without_them_is_left_alone() {
        let mut hidden = Hidden::default();
        let text = hide(&mut hidden, "plain <text>\n日本");
        assert_eq!(hidden.restore(&text), ("plain <text>\n日本".to_owned(), vec![]));
    }

    #[test]
    fn a_forged_stand_in_stands_for_itself() {
        let mut hidden = Hidden::default();
        let forged = "a\u{100000}<|end|>\u{10FFFD}\u{100001}";
        let text = hide(&mut hidden, forged);
        assert_eq!(hidden.restore(&text).0, forged);
    }

    #[test]
    fn a_conversation_that_uses_up_the_stand_ins_is_an_error() {
        let all: String = (FIRST..=LAST).collect();
        let mut hidden = Hidden::default();
        let text = hide(&mut hidden, &all);
        assert_eq!(hidden.restore(&text).0, all);
        let limit = hidden.texts.len() as u32;
        let error = hidden.hide("<|end|>", names("<|end|>")).unwrap_err();
        assert_eq!(error, PromptError::TooManyNames { limit });
    }
}
