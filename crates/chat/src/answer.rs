//! Turns the tokens of an answer into its visible parts: text, thinking and tool calls, up to a stop text.
//!
//! Invariants: a character is never cut; text that may become a stop text is held back; the output does not depend on how it is
//! split, so a streamed answer equals one that is sent whole.

use alight_text::output::{AnswerSpans, Call, Format, Parser, Part, Span, Stops};
pub use alight_text::output::{Limits, Tools};
use alight_text::{Tokenizer, Vocabulary};
use serde_json::{Value, json};

use crate::custom::CustomInput;

/// Separates two parts that the model divided by markers.
const BLANK: &str = "\n\n";

/// A new piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Text for the user.
    Content(String),
    /// Thinking.
    Thinking(String),
    /// The start of a tool call: its name, and its arguments if they arrive whole.
    Call(Call),
    /// More arguments of that call. Joined, the pieces are the text that the model wrote; of a custom tool's call, they are its input.
    Arguments(String),
    /// The id that the model wrote after the arguments of that call. A stream has begun the call without it.
    Id(String),
}

/// How an answer is parsed, and what ends it.
#[derive(Clone, Debug, Default)]
pub struct AnswerOptions {
    /// True for a message of a conversation, false for the continuation of a text.
    pub chat: bool,
    /// The tools to call. Without any, text that looks like a call is plain text.
    pub tools: Option<Tools>,
    /// True if the whole answer is tool calls: in the model's notation, or `{"name": …, "arguments": {…}}` without `tools`.
    pub call: bool,
    /// True if the answer ends where a second call begins.
    pub one_call: bool,
    /// The names of the tools that get a text, which is the only argument of the functions that the model calls.
    pub custom: Vec<String>,
    /// Texts that end the answer and are not part of it.
    pub stops: Vec<String>,
    /// Further limits, as clients of llama-server set them.
    pub limits: Limits,
}

/// An answer that is being generated.
pub struct Answer {
    tokenizer: &'static Tokenizer,
    spans: AnswerSpans<&'static Vocabulary>,
    sorter: Sorter,
}

impl Answer {
    /// Creates the answer to a prompt with these tokens.
    pub fn new(asked: &AnswerOptions, prompt: &[u32], vocabulary: &'static Vocabulary) -> Answer {
        let tokenizer: &'static Tokenizer = &vocabulary.tokenizer;
        let format = if asked.chat { vocabulary.output_format() } else { Format::Plain };
        let parser = || Parser::after(format, tokenizer, prompt);
        let parser = match (asked.call, &asked.tools) {
            (true, None) => Parser::of_call(),
            (_, Some(tools)) => parser().with_tools(tools.clone()).in_pieces(),
            _ => parser(),
        };
        // Stop texts do not apply inside a call.
        let texts: &[String] = if asked.call { &[] } else { &asked.stops };
        let stops = Stops::new(texts, asked.limits);
        Answer {
            tokenizer,
            spans: AnswerSpans::new(format, vocabulary, parser, stops),
            sorter: Sorter {
                tools: asked.tools.is_some(),
                call: asked.call,
                one_call: asked.one_call,
                custom: asked.custom.clone(),
                ..Sorter::default()
            },
        }
    }

    /// Takes the next token, and emits the output that is certain now. Returns true if the answer has ended, by a stop text
    /// ([`Answer::stopped`]) or by a limit. Everything before the end has been emitted then.
    pub fn push(&mut self, token: u32, each: &mut dyn FnMut(Delta)) -> bool {
        let Answer { spans, sorter, .. } = self;
        let ended = spans.push(token, &mut |span| sorter.take(&span, each)) || sorter.full;
        if ended {
            sorter.end_input(each);
        }
        ended
    }

    /// Ends the answer, and emits the rest.
    pub fn finish(&mut self, each: &mut dyn FnMut(Delta)) {
        let Answer { spans, sorter, .. } = self;
        spans.finish(&mut |span| sorter.take(&span, each));
        sorter.end_input(each);
    }

    /// The number of bytes of text that have arrived, and of those that were passed on.
    pub fn bytes(&self) -> [usize; 2] {
        self.spans.stops().bytes()
    }

    /// The text that ended the answer.
    pub fn stopped(&self) -> Option<&str> {
        self.spans.stops().found()
    }

    /// True if the answer ended because a second call began.
    pub fn is_full(&self) -> bool {
        self.sorter.full
    }

    /// True if a tool was called.
    pub fn called(&self) -> bool {
        self.sorter.called
    }

    /// The tokenizer of the answer.
    pub fn tokenizer(&self) -> &'static Tokenizer {
        self.tokenizer
    }
}

/// Converts spans to deltas.
#[derive(Default)]
struct Sorter {
    tools: bool,
    /// True if the whole answer is a call. If it was cut within the tool's name, nothing is shown.
    call: bool,
    /// True if nothing follows the first call, and once a second one has begun.
    one_call: bool,
    full: bool,
    called: bool,
    /// The custom tools, and the input of the call of one.
    custom: Vec<String>,
    input: Option<CustomInput>,
    /// The ids that the model gave its calls.
    ids: Vec<String>,
    /// True if there was any text for the user, and any thinking.
    begun: [bool; 2],
    /// The index of the part written last.
    last: Option<usize>,
    /// True if a marker or a call followed that part.
    divided: bool,
}

impl Sorter {
    fn take(&mut self, span: &Span<'_>, each: &mut dyn FnMut(Delta)) {
        let is_call = |part: &Part| matches!(part, Part::Call(call) if !call.name.is_empty());
        self.full |= self.one_call && self.called && is_call(&span.part);
        if self.full {
            return;
        }
        let which = match &span.part {
            Part::Mark => {
                self.divided = true;
                return;
            }
            Part::Call(call) if self.tools || self.call => {
                (self.divided, self.called) = (true, true);
                return self.call(call, each);
            }
            _ if self.call && !self.tools => return,
            Part::Answer | Part::Call(_) if self.call => return,
            Part::Answer | Part::Call(_) => 0,
            Part::Thinking => 1,
        };
        self.end_input(each);
        let divided = std::mem::take(&mut self.divided) || self.last != Some(which);
        let blank = if divided && self.begun[which] { BLANK } else { "" };
        let text = format!("{blank}{}", span.raw);
        self.last = Some(which);
        if !text.is_empty() {
            self.begun[which] = true;
            each(if which == 0 { Delta::Content(text) } else { Delta::Thinking(text) });
        }
    }
}

impl Sorter {
    /// Takes a call, or more of its arguments if it has no name.
    fn call(&mut self, call: &Call, each: &mut dyn FnMut(Delta)) {
        let mut call = call.clone();
        // A model may give two calls one id.
        call.id = call.id.filter(|id| !self.ids.contains(id));
        self.ids.extend(call.id.clone());
        if !call.name.is_empty() {
            self.end_input(each);
            self.input = self.custom.contains(&call.name).then(CustomInput::default);
        }
        if let Some(input) = &mut self.input {
            call.arguments = input.push(&call.arguments);
        }
        if !call.name.is_empty() {
            each(Delta::Call(call));
            return;
        }
        if !call.arguments.is_empty() {
            each(Delta::Arguments(call.arguments));
        }
        if let Some(id) = call.id {
            each(Delta::Id(id));
        }
    }

    /// Ends the input of a custom tool's call.
    fn end_input(&mut self, each: &mut dyn FnMut(Delta)) {
        let rest = self.input.take().map(CustomInput::finish).unwrap_or_default();
        if !rest.is_empty() {
            each(Delta::Arguments(rest));
        }
    }
}

/// Joins deltas that continue the previous one: each text and each call becomes a single delta.
pub fn joined(deltas: impl IntoIterator<Item = Delta>) -> Vec<Delta> {
    let mut all: Vec<Delta> = Vec::new();
    for delta in deltas {
        match (all.last_mut(), &delta) {
            (Some(Delta::Content(text)), Delta::Content(more))
            | (Some(Delta::Thinking(text)), Delta::Thinking(more)) => text.push_str(more),
            (Some(Delta::Call(call)), Delta::Arguments(more)) => call.arguments.push_str(more),
            (Some(Delta::Call(call)), Delta::Id(id)) => call.id = Some(id.clone()),
            _ => all.push(delta),
        }
    }
    all
}

/// The arguments of a call for formats that have them as JSON, not as text: an empty object if they were cut or are not a JSON object.
pub fn input(call: &Call) -> Value {
    let arguments: Option<Value> = serde_json::from_str(&call.arguments).ok();
    arguments.filter(Value::is_object).unwrap_or_else(|| json!({}))
}

/// Returns a call in OpenAI's format; that of a custom tool has a text as its input.
pub fn openai_call(id: String, name: &str, arguments: &str, is_custom: bool) -> Value {
    match is_custom {
        true => json!({"id": id, "type": "custom", "custom": {"name": name, "input": arguments}}),
        false => {
            let function = json!({"name": name, "arguments": arguments});
            json!({"id": id, "type": "function", "function": function})
        }
    }
}

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Text for the user.
    pub content: String,
    /// Thinking.
    pub thinking: String,
    /// Tool calls.
    pub calls: Vec<Call>,
}

impl Message {
    /// Adds a delta.
    pub fn take(&mut self, delta: Delta) {
        match delta {
            Delta::Content(text) => self.content.push_str(&text),
            Delta::Thinking(text) => self.thinking.push_str(&text),
            Delta::Call(call) => self.calls.push(call),
            Delta::Arguments(more) => {
                self.calls.last_mut().into_iter().for_each(|call| call.arguments.push_str(&more));
            }
            Delta::Id(id) => {
                self.calls.last_mut().into_iter().for_each(|call| call.id = Some(id.clone()))
            }
        }
    }

    /// The message in OpenAI's format. `id` names the calls to which the model gave no id that it wants again; those of the tools in `custom`
    /// have a text as their input.
    pub fn openai(self, custom: &[String], id: impl Fn(usize) -> String) -> Value {
        let none = self.content.is_empty() && !self.calls.is_empty();
        let content = if none { Value::Null } else { self.content.into() };
        let mut message = json!({"role": "assistant", "content": content});
        if !self.thinking.is_empty() {
            message["reasoning_content"] = self.thinking.into();
        }
        if !self.calls.is_empty() {
            let calls = self.calls.into_iter().enumerate().map(|(i, call)| {
                let is_custom = custom.contains(&call.name);
                openai_call(
                    call.id.unwrap_or_else(|| id(i)),
                    &call.name,
                    &call.arguments,
                    is_custom,
                )
            });
            message["tool_calls"] = calls.collect();
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_call_ends_an_answer_that_may_have_one() {
        let call = |name: &str| Span { part: Part::Call(Call::new(name, "{}")), raw: "" };
        let more = Span { part: Part::Call(Call::new("", "{")), raw: "" };
        let after = Span { part: Part::Answer, raw: "So." };
        for (one_call, calls) in [(true, 1), (false, 2)] {
            let mut message = Message::default();
            let mut sorter = Sorter { tools: true, one_call, ..Sorter::default() };
            for span in [&call("f"), &more, &call("g"), &more, &after] {
                sorter.take(span, &mut |delta| message.take(delta));
            }
            assert_eq!((message.calls.len(), sorter.full), (calls, one_call));
            assert_eq!(message.content.is_empty(), one_call);
        }
    }

    #[test]
    fn an_answer_that_must_be_calls_has_thinking_and_no_text() {
        let spans = [
            Span { part: Part::Thinking, raw: "Hm." },
            Span { part: Part::Answer, raw: "<tool_call>\n{\"na" },
        ];
        let mut message = Message::default();
        let mut sorter = Sorter { tools: true, call: true, ..Sorter::default() };
        spans.iter().for_each(|span| sorter.take(span, &mut |delta| message.take(delta)));
        assert_eq!((&*message.content, &*message.thinking), ("", "Hm."));
    }

    #[test]
    fn the_call_of_a_custom_tool_has_its_input() {
        let piece = |name: &str, arguments: &str| Span {
            part: Part::Call(Call::new(name, arguments)),
            raw: "",
        };
        let spans = [
            piece("f", ""),
            piece("", "{\"input\": \"a\\"),
            piece("", "nb"),
            piece("", "\"}"),
            piece("g", "{\"input\": 1}"),
        ];
        let mut sorter = Sorter { tools: true, custom: vec!["f".to_owned()], ..Sorter::default() };
        let mut message = Message::default();
        spans.iter().for_each(|span| sorter.take(span, &mut |delta| message.take(delta)));
        let message = message.openai(&["f".to_owned()], |i| i.to_string());
        let custom = json!({"name": "f", "input": "a\nb"});
        assert_eq!(
            message["tool_calls"][0],
            json!({"id": "0", "type": "custom", "custom": custom})
        );
        assert_eq!(message["tool_calls"][1]["function"]["arguments"], "{\"input\": 1}");
    }

    #[test]
    fn an_id_after_the_arguments_is_that_of_a_whole_call_and_no_two_calls_have_one() {
        let piece = |name: &str, arguments: &str, id: Option<&str>| Span {
            part: Part::Call(Call { id: id.map(str::to_owned), ..Call::new(name, arguments) }),
            raw: "",
        };
        let spans = [
            piece("f", "{", None),
            piece("", "}", None),
            piece("", "", Some("abc123DEF")),
            piece("g", "{}", Some("abc123DEF")),
        ];
        let mut deltas = Vec::new();
        let mut sorter = Sorter { tools: true, ..Sorter::default() };
        spans.iter().for_each(|span| sorter.take(span, &mut |delta| deltas.push(delta)));
        assert!(matches!(&deltas[0], Delta::Call(call) if call.id.is_none()), "{deltas:?}");
        let ids = |calls: &[Call]| calls.iter().map(|call| call.id.clone()).collect::<Vec<_>>();
        let wanted = [Some("abc123DEF".to_owned()), None];
        let mut message = Message::default();
        deltas.iter().cloned().for_each(|delta| message.take(delta));
        assert_eq!(ids(&message.calls), wanted);
        let of = |delta| match delta {
            Delta::Call(call) => call,
            other => panic!("{other:?}"),
        };
        assert_eq!(ids(&joined(deltas).into_iter().map(of).collect::<Vec<_>>()), wanted);
    }

    #[test]
    fn calls_are_apart_where_there_are_tools_and_text_where_there_are_none() {
        let call = Call::new("f", "{}");
        let spans = [
            Span { part: Part::Thinking, raw: "Hm." },
            Span { part: Part::Mark, raw: "</think>" },
            Span { part: Part::Answer, raw: "I lo" },
            Span { part: Part::Answer, raw: "ok." },
            Span { part: Part::Call(call), raw: "<call f>" },
            Span { part: Part::Answer, raw: "So." },
        ];
        for (tools, content, calls) in
            [(true, "I look.\n\nSo.", 1), (false, "I look.<call f>So.", 0)]
        {
            let mut message = Message::default();
            let mut sorter = Sorter { tools, ..Sorter::default() };
            spans.iter().for_each(|span| sorter.take(span, &mut |delta| message.take(delta)));
            assert_eq!((&*message.content, message.calls.len()), (content, calls));
            assert_eq!((&*message.thinking, sorter.called), ("Hm.", tools));
        }
    }
}
