//! The changes to messages with which a chat template takes a conversation that it refuses, or of which it leaves something out.
//!
//! Invariant: a change to a message depends on that message and the ones before it, and results on those next to them. So the beginning
//! of a conversation stays the same when more follows.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::in_words::{joined, spaced, write_calls, write_result};

/// The characters of an id that Mistral's templates take, and their number.
const ID_CHARS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const ID_LEN: usize = 9;

/// A change to the messages of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The results of calls stand in the order of the calls.
    OrderResults,
    /// Ids of calls have nine letters or digits. An id that has them stays; any other becomes a hash of it.
    ShortIds,
    /// Arguments that are no JSON object are the only value of one.
    WrapArguments,
    /// Arguments are a JSON text.
    WriteArguments,
    /// The content of a message that has calls and no text is null.
    NullContent,
    /// The text before a call is the end of the thinking.
    MoveTextToThinking,
    /// There is no thinking in the message.
    DropThinking,
    /// Each call has a message of its own, and its result follows it.
    SplitCalls,
    /// The text before a call is a message of its own.
    SplitText,
    /// An empty answer stands between a result and the message of the user that follows it.
    AddAnswer,
    /// An empty answer is a blank.
    FillAnswer,
    /// A system message that is not the first is the user's.
    FoldLaterSystem,
    /// The system message that is the first is the user's.
    FoldSystem,
    /// The result of a call is the user's.
    FoldResult,
    /// Calls are text.
    WriteCalls,
    /// An empty message of the user stands before the first answer, where there is none.
    AddQuestion,
    /// Neighbours of one role are one message.
    Merge,
}

/// Where a change holds, once a template has refused a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// For the messages that were added with the refused one: something gets lost by it.
    Here,
    /// From there on: nothing gets lost by it.
    Onwards,
}

/// The changes, the smallest first: this is the order in which they are tried.
pub(super) const CHANGES: [(Change, Scope, &str); 16] = [
    (Change::ShortIds, Scope::Onwards, "ids of calls have nine characters"),
    (Change::WrapArguments, Scope::Here, "arguments that are no JSON object are the value of one"),
    (Change::WriteArguments, Scope::Onwards, "arguments of calls are text"),
    (Change::NullContent, Scope::Onwards, "the content of a message with calls is null"),
    (Change::MoveTextToThinking, Scope::Here, "the text before a call is part of the thinking"),
    (Change::DropThinking, Scope::Here, "the thinking of a message is left out"),
    (Change::SplitCalls, Scope::Onwards, "each call has a message of its own"),
    (
        Change::AddAnswer,
        Scope::Onwards,
        "an empty answer stands between a result and the user's message",
    ),
    (Change::FillAnswer, Scope::Onwards, "an empty answer is a blank"),
    (Change::SplitText, Scope::Here, "the text before a call is a message of its own"),
    (Change::FoldLaterSystem, Scope::Here, "a later system message is the user's"),
    (Change::FoldSystem, Scope::Here, "the system message is the user's"),
    (Change::FoldResult, Scope::Here, "the result of a call is the user's"),
    (Change::Merge, Scope::Onwards, "messages of one role that follow one another are one"),
    (
        Change::AddQuestion,
        Scope::Onwards,
        "an empty message of the user's stands before the first answer",
    ),
    (Change::WriteCalls, Scope::Here, "calls are text"),
];

/// The order in which changes are made, whatever the order in which they were found.
const STEPS: [Change; 17] = [
    Change::OrderResults,
    Change::ShortIds,
    Change::WrapArguments,
    Change::WriteArguments,
    Change::MoveTextToThinking,
    Change::DropThinking,
    Change::SplitCalls,
    Change::SplitText,
    Change::NullContent,
    Change::FoldLaterSystem,
    Change::FoldSystem,
    Change::FoldResult,
    Change::WriteCalls,
    Change::AddQuestion,
    Change::Merge,
    Change::AddAnswer,
    Change::FillAnswer,
];

impl Change {
    /// Returns true if it may act on what another change leaves, although it does not act on the messages as they are.
    pub(super) fn follows_others(self) -> bool {
        matches!(self, Change::AddAnswer | Change::FillAnswer | Change::Merge)
    }

    /// The sentence about it.
    pub(super) fn sentence(self) -> &'static str {
        let listed = CHANGES.iter().find(|(change, ..)| *change == self);
        listed.map_or("results stand in the order of their calls", |(.., sentence)| sentence)
    }
}

/// A change, and the messages that it holds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) change: Change,
    pub(super) from: usize,
    pub(super) until: usize,
}

impl Rule {
    /// The change for all messages.
    pub(super) fn always(change: Change) -> Rule {
        Rule { change, from: 0, until: usize::MAX }
    }
}

/// A message, and its place in the conversation as it was given.
#[derive(Clone, Debug)]
struct Turn {
    at: usize,
    message: Value,
}

/// Returns the messages with these changes.
pub(super) fn changed(messages: &[Value], rules: &[Rule]) -> Vec<Value> {
    let turns = messages.iter().cloned().enumerate();
    let mut turns: Vec<Turn> = turns.map(|(at, message)| Turn { at, message }).collect();
    for step in STEPS {
        let of = rules.iter().filter(|rule| rule.change == step);
        let ranges: Vec<_> = of.map(|rule| rule.from..rule.until).collect();
        if !ranges.is_empty() {
            let holds = |at: usize| ranges.iter().any(|range| range.contains(&at));
            turns = change(step, turns, &holds);
        }
    }
    turns.into_iter().map(|turn| turn.message).collect()
}

fn change(change: Change, turns: Vec<Turn>, holds: &dyn Fn(usize) -> bool) -> Vec<Turn> {
    match change {
        Change::OrderResults => with_ordered_results(turns, holds),
        Change::ShortIds => with_short_ids(turns, holds),
        Change::SplitCalls => with_split_calls(turns, holds),
        Change::SplitText => with_split_text(turns, holds),
        Change::AddAnswer => with_answers(turns, holds),
        Change::AddQuestion => with_question(turns, holds),
        Change::Merge => merged(turns, holds),
        _ => {
            let mut turns = turns;
            for turn in turns.iter_mut().filter(|turn| holds(turn.at)) {
                change_one(change, turn);
            }
            turns
        }
    }
}

/// Makes a change that concerns one message alone.
fn change_one(change: Change, Turn { at, message }: &mut Turn) {
    let (own, has_calls) = (is(message, "assistant"), has_calls(message));
    let is_empty = message["content"] == "" || message["content"].is_null();
    let thinking = || ["reasoning_content", "thinking"].into_iter();
    match change {
        Change::WrapArguments => each_arguments(message, |arguments| {
            if !arguments.is_object() {
                *arguments = json!({"arguments": arguments.take()});
            }
        }),
        Change::WriteArguments => each_arguments(message, |arguments| {
            if !arguments.is_string() {
                *arguments = spaced(arguments).into();
            }
        }),
        Change::NullContent if has_calls && is_empty => message["content"] = Value::Null,
        Change::MoveTextToThinking if has_calls && !is_empty => {
            let text = message["content"].as_str().unwrap_or_default().to_owned();
            for name in thinking() {
                if let Some(thought) = message[name].as_str() {
                    message[name] = joined(thought, &text).into();
                    message["content"] = "".into();
                }
            }
        }
        Change::DropThinking if own => {
            if let Some(message) = message.as_object_mut() {
                message.retain(|name, _| !thinking().any(|known| known == name));
            }
        }
        Change::FillAnswer if own && !has_calls && is_empty => message["content"] = " ".into(),
        Change::FoldLaterSystem if *at > 0 && is(message, "system") => {
            message["role"] = "user".into()
        }
        Change::FoldSystem if *at == 0 && is(message, "system") => message["role"] = "user".into(),
        Change::FoldResult if is(message, "tool") => write_result(message),
        Change::WriteCalls if has_calls => write_calls(message),
        _ => {}
    }
}

fn is(message: &Value, role: &str) -> bool {
    message["role"] == role
}

fn calls(message: &Value) -> &[Value] {
    message["tool_calls"].as_array().map_or(&[], Vec::as_slice)
}

fn has_calls(message: &Value) -> bool {
    !calls(message).is_empty()
}

fn each_arguments(message: &mut Value, each: impl Fn(&mut Value)) {
    let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) else { return };
    let functions = calls.iter_mut().filter_map(|call| call.get_mut("function"));
    functions.filter_map(|function| function.get_mut("arguments")).for_each(each);
}

/// A number that depends on a text alone (FNV-1a).
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// An id that Mistral's templates take: the same for the same text.
fn short_id(id: &str) -> String {
    if id.len() == ID_LEN && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    let mut rest = hash(id);
    let mut next = || {
        let digit = rest % ID_CHARS.len() as u64;
        rest /= ID_CHARS.len() as u64;
        char::from(ID_CHARS[digit as usize])
    };
    (0..ID_LEN).map(|_| next()).collect()
}

/// Shortens the ids of calls and of their results. A call without an id gets one by its place, and a result without one that of the call
/// whose turn it is.
fn with_short_ids(mut turns: Vec<Turn>, holds: &dyn Fn(usize) -> bool) -> Vec<Turn> {
    let (mut called, mut answered): (Vec<String>, usize) = (Vec::new(), 0);
    for Turn { at, message } in turns.iter_mut().filter(|turn| holds(turn.at)) {
        if has_calls(message) {
            (called, answered) = (Vec::new(), 0);
            let calls = message["tool_calls"].as_array_mut().into_iter().flatten();
            for (i, call) in calls.enumerate() {
                let own = call["id"].as_str().map_or_else(|| format!("{at}.{i}"), str::to_owned);
                called.push(short_id(&own));
                if let Some(call) = call.as_object_mut() {
                    call.insert("id".to_owned(), called[i].as_str().into());
                }
            }
        } else if is(message, "tool") {
            let own = message["tool_call_id"].as_str().map(short_id);
            let id = own.or_else(|| called.get(answered).cloned());
            answered += 1;
            message["tool_call_id"] = id.unwrap_or_else(|| short_id(&format!("{at}"))).into();
        }
    }
    turns
}

/// The index of the call that a result belongs to: by its id, or else by its place among the results.
fn call_of(calls: &[Value], result: &Value, place: usize) -> usize {
    let id = result["tool_call_id"].as_str();
    calls.iter().position(|call| id.is_some() && call["id"].as_str() == id).unwrap_or(place)
}

/// Sorts the results that follow a message by the order of its calls.
fn with_ordered_results(mut turns: Vec<Turn>, holds: &dyn Fn(usize) -> bool) -> Vec<Turn> {
    let mut at = 0;
    while at < turns.len() {
        let results = turns[at + 1..].iter().take_while(|turn| is(&turn.message, "tool")).count();
        let (before, after) = turns.split_at_mut(at + 1);
        let call = &before[at];
        if has_calls(&call.message) && holds(call.at) {
            let mut places = HashMap::new();
            for (place, turn) in after[..results].iter().enumerate() {
                places.insert(turn.at, call_of(calls(&call.message), &turn.message, place));
            }
            after[..results].sort_by_key(|turn| places.get(&turn.at).copied());
        }
        at += 1 + results;
    }
    turns
}

/// Gives each call a message of its own, and lets its result follow it.
fn with_split_calls(turns: Vec<Turn>, holds: &dyn Fn(usize) -> bool) -> Vec<Turn> {
    let mut all = Vec::new();
    let mut turns = turns.into_iter().peekable();
    while let Some(turn) = turns.next() {
        if calls(&turn.message).len() < 2 || !holds(turn.at) {
            all.push(turn);
            continue;
        }
        let given = calls(&turn.message).to_vec();
        let mut results: Vec<Vec<Turn>> = given.iter().map(|_| Vec::new()).collect();
        let mut place = 0;
        while let Some(result) = turns.next_if(|next| is(&next.message, "tool")) {
            let call = call_of(&given, &result.message, place).min(given.len() - 1);
            results[call].push(result);
            place += 1;
        }
        for (i, (call, results)) in given.into_iter().zip(results).enumerate() {
            // Text and thinking stay with the first.
            let mut message = match i {
                0 => turn.message.clone(),
                _ => json!({"role": "assistant", "content": ""}),
            };
            message["tool_calls"] = json!([call]);
            all.push(Turn { at: turn.at, message });
            all.extend(results);
        }
    }
    all
}

/// Makes the text before a call a message of its own. The thinking stays with the call.
fn with_split_text(turns: Vec<Turn>, holds: &dyn Fn(usize) -> bool) -> Vec<Turn> {
    let mut all = Vec::new();
    for mut turn in turns {
        let text = turn.message["content"].as_str().filter(|text| !text.is_empty());
        if let Some(text) = text.filter(|_| has_calls(&turn.message) && holds(turn.at)) {
            let message = json!({"role": "assistant", "content": text});
            turn.message["content"] = "".into();
            all.push(Turn { at: turn.at, message });
        }
        all.push(turn);
    }
    all
}

/// Puts an empty answer between a result and the message of the user that follows it.
fn with_answers(turns: Vec<Turn>, holds: &dyn Fn(usize) -> bool) -> Vec<Turn> {
    let mut all: Vec<Turn> = Vec::new();
    for turn in turns {
        let after_result = all.last().is_some_and(|last| is(&last.message, "tool"));
        if after_result && is(&turn.message, "user") && holds(turn.at) {
            let message = json!({"role": "assistant", "content": ""});
            all.push(Turn { at: turn.at, message });
        }
        all.push(turn);
    }
    all
}

/// Puts an empty message of the user's before an answer that no message of the user's precedes, or at the end.
fn with_question(mut turns: Vec<Turn>, holds: &dyn Fn(usize) -> bool) -> Vec<Turn> {
    let first = turns.iter().position(|turn| !is(&turn.message, "system"));
    let place = first.unwrap_or(turns.len());
    let is_user = turns.get(place).is_some_and(|turn| is(&turn.message, "user"));
    let at = turns.get(place).map_or(place, |turn| turn.at);
    if !is_user && holds(at) {
        turns.insert(place, Turn { at, message: json!({"role": "user", "content": ""}) });
    }
    turns
}

/// Joins each message with the one before it, if both have the same role and are no results.
fn merged(turns: Vec<Turn>, holds: &dyn Fn(usize) -> bool) -> Vec<Turn> {
    let mut all: Vec<Turn> = Vec::new();
    for turn in turns {
        let same = |last: &&mut Turn| {
            last.message["role"] == turn.message["role"] && !is(&last.message, "tool")
        };
        match all.last_mut().filter(same).filter(|_| holds(turn.at)) {
            Some(last) => join(&mut last.message, turn.message),
            None => all.push(turn),
        }
    }
    all
}

/// Adds a message to another of the same role.
fn join(message: &mut Value, other: Value) {
    let (Some(message), Value::Object(other)) = (message.as_object_mut(), other) else { return };
    let text = |of: &Map<String, Value>, name: &str| {
        of.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    for (name, value) in &other {
        let both = match (name.as_str(), message.get_mut(name)) {
            ("role", _) => continue,
            ("tool_calls", Some(Value::Array(calls))) => {
                calls.extend(value.as_array().cloned().unwrap_or_default());
                continue;
            }
            ("content" | "reasoning_content" | "thinking", Some(_)) => {
                joined(&text(message, name), &text(&other, name)).into()
            }
            (_, Some(_)) => continue,
            (_, None) => value.clone(),
        };
        message.insert(name.clone(), both);
    }
}
