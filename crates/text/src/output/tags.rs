//! Formats whose parts are enclosed in an opening and a closing mark: `<think>`, Gemma 4's channels, `[THINK]`.

use super::calls::{self, Style};
use super::pieces::{self, AfterArguments, Arguments, Ends, Head, Open, Tail, give_piece};
use super::{Each, Format, Part, certain, earliest, floor, give, give_calls};

/// The number of closing marks inside a call that are tried before it is treated as text.
const TRIES: u32 = 8;

#[derive(Debug)]
enum State {
    Answer,
    Thinking,
    /// The text begins with the mark of a call, `open` bytes long; no closing mark begins before `searched`.
    Call {
        open: usize,
        searched: usize,
        tries: u32,
    },
    /// The text continues with the arguments of a call in pieces.
    Arguments(Arguments, Tail),
    /// The text continues after them.
    AfterArguments(Tail),
}

#[derive(Debug)]
pub(super) struct Tags {
    think_open: &'static str,
    call_open: &'static str,
    call_close: &'static str,
    style: Style,
    /// True if thinking may also begin after answer text.
    anywhere: bool,
    /// The marks, bare and with one and two newlines before each: those belong to the mark.
    to_call: [String; 3],
    to_any: [String; 6],
    to_answer: [String; 3],
    state: State,
    /// The number of newlines that still belong to the previous mark.
    newlines: u32,
    /// Answer text has begun. An answer may mention `<think>` without opening it.
    begun: bool,
    /// True if calls are emitted in pieces.
    pieces: bool,
}

impl Tags {
    pub(super) fn new(format: Format, prompt_end: &str) -> Tags {
        let (think_open, think_close, call_open, call_close, style) = match format {
            Format::Gemma4 => {
                ("<|channel>thought", "<channel|>", "<|tool_call>", "<tool_call|>", Style::Gemma)
            }
            Format::Mistral => {
                ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[TOOL_CALLS]", Style::Mistral)
            }
            _ => ("<think>", "</think>", "<tool_call>", "</tool_call>", Style::ChatMl),
        };
        let three = |mark: &str| ["", "\n", "\n\n"].map(|before| format!("{before}{mark}"));
        let [a, b, c] = three(think_open);
        let [d, e, f] = three(call_open);
        let opened = prompt_end.trim_end().ends_with(think_open);
        Tags {
            think_open,
            call_open,
            call_close,
            style,
            anywhere: format == Format::Gemma4,
            to_call: three(call_open),
            to_any: [a, b, c, d, e, f],
            to_answer: three(think_close),
            state: if opened { State::Thinking } else { State::Answer },
            newlines: u32::from(opened),
            begun: false,
            pieces: false,
        }
    }

    /// Creates a parser for a text that is one call, in pieces.
    pub(super) fn of_call() -> Tags {
        let state = State::Call { open: 0, searched: 0, tries: 0 };
        Tags { state, pieces: true, ..Tags::new(Format::ChatMl, "") }
    }

    pub(super) fn in_pieces(&mut self) {
        self.pieces = true;
    }

    /// Emits the beginning of `text`, which is not empty; returns its length, 0 if more text is needed.
    pub(super) fn step(&mut self, text: &str, last: bool, each: &mut Each<'_>) -> usize {
        match self.state {
            State::Answer | State::Thinking => {}
            State::Call { .. } => return self.call(text, last, each),
            State::Arguments(..) => return self.arguments(text, last, each),
            State::AfterArguments(tail) => return self.after_arguments(tail, text, last, each),
        }
        if self.newlines > 0 && text.starts_with('\n') {
            self.newlines -= 1;
            return give(Part::Mark, &text[..1], each);
        }
        self.newlines = 0;
        let thinking = matches!(self.state, State::Thinking);
        if !thinking && !self.begun {
            let opens = [self.think_open, self.call_open];
            let said = text.trim_start();
            self.begun = !said.is_empty()
                && !opens.iter().any(|mark| said.starts_with(mark) || mark.starts_with(said));
        }
        let part = if thinking { Part::Thinking } else { Part::Answer };
        let marks: &[String] = match thinking {
            true => &self.to_answer,
            false if self.begun && !self.anywhere => &self.to_call,
            false => &self.to_any,
        };
        match earliest(text, marks) {
            Some((0, mark)) => {
                let len = mark.len();
                if thinking {
                    (self.state, self.newlines, self.begun) = (State::Answer, 2, false);
                } else if mark.ends_with(self.think_open) {
                    (self.state, self.newlines) = (State::Thinking, 1);
                } else {
                    self.state = State::Call { open: len, searched: len, tries: 0 };
                    return self.call(text, last, each);
                }
                give(Part::Mark, &text[..len], each)
            }
            Some((at, _)) => give(part, &text[..at], each),
            None if last => give(part, text, each),
            None => give(part, &text[..certain(text, marks)], each),
        }
    }

    fn call(&mut self, text: &str, last: bool, each: &mut Each<'_>) -> usize {
        let State::Call { open, mut searched, mut tries } = self.state else { return 0 };
        match calls::may_be(self.style, &text[open..]) {
            Some(true) => {}
            None if !last => return 0,
            _ if open > 0 => return self.refuse(&text[..open], each),
            _ => return self.out_of_order(text, last, each),
        }
        if self.pieces {
            match pieces::head(self.style, &text[open..]) {
                Ok(Head { name, at, tail }) => {
                    self.state = State::Arguments(Arguments::default(), tail);
                    return give_piece(name, "", &text[..open + at], each);
                }
                Err(Open::More) if !last => return 0,
                // It is emitted whole.
                Err(_) => {}
            }
        }
        // A call of Mistral's is closed by the next call, which is not part of it.
        let closes = self.call_close != self.call_open;
        while let Some(at) = text[searched..].find(self.call_close).map(|at| searched + at) {
            let end = if closes { at + self.call_close.len() } else { at };
            match calls::parse(self.style, &text[open..at]) {
                Ok(calls) => {
                    (self.state, self.newlines, self.begun) = (State::Answer, 2, false);
                    return give_calls(calls, &text[..end], each);
                }
                Err(calls::Unfinished(true)) if tries < TRIES => {
                    tries += 1;
                    searched = at + self.call_close.len();
                }
                Err(_) => return self.refuse(&text[..end], each),
            }
        }
        if !last {
            let searched = floor(text, (text.len() + 1).saturating_sub(self.call_close.len()));
            self.state = State::Call { open, searched: searched.max(open), tries };
            return 0;
        }
        match calls::parse(self.style, &text[open..]) {
            Ok(calls) => give_calls(calls, text, each),
            Err(_) => self.refuse(text, each),
        }
    }

    fn arguments(&mut self, text: &str, last: bool, each: &mut Each<'_>) -> usize {
        let State::Arguments(arguments, tail) = &mut self.state else { return 0 };
        let (len, ends) = arguments.take(text, &[self.call_close], false, last);
        let tail = *tail;
        if ends != Ends::Later {
            self.state = State::AfterArguments(tail);
        }
        match len {
            0 if ends == Ends::Marked => self.after_arguments(tail, text, last, each),
            len => give_piece(String::new(), &text[..len], &text[..len], each),
        }
    }

    /// Handles the text after the arguments of a call, up to its closing mark. The mark may come too early: the call is known by then.
    fn after_arguments(
        &mut self,
        tail: Tail,
        text: &str,
        last: bool,
        each: &mut Each<'_>,
    ) -> usize {
        let blank = text.len() - text.trim_start().len();
        if blank > 0 {
            return give_piece(String::new(), "", &text[..blank], each);
        }
        if text.starts_with(self.call_close) {
            (self.state, self.newlines, self.begun) = (State::Answer, 2, false);
            // Mistral's closing mark is the beginning of the next call.
            return match self.call_close == self.call_open {
                true => self.step(text, last, each),
                false => give_piece(String::new(), "", &text[..self.call_close.len()], each),
            };
        }
        if self.call_close.starts_with(text) && !last {
            return 0;
        }
        match pieces::after_arguments(tail, text) {
            Ok(AfterArguments::Next(head)) => {
                self.state = State::Arguments(Arguments::default(), head.tail);
                return give_piece(head.name, "", &text[..head.at], each);
            }
            Ok(AfterArguments::End(end)) if end > 0 => {
                self.state = State::AfterArguments(Tail::Nothing);
                return give_piece(String::new(), "", &text[..end], each);
            }
            Err(Open::More) if !last => return 0,
            Ok(_) | Err(Open::No) => {}
            Err(Open::More) => return give_piece(String::new(), "", text, each),
        }
        self.out_of_order(text, last, each)
    }

    /// Treats malformed text as answer text, which may contain another call.
    fn out_of_order(&mut self, text: &str, last: bool, each: &mut Each<'_>) -> usize {
        (self.state, self.begun) = (State::Answer, true);
        self.step(text, last, each)
    }

    /// Treats text that is not a call as answer text.
    fn refuse(&mut self, raw: &str, each: &mut Each<'_>) -> usize {
        (self.state, self.begun) = (State::Answer, true);
        give(Part::Answer, raw, each)
    }
}
