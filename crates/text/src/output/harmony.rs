//! Harmony, the format of gpt-oss: messages with a header that names a channel and perhaps a recipient.
//!
//! `<|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>`. At
//! temperature 1, a few headers in a hundred are malformed. So the recipient may precede or follow the
//! channel, `<|constrain|>json` may be missing, other text in a header is skipped, and a message also ends
//! where the next one begins.

use super::calls::{self, Call};
use super::pieces::{Arguments, BESIDE, Ends, give_piece};
use super::{Each, Part, certain, earliest, floor, give, give_calls};

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const ENDS: [&str; 3] = ["<|end|>", "<|return|>", "<|call|>"];
/// Marks that end a message or begin the next one.
const AFTER: [&str; 5] = ["<|end|>", "<|return|>", "<|call|>", START, CHANNEL];
const IN_HEADER: [&str; 5] = ["<|end|>", "<|return|>", "<|call|>", START, MESSAGE];
/// Possible beginnings of a header.
const HEADS: [&str; 5] = [START, CHANNEL, MESSAGE, "<|constrain|>", "to="];
/// The maximum length of a header in bytes.
const MAX_HEADER_BYTES: usize = 1024;

#[derive(Debug)]
enum State {
    Header,
    Message(Part),
    /// The text begins with the header of a call, `open` bytes long; nothing before `searched` ends the call.
    Call {
        name: String,
        otherwise: Part,
        open: usize,
        searched: usize,
    },
    /// The text continues with the arguments of a call in pieces.
    Arguments {
        arguments: Arguments,
        otherwise: Part,
    },
    /// The text continues after them; text that does not belong there becomes this part.
    AfterArguments(Part),
}

#[derive(Debug)]
pub(super) struct Harmony {
    state: State,
    /// The beginning of the header, where the prompt already contains it.
    begun: String,
    /// True if calls are emitted in pieces.
    pieces: bool,
}

impl Harmony {
    pub(super) fn new(prompt_end: &str) -> Harmony {
        let begun = prompt_end.rfind(START).map_or("", |at| &prompt_end[at..]);
        let mut harmony = Harmony { state: State::Header, begun: String::new(), pieces: false };
        match begun.split_once(MESSAGE) {
            None => harmony.begun = begun.to_owned(),
            Some((header, text)) if earliest(text, &ENDS).is_none() => {
                harmony.state = State::Message(channel(header));
            }
            Some(_) => {}
        }
        harmony
    }

    /// Emits the beginning of `text`, which is not empty; returns its length, 0 if more text is needed.
    pub(super) fn step(&mut self, text: &str, last: bool, each: &mut Each<'_>) -> usize {
        match &self.state {
            State::Header => self.header(text, last, each),
            State::Message(part) => {
                let part = part.clone();
                self.message(part, text, last, each)
            }
            State::Call { .. } => self.call(text, last, each),
            State::Arguments { .. } => self.arguments(text, last, each),
            State::AfterArguments(otherwise) => {
                let otherwise = otherwise.clone();
                self.after_arguments(otherwise, text, last, each)
            }
        }
    }

    pub(super) fn in_pieces(&mut self) {
        self.pieces = true;
    }

    fn header(&mut self, text: &str, last: bool, each: &mut Each<'_>) -> usize {
        let trimmed = text.trim_start();
        let is_header = HEADS.iter().any(|h| trimmed.starts_with(h) || h.starts_with(trimmed));
        // The mark that the header begins with does not end it.
        let from = if text.starts_with(START) { START.len() } else { 0 };
        let found = earliest(&text[from..], &IN_HEADER).map(|(at, mark)| (from + at, mark));
        let end = found.map_or(text.len(), |(at, _)| at);
        if !is_header || end > MAX_HEADER_BYTES {
            return self.message(Part::Answer, text, last, each);
        }
        match found {
            Some((at, MESSAGE)) => {
                let header = std::mem::take(&mut self.begun) + &text[..at];
                let open = at + MESSAGE.len();
                match recipient(&header) {
                    Some(name) => {
                        let otherwise = channel(&header);
                        self.state = State::Call { name, otherwise, open, searched: open };
                        self.call(text, last, each)
                    }
                    None => {
                        self.state = State::Message(channel(&header));
                        give(Part::Mark, &text[..open], each)
                    }
                }
            }
            Some((0, mark)) => give(Part::Mark, &text[..mark.len()], each),
            // A header without a message, or white space between two messages.
            Some((at, _)) => {
                let blank = text[..at].trim().is_empty();
                give(if blank { Part::Mark } else { Part::Answer }, &text[..at], each)
            }
            None if last => give(Part::Mark, text, each),
            None => 0,
        }
    }

    fn message(&mut self, part: Part, text: &str, last: bool, each: &mut Each<'_>) -> usize {
        self.begun.clear();
        match earliest(text, &AFTER) {
            Some((0, mark)) if ENDS.contains(&mark) => {
                self.state = State::Header;
                give(Part::Mark, &text[..mark.len()], each)
            }
            // A mark that began a rejected header is text; one that begins the next header does not
            // belong to this message.
            Some((0, mark)) => match self.state {
                State::Header => {
                    self.state = State::Message(part.clone());
                    give(part, &text[..mark.len()], each)
                }
                _ => {
                    self.state = State::Header;
                    self.header(text, last, each)
                }
            },
            found => {
                self.state = State::Message(part.clone());
                let end = match found {
                    Some((at, _)) => at,
                    None if last => text.len(),
                    None => certain(text, &AFTER),
                };
                give(part, &text[..end], each)
            }
        }
    }

    fn call(&mut self, text: &str, last: bool, each: &mut Each<'_>) -> usize {
        let State::Call { name, otherwise, open, searched } = &mut self.state else { return 0 };
        if self.pieces {
            let body = &text[*open..floor(text, *open + BESIDE)];
            let begun = body.trim_start();
            if begun.is_empty() && body.len() < BESIDE && !last {
                return 0;
            }
            if begun.starts_with('{') {
                let end = *open + body.len() - begun.len();
                let (name, otherwise) = (std::mem::take(name), otherwise.clone());
                self.state = State::Arguments { arguments: Arguments::default(), otherwise };
                return give_piece(name, "", &text[..end], each);
            }
        }
        let found = earliest(&text[*searched..], &AFTER).map(|(at, mark)| (*searched + at, mark));
        let (at, end) = match found {
            Some((at, mark)) if ENDS.contains(&mark) => (at, at + mark.len()),
            Some((at, _)) => (at, at),
            None if last => (text.len(), text.len()),
            None => {
                let longest = AFTER.iter().map(|mark| mark.len()).max().unwrap_or(0);
                *searched = floor(text, (text.len() + 1).saturating_sub(longest)).max(*open);
                return 0;
            }
        };
        let raw = &text[..end];
        let taken = match calls::arguments(&text[*open..at]) {
            Some(arguments) => {
                let call = Call { name: std::mem::take(name), arguments };
                give_calls(vec![call], raw, each)
            }
            None => give(otherwise.clone(), raw, each),
        };
        self.state = State::Header;
        taken
    }

    fn arguments(&mut self, text: &str, last: bool, each: &mut Each<'_>) -> usize {
        let State::Arguments { arguments, otherwise } = &mut self.state else { return 0 };
        let (len, ends) = arguments.take(text, &AFTER, true, last);
        if ends != Ends::Later {
            let otherwise = otherwise.clone();
            self.state = State::AfterArguments(otherwise.clone());
            if len == 0 {
                return self.after_arguments(otherwise, text, last, each);
            }
        }
        give_piece(String::new(), &text[..len], &text[..len], each)
    }

    fn after_arguments(
        &mut self,
        otherwise: Part,
        text: &str,
        last: bool,
        each: &mut Each<'_>,
    ) -> usize {
        let blank = text.len() - text.trim_start().len();
        if blank > 0 {
            return give_piece(String::new(), "", &text[..blank], each);
        }
        match earliest(text, &AFTER) {
            Some((0, mark)) => {
                self.state = State::Header;
                match ENDS.contains(&mark) {
                    true => give_piece(String::new(), "", &text[..mark.len()], each),
                    false => self.header(text, last, each),
                }
            }
            _ if !last && AFTER.iter().any(|mark| mark.starts_with(text)) => 0,
            _ => self.message(otherwise, text, last, each),
        }
    }
}

/// The part that messages on a header's channel belong to.
fn channel(header: &str) -> Part {
    let name = header.rsplit_once(CHANNEL).map_or("", |(_, rest)| rest.trim_start());
    let is = |channel: &str| {
        let after = name.strip_prefix(channel);
        after.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
    };
    if is("analysis") { Part::Thinking } else { Part::Answer }
}

/// The tool that a header is addressed to.
fn recipient(header: &str) -> Option<String> {
    let starts = header.match_indices("to=").map(|(at, _)| at);
    let mut starts = starts.filter(|&at| {
        header[..at].chars().next_back().is_none_or(|c| c == '>' || c.is_whitespace())
    });
    let name = &header[starts.next()? + "to=".len()..];
    let end = name.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(name.len());
    let name = &name[..end];
    let name = name.strip_prefix("functions.").unwrap_or(name);
    let nobody = ["", "assistant", "user", "all"].contains(&name);
    (!nobody).then(|| name.to_owned())
}
