//! Finds the smallest changes with which a chat template takes a conversation, and leaves nothing of it out.
//!
//! Invariant: the changes for the beginning of a conversation do not depend on what follows it. What a template leaves out without an
//! error is found by small conversations that are always the same. What it refuses is found request by request: the messages up to the
//! first request that is refused decide, and what they need holds from there on. Its cost is bounded: a conversation for which no changes are
//! found within [`MAX_TRIALS`] renderings and [`MAX_RENDERED`] is refused.

use alight_text::format::Format;
use alight_text::{ChatError, Encoder, PromptError};
use serde_json::{Map, Value, json};

use super::changes::{CHANGES, Change, Rule, Scope, changed};
use super::in_words::describe_tools;

/// Maximum number of renderings for one conversation. Each is limited itself.
const MAX_TRIALS: usize = 400;
/// Maximum cost of all of these together, in bytes of the messages and the variables that they render, and [`VALUE_COST`] for each value, which takes
/// as long as that many bytes. It is some seconds; a conversation of 500 messages is rendered more than a hundred times.
const MAX_RENDERED: usize = 512 << 20;
const VALUE_COST: usize = 1024;
/// Maximum number of changes that are tried together: of those that rewrite nothing, before the others, and of all.
const PAIR: usize = 2;
const MAX_TOGETHER: usize = 4;
/// The number of messages with one change each after which it holds for all that follow.
const MAX_HERE: usize = 8;

/// Texts, an id and the names of tools, in the small conversations.
const TEXT: &str = "Zqtext";
const ASKED: &str = "Zqasked";
const LATER: &str = "Zqlater";
const ID: &str = "Zqid00001";
const NAMES: [&str; 2] = ["zqfirst", "zqsecond"];
/// The arguments of their calls, which every template writes; some only write the id of a call, and not the name.
const ARGUMENTS: [&str; 2] = ["Zqargument", "Zqother"];

/// Something that templates leave out without an error: conversations with it, and the changes that may help.
struct Probe {
    /// True for messages that have it.
    occurs: fn(usize, &Value) -> bool,
    /// Conversations with it, of which the first that the template takes decides.
    messages: fn() -> Vec<Vec<Value>>,
    /// The texts that must be in the prompt, in this order.
    shown: &'static [&'static str],
    /// Changes that may help, those of one list together.
    changes: &'static [&'static [Change]],
    /// True if the changes are also for templates that refuse it: some refuse it at one place and not at another.
    if_refused: bool,
    /// Messages that must be possible after these with a change.
    further: fn() -> Vec<Value>,
    /// The sentence if no change helps.
    lost: &'static str,
}

fn calls(message: &Value) -> usize {
    message["tool_calls"].as_array().map_or(0, Vec::len)
}

fn later_system(at: usize, message: &Value) -> bool {
    at > 0 && message["role"] == "system"
}

fn has_text(message: &Value) -> bool {
    message["content"].as_str().is_some_and(|text| !text.is_empty())
}

fn system(text: &str) -> Value {
    json!({"role": "system", "content": text})
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn answer(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

/// An answer that calls the first tools.
fn calling(text: &str, count: usize) -> Value {
    let call = |(i, name): (usize, &&str)| {
        let function = json!({"name": name, "arguments": {"a": ARGUMENTS[i]}});
        json!({"id": format!("Zqid0000{}", i + 1), "type": "function", "function": function})
    };
    let calls: Value = NAMES.iter().take(count).enumerate().map(call).collect();
    json!({"role": "assistant", "content": text, "tool_calls": calls})
}

fn result(text: &str) -> Value {
    json!({"role": "tool", "tool_call_id": ID, "name": NAMES[0], "content": text})
}

/// The probes, in their order: the changes that one finds hold for the next.
const PROBES: [Probe; 7] = [
    Probe {
        occurs: |at, message| at == 0 && message["role"] == "system",
        messages: || vec![vec![system(TEXT), user("a")]],
        shown: &[TEXT],
        changes: &[&[Change::FoldSystem]],
        if_refused: false,
        further: Vec::new,
        lost: "the template leaves out the system message",
    },
    // A template that moves it to the front changes the beginning of the prompt.
    Probe {
        occurs: later_system,
        messages: || vec![vec![system(TEXT), user(ASKED), answer("b"), system(LATER)]],
        shown: &[TEXT, ASKED, LATER],
        changes: &[&[Change::FoldLaterSystem]],
        if_refused: false,
        further: Vec::new,
        lost: "the template leaves out or moves a later system message",
    },
    Probe {
        occurs: later_system,
        messages: || vec![vec![user(ASKED), answer("b"), system(LATER)]],
        shown: &[ASKED, LATER],
        changes: &[&[Change::FoldLaterSystem]],
        if_refused: true,
        further: Vec::new,
        lost: "the template leaves out or moves a later system message",
    },
    Probe {
        occurs: |_, message| calls(message) > 0,
        messages: || {
            let whole = vec![user("a"), calling("", 1), result("b")];
            vec![whole.clone(), whole[..2].to_vec()]
        },
        shown: &[ARGUMENTS[0]],
        changes: &[
            &[Change::NullContent],
            &[Change::NullContent, Change::WriteArguments],
            &[Change::WriteCalls],
        ],
        if_refused: false,
        further: Vec::new,
        lost: "the template leaves out calls",
    },
    Probe {
        occurs: |_, message| calls(message) > 1,
        messages: || {
            let mut second = result("c");
            second["tool_call_id"] = json!("Zqid00002");
            let whole = vec![user("a"), calling("", 2), result("b"), second];
            vec![whole.clone(), whole[..2].to_vec()]
        },
        shown: &ARGUMENTS,
        changes: &[&[Change::SplitCalls]],
        if_refused: false,
        further: Vec::new,
        lost: "the template leaves out calls after the first of a message",
    },
    Probe {
        occurs: |_, message| message["role"] == "tool",
        messages: || vec![vec![user("a"), calling("", 1), result(TEXT)]],
        shown: &[TEXT],
        changes: &[&[Change::FoldResult]],
        if_refused: false,
        further: Vec::new,
        lost: "the template leaves out results of calls",
    },
    Probe {
        occurs: |_, message| calls(message) > 0 && has_text(message),
        messages: || vec![vec![user("a"), calling(TEXT, 1), result("b")]],
        shown: &[TEXT, ARGUMENTS[0]],
        changes: &[&[Change::SplitText]],
        if_refused: false,
        further: || vec![answer("c"), user("d")],
        lost: "the template leaves out text before a call",
    },
];

/// The sentence about a template that iterates over tools that are not there.
const EMPTY_LIST: &str = "the tools are an empty list";

/// True if the texts occur in this order.
fn in_order(rendered: &str, texts: &[&str]) -> bool {
    let mut rest = rendered;
    texts.iter().all(|text| {
        let found = rest.split_once(*text);
        rest = found.map_or("", |(_, after)| after);
        found.is_some()
    })
}

/// A conversation as a template takes it.
pub(super) struct Accepted {
    pub(super) tokens: Vec<u32>,
    /// A sentence about each change, and about each thing that the template leaves out.
    pub(super) notes: Vec<&'static str>,
    /// True if the template fails with tools, and the system message describes them instead.
    pub(super) tools_in_words: bool,
}

/// Encodes a conversation with the smallest changes that its template needs.
pub(super) fn encode(
    encoder: &Encoder<'_>,
    mut context: Map<String, Value>,
) -> Result<Accepted, PromptError> {
    let messages = match context.shift_remove("messages") {
        Some(Value::Array(messages)) => messages,
        other => {
            context.extend(other.map(|other| ("messages".to_owned(), other)));
            let tokens = encoder.chat_in(context)?;
            return Ok(Accepted { tokens, notes: Vec::new(), tools_in_words: false });
        }
    };
    let mut search = Search::new(encoder, context, messages);
    let mut notes = search.probe()?;
    let tokens = match encoder.chat_in(search.whole()) {
        Err(PromptError::Chat(error)) if is_refusal(&error) => {
            if search.needs_list_of_tools() {
                let Search { mut context, messages, .. } = search;
                context.insert("tools".to_owned(), json!([]));
                context.insert("messages".to_owned(), messages.into());
                let mut accepted = encode(encoder, context)?;
                accepted.notes.push(EMPTY_LIST);
                return Ok(accepted);
            }
            if search.refuses_tools() {
                let Search { mut context, messages, .. } = search;
                context.insert("messages".to_owned(), messages.into());
                describe_tools(encoder.vocabulary(), &mut context);
                return Ok(Accepted { tools_in_words: true, ..encode(encoder, context)? });
            }
            search.run(error)?;
            encoder.chat_in(search.whole())?
        }
        encoded => encoded?,
    };
    for rule in &search.rules {
        let sentence = rule.change.sentence();
        if !notes.contains(&sentence) && search.has_effect(rule) {
            notes.push(sentence);
        }
    }
    Ok(Accepted { tokens, notes, tools_in_words: false })
}

/// True if other messages could be rendered. A template that reaches a limit is not tried again.
fn is_refusal(error: &ChatError) -> bool {
    matches!(error, ChatError::Refused { .. } | ChatError::Failed { .. })
}

struct Search<'e, 'm> {
    encoder: &'e Encoder<'m>,
    /// The variables of the template, without the messages.
    context: Map<String, Value>,
    messages: Vec<Value>,
    rules: Vec<Rule>,
    trials: usize,
    /// The cost of all renderings so far, and its maximum.
    rendered: usize,
    max_rendered: usize,
}

/// The cost of rendering a value.
fn cost(value: &Value) -> usize {
    VALUE_COST
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(cost).sum(),
            Value::Object(fields) => {
                fields.iter().map(|(name, value)| name.len() + cost(value)).sum()
            }
            _ => 0,
        }
}

impl<'e, 'm> Search<'e, 'm> {
    fn new(
        encoder: &'e Encoder<'m>,
        context: Map<String, Value>,
        messages: Vec<Value>,
    ) -> Search<'e, 'm> {
        let (rules, max_rendered) = (Vec::new(), MAX_RENDERED);
        Search { encoder, context, messages, rules, trials: 0, rendered: 0, max_rendered }
    }

    /// True once no more is tried.
    fn is_exhausted(&self) -> bool {
        self.trials > MAX_TRIALS || self.rendered > self.max_rendered
    }

    /// Finds what the template leaves out of such conversations without an error, and the changes that help. Returns a sentence about
    /// each thing for which there is none.
    fn probe(&mut self) -> Result<Vec<&'static str>, PromptError> {
        let format = self.encoder.vocabulary().output_format();
        let most_calls = self.messages.iter().map(calls).max().unwrap_or(0);
        if format.notation().ordered_results && most_calls > 1 {
            self.rules.push(Rule::always(Change::OrderResults));
        }
        // The template may have a notation for calls; the model was asked to write another.
        if format == Format::Plain && most_calls > 0 {
            self.rules.push(Rule::always(Change::WriteCalls));
        }
        let mut lost = Vec::new();
        for probe in &PROBES {
            let occurs = |(at, message): (usize, &Value)| (probe.occurs)(at, message);
            if !self.messages.iter().enumerate().any(occurs) {
                continue;
            }
            let mut decides = (Vec::new(), None);
            for given in (probe.messages)() {
                if decides.1.is_none() {
                    let shown = self.shows(&given, &self.rules, probe.shown)?;
                    decides = (given, shown);
                }
            }
            // If it is refused, so is the conversation, and more is known then.
            let (given, shown) = decides;
            if shown.unwrap_or(!probe.if_refused) {
                continue;
            }
            let mut found = None;
            for changes in probe.changes {
                let own: Vec<Rule> = changes.iter().copied().map(Rule::always).collect();
                let rules = [&self.rules[..], &own].concat();
                let further = [given.clone(), (probe.further)()].concat();
                if found.is_none()
                    && self.shows(&given, &rules, probe.shown)? == Some(true)
                    && self.shows(&further, &rules, &[])? == Some(true)
                {
                    found = Some(own);
                }
            }
            match found {
                Some(rules) => self.rules.extend(rules),
                None if shown.is_some() && !lost.contains(&probe.lost) => lost.push(probe.lost),
                None => {}
            }
        }
        Ok(lost)
    }

    /// True if there are no tools, and the template only takes an empty list of them: it was written for conversations that have some.
    fn needs_list_of_tools(&mut self) -> bool {
        let simple = || vec![user("a")];
        let absent = self.context.get("tools").is_none_or(Value::is_null);
        if !absent || !matches!(self.render(simple(), false), Ok(None)) {
            return false;
        }
        let own = self.context.insert("tools".to_owned(), json!([]));
        let taken = matches!(self.render(simple(), false), Ok(Some(_)));
        self.context.shift_remove("tools");
        self.context.extend(own.map(|own| ("tools".to_owned(), own)));
        taken
    }

    /// True if the template fails with tools, whatever the messages are, and takes them without.
    fn refuses_tools(&mut self) -> bool {
        let simple = || vec![user("a")];
        let has_tools =
            self.context.get("tools").and_then(Value::as_array).is_some_and(|t| !t.is_empty());
        if !has_tools || !matches!(self.render(simple(), false), Ok(None)) {
            return false;
        }
        let tools = self.context.shift_remove("tools");
        let taken = matches!(self.render(simple(), false), Ok(Some(_)));
        self.context.extend(tools.map(|tools| ("tools".to_owned(), tools)));
        taken
    }

    /// True if the prompt of these messages has these texts; `None`: the template refuses it.
    fn shows(
        &self,
        given: &[Value],
        rules: &[Rule],
        texts: &[&str],
    ) -> Result<Option<bool>, PromptError> {
        let rendered = self.render(changed(given, rules), false)?;
        Ok(rendered.map(|text| in_order(&text, texts)))
    }

    /// Renders messages; `None`: the template refuses them. `own`: with the variables of the request's own prompt.
    fn render(&self, messages: Vec<Value>, own: bool) -> Result<Option<String>, PromptError> {
        let mut context = self.context.clone();
        context.insert("messages".to_owned(), messages.into());
        if !own {
            context.shift_remove("continue_final_message");
            context.insert("add_generation_prompt".to_owned(), true.into());
        }
        match self.encoder.render(context) {
            Err(PromptError::Chat(error)) if is_refusal(&error) => Ok(None),
            rendered => rendered.map(Some),
        }
    }

    /// The variables of the template with all messages and the changes to them.
    fn whole(&self) -> Map<String, Value> {
        let mut context = self.context.clone();
        let messages = changed(&self.messages, &self.rules);
        context.insert("messages".to_owned(), messages.into());
        context
    }

    /// True if the template takes the first messages with these changes.
    fn takes(&mut self, rules: &[Rule], cut: usize) -> Result<bool, PromptError> {
        let all = self.context.values().chain(&self.messages[..cut]);
        self.trials += 1;
        self.rendered += all.map(cost).sum::<usize>();
        let messages = changed(&self.messages[..cut], rules);
        Ok(self.render(messages, cut == self.messages.len())?.is_some())
    }

    /// True if a change that was found alters a message.
    fn has_effect(&self, rule: &Rule) -> bool {
        let others: Vec<Rule> = self.rules.iter().filter(|other| *other != rule).copied().collect();
        changed(&self.messages, &self.rules) != changed(&self.messages, &others)
    }

    /// Finds the changes for a conversation that the template has refused with this error.
    fn run(&mut self, error: ChatError) -> Result<(), PromptError> {
        let cuts = cuts(&self.messages);
        while let Some(refused) = self.first_refused(&cuts)? {
            let from = if refused == 0 { 0 } else { cuts[refused - 1] };
            let mut found = self.smallest(from, cuts[refused])?;
            if found.is_none() && from > 0 {
                // An earlier change does not go with what follows.
                found = self.smallest(0, cuts[refused])?;
            }
            match found {
                Some(found) => self.rules.extend(found),
                None => return Err(PromptError::Chat(error)),
            }
            if self.is_exhausted() {
                return Err(PromptError::Chat(error));
            }
        }
        Ok(())
    }

    /// The index of the first of these beginnings of the conversation that is refused. Longer ones than a refused one are, too, so few
    /// are looked at, and short ones first.
    fn first_refused(&mut self, cuts: &[usize]) -> Result<Option<usize>, PromptError> {
        let rules = self.rules.clone();
        // Below `taken`, all are taken.
        let (mut taken, mut step) = (0, 1);
        let mut refused = loop {
            let at = (taken + step - 1).min(cuts.len() - 1);
            if !self.takes(&rules, cuts[at])? {
                break at;
            }
            if at + 1 == cuts.len() {
                return Ok(None);
            }
            (taken, step) = (at + 1, 2 * step);
        };
        while taken < refused {
            let middle = usize::midpoint(taken, refused);
            match self.takes(&rules, cuts[middle])? {
                true => taken = middle + 1,
                false => refused = middle,
            }
        }
        Ok(Some(refused))
    }

    /// The fewest changes, and the smallest of these, with which the messages up to `cut` are taken, where those before `from` already are.
    fn smallest(&mut self, from: usize, cut: usize) -> Result<Option<Vec<Rule>>, PromptError> {
        let known = self.rules.clone();
        let rule = |change: Change, scope: Scope| {
            let same = known.iter().filter(|rule| rule.change == change).count();
            let onwards = scope == Scope::Onwards || same >= MAX_HERE;
            Rule { change, from, until: if onwards { usize::MAX } else { cut } }
        };
        let before = changed(&self.messages[..cut], &known);
        let mut usable = Vec::new();
        for (change, scope, _) in CHANGES {
            let rule = rule(change, scope);
            let alone = [&known[..], &[rule]].concat();
            if change.follows_others() || changed(&self.messages[..cut], &alone) != before {
                usable.push(rule);
            }
        }
        let small = usable.iter().filter(|rule| !rule.change.rewrites());
        let small: Vec<Rule> = small.copied().collect();
        match self.first_taken(&small, PAIR, cut)? {
            None => self.first_taken(&usable, MAX_TOGETHER, cut),
            found => Ok(found),
        }
    }

    /// The first of these rules with which the messages up to `cut` are taken, or the first few, up to `most`.
    fn first_taken(
        &mut self,
        usable: &[Rule],
        most: usize,
        cut: usize,
    ) -> Result<Option<Vec<Rule>>, PromptError> {
        let known = self.rules.clone();
        for size in 1..=most.min(usable.len()) {
            let mut chosen: Vec<usize> = (0..size).collect();
            loop {
                let found: Vec<Rule> = chosen.iter().map(|at| usable[*at]).collect();
                if self.is_exhausted() {
                    return Ok(None);
                }
                if self.takes(&[&known[..], &found].concat(), cut)? {
                    return Ok(Some(found));
                }
                if !advance(&mut chosen, usable.len()) {
                    break;
                }
            }
        }
        Ok(None)
    }
}

/// The next of the ascending choices below `n`, in their order; false if there is none.
fn advance(chosen: &mut [usize], n: usize) -> bool {
    let size = chosen.len();
    let Some(at) = (0..size).rev().find(|at| chosen[*at] < n - size + at) else { return false };
    let first = chosen[at] + 1;
    for (i, place) in chosen[at..].iter_mut().enumerate() {
        *place = first + i;
    }
    true
}

/// The lengths of the beginnings of a conversation that were requests: each ends before an answer, or is all of it.
fn cuts(messages: &[Value]) -> Vec<usize> {
    let is = |at: usize, role: &str| messages[at]["role"] == role;
    let asked = (0..messages.len()).find(|at| is(*at, "user")).unwrap_or(0);
    let ends =
        (asked + 1..messages.len()).filter(|at| is(*at, "assistant") && !is(at - 1, "assistant"));
    ends.chain([messages.len()]).collect()
}

#[cfg(test)]
mod tests;
