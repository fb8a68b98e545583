//! Tool calls, and how they are emitted: in pieces, or held until they are whole.

use std::collections::HashMap;

use serde_json::value::RawValue;

use super::{Each, Part, Span, give};
use crate::format::Object;

/// A tool call, or, [in pieces](super::Parser::in_pieces), a piece of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// The tool's name. In pieces, only the first one has it; it is empty in those that follow.
    pub name: String,
    /// The arguments: a JSON object, as text. If the model wrote JSON, this is that text unchanged.
    pub arguments: String,
    /// The id that the model gave the call, where its template wants that id again with the result. In pieces, one that stands after the
    /// arguments is in the last piece.
    pub id: Option<String>,
}

impl Call {
    /// A call of this tool, with the arguments as JSON.
    pub fn new(name: impl Into<String>, arguments: impl Into<String>) -> Call {
        Call { name: name.into(), arguments: arguments.into(), id: None }
    }
}

/// The arguments of a call, if they are a JSON object; missing arguments are an empty one.
fn arguments(text: &str) -> Option<String> {
    let text = text.trim();
    if text.is_empty() {
        return Some("{}".to_owned());
    }
    let is_object = text.starts_with('{') && serde_json::from_str::<&RawValue>(text).is_ok();
    is_object.then(|| text.to_owned())
}

/// A name without the blanks around it, if there is any.
pub(super) fn named(name: &str) -> Option<String> {
    let name = name.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// Reads a call that is a whole JSON object, its keys in any order.
pub(super) fn object(keys: &Object, text: &str) -> Option<Call> {
    let mut fields: HashMap<String, Box<RawValue>> = serde_json::from_str(text).ok()?;
    let id = Some(keys.last_id).filter(|key| !key.is_empty()).and_then(|key| fields.remove(key));
    let id = id.and_then(|id| identified(&id));
    let (name, given) = if keys.name.is_empty() {
        if fields.len() != 1 {
            return None;
        }
        let (name, given) = fields.into_iter().next()?;
        (name, Some(given))
    } else {
        let name: String = serde_json::from_str(fields.get(keys.name)?.get()).ok()?;
        (name, keys.arguments.iter().find_map(|key| fields.remove(*key)))
    };
    let text = given.map_or("{}".to_owned(), |given| given.get().to_owned());
    // Some models write the object as a string.
    let text = serde_json::from_str::<String>(&text).unwrap_or(text);
    Some(Call { id, ..Call::new(named(&name)?, arguments(&text)?) })
}

/// An id that is JSON, if it is a text that names a call.
fn identified(json: &RawValue) -> Option<String> {
    serde_json::from_str(json.get()).ok().and_then(|id: String| named(&id))
}

/// When a call is certain to be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Certainty {
    /// Now: it may be emitted as it comes.
    Now,
    /// When its end has been seen.
    Ended,
}

impl Certainty {
    /// The certainty of a call after a mark, of a tool that is known, unknown, or any.
    pub(super) fn of(known: Option<bool>) -> Certainty {
        if known == Some(false) { Certainty::Ended } else { Certainty::Now }
    }
}

/// A call that is held until it is whole.
#[derive(Debug)]
struct Held {
    call: Option<Call>,
    raw: String,
    /// The arguments have ended.
    whole: bool,
    /// They only end where the notation says so, not at other text or at the end of the answer.
    strict: bool,
    /// The part to which the text belongs if it is no call.
    otherwise: Part,
}

/// Where parts go: to the caller, or, while a call is held, to that call.
#[derive(Debug, Default)]
pub(super) struct Holder {
    held: Option<Held>,
    /// True if calls are emitted in pieces.
    pub(super) pieces: bool,
}

/// Emits the parts of an answer.
pub(super) struct Output<'o, 'e> {
    pub(super) each: &'o mut Each<'e>,
    pub(super) holder: &'o mut Holder,
}

impl Output<'_, '_> {
    /// Emits text of a part; returns its length.
    pub(super) fn give(&mut self, part: Part, raw: &str) -> usize {
        self.end();
        give(part, raw, self.each)
    }

    /// Begins a call, of which `raw` is the text so far.
    pub(super) fn begin(
        &mut self,
        call: Option<Call>,
        raw: &str,
        certainty: Certainty,
        otherwise: Part,
    ) {
        self.end();
        match call {
            Some(call) if certainty == Certainty::Now && self.holder.pieces => {
                (self.each)(Span { part: Part::Call(call), raw });
            }
            call => {
                let (raw, strict) = (raw.to_owned(), certainty == Certainty::Ended);
                self.holder.held = Some(Held { call, raw, whole: false, strict, otherwise });
            }
        }
    }

    /// Continues a call: its next arguments, and the text that they come from; returns the length of that.
    pub(super) fn more(&mut self, arguments: &str, raw: &str) -> usize {
        match &mut self.holder.held {
            Some(held) => {
                held.raw.push_str(raw);
                if let Some(call) = &mut held.call {
                    call.arguments.push_str(arguments);
                }
            }
            None if raw.is_empty() && arguments.is_empty() => {}
            None => {
                let call = Call { arguments: arguments.to_owned(), ..Call::default() };
                (self.each)(Span { part: Part::Call(call), raw });
            }
        }
        raw.len()
    }

    /// Gives the call the id that the model wrote after its arguments.
    pub(super) fn identify(&mut self, id: Option<String>) {
        let Some(id) = id.as_deref().and_then(named) else { return };
        match &mut self.holder.held {
            Some(held) => held.call.iter_mut().for_each(|call| call.id = Some(id.clone())),
            None => {
                let call = Call { id: Some(id), ..Call::default() };
                (self.each)(Span { part: Part::Call(call), raw: "" });
            }
        }
    }

    /// States that the arguments of the call have ended.
    pub(super) fn whole(&mut self) {
        self.whole_if(true);
    }

    /// States the same; `marked`: at a mark of the notation.
    pub(super) fn whole_if(&mut self, marked: bool) {
        if let Some(held) = &mut self.holder.held {
            held.whole = marked || !held.strict;
        }
    }

    /// The text of the call that is held.
    pub(super) fn raw(&self) -> &str {
        self.holder.held.as_ref().map_or("", |held| &held.raw)
    }

    /// Sets the call that the held text has turned out to be.
    pub(super) fn set(&mut self, call: Call) {
        if let Some(held) = &mut self.holder.held {
            (held.call, held.whole) = (Some(call), true);
        }
    }

    /// Ends the call: emits it if it was held. Returns false if its text turned out to be no call, and was emitted as text.
    pub(super) fn end(&mut self) -> bool {
        let Some(Held { call, raw, whole, otherwise, .. }) = self.holder.held.take() else {
            return true;
        };
        let call = call
            .filter(|_| whole)
            .and_then(|call| Some(Call { arguments: arguments(&call.arguments)?, ..call }));
        let is_call = call.is_some();
        let part = call.map_or(otherwise, Part::Call);
        give(part, &raw, self.each);
        is_call
    }
}
