//! Texts and conversations into the token ids that a model is fed.
//!
//! The chat template's own text may name special tokens; what people wrote may not, unless they
//! asked for it. As the template glues both into one text, every special token's name inside a
//! message is swapped for a private-use character before rendering; where that character comes
//! out, the name is put back and its place noted, and the tokenizer takes it as plain text there.

use std::ops::Range;

use crate::chat::{ChatError, Message};
use crate::tokenizer::{EncodeOptions, TokenizerError};
use crate::vocabulary::Vocabulary;

/// With a chat template, or the bare text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Rendered by the file's chat template.
    Chat,
    /// As it is.
    Raw,
}

/// Why a prompt has no tokens to be fed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// A conversation, and no template for it.
    #[error("the file has no chat template")]
    NoTemplate,
    /// The template does not take this conversation.
    #[error("the file's chat template refuses this conversation")]
    Chat(#[source] ChatError),
    /// The tokenizer does not take this text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The text is nothing to the tokenizer, and the file puts nothing in front of it.
    #[error("the prompt has no tokens")]
    Empty,
}

/// Encodes for one model.
pub struct Encoder<'m> {
    vocabulary: &'m Vocabulary,
    style: Style,
    parse_special: bool,
}

impl<'m> Encoder<'m> {
    /// An encoder for a model. With `parse_special`, special tokens written by people count.
    pub fn new(vocabulary: &'m Vocabulary, style: Style, parse_special: bool) -> Encoder<'m> {
        Encoder { vocabulary, style, parse_special }
    }

    /// With a chat template, or the bare text.
    pub fn style(&self) -> Style {
        self.style
    }

    /// The tokens of a bare text.
    ///
    /// # Errors
    /// [`PromptError::Tokenizer`], [`PromptError::Empty`].
    pub fn raw(&self, text: &str) -> Result<Vec<u32>, PromptError> {
        let tokens = self.begun(self.encode(text, self.parse_special)?);
        if tokens.is_empty() { Err(PromptError::Empty) } else { Ok(tokens) }
    }

    /// The tokens of a conversation; with `answer`, up to where the model's next message begins.
    ///
    /// # Errors
    /// [`PromptError::NoTemplate`], [`PromptError::Chat`], [`PromptError::Tokenizer`].
    pub fn chat(&self, messages: &[Message], answer: bool) -> Result<Vec<u32>, PromptError> {
        let template = self.vocabulary.template.as_ref().ok_or(PromptError::NoTemplate)?;
        let mut hidden = Hidden::default();
        let messages: Vec<Message> = messages
            .iter()
            .map(|message| Message {
                role: message.role.clone(),
                content: if self.parse_special {
                    message.content.clone()
                } else {
                    hidden.hide(&message.content, |text| self.special_in(text))
                },
            })
            .collect();
        let rendered = template.render(&messages, answer).map_err(PromptError::Chat)?;

        let (text, plain) = hidden.restore(&rendered);
        let tokens = self.vocabulary.tokenizer.encode_around(&text, &plain, Some(false))?;
        Ok(self.begun(tokens))
    }

    /// With the begin-of-text token in front where the file asks for one. Many templates write it
    /// as well; it is not doubled.
    fn begun(&self, mut tokens: Vec<u32>) -> Vec<u32> {
        let tokenizer = &self.vocabulary.tokenizer;
        if tokenizer.adds_bos()
            && let Some(bos) = tokenizer.bos()
            && tokens.first() != Some(&bos)
        {
            tokens.insert(0, bos);
        }
        tokens
    }

    /// The tokens of a text, without any at its ends that are not in it: an end-of-text token
    /// after a prompt, which some files ask for, would leave nothing to continue.
    fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let options = EncodeOptions { add_bos: Some(false), parse_special };
        self.vocabulary.tokenizer.encode(text, options)
    }

    /// The names of special tokens that `text` would produce.
    fn special_in(&self, text: &str) -> Vec<String> {
        let tokenizer = &self.vocabulary.tokenizer;
        let ids = self.encode(text, true).unwrap_or_default();
        ids.into_iter()
            .filter(|&id| tokenizer.is_control(id))
            .map(|id| String::from_utf8_lossy(tokenizer.token_text(id)).into_owned())
            .filter(|name| !name.is_empty())
            .collect()
    }
}

/// The first stand-in; plane 16 is private use to its end.
const FIRST: char = '\u{100000}';
const LAST: char = '\u{10FFFD}';

/// Texts that stand-in characters stand for.
#[derive(Debug, Default)]
struct Hidden(Vec<String>);

impl Hidden {
    /// Swaps the special names in `content` (found by `special_in`), and any character that looks
    /// like a stand-in, for stand-ins.
    fn hide(&mut self, content: &str, special_in: impl Fn(&str) -> Vec<String>) -> String {
        let mut text = String::with_capacity(content.len());
        for c in content.chars() {
            let stand_in =
                if (FIRST..=LAST).contains(&c) { self.stand_in(&c.to_string()) } else { None };
            text.push(stand_in.unwrap_or(c));
        }
        loop {
            let mut changed = false;
            for name in special_in(&text) {
                if text.contains(&name)
                    && let Some(c) = self.stand_in(&name)
                {
                    text = text.replace(&name, c.encode_utf8(&mut [0; 4]));
                    changed = true;
                }
            }
            if !changed {
                return text;
            }
        }
    }

    fn stand_in(&mut self, text: &str) -> Option<char> {
        let at = self.0.iter().position(|t| t == text).unwrap_or(self.0.len());
        let c = char::from_u32(FIRST as u32 + u32::try_from(at).ok()?).filter(|&c| c <= LAST)?;
        if at == self.0.len() {
            self.0.push(text.to_owned());
        }
        Some(c)
    }

    /// Puts the names back into a rendered text; their places in it, ascending.
    fn restore(&self, rendered: &str) -> (String, Vec<Range<usize>>) {
        let mut text = String::with_capacity(rendered.len() + 64);
        let mut plain = Vec::new();
        for c in rendered.chars() {
            let index = (c as u32).checked_sub(FIRST as u32);
            match index.and_then(|i| self.0.get(i as usize)) {
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

    fn special_in(text: &str) -> Vec<String> {
        ["<|end|>", "<s>"].iter().filter(|n| text.contains(**n)).map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn names_in_messages_are_plain_and_those_of_the_template_are_not() {
        let mut hidden = Hidden::default();
        let a = hidden.hide("x<|end|><s>y<|end|>", special_in);
        let b = hidden.hide("<s>", special_in);
        assert!(special_in(&a).is_empty() && special_in(&b).is_empty());
        let (text, plain) = hidden.restore(&format!("<s>user {a}<|end|>{b}"));
        assert_eq!(text, "<s>user x<|end|><s>y<|end|><|end|><s>");
        assert_eq!(plain, [9..16, 16..19, 20..27, 34..37]);
        assert!(plain.iter().all(|r| special_in(&text[r.clone()]) == [&text[r.clone()]]));
    }

    #[test]
    fn text_without_them_is_left_alone() {
        let mut hidden = Hidden::default();
        let text = hidden.hide("plain <text>\n日本", special_in);
        assert_eq!(hidden.restore(&text), ("plain <text>\n日本".to_owned(), vec![]));
    }

    #[test]
    fn a_forged_stand_in_stands_for_itself() {
        let mut hidden = Hidden::default();
        let forged = "a\u{100000}<|end|>\u{10FFFD}\u{100001}";
        let text = hidden.hide(forged, special_in);
        assert_eq!(hidden.restore(&text).0, forged);
    }

    #[test]
    fn a_name_that_cannot_be_found_does_not_loop() {
        let text = Hidden::default().hide("abc", |_| vec!["<unk>".to_owned()]);
        assert_eq!(text, "abc");
    }
}
