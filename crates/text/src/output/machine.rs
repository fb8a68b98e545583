//! Separates the parts of an answer as the description of a family says: thinking, the answer, calls.
//!
//! All calls take the same way: a mark, or a text with which a call may begin; the beginning of the call, up to its name; its
//! arguments, which are turned into JSON as they arrive; the text after them. Text that turns out to be no call is answer text.

use super::calls::{self, Certainty, Output};
use super::elements::Tree;
use super::heads::{self, Head, MAX_BLANK, Next, Place};
use super::json::{Arguments, Ends, JsonReader, Open, Tail, within};
use super::literals::Values;
use super::params::{Around, Params, Took};
use super::schema::Tools;
use super::{Part, certain, earliest, floor};
use crate::format::{Calls, Form, Format, Header, Notation, Object, Pair};

/// The number of newlines before a mark that belong to it.
const NEWLINES: [&str; 3] = ["", "\n", "\n\n"];

/// The maximum number of bytes of a header.
const MAX_HEADER: usize = 128;

/// The meaning of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// Thinking begins.
    Think(&'static Pair),
    /// Thinking ends.
    Answer,
    /// Calls begin.
    Call,
    /// A call begins without its mark.
    Bare,
    /// The answer begins; the pair has the mark that ends it.
    Open(&'static Pair),
    /// It ends.
    Close,
    /// A header begins, whose name does not matter.
    Header(&'static Header),
    /// Nothing: the end of a call that has ended.
    Stray,
}

/// A mark, with the newlines that belong to it.
#[derive(Clone, Debug)]
struct Mark {
    text: String,
    /// The number of newlines.
    lead: usize,
    meaning: Meaning,
}

impl AsRef<str> for Mark {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

fn marks(text: &str, meaning: Meaning) -> impl Iterator<Item = Mark> {
    NEWLINES.iter().enumerate().map(move |(lead, before)| Mark {
        text: format!("{before}{text}"),
        lead,
        meaning,
    })
}

/// The marks with which a header begins: with the end of the message before it, and alone.
fn headers(notation: &'static Notation) -> impl Iterator<Item = Mark> {
    notation.header.iter().flat_map(|header| {
        let with_start =
            (!header.start.is_empty()).then(|| format!("{}{}", header.start, header.open));
        let texts = [Some(header.open.to_owned()), with_start];
        texts.into_iter().flatten().flat_map(|text| {
            let all: Vec<Mark> = marks(&text, Meaning::Header(header)).collect();
            all
        })
    })
}

/// The marks of calls.
fn called(marks: &[Mark]) -> impl Iterator<Item = Mark> {
    let is_call = |mark: &&Mark| matches!(mark.meaning, Meaning::Call | Meaning::Bare);
    marks.iter().filter(is_call).cloned()
}

/// The length of the rest of a header.
fn header_len(header: &Header, text: &str, last: bool) -> Result<usize, Open> {
    let end = floor(text, MAX_HEADER);
    let close = if header.keeps_close { 0 } else { header.close.len() };
    match text[..end].find(header.close) {
        Some(at) if !text[..at].contains(char::is_whitespace) => Ok(at + close),
        None if !last && end == text.len() && !text.contains(char::is_whitespace) => {
            Err(Open::More)
        }
        _ => Err(Open::No),
    }
}

/// True if `text` is the beginning of a mark, and not all of it.
fn is_begun(mark: &str, text: &str) -> bool {
    mark.len() > text.len() && mark.starts_with(text)
}

/// The places where a call may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// After a mark: it may have any name.
    Marked,
    /// Without a mark, at the beginning of an answer, or in thinking: only a known tool.
    Known,
    /// Without its mark, anywhere: only a known tool, and a whole call.
    Whole,
}

#[derive(Debug)]
enum State {
    Answer,
    Thinking,
    /// The text begins with a call.
    Call,
    /// The text continues with a call's whole object, which begins at this offset of the call's text.
    Object {
        scan: Arguments,
        keys: &'static Object,
        start: usize,
        list: bool,
    },
    /// The text continues with the arguments of a call.
    Arguments(Arguments, Tail),
    Params(Params),
    Values(Values),
    Tree(Tree),
    /// The text continues after a call.
    After(Tail),
}

#[derive(Debug)]
pub(super) struct Machine {
    notation: &'static Notation,
    tools: Option<Tools>,
    state: State,
    /// The form of the last call.
    form: Option<&'static Form>,
    /// The marks that end the arguments of a call, or begin others; then those of that form.
    ends: Vec<&'static str>,
    /// Marks in an answer that has not begun, and later.
    to_any: Vec<Mark>,
    to_call: Vec<Mark>,
    /// Marks in thinking.
    to_answer: Vec<Mark>,
    /// The mark that ends the last thinking.
    close: &'static str,
    /// The number of newlines that still belong to the previous mark.
    newlines: u32,
    /// Answer text has begun. An answer may mention `<think>` without opening it.
    begun: bool,
    /// The header that the prompt has begun.
    header: Option<&'static Header>,
}

impl Machine {
    pub(super) fn new(format: Format, prompt_end: &str) -> Machine {
        let notation = format.notation();
        let calls = &notation.calls;
        let opened = notation.opened(prompt_end);
        let bare = calls.bare.iter().flat_map(|text| marks(text, Meaning::Bare));
        let bare = bare.filter(|mark| mark.lead > 0 || !calls.bare_lines);
        let opens = calls.opens.iter().flat_map(|text| marks(text, Meaning::Call));
        let mut to_call: Vec<Mark> = opens.chain(bare).collect();
        let thinking =
            notation.thinking.iter().flat_map(|pair| marks(pair.open, Meaning::Think(pair)));
        let thinking: Vec<Mark> = thinking.collect();
        let answer = notation.answer.iter().flat_map(|pair| marks(pair.open, Meaning::Open(pair)));
        let ends = notation.header.iter().map(|header| &header.end);
        let strays = calls.closes.iter().chain(ends).flat_map(|text| marks(text, Meaning::Stray));
        let any = thinking.iter().chain(&to_call).cloned();
        let to_any = any.chain(answer).chain(strays).chain(headers(notation)).collect();
        if notation.thinking_anywhere {
            to_call.extend(thinking);
        }
        let mut machine = Machine {
            notation,
            tools: None,
            state: State::Answer,
            form: None,
            ends: calls.closes.iter().chain(calls.opens).copied().collect(),
            to_any,
            to_call,
            to_answer: Vec::new(),
            close: "",
            newlines: 0,
            begun: false,
            header: notation.header.as_ref().filter(|header| prompt_end.ends_with(header.open)),
        };
        if let Some(pair) = opened {
            machine.think(pair);
        }
        machine
    }

    /// Creates a parser for a text that is one call.
    pub(super) fn of_call() -> Machine {
        Machine { state: State::Call, ..Machine::new(Format::ChatMl, "") }
    }

    pub(super) fn set_tools(&mut self, tools: Tools) {
        self.tools = Some(tools);
        if matches!(self.state, State::Thinking) && self.notation.calls.in_thinking {
            self.to_answer.extend(called(&self.to_call));
        }
    }

    fn calls(&self) -> &'static Calls {
        &self.notation.calls
    }

    /// Emits the beginning of `text`, which is not empty; returns its length, 0 if more text is needed.
    pub(super) fn step(&mut self, text: &str, last: bool, out: &mut Output<'_, '_>) -> usize {
        match self.state {
            State::Answer | State::Thinking => self.text(text, last, out),
            State::Call => match self.call(0, Trust::Marked, text, last, out) {
                Some(len) => len,
                None => self.out_of_order(text, last, out),
            },
            State::Object { .. } => self.object(text, last, out),
            State::Arguments(..) => self.arguments(text, last, out),
            State::Params(_) => self.params(text, last, out),
            State::Values(_) => self.values(text, last, out),
            State::Tree(_) => self.tree(text, last, out),
            State::After(tail) => self.after(tail, text, last, out),
        }
    }

    /// Ends the text.
    pub(super) fn finish(&mut self, out: &mut Output<'_, '_>) {
        if let State::Params(params) = &mut self.state {
            params.finish(out);
        }
        out.end();
    }

    pub(super) fn open_thinking(&self) -> Option<&'static str> {
        matches!(self.state, State::Thinking).then_some(self.close)
    }

    pub(super) fn may_think(&self) -> bool {
        matches!(self.state, State::Answer) && (!self.begun || self.notation.thinking_anywhere)
    }

    fn think(&mut self, pair: &'static Pair) {
        (self.state, self.newlines, self.close) = (State::Thinking, 1, pair.close);
        self.to_answer = marks(pair.close, Meaning::Answer).collect();
        if self.notation.calls.in_thinking && self.tools.is_some() {
            self.to_answer.extend(called(&self.to_call));
        }
    }

    /// Begins an answer between marks.
    fn answer(&mut self, pair: &'static Pair) {
        for known in [&mut self.to_any, &mut self.to_call] {
            known.retain(|mark| mark.meaning != Meaning::Close);
            if !pair.close.is_empty() {
                known.extend(marks(pair.close, Meaning::Close).take(2));
            }
        }
    }

    /// Text of the answer or of thinking, up to a mark.
    fn text(&mut self, text: &str, last: bool, out: &mut Output<'_, '_>) -> usize {
        if self.newlines > 0 && text.starts_with('\n') {
            self.newlines -= 1;
            return out.give(Part::Mark, &text[..1]);
        }
        self.newlines = 0;
        if let Some(header) = self.header {
            match header_len(header, text, last) {
                Ok(0) | Err(Open::No) => self.header = None,
                Ok(len) => {
                    self.header = None;
                    return out.give(Part::Mark, &text[..len]);
                }
                Err(Open::More) => return 0,
            }
        }
        let thinking = matches!(self.state, State::Thinking);
        if !thinking
            && !self.begun
            && let Some(len) = self.beginning(text, last, out)
        {
            return len;
        }
        let part = if thinking { Part::Thinking } else { Part::Answer };
        let marks = match thinking {
            true => &self.to_answer,
            false if self.begun => &self.to_call,
            false => &self.to_any,
        };
        match earliest(text, marks) {
            // It may become a longer mark.
            Some((0, _)) if !last && marks.iter().any(|mark| is_begun(&mark.text, text)) => 0,
            Some((0, mark)) => {
                let mark = marks.iter().find(|known| known.text == mark).cloned();
                mark.map_or(0, |mark| self.mark(&mark, part, text, last, out))
            }
            Some((at, _)) => out.give(part, &text[..at]),
            None if last => out.give(part, text),
            None => out.give(part, &text[..certain(text, marks)]),
        }
    }

    /// Looks at the beginning of an answer. Returns a length if the text there has been handled, or more is needed.
    fn beginning(&mut self, text: &str, last: bool, out: &mut Output<'_, '_>) -> Option<usize> {
        let begun = text.trim_start();
        let blank = text.len() - begun.len();
        if let Some(tools) = self.tools.as_ref().filter(|_| self.calls().unmarked)
            && blank < MAX_BLANK
        {
            if begun.is_empty() && !last {
                return Some(0);
            }
            let other = |form: &Form| matches!(form, Form::Object(keys) if heads::is_other_object(keys, tools, begun));
            if begun.starts_with(['{', '['])
                && !self.calls().forms.iter().any(other)
                && let Some(len) = self.call(0, Trust::Known, text, last, out)
            {
                return Some(len);
            }
        }
        let marks = self.to_any.iter().filter(|mark| mark.lead == 0);
        let mut marks = marks.map(|mark| mark.text.as_str());
        // A mark may begin with a blank: with the last of those before the text.
        let own = text[..blank].char_indices().next_back().map_or(0, |(at, _)| at);
        let is_marked = |mark: &str| {
            [&text[own..], begun]
                .iter()
                .any(|rest| rest.starts_with(mark) || mark.starts_with(rest))
        };
        self.begun = !begun.is_empty() && !marks.any(is_marked);
        None
    }

    fn mark(
        &mut self,
        mark: &Mark,
        part: Part,
        text: &str,
        last: bool,
        out: &mut Output<'_, '_>,
    ) -> usize {
        let len = mark.text.len();
        match mark.meaning {
            Meaning::Answer => {
                (self.state, self.newlines, self.begun) = (State::Answer, 2, false);
                let bare = &mark.text[mark.lead..];
                let pair = self.notation.answer.iter().find(|pair| pair.open == bare);
                pair.into_iter().for_each(|pair| self.answer(pair));
            }
            Meaning::Think(pair) => self.think(pair),
            Meaning::Open(pair) => {
                self.newlines = 1;
                self.answer(pair);
            }
            Meaning::Close => {
                (self.begun, self.newlines) = (false, 2);
                for known in [&mut self.to_any, &mut self.to_call] {
                    known.retain(|mark| mark.meaning != Meaning::Close);
                }
            }
            Meaning::Header(header) => {
                return match header_len(header, &text[len..], last) {
                    Ok(more) => {
                        self.newlines = 1;
                        out.give(Part::Mark, &text[..len + more])
                    }
                    Err(Open::More) => 0,
                    Err(Open::No) => {
                        self.begun = true;
                        out.give(part, &text[..len])
                    }
                };
            }
            Meaning::Stray => self.newlines = 2,
            Meaning::Call | Meaning::Bare => {
                let bare = mark.meaning == Meaning::Bare;
                let open = if bare { mark.lead } else { len };
                let trust = match part {
                    Part::Thinking => Trust::Known,
                    _ if bare => Trust::Whole,
                    _ => Trust::Marked,
                };
                return match self.call(open, trust, text, last, out) {
                    Some(len) => len,
                    None => {
                        self.begun = true;
                        out.give(part, &text[..len])
                    }
                };
            }
        }
        out.give(Part::Mark, &text[..len])
    }

    /// Begins a call whose text follows `open` bytes of marks. Returns the length that was read, 0 if more text is needed; `None` if it is no
    /// call.
    fn call(
        &mut self,
        open: usize,
        trust: Trust,
        text: &str,
        last: bool,
        out: &mut Output<'_, '_>,
    ) -> Option<usize> {
        let place = Place { calls: self.calls(), tools: self.tools.as_ref(), last };
        let mut head = match heads::head(&place, &text[open..]) {
            Ok(head) => head,
            Err(Open::More) if !last => return Some(0),
            Err(_) => return None,
        };
        let known = self.tools.as_ref().map(|tools| tools.has(&head.call.name));
        if trust != Trust::Marked && known != Some(true) {
            return None;
        }
        let certainty = match trust {
            Trust::Whole => Certainty::Ended,
            Trust::Marked | Trust::Known => Certainty::of(known),
        };
        head.at += open;
        Some(self.begin(head, certainty, text, out))
    }

    fn set_form(&mut self, form: &'static Form) {
        let Calls { opens, closes, .. } = self.calls();
        self.form = Some(form);
        self.ends.truncate(opens.len() + closes.len());
        // A fence may stand in text.
        let own = form.closes().iter().filter(|close| close.starts_with('<'));
        self.ends.extend(own);
    }

    /// Begins a call; returns the length of its beginning.
    fn begin(
        &mut self,
        head: Head,
        certainty: Certainty,
        text: &str,
        out: &mut Output<'_, '_>,
    ) -> usize {
        let part = match self.state {
            State::Thinking => Part::Thinking,
            _ => Part::Answer,
        };
        let Head { call, at, next, form } = head;
        let tool = self.tools.as_ref().and_then(|tools| tools.find(&call.name));
        let is_named = !call.name.is_empty();
        out.begin(is_named.then_some(call), &text[..at], certainty, part);
        self.set_form(form);
        self.state = match next {
            Next::Arguments(tail) => State::Arguments(Arguments::default(), tail),
            Next::Nothing => {
                out.more("{}", "");
                out.whole();
                State::After(Tail::Done)
            }
            Next::Whole(keys, list) => {
                State::Object { scan: Arguments::default(), keys, start: at, list }
            }
            Next::Params(tags, key) => State::Params(Params::new(tags, tool, key)),
            Next::Tree(elements) => State::Tree(Tree::new(elements, tool)),
            Next::Values(literal) => {
                out.more("{", "");
                State::Values(Values::new(literal, tool))
            }
        };
        at
    }

    fn object(&mut self, text: &str, last: bool, out: &mut Output<'_, '_>) -> usize {
        let State::Object { scan, keys, start, list } = &mut self.state else { return 0 };
        let (len, ends) = scan.take(text, &self.ends, false, last);
        out.more("", &text[..len]);
        if ends == Ends::Later {
            return len;
        }
        let call = calls::object(keys, &out.raw()[*start..]).filter(|_| ends == Ends::Whole);
        let list = *list;
        match call {
            Some(call) => {
                out.set(call);
                self.state = State::After(if list { Tail::Item } else { Tail::Done });
                len
            }
            None => {
                out.end();
                (self.state, self.begun) = (State::Answer, true);
                if len == 0 { self.step(text, last, out) } else { len }
            }
        }
    }

    fn arguments(&mut self, text: &str, last: bool, out: &mut Output<'_, '_>) -> usize {
        let State::Arguments(arguments, tail) = &mut self.state else { return 0 };
        let (len, ends) = arguments.take(text, &self.ends, false, last);
        let tail = *tail;
        if ends != Ends::Later {
            self.state = State::After(tail);
        }
        if len > 0 {
            out.more(&text[..len], &text[..len]);
        }
        if ends == Ends::Whole {
            out.whole();
        }
        match len {
            0 if ends == Ends::Marked => self.after(tail, text, last, out),
            len => len,
        }
    }

    fn params(&mut self, text: &str, last: bool, out: &mut Output<'_, '_>) -> usize {
        let around = Around { tools: self.tools.as_ref(), ends: &self.ends };
        let State::Params(params) = &mut self.state else { return 0 };
        match params.step(text, last, &around, out) {
            Took::Text(len) => len,
            Took::Ended(len) => {
                self.state = State::After(Tail::Done);
                if len == 0 { self.after(Tail::Done, text, last, out) } else { len }
            }
            Took::Json => {
                self.state = State::Arguments(Arguments::default(), Tail::Done);
                self.arguments(text, last, out)
            }
        }
    }

    fn tree(&mut self, text: &str, last: bool, out: &mut Output<'_, '_>) -> usize {
        let State::Tree(tree) = &mut self.state else { return 0 };
        match tree.step(text, last, self.tools.as_ref(), &self.ends, out) {
            Took::Text(len) => len,
            Took::Ended(0) | Took::Json => {
                self.state = State::After(Tail::Done);
                self.after(Tail::Done, text, last, out)
            }
            Took::Ended(len) => {
                self.state = State::After(Tail::Done);
                len
            }
        }
    }

    fn values(&mut self, text: &str, last: bool, out: &mut Output<'_, '_>) -> usize {
        let State::Values(values) = &mut self.state else { return 0 };
        let mut json = String::new();
        match values.step(text, last, self.tools.as_ref(), &self.ends, &mut json) {
            Ok((len, ended)) => {
                out.more(&json, &text[..len]);
                if ended {
                    out.whole();
                    self.state = State::After(Tail::Item);
                }
                len
            }
            Err(Open::More) => 0,
            Err(Open::No) => self.out_of_order(text, last, out),
        }
    }

    /// Handles the text after the arguments of a call, up to its closing mark. The mark may come too early: the call is known by then.
    fn after(&mut self, tail: Tail, text: &str, last: bool, out: &mut Output<'_, '_>) -> usize {
        let blank = text.len() - text.trim_start().len();
        if blank > 0 {
            return out.more("", &text[..blank]);
        }
        let Calls { opens, closes, .. } = self.calls();
        let own = self.form.map_or(&[][..], Form::closes);
        let tag = match self.form {
            Some(Form::Tagged(tagged)) if !tagged.close.is_empty() => tagged.close,
            _ => "",
        };
        let starts =
            |marks: &[&'static str]| marks.iter().find(|mark| text.starts_with(**mark)).copied();
        if let Some(mark) = starts(closes) {
            out.more("", mark);
            let is_call = out.end();
            (self.state, self.begun) = (State::Answer, !is_call);
            self.newlines = if is_call { 2 } else { 0 };
            return mark.len();
        }
        // Where there is no closing mark, it is the beginning of the next call.
        if starts(opens).is_some() {
            out.end();
            (self.state, self.newlines, self.begun) = (State::Answer, 0, false);
            return self.step(text, last, out);
        }
        let own_mark = starts(own).or_else(|| (!tag.is_empty()).then(|| starts(&[tag])).flatten());
        if let Some(mark) = own_mark {
            self.state = State::After(Tail::Done);
            return out.more("", mark);
        }
        let mut all = closes.iter().chain(*opens).chain(own).chain([&tag]);
        if all.any(|mark| is_begun(mark, text)) {
            return if last { out.more("", text) } else { 0 };
        }
        match self.tail(tail, text, last, out) {
            Ok(Some(len)) => len,
            Err(Open::More) if !last => 0,
            Err(Open::More) => out.more("", text),
            Ok(None) | Err(Open::No) => self.out_of_order(text, last, out),
        }
    }

    /// Reads the rest of a call's object or list, or the next call; `None` if it is neither.
    fn tail(
        &mut self,
        tail: Tail,
        text: &str,
        last: bool,
        out: &mut Output<'_, '_>,
    ) -> Result<Option<usize>, Open> {
        let Some(form) = self.form else { return Ok(None) };
        if tail == Tail::Done {
            return self.next(form, text, last, out);
        }
        enum Found {
            End(usize),
            Comma(usize),
        }
        let found = within(text, |text| {
            let mut reader = JsonReader::new(text);
            let keys = match form {
                Form::Object(keys) => Some(keys),
                _ => None,
            };
            let id = if tail == Tail::Item { None } else { reader.object_end(keys)? };
            if tail == Tail::Object {
                return Ok((Found::End(reader.at), id));
            }
            if reader.eat(',')? {
                return Ok((Found::Comma(reader.at), id));
            }
            match reader.eat(']')? {
                true => Ok((Found::End(reader.at), id)),
                false => Err(Open::No),
            }
        });
        match found {
            Ok((Found::End(end), id)) => {
                out.identify(id);
                self.state = State::After(Tail::Done);
                Ok(Some(out.more("", &text[..end])))
            }
            Ok((Found::Comma(at), id)) => {
                let mut head = heads::next_in_list(form, self.tools.as_ref(), &text[at..])?;
                head.at += at;
                out.identify(id);
                let known = self.tools.as_ref().map(|tools| tools.has(&head.call.name));
                Ok(Some(self.begin(head, Certainty::of(known), text, out)))
            }
            // A call without a list.
            Err(Open::No) if tail == Tail::Item => {
                self.state = State::After(Tail::Done);
                self.next(form, text, last, out)
            }
            Err(open) => Err(open),
        }
    }

    /// Begins the next call after the same mark.
    fn next(
        &mut self,
        form: &'static Form,
        text: &str,
        last: bool,
        out: &mut Output<'_, '_>,
    ) -> Result<Option<usize>, Open> {
        if !form.repeats() {
            return Ok(None);
        }
        // Llama separates calls by semicolons.
        let from = usize::from(text.starts_with(';'));
        let place = Place { calls: self.calls(), tools: self.tools.as_ref(), last };
        let mut head = heads::head(&place, &text[from..])?;
        head.at += from;
        let known = self.tools.as_ref().map(|tools| tools.has(&head.call.name));
        if self.calls().unmarked && known != Some(true) {
            return Ok(None);
        }
        Ok(Some(self.begin(head, Certainty::of(known), text, out)))
    }

    /// Treats malformed text as answer text, which may contain another call.
    fn out_of_order(&mut self, text: &str, last: bool, out: &mut Output<'_, '_>) -> usize {
        out.end();
        (self.state, self.begun) = (State::Answer, true);
        self.step(text, last, out)
    }
}
