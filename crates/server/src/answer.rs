//! Tokens of an answer into what a client is shown: text, thinking, calls of tools, up to a text that ends it.
//!
//! Invariants: a character is never cut; what may become a text that ends the answer is held back; what is handed out does not
//! depend on how it is cut, so an answer that is streamed is the one that is sent whole.

use std::time::{Duration, Instant};

use alight_text::output::{Call, Format, Parser, Part, Reader, Span};
use alight_text::{Tokenizer, Vocabulary};
use serde_json::{Value, json};

/// Stands between two parts that the model divided by marks.
const BLANK: &str = "\n\n";

/// What is new of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// What is said to the user.
    Content(String),
    /// What is thought.
    Thinking(String),
    /// The call of a tool begins: its name, and its arguments if they come whole.
    Call(Call),
    /// More of the arguments of that call. Joined, the pieces are what the model wrote.
    Arguments(String),
}

/// What is known of an answer before it begins.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Whether it is a message of a conversation, and not the continuation of a text.
    pub chat: bool,
    /// Whether there are tools to call. What looks like a call where there are none is text.
    pub tools: bool,
    /// Whether all of it is the call of a tool, `{"name": …, "arguments": {…}}`.
    pub call: bool,
    /// Texts that end the answer, and are not part of it.
    pub stops: Vec<String>,
    /// What else ends it, as llama-server's clients ask for it.
    pub limits: Limits,
}

/// What ends an answer besides its texts and its number of tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// So many blanks and tabs at least begin each line but the first. One that begins with fewer ends the answer before what follows
    /// them; an empty line does so, too.
    pub indent: usize,
    /// So long after its first token the answer ends, if a line of it has ended by then.
    pub time: Option<Duration>,
}

/// An answer in the making.
pub struct Answer {
    tokenizer: &'static Tokenizer,
    reader: Reader<&'static Vocabulary>,
    parser: Parser,
    sorter: Sorter,
    /// None, if all of it is a call.
    stops: Vec<String>,
    /// Text that may become one of the texts that end the answer.
    held: String,
    /// Bytes of text in front of what is held.
    given: usize,
    stopped: Option<String>,
    lines: Lines,
    /// After how long it ends, and when the first token came.
    time: Option<Duration>,
    began: Option<Instant>,
}

impl Answer {
    /// The answer to the prompt of these tokens.
    pub fn new(asked: &Asked, prompt: &[u32], vocabulary: &'static Vocabulary) -> Answer {
        let tokenizer: &'static Tokenizer = &vocabulary.tokenizer;
        let format = if asked.chat { vocabulary.output_format() } else { Format::Plain };
        let parser = match (asked.call, asked.tools) {
            (true, _) => Parser::of_call(),
            (_, true) => Parser::after(format, tokenizer, prompt).in_pieces(),
            _ => Parser::after(format, tokenizer, prompt),
        };
        Answer {
            tokenizer,
            reader: Reader::new(format, vocabulary),
            parser,
            sorter: Sorter { tools: asked.tools, call: asked.call, ..Sorter::default() },
            stops: if asked.call { Vec::new() } else { asked.stops.clone() },
            held: String::new(),
            given: 0,
            stopped: None,
            lines: Lines { indent: asked.limits.indent, ..Lines::default() },
            time: asked.limits.time,
            began: None,
        }
    }

    /// Takes the next token, and hands out what is certain now. Returns whether what ends the answer has come: a text, which
    /// [`Answer::stopped`] tells, or a limit. What there was before it has been handed out then.
    pub fn push(&mut self, token: u32, each: &mut dyn FnMut(Delta)) -> bool {
        self.held.push_str(self.reader.push(token));
        let found = self.stops.iter().filter_map(|stop| Some((self.held.find(stop)?, stop)));
        // Of those that begin at the same place, the longer one.
        let found = found.min_by_key(|(at, stop)| (*at, usize::MAX - stop.len()));
        let (len, stop) = match found {
            Some((at, stop)) => (at, Some(stop.clone())),
            None => (certain(&self.held, &self.stops), None),
        };
        let limit = self.lines.end(&self.held[..len]);
        let began = *self.began.get_or_insert_with(Instant::now);
        let late = self.lines.any && self.time.is_some_and(|time| began.elapsed() > time);
        match (limit, stop) {
            (None, None) if !late => {
                self.give(len, each);
                return false;
            }
            (None, None) => self.give(self.held.len(), each),
            (Some(at), _) => self.give(at, each),
            (None, stop) => {
                self.stopped = stop;
                self.give(len, each);
            }
        }
        self.held.clear();
        self.parser.finish(&mut |span| self.sorter.take(&span, each));
        true
    }

    /// The answer ends here: hands out the rest.
    pub fn finish(&mut self, each: &mut dyn FnMut(Delta)) {
        self.held.push_str(self.reader.finish());
        let end = self.lines.end(&self.held).unwrap_or(self.held.len());
        self.give(end, each);
        self.parser.finish(&mut |span| self.sorter.take(&span, each));
    }

    fn give(&mut self, len: usize, each: &mut dyn FnMut(Delta)) {
        let sorter = &mut self.sorter;
        self.parser.push(&self.held[..len], &mut |span| sorter.take(&span, each));
        self.held.drain(..len);
        self.given += len;
    }

    /// Bytes of text that have come, and those of them that were handed on.
    pub fn bytes(&self) -> [usize; 2] {
        [self.given + self.held.len(), self.given]
    }

    /// The text that ended the answer.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// Whether a tool was called.
    pub fn called(&self) -> bool {
        self.sorter.called
    }

    /// Makes the tokens.
    pub fn tokenizer(&self) -> &'static Tokenizer {
        self.tokenizer
    }
}

/// The lines of an answer, as far as they have been seen.
#[derive(Default)]
struct Lines {
    /// Blanks that each has but the first.
    indent: usize,
    /// Whether one has ended.
    any: bool,
    /// Blanks of the one that has begun, if nothing else has come in it.
    blanks: Option<usize>,
}

impl Lines {
    /// Where the answer ends in the next piece of its text.
    fn end(&mut self, text: &str) -> Option<usize> {
        for (at, c) in text.char_indices() {
            match (c, self.blanks) {
                (' ' | '\t', Some(blanks)) => self.blanks = Some(blanks + 1),
                (_, Some(blanks)) if blanks < self.indent => return Some(at),
                ('\n', _) => (self.any, self.blanks) = (true, Some(0)),
                _ => self.blanks = None,
            }
        }
        None
    }
}

/// How much of `text` may be handed out while its end may be the beginning of a stop.
fn certain(text: &str, stops: &[String]) -> usize {
    let longest = stops.iter().map(String::len).max().unwrap_or(0);
    let mut from = text.len().saturating_sub(longest);
    while !text.is_char_boundary(from) {
        from -= 1;
    }
    let open = |at: &usize| stops.iter().any(|stop| stop.starts_with(&text[*at..]));
    let mut ends = text[from..].char_indices().map(|(at, _)| from + at);
    ends.find(open).unwrap_or(text.len())
}

/// Spans into deltas.
#[derive(Default)]
struct Sorter {
    tools: bool,
    /// Whether all of it is a call. Of one that was cut within the name of its tool there is nothing to show.
    call: bool,
    called: bool,
    /// Whether anything was said to the user, and thought.
    begun: [bool; 2],
    /// Which of them was written last.
    last: Option<usize>,
    /// A mark or a call stood behind it.
    divided: bool,
}

impl Sorter {
    fn take(&mut self, span: &Span<'_>, each: &mut dyn FnMut(Delta)) {
        let which = match &span.part {
            Part::Mark => {
                self.divided = true;
                return;
            }
            Part::Call(call) if self.tools || self.call => {
                (self.divided, self.called) = (true, true);
                return match call.name.is_empty() {
                    false => each(Delta::Call(call.clone())),
                    true if call.arguments.is_empty() => {}
                    true => each(Delta::Arguments(call.arguments.clone())),
                };
            }
            _ if self.call => return,
            Part::Answer | Part::Call(_) => 0,
            Part::Thinking => 1,
        };
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

/// The same, with nothing in it that only goes on with what stands before it: each text and each call is one.
pub fn joined(deltas: impl IntoIterator<Item = Delta>) -> Vec<Delta> {
    let mut all: Vec<Delta> = Vec::new();
    for delta in deltas {
        match (all.last_mut(), &delta) {
            (Some(Delta::Content(text)), Delta::Content(more))
            | (Some(Delta::Thinking(text)), Delta::Thinking(more)) => text.push_str(more),
            (Some(Delta::Call(call)), Delta::Arguments(more)) => call.arguments.push_str(more),
            _ => all.push(delta),
        }
    }
    all
}

/// The arguments of a call, where they are told as JSON and not as text: an empty object if they were cut or are no JSON.
pub fn input(call: &Call) -> Value {
    let arguments: Option<Value> = serde_json::from_str(&call.arguments).ok();
    arguments.filter(Value::is_object).unwrap_or_else(|| json!({}))
}

/// All of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// What is said to the user.
    pub content: String,
    /// What is thought.
    pub thinking: String,
    /// Calls of tools.
    pub calls: Vec<Call>,
}

impl Message {
    /// Adds what is new.
    pub fn take(&mut self, delta: Delta) {
        match delta {
            Delta::Content(text) => self.content.push_str(&text),
            Delta::Thinking(text) => self.thinking.push_str(&text),
            Delta::Call(call) => self.calls.push(call),
            Delta::Arguments(more) => {
                self.calls.last_mut().into_iter().for_each(|call| call.arguments.push_str(&more));
            }
        }
    }

    /// As OpenAI writes a message. `id` names calls.
    pub fn openai(self, id: impl Fn(usize) -> String) -> Value {
        let none = self.content.is_empty() && !self.calls.is_empty();
        let content = if none { Value::Null } else { self.content.into() };
        let mut message = json!({"role": "assistant", "content": content});
        if !self.thinking.is_empty() {
            message["reasoning_content"] = self.thinking.into();
        }
        if !self.calls.is_empty() {
            let calls = self.calls.into_iter().enumerate().map(|(i, call)| {
                json!({
                    "id": id(i),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                })
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
    fn what_may_become_a_stop_is_held_back() {
        let stops = ["end".to_owned(), "é.".to_owned()];
        for (text, wanted) in [
            ("the", 2),
            ("the e", 4),
            ("the en", 4),
            ("the enx", 7),
            ("né", 1),
            ("né!", 4),
            ("", 0),
        ] {
            assert_eq!(certain(text, &stops), wanted, "{text}");
        }
        assert_eq!(certain("anything", &[]), 8);
    }

    #[test]
    fn a_line_that_is_indented_less_ends_the_answer_however_it_is_cut() {
        let text = "a\n  b\n\t  c\n d\n  e";
        for (indent, wanted) in [(0, text), (1, text), (2, "a\n  b\n\t  c\n "), (3, "a\n  ")] {
            for piece in 1..text.len() {
                let (mut lines, mut at) = (Lines { indent, ..Lines::default() }, 0);
                let mut pieces = text.as_bytes().chunks(piece).map(|piece| {
                    let end = lines.end(str::from_utf8(piece).unwrap());
                    at += end.unwrap_or(piece.len());
                    end
                });
                let ended = pieces.any(|end| end.is_some());
                assert_eq!((&text[..at], ended), (wanted, wanted != text), "{indent} {piece}");
            }
        }
        // An empty line is one, too.
        assert_eq!(Lines { indent: 1, ..Lines::default() }.end("a\n\n b"), Some(2));
    }

    #[test]
    fn calls_are_apart_where_there_are_tools_and_text_where_there_are_none() {
        let call = Call { name: "f".into(), arguments: "{}".into() };
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
