//! Harmony, the format of gpt-oss: messages with a header that names a channel and perhaps a recipient.
//!
//! `<|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>`. At
//! temperature 1, a few headers in a hundred are malformed. So the recipient may precede or follow the
//! channel, `<|constrain|>json` may be missing, other text in a header is skipped, and a message also ends
//! where the next one begins.

use super::calls::{Call, Certainty, Output};
use super::json::{Arguments, Ends, MAX_HEAD};
use super::schema::Tools;
use super::{Part, certain, earliest, floor};

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
enum HarmonyState {
    Header,
    Message(Part),
    /// The text begins with the header of a call, `open` bytes long.
    Call {
        name: String,
        otherwise: Part,
        open: usize,
    },
    /// The text continues with a message to a tool that is no call.
    NoCall,
    /// The text continues with the arguments of a call.
    Arguments {
        arguments: Arguments,
        otherwise: Part,
    },
    /// The text continues after them; text that does not belong there becomes this part.
    AfterArguments(Part),
}

#[derive(Debug)]
pub(super) struct Harmony {
    state: HarmonyState,
    /// The beginning of the header, where the prompt already contains it.
    begun: String,
    tools: Option<Tools>,
}

impl Harmony {
    pub(super) fn new(prompt_end: &str) -> Harmony {
        let begun = prompt_end.rfind(START).map_or("", |at| &prompt_end[at..]);
        let mut harmony =
            Harmony { state: HarmonyState::Header, begun: String::new(), tools: None };
        match begun.split_once(MESSAGE) {
            None => harmony.begun = begun.to_owned(),
            Some((header, text)) if earliest(text, &ENDS).is_none() => {
                harmony.state = HarmonyState::Message(channel(header));
            }
            Some(_) => {}
        }
        harmony
    }

    /// Emits the beginning of `text`, which is not empty; returns its length, 0 if more text is needed.
    pub(super) fn step(&mut self, text: &str, last: bool, out: &mut Output<'_, '_>) -> usize {
        match &self.state {
            HarmonyState::Header => self.header(text, last, out),
            HarmonyState::Message(part) => {
                let part = part.clone();
                self.message(part, text, last, out)
            }
            HarmonyState::Call { .. } => self.call(text, last, out),
            HarmonyState::NoCall => self.no_call(text, last, out),
            HarmonyState::Arguments { .. } => self.arguments(text, last, out),
            HarmonyState::AfterArguments(otherwise) => {
                let otherwise = otherwise.clone();
                self.after_arguments(otherwise, text, last, out)
            }
        }
    }

    pub(super) fn open_thinking(&self) -> Option<&'static str> {
        matches!(self.state, HarmonyState::Message(Part::Thinking)).then_some(ENDS[0])
    }

    pub(super) fn may_think(&self) -> bool {
        matches!(self.state, HarmonyState::Header)
    }

    pub(super) fn set_tools(&mut self, tools: Tools) {
        self.tools = Some(tools);
    }

    fn header(&mut self, text: &str, last: bool, out: &mut Output<'_, '_>) -> usize {
        let trimmed = text.trim_start();
        let is_header = HEADS.iter().any(|h| trimmed.starts_with(h) || h.starts_with(trimmed));
        // The mark that the header begins with does not end it.
        let from = if text.starts_with(START) { START.len() } else { 0 };
        let found = earliest(&text[from..], &IN_HEADER).map(|(at, mark)| (from + at, mark));
        let end = found.map_or(text.len(), |(at, _)| at);
        if !is_header || end > MAX_HEADER_BYTES {
            return self.message(Part::Answer, text, last, out);
        }
        match found {
            Some((at, MESSAGE)) => {
                let header = std::mem::take(&mut self.begun) + &text[..at];
                let open = at + MESSAGE.len();
                match recipient(&header) {
                    Some(name) => {
                        let otherwise = channel(&header);
                        self.state = HarmonyState::Call { name, otherwise, open };
                        self.call(text, last, out)
                    }
                    None => {
                        self.state = HarmonyState::Message(channel(&header));
                        out.give(Part::Mark, &text[..open])
                    }
                }
            }
            Some((0, mark)) => out.give(Part::Mark, &text[..mark.len()]),
            // A header without a message, or white space between two messages.
            Some((at, _)) => {
                let blank = text[..at].trim().is_empty();
                out.give(if blank { Part::Mark } else { Part::Answer }, &text[..at])
            }
            None if last => out.give(Part::Mark, text),
            None => 0,
        }
    }

    fn message(&mut self, part: Part, text: &str, last: bool, out: &mut Output<'_, '_>) -> usize {
        self.begun.clear();
        match earliest(text, &AFTER) {
            Some((0, mark)) if ENDS.contains(&mark) => {
                self.state = HarmonyState::Header;
                out.give(Part::Mark, &text[..mark.len()])
            }
            // A mark that began a rejected header is text; one that begins the next header does not
            // belong to this message.
            Some((0, mark)) => match self.state {
                HarmonyState::Header => {
                    self.state = HarmonyState::Message(part.clone());
                    out.give(part, &text[..mark.len()])
                }
                _ => {
                    self.state = HarmonyState::Header;
                    self.header(text, last, out)
                }
            },
            found => {
                self.state = HarmonyState::Message(part.clone());
                let end = match found {
                    Some((at, _)) => at,
                    None if last => text.len(),
                    None => certain(text, &AFTER),
                };
                out.give(part, &text[..end])
            }
        }
    }

    /// The beginning of a message to a tool.
    fn call(&mut self, text: &str, last: bool, out: &mut Output<'_, '_>) -> usize {
        let HarmonyState::Call { name, otherwise, open } = &mut self.state else { return 0 };
        let body = &text[*open..floor(text, *open + MAX_HEAD)];
        let begun = body.trim_start();
        let end = *open + body.len() - begun.len();
        let marked = AFTER.iter().any(|mark| begun.starts_with(mark));
        let open_mark = AFTER.iter().any(|mark| mark.starts_with(begun));
        if open_mark && !marked && body.len() < MAX_HEAD && !last {
            return 0;
        }
        let known = self.tools.as_ref().map(|tools| tools.has(name));
        let otherwise = otherwise.clone();
        let empty = marked || (begun.is_empty() && last);
        let call = Call::new(std::mem::take(name), "");
        let call = (begun.starts_with('{') || empty).then_some(call);
        let is_call = call.is_some();
        out.begin(call, &text[..end], Certainty::of(known), otherwise.clone());
        if empty {
            out.more("{}", "");
            out.whole();
        }
        self.state = match is_call {
            true if !empty => {
                HarmonyState::Arguments { arguments: Arguments::default(), otherwise }
            }
            true => HarmonyState::AfterArguments(otherwise),
            false => HarmonyState::NoCall,
        };
        end
    }

    /// The rest of a message to a tool that has no arguments: it is text, as it was written.
    fn no_call(&mut self, text: &str, last: bool, out: &mut Output<'_, '_>) -> usize {
        let end = match earliest(text, &AFTER) {
            Some((0, mark)) => {
                self.state = HarmonyState::Header;
                let end = if ENDS.contains(&mark) { mark.len() } else { 0 };
                out.more("", &text[..end]);
                out.end();
                return if end == 0 { self.header(text, last, out) } else { end };
            }
            Some((at, _)) => at,
            None if last => text.len(),
            None => certain(text, &AFTER),
        };
        out.more("", &text[..end])
    }

    fn arguments(&mut self, text: &str, last: bool, out: &mut Output<'_, '_>) -> usize {
        let HarmonyState::Arguments { arguments, otherwise } = &mut self.state else { return 0 };
        let (len, ends) = arguments.take(text, &AFTER, true, last);
        if ends == Ends::Whole {
            out.more(&text[..len], &text[..len]);
            out.whole();
            self.state = HarmonyState::AfterArguments(otherwise.clone());
            return len;
        }
        if ends != Ends::Later {
            let otherwise = otherwise.clone();
            self.state = HarmonyState::AfterArguments(otherwise.clone());
            if len == 0 {
                return self.after_arguments(otherwise, text, last, out);
            }
        }
        out.more(&text[..len], &text[..len])
    }

    fn after_arguments(
        &mut self,
        otherwise: Part,
        text: &str,
        last: bool,
        out: &mut Output<'_, '_>,
    ) -> usize {
        let blank = text.len() - text.trim_start().len();
        if blank > 0 {
            return out.more("", &text[..blank]);
        }
        match earliest(text, &AFTER) {
            Some((0, mark)) => {
                self.state = HarmonyState::Header;
                match ENDS.contains(&mark) {
                    true => {
                        out.more("", mark);
                        out.end();
                        mark.len()
                    }
                    false => {
                        out.end();
                        self.header(text, last, out)
                    }
                }
            }
            _ if !last && AFTER.iter().any(|mark| mark.starts_with(text)) => 0,
            _ => self.message(otherwise, text, last, out),
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
