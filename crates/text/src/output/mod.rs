//! Separates the parts of a model's output: thinking, the answer, tool calls.
//!
//! A [`Parser`] receives the text of an answer piece by piece, with the marks of its [`Format`] in it, and
//! emits [`Span`]s. It holds back only text that may still become a mark, and the text of a call until the
//! call has ended (but see [`Parser::in_pieces`]). How a family of models writes its parts is data ([`Format::notation`]).
//!
//! Invariants:
//! - No text is lost: the raw texts of all spans, joined, are the input, however it was cut. The fuzz
//!   target `output` checks this for every format.
//! - Malformed marks are answer text, never an error.
//! - Time is proportional to the text: text that has been searched is not searched again.

mod calls;
mod elements;
#[cfg(test)]
mod family_tests;
mod harmony;
mod heads;
mod json;
mod literals;
mod machine;
mod params;
mod schema;
mod shown;
mod stops;
#[cfg(test)]
mod tests;
mod tokens;

pub use crate::format::Format;
pub use calls::Call;
pub use schema::{Tools, Written};
pub use shown::{Shown, Texts, Thinking, Tone};
pub use stops::{Limits, Stops};
pub use tokens::{AnswerSpans, Reader, opened_thinking};

use calls::{Holder, Output};
use harmony::Harmony;
use machine::Machine;

/// The kind of a piece of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Thinking, before an answer or a call.
    Thinking,
    /// Text for the user.
    Answer,
    /// Separators of the other parts: marks, headers, and the newlines that belong to them.
    Mark,
    /// A whole tool call; or a piece of one, if calls are emitted [in pieces](Parser::in_pieces).
    Call(Call),
}

/// A piece of the model's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span<'a> {
    /// The kind of this piece.
    pub part: Part,
    /// Its text as the model wrote it.
    pub raw: &'a str,
}

/// Receives spans.
type Each<'a> = dyn FnMut(Span<'_>) + 'a;

/// The maximum number of bytes examined in one go, so that time stays proportional to the text.
const CHUNK: usize = 4096;

#[derive(Debug)]
enum ReaderState {
    /// As the description of a family says.
    Described(Box<Machine>),
    /// Messages with headers.
    Harmony(Harmony),
}

/// Separates the text of one answer into parts.
#[derive(Debug)]
pub struct Parser {
    state: ReaderState,
    holder: Holder,
    /// Text that has not been emitted yet.
    held: String,
}

impl Parser {
    /// Creates a parser for one answer. `prompt_end` is the end of the prompt with its marks (some 100
    /// characters are enough): a template may have opened the thinking already.
    pub fn new(format: Format, prompt_end: &str) -> Parser {
        let state = match format {
            Format::Harmony => ReaderState::Harmony(Harmony::new(prompt_end)),
            _ => ReaderState::Described(Box::new(Machine::new(format, prompt_end))),
        };
        Parser::with_state(state)
    }

    /// Creates a parser for a text that is one call as Hermes writes them, `{"name": …, "arguments": {…}}`, in pieces.
    pub fn of_call() -> Parser {
        Parser::with_state(ReaderState::Described(Box::new(Machine::of_call()))).in_pieces()
    }

    fn with_state(state: ReaderState) -> Parser {
        Parser { state, holder: Holder::default(), held: String::new() }
    }

    /// Gives the parser the tools that may be called. Values whose notation does not say their type are read as the schemas do, and
    /// calls without marks are recognised: only those of known tools.
    ///
    /// A call of an unknown tool is emitted once it is whole.
    pub fn with_tools(mut self, tools: Tools) -> Parser {
        match &mut self.state {
            ReaderState::Described(machine) => machine.set_tools(tools),
            ReaderState::Harmony(harmony) => harmony.set_tools(tools),
        }
        self
    }

    /// Emits calls while they are written: first the name, then the arguments as they arrive, in [`Call`]s without a name. A few are
    /// emitted whole, because they may turn out to be none: those without their opening mark, and those whose name comes last.
    ///
    /// A call that has begun remains a call. If it is cut or malformed, its arguments are what the model wrote of them, and may not be
    /// valid JSON. Other malformed calls are answer text.
    pub fn in_pieces(mut self) -> Parser {
        self.holder.pieces = true;
        self
    }

    /// The mark that ends the thinking in which the text so far ends.
    pub fn open_thinking(&self) -> Option<&'static str> {
        match &self.state {
            ReaderState::Described(machine) => machine.open_thinking(),
            ReaderState::Harmony(harmony) => harmony.open_thinking(),
        }
    }

    /// True if thinking may begin after the text so far.
    pub fn may_think(&self) -> bool {
        match &self.state {
            ReaderState::Described(machine) => machine.may_think(),
            ReaderState::Harmony(harmony) => harmony.may_think(),
        }
    }

    /// Takes the next piece of text, and emits all that is certain now.
    pub fn push(&mut self, mut text: &str, each: &mut Each<'_>) {
        while !text.is_empty() {
            let (piece, rest) = text.split_at(floor(text, CHUNK));
            self.held.push_str(piece);
            self.run(false, each);
            text = rest;
        }
    }

    /// Ends the text: emits the rest.
    pub fn finish(&mut self, each: &mut Each<'_>) {
        self.run(true, each);
        let mut out = Output { each, holder: &mut self.holder };
        match &mut self.state {
            ReaderState::Described(machine) => machine.finish(&mut out),
            ReaderState::Harmony(_) => drop(out.end()),
        }
    }

    fn run(&mut self, last: bool, each: &mut Each<'_>) {
        let mut at = 0;
        let mut out = Output { each, holder: &mut self.holder };
        while at < self.held.len() {
            let rest = &self.held[at..];
            let taken = match &mut self.state {
                ReaderState::Described(machine) => machine.step(rest, last, &mut out),
                ReaderState::Harmony(harmony) => harmony.step(rest, last, &mut out),
            };
            if taken == 0 && last {
                at += out.give(Part::Answer, rest);
            } else if taken == 0 {
                break;
            }
            at += taken;
        }
        self.held.drain(..at);
    }
}

/// Emits a span, unless it is empty; returns its length.
fn give(part: Part, raw: &str, each: &mut Each<'_>) -> usize {
    if !raw.is_empty() {
        each(Span { part, raw });
    }
    raw.len()
}

/// The largest character boundary that is at most `at`.
fn floor(text: &str, mut at: usize) -> usize {
    if at >= text.len() {
        return text.len();
    }
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// The first of the marks in `text`, and the longest of those that begin there.
fn earliest<'m, S: AsRef<str>>(text: &str, marks: &'m [S]) -> Option<(usize, &'m str)> {
    let found = marks.iter().filter_map(|mark| Some((text.find(mark.as_ref())?, mark.as_ref())));
    found.min_by_key(|(at, mark)| (*at, usize::MAX - mark.len()))
}

/// The number of bytes of `text` that may be emitted, given that its end may be the beginning of a mark.
fn certain<S: AsRef<str>>(text: &str, marks: &[S]) -> usize {
    let longest = marks.iter().map(|mark| mark.as_ref().len()).max().unwrap_or(0);
    let from = floor(text, text.len().saturating_sub(longest));
    let open = |at: &usize| {
        let end = &text[*at..];
        marks.iter().any(|mark| mark.as_ref().len() > end.len() && mark.as_ref().starts_with(end))
    };
    let mut ends = text[from..].char_indices().map(|(at, _)| from + at);
    ends.find(open).unwrap_or(text.len())
}
