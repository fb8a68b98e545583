//! Conversations into token ids.
//!
//! The chat template's own text may name special tokens; what people wrote may not, unless they
//! asked for it. As the template glues both into one text, every special token's name inside a
//! message is swapped for a private-use character before rendering; where that character comes
//! out, the name is put back and its place noted, and the tokenizer takes it as plain text there.

use std::ops::Range;

use alight_model::Model;
use alight_model::chat::Message;
use alight_model::tokenizer::EncodeOptions;
use anyhow::{Context, anyhow};

/// With a chat template, or the bare text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Rendered by the file's chat template.
    Chat,
    /// As it is.
    Raw,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    /// The text.
    pub content: String,
}

impl Turn {
    /// Who the model should be.
    pub fn system(content: &str) -> Turn {
        Turn { role: "system", content: content.to_owned() }
    }

    /// What the user says.
    pub fn user(content: &str) -> Turn {
        Turn { role: "user", content: content.to_owned() }
    }

    /// What the model said.
    pub fn assistant(content: &str) -> Turn {
        Turn { role: "assistant", content: content.to_owned() }
    }
}

/// Encodes for one model.
pub struct Encoder<'m> {
    model: &'m Model,
    style: Style,
    parse_special: bool,
}

impl<'m> Encoder<'m> {
    /// An encoder for `model`. With `parse_special`, special tokens written by people count.
    pub fn new(model: &'m Model, style: Style, parse_special: bool) -> Encoder<'m> {
        Encoder { model, style, parse_special }
    }

    /// With a chat template, or the bare text.
    pub fn style(&self) -> Style {
        self.style
    }

    /// The tokens of a bare text.
    pub fn raw(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        let tokens = self.begun(self.encode(text, self.parse_special)?);
        if tokens.is_empty() { Err(anyhow!("the prompt has no tokens")) } else { Ok(tokens) }
    }

    /// The tokens of a conversation, ready for the model's next message.
    pub fn chat(&self, turns: &[Turn]) -> anyhow::Result<Vec<u32>> {
        let template = self.model.chat_template().context("the file has no chat template")?;
        let mut hidden = Hidden::default();
        let messages: Vec<Message> = turns
            .iter()
            .map(|turn| Message {
                role: turn.role.to_owned(),
                content: if self.parse_special {
                    turn.content.clone()
                } else {
                    hidden.hide(&turn.content, |text| self.special_in(text))
                },
            })
            .collect();
        let rendered = template
            .render(&messages, true)
            .map_err(|e| anyhow!(e))
            .context("the file's chat template refuses this conversation")?;

        let (text, plain) = hidden.restore(&rendered);
        let tokens = self
            .model
            .tokenizer()
            .encode_around(&text, &plain, Some(false))
            .map_err(|e| anyhow!(e))?;
        Ok(self.begun(tokens))
    }

    /// With the begin-of-text token in front where the file asks for one. Many templates write it
    /// as well; it is not doubled.
    fn begun(&self, mut tokens: Vec<u32>) -> Vec<u32> {
        let tokenizer = self.model.tokenizer();
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
    fn encode(&self, text: &str, parse_special: bool) -> anyhow::Result<Vec<u32>> {
        let options = EncodeOptions { add_bos: Some(false), parse_special };
        self.model.tokenizer().encode(text, options).map_err(|e| anyhow!(e))
    }

    /// The names of special tokens that `text` would produce.
    fn special_in(&self, text: &str) -> Vec<String> {
        let tokenizer = self.model.tokenizer();
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
