//! The marks that a model writes. This module is below the tokenizer, which never writes them into a user's text, and below
//! the output parsers.

/// The marks that divide a model's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// None are known: all of it is the answer.
    Plain,
    /// `<think>…</think>`, and `<tool_call>…</tool_call>` around JSON or around
    /// `<function=NAME><parameter=KEY>…`.
    ChatMl,
    /// The channels of gpt-oss: `<|channel|>analysis<|message|>…<|end|>`.
    Harmony,
    /// `<|channel>thought\n…<channel|>`, and `<|tool_call>call:NAME{…}<tool_call|>`.
    Gemma4,
    /// `[THINK]…[/THINK]`, and `[TOOL_CALLS]`.
    Mistral,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 5] =
        [Format::Plain, Format::ChatMl, Format::Harmony, Format::Gemma4, Format::Mistral];

    /// Derives the format of a model from its template's text and from the marks that are a `token` of their own. The
    /// vocabulary takes precedence, because a template may name marks only to remove them from old messages.
    pub(crate) fn of(template: Option<&str>, token: impl Fn(&str) -> bool) -> Format {
        let written = |text: &str| template.is_some_and(|template| template.contains(text));
        let think = token("<think>") || written("<think>") || written("</think>");
        if token("<|channel|>") && token("<|message|>") {
            Format::Harmony
        } else if token("<|channel>") && token("<channel|>") {
            Format::Gemma4
        } else if think {
            Format::ChatMl
        } else if token("[THINK]") || token("[TOOL_CALLS]") {
            Format::Mistral
        } else if token("<tool_call>") || written("<tool_call>") {
            Format::ChatMl
        } else {
            Format::Plain
        }
    }

    /// The spellings that a parser must see, even where they are control tokens.
    pub fn marks(self) -> &'static [&'static str] {
        match self {
            Format::Plain => &[],
            Format::ChatMl => &["<think>", "</think>", "<tool_call>", "</tool_call>"],
            Format::Harmony => &[
                "<|start|>",
                "<|channel|>",
                "<|message|>",
                "<|constrain|>",
                "<|end|>",
                "<|call|>",
                "<|return|>",
            ],
            Format::Gemma4 => {
                &["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|\"|>"]
            }
            Format::Mistral => &["[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
        }
    }
}
