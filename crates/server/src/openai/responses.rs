//! `POST /v1/responses`: OpenAI's newer API, as Codex uses it. No conversation is stored: each request has the whole one. Items of the last
//! answers are remembered for a while, so that it may refer to them.
//!
//! Invariant: a response that is sent whole is produced by the same code that writes the events of a stream.

use std::sync::Arc;

use alight_chat::answer::{AnswerOptions, Delta};
use alight_chat::body::{conversation, options};
use alight_chat::grammar::Calls;
use alight_chat::worker::GenerateRequest;
use alight_text::output::Call as ToolCall;
use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::items::{self, NAMES};
use super::tools::{ClientTools, ToolKind};
use crate::failure::Failure;
use crate::generation::{Choice, Generation, Piece, Reason, Update};
use crate::http::{self, Answered, Call, Shape, Stream};
use crate::models::Serving;
use crate::shared::Shared;
use crate::{asking, endpoints, ids};

pub(crate) async fn answer(call: Call) -> Answered {
    let (mut generation, mut events, stream) = call.apart(begun).await?;
    if stream {
        return Ok(Stream::response(generation, Box::new(events)));
    }
    while let Some((at, update)) = generation.next().await {
        if let Update::Failed(failure) = update {
            return Err(failure);
        }
        // The events are discarded.
        events.update(&generation.choices, at, update, &mut String::new());
    }
    Ok(http::json(StatusCode::OK, &events.response))
}

/// Reads the request, and starts the computation.
fn begun(call: &Call) -> Result<(Generation, ResponseEvents, bool), Failure> {
    let object = call.declared(&endpoints::RESPONSES)?;
    let response = response(&object);
    // OpenAI stores an answer unless its client does not want that.
    let remembers = object.get("store") != Some(&false.into());
    let (serving, asks) = asks(call, object)?;
    let ResponseRequest { ask, prompt, asked, stream, tools, progress, timings } = asks;
    let running = asking::begin(serving, vec![prompt], 1, &ask)?;
    let generation = Generation::new(&call.record, running, &asked, serving.vocabulary());
    let memory = remembers.then(|| (Arc::clone(&call.server), call.salt.clone()));
    let mut events = ResponseEvents {
        response,
        tools,
        memory,
        open: None,
        thought: 0,
        written: 0,
        stream,
        progress,
        wants_timings: timings,
        timings: None,
    };
    events.response["model"] = serving.name.as_str().into();
    call.record.add_warnings(&mut events.response);
    Ok((generation, events, stream))
}

/// The contents of a request.
pub(crate) struct ResponseRequest {
    ask: GenerateRequest,
    pub(crate) prompt: Vec<u32>,
    asked: AnswerOptions,
    stream: bool,
    tools: ClientTools,
    progress: bool,
    timings: bool,
}

/// Reads a request without computing anything.
pub(crate) fn asks(
    call: &Call,
    object: Map<String, Value>,
) -> Result<(&Serving, ResponseRequest), Failure> {
    let find = |id: &str| call.server.recent.find(&call.salt, id);
    let (mut fields, tools) = items::renamed(object, &find)?;
    let serving = asking::model(call, &mut fields)?;
    let (context, mut choice) = conversation::take_with_choice(&mut fields)?;
    choice.custom = tools.custom();
    choice.with_grammar.clone_from(&tools.with_grammar);
    let calls = Calls::of(&context, &choice.must);
    let in_words =
        |failure: Failure| failure.in_words(&NAMES, "").in_places(&tools.places, "parameters");
    let mut ask = asking::ask(call, serving, &mut fields, calls).map_err(in_words)?;
    let stops = options::stops(&mut fields)?;
    let stream = fields.truth("stream")?.unwrap_or(false);
    let progress = fields.truth("return_progress")?.unwrap_or(false);
    let timings = fields.truth("timings_per_token")?.unwrap_or(false);
    call.record.ignored(&fields);
    let chat = asking::chat(context, &choice, stops, &mut ask, serving);
    let (prompt, asked) = chat.map_err(in_words)?;
    Ok((serving, ResponseRequest { ask, prompt, asked, stream, tools, progress, timings }))
}

/// Returns a response without output. It repeats the fields of the request.
fn response(asked: &Map<String, Value>) -> Value {
    let again = |name: &str, default: Value| match asked.get(name) {
        None | Some(Value::Null) => default,
        Some(value) => value.clone(),
    };
    json!({
        "id": ids::id("resp_"),
        "object": "response",
        "created_at": ids::now(),
        "status": "in_progress",
        "error": null,
        "incomplete_details": null,
        "instructions": again("instructions", Value::Null),
        "max_output_tokens": again("max_output_tokens", Value::Null),
        "metadata": again("metadata", json!({})),
        "model": null,
        "output": [],
        "parallel_tool_calls": again("parallel_tool_calls", json!(true)),
        "previous_response_id": null,
        "reasoning": again("reasoning", json!({"effort": null, "summary": null})),
        "store": false,
        "temperature": again("temperature", Value::Null),
        "text": again("text", json!({"format": {"type": "text"}})),
        "tool_choice": again("tool_choice", json!("auto")),
        "tools": again("tools", json!([])),
        "top_p": again("top_p", Value::Null),
        "truncation": "disabled",
        "usage": null,
    })
}

/// The kind of text in an item.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Said,
    Thought,
}

impl Kind {
    fn part(self, text: &str) -> Value {
        match self {
            Kind::Said => {
                json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
            }
            Kind::Thought => json!({"type": "reasoning_text", "text": text}),
        }
    }

    fn item(self, id: &str, status: &str, content: Value) -> Value {
        match self {
            Kind::Said => json!({
                "id": id, "type": "message", "status": status, "role": "assistant", "content": content,
            }),
            Kind::Thought => json!({
                "id": id, "type": "reasoning", "status": status, "summary": [], "content": content,
                "encrypted_content": null,
            }),
        }
    }
}

/// An item that is being written.
enum Open {
    Text {
        kind: Kind,
        id: String,
        text: String,
    },
    /// The call of a function, and its arguments so far.
    Call {
        id: String,
        call_id: String,
        function: String,
        arguments: String,
    },
}

/// The events of a response, and its final object.
struct ResponseEvents {
    response: Value,
    tools: ClientTools,
    /// Where its items are remembered, if they are, and the salt of its key.
    memory: Option<(Arc<Shared>, Box<str>)>,
    open: Option<Open>,
    /// The number of tokens of thinking.
    thought: usize,
    /// The number of events so far.
    written: u64,
    /// False for a response that is sent whole.
    stream: bool,
    /// True if the progress of the prompt is reported.
    progress: bool,
    /// True if each new piece of the answer has the timings so far, and these.
    wants_timings: bool,
    timings: Option<Value>,
}

impl ResponseEvents {
    fn event(&mut self, kind: &str, mut value: Value, out: &mut String) {
        if let Some(timings) = self.timings.as_ref().filter(|_| kind.ends_with(".delta")) {
            value["timings"] = timings.clone();
        }
        value["type"] = kind.into();
        value["sequence_number"] = self.written.into();
        self.written += 1;
        out.push_str(&format!("event: {kind}\ndata: {value}\n\n"));
    }

    /// Writes an event about the whole response.
    fn whole(&mut self, kind: &str, out: &mut String) {
        let mut value = json!({"response": self.response});
        if let Some(timings) = self.response.get("timings") {
            value["timings"] = timings.clone();
        }
        self.event(kind, value, out);
    }

    /// Writes an event about the prompt, of which this much is read; all of it, if that is `None`.
    fn progress(&mut self, choice: &Choice, read: Option<usize>, out: &mut String) {
        if self.progress {
            let (progress, timings) = (choice.progress(read), choice.timings());
            let value = json!({
                "response": self.response, "prompt_progress": progress, "timings": timings,
            });
            self.event("response.in_progress", value, out);
        }
    }

    /// Returns the index of the item that is open, or comes next.
    fn next(&self) -> usize {
        self.response["output"].as_array().map_or(0, Vec::len)
    }

    fn add(&mut self, item: Value, out: &mut String) {
        let index = self.next();
        self.event("response.output_item.done", json!({"output_index": index, "item": item}), out);
        self.response["output"].as_array_mut().into_iter().for_each(|all| all.push(item.clone()));
    }

    fn begin_item(&mut self, kind: Kind, out: &mut String) {
        self.close(true, out);
        let id = ids::id(if kind == Kind::Said { "msg_" } else { "rs_" });
        let index = self.next();
        let item = kind.item(&id, "in_progress", json!([]));
        self.event("response.output_item.added", json!({"output_index": index, "item": item}), out);
        let part = json!({
            "item_id": id, "output_index": index, "content_index": 0, "part": kind.part(""),
        });
        self.event("response.content_part.added", part, out);
        self.open = Some(Open::Text { kind, id, text: String::new() });
    }

    fn begin_call(&mut self, call: &ToolCall, out: &mut String) {
        self.close(true, out);
        let call_id = call.id.clone().unwrap_or_else(|| ids::id("call_"));
        let (id, function) = (ids::id("fc_"), call.name.clone());
        let item = self.tools.item((&id, &call_id), "in_progress", &function, "");
        let added = json!({"output_index": self.next(), "item": item});
        self.event("response.output_item.added", added, out);
        self.open = Some(Open::Call { id, call_id, function, arguments: String::new() });
    }

    fn arguments(&mut self, more: &str, out: &mut String) {
        let index = self.next();
        let Some(Open::Call { id, function, arguments, .. }) = &mut self.open else { return };
        if more.is_empty() {
            return;
        }
        arguments.push_str(more);
        let delta = json!({"item_id": id, "output_index": index, "delta": more});
        if let Some(name) = argument_events(&self.tools.kind(function)) {
            self.event(&format!("response.{name}.delta"), delta, out);
        }
    }

    fn close(&mut self, complete: bool, out: &mut String) {
        let index = self.next();
        let status = if complete { "completed" } else { "incomplete" };
        let (kind, id, text) = match self.open.take() {
            None => return,
            Some(Open::Text { kind, id, text }) => (kind, id, text),
            Some(Open::Call { id, call_id, function, arguments }) => {
                return self.close_call((&id, &call_id), status, (&function, &arguments), out);
            }
        };
        let at = json!({"item_id": id, "output_index": index, "content_index": 0});
        let (mut done, mut part) = (at.clone(), at);
        done["text"] = text.as_str().into();
        if kind == Kind::Said {
            done["logprobs"] = json!([]);
        }
        let name = match kind {
            Kind::Said => "response.output_text.done",
            Kind::Thought => "response.reasoning_text.done",
        };
        self.event(name, done, out);
        part["part"] = kind.part(&text);
        self.event("response.content_part.done", part, out);
        self.add(kind.item(&id, status, json!([kind.part(&text)])), out);
    }

    fn close_call(
        &mut self,
        ids: (&str, &str),
        status: &str,
        (function, arguments): (&str, &str),
        out: &mut String,
    ) {
        let item = self.tools.item(ids, status, function, arguments);
        let kind = self.tools.kind(function);
        if let Some(name) = argument_events(&kind) {
            let mut done = json!({"item_id": ids.0, "output_index": self.next()});
            if kind == ToolKind::Custom {
                done["input"] = arguments.into();
            } else {
                done["name"] = item["name"].clone();
                done["arguments"] = arguments.into();
            }
            self.event(&format!("response.{name}.done"), done, out);
        }
        self.add(item, out);
    }

    fn text(&mut self, kind: Kind, text: String, out: &mut String) {
        if !matches!(&self.open, Some(Open::Text { kind: open, .. }) if *open == kind) {
            self.begin_item(kind, out);
        }
        let index = self.next();
        let Some(Open::Text { id, text: all, .. }) = &mut self.open else { return };
        all.push_str(&text);
        let mut delta = json!({
            "item_id": id, "output_index": index, "content_index": 0, "delta": text,
        });
        let name = match kind {
            Kind::Said => {
                delta["logprobs"] = json!([]);
                "response.output_text.delta"
            }
            Kind::Thought => "response.reasoning_text.delta",
        };
        self.event(name, delta, out);
    }

    fn take(&mut self, choice: &Choice, piece: Piece, out: &mut String) {
        self.timings = self.wants_timings.then(|| choice.timings());
        let thinking = |delta: &Delta| matches!(delta, Delta::Thinking(_));
        if !piece.deltas.is_empty() && piece.deltas.iter().all(thinking) {
            self.thought += piece.tokens.len();
        }
        for delta in piece.deltas {
            match delta {
                Delta::Content(text) => self.text(Kind::Said, text, out),
                Delta::Thinking(text) => self.text(Kind::Thought, text, out),
                Delta::Call(call) => {
                    self.begin_call(&call, out);
                    self.arguments(&call.arguments, out);
                }
                Delta::Arguments(more) => self.arguments(&more, out),
                Delta::Id(own) => match &mut self.open {
                    Some(Open::Call { call_id, .. }) if !self.stream => *call_id = own,
                    _ => {}
                },
            }
        }
    }
}

/// The name of the events about the arguments of a call, if its item has them as a text.
fn argument_events(kind: &ToolKind) -> Option<&'static str> {
    match kind {
        ToolKind::Function => Some("function_call_arguments"),
        ToolKind::Custom => Some("custom_tool_call_input"),
        ToolKind::Published(_) => None,
    }
}

impl Shape for ResponseEvents {
    fn begin(&mut self, _: &[Choice], out: &mut String) {
        self.whole("response.created", out);
        self.whole("response.in_progress", out);
    }

    fn update(&mut self, choices: &[Choice], at: usize, update: Update, out: &mut String) {
        let choice = &choices[at];
        match update {
            Update::Reading(read) => self.progress(choice, Some(read), out),
            Update::Read => self.progress(choice, None, out),
            Update::More(piece) => self.take(choice, piece, out),
            Update::Ended(piece, reason) => {
                self.take(choice, piece, out);
                let cut = reason == Reason::Length;
                self.close(!cut, out);
                self.response["usage"] = json!({
                    "input_tokens": choice.prompt_tokens,
                    "input_tokens_details": {"cached_tokens": choice.reused, "cache_write_tokens": 0},
                    "output_tokens": choice.tokens,
                    "output_tokens_details": {"reasoning_tokens": self.thought},
                    "total_tokens": choice.prompt_tokens + choice.tokens,
                });
                self.response["timings"] = choice.timings();
                let status = if cut { "incomplete" } else { "completed" };
                self.response["status"] = status.into();
                if cut {
                    self.response["incomplete_details"] = json!({"reason": "max_output_tokens"});
                }
                if let (Some((server, salt)), Some(items)) =
                    (&self.memory, self.response["output"].as_array())
                {
                    server.recent.keep(salt, items);
                }
                self.whole(&format!("response.{status}"), out);
            }
            Update::Failed(failure) => {
                self.response["status"] = "failed".into();
                self.response["error"] =
                    json!({"code": "server_error", "message": failure.message});
                self.whole("response.failed", out);
            }
        }
    }

    fn end(&mut self, _: &[Choice], _: &mut String) {}
}
