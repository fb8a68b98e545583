//! `POST /v1/messages`

use std::sync::Arc;

use alight_chat::answer::{Delta, input, joined};
use alight_chat::body::fields::Fields;
use alight_chat::body::options;
use alight_chat::grammar::Calls;
use alight_text::output::Call as ToolCall;
use hyper::StatusCode;
use serde_json::{Value, json};

use super::{Taken, take, take_format};
use crate::failure::Failure;
use crate::generation::{Choice, Generation, Reason, Update};
use crate::http::{self, Answered, Call, Shape, Stream};
use crate::request_log::Record;
use crate::{asking, endpoints, ids};

pub(crate) async fn answer(call: Call) -> Answered {
    let (mut generation, events, stream) = call.apart(begun).await?;
    if stream {
        return Ok(Stream::response(generation, Box::new(events)));
    }
    let (mut deltas, mut ended) = (Vec::new(), Reason::Stop);
    while let Some((_, update)) = generation.next().await {
        match update {
            Update::Reading(_) | Update::Read => {}
            Update::More(piece) => deltas.extend(piece.deltas),
            Update::Ended(piece, reason) => {
                deltas.extend(piece.deltas);
                ended = reason;
            }
            Update::Failed(failure) => return Err(failure),
        }
    }
    let choice = &generation.choices[0];
    let (reason, sequence) = stop(choice, ended);
    let mut message = events.message(choice, joined(deltas).into_iter().map(block).collect());
    message["stop_reason"] = reason;
    message["stop_sequence"] = sequence;
    Ok(http::json(StatusCode::OK, &message))
}

/// Reads the request, and starts the computation.
fn begun(call: &Call) -> Result<(Generation, MessageEvents, bool), Failure> {
    let mut fields = Fields::new(call.declared(&endpoints::MESSAGES)?);
    let serving = asking::model(call, &mut fields)?;
    let Taken { context, choice, places } = take(&mut fields)?;
    let format = take_format(&mut fields)?;
    let names = [("response_format", format), ("stop", "stop_sequences")];
    let in_words =
        |failure: Failure| failure.in_words(&names, "").in_places(&places, "input_schema");
    let calls = Calls::of(&context, &choice.must);
    let mut ask = asking::ask(call, serving, &mut fields, calls).map_err(in_words)?;
    let stops = fields.any("stop_sequences").unwrap_or_default();
    let mut stop = Fields::new([("stop".to_owned(), stops)].into_iter().collect());
    let stops = options::stops(&mut stop).map_err(|refusal| in_words(refusal.into()))?;
    let stream = fields.truth("stream")?.unwrap_or(false);
    let chat = asking::chat(context, &choice, stops, &mut ask, serving);
    let (prompt, asked) = chat.map_err(in_words)?;
    call.record.ignored(&fields);
    let running = asking::begin(serving, vec![prompt], 1, &ask)?;
    let generation = Generation::new(&call.record, running, &asked, serving.vocabulary());
    let (id, model, record) = (ids::id("msg_"), serving.name.clone(), Arc::clone(&call.record));
    let events = MessageEvents { id, model, record, block: None, blocks: 0 };
    Ok((generation, events, stream))
}

/// Returns why an answer ended, and the stop text that ended it.
fn stop(choice: &Choice, reason: Reason) -> (Value, Value) {
    match reason {
        Reason::Length => ("max_tokens".into(), Value::Null),
        _ if choice.answer.called() => ("tool_use".into(), Value::Null),
        Reason::Text => ("stop_sequence".into(), choice.answer.stopped().into()),
        Reason::Stop => ("end_turn".into(), Value::Null),
    }
}

/// Returns the token counts of an answer.
fn usage(choice: &Choice) -> Value {
    json!({
        "input_tokens": choice.prompt_tokens - choice.reused,
        "cache_read_input_tokens": choice.reused,
        "cache_creation_input_tokens": 0,
        "output_tokens": choice.tokens,
    })
}

/// Returns the block of a tool call.
fn tool_use(call: &ToolCall, input: Value) -> Value {
    let id = call.id.clone().unwrap_or_else(|| ids::id("toolu_"));
    json!({"type": "tool_use", "id": id, "name": call.name, "input": input})
}

/// The signature of thinking. At Anthropic it proves where thinking is from; here nothing reads it. It is not empty, because pydantic-ai sends
/// thinking without a signature back as text of the user, before which the prompt is another one.
const SIGNATURE: &str = "YWxpZ2h0";

/// Returns a block of an answer that is sent whole.
fn block(delta: Delta) -> Value {
    match delta {
        Delta::Content(text) => json!({"type": "text", "text": text}),
        Delta::Thinking(text) => {
            json!({"type": "thinking", "thinking": text, "signature": SIGNATURE})
        }
        Delta::Call(call) => tool_use(&call, input(&call)),
        // Joining leaves none.
        Delta::Arguments(_) | Delta::Id(_) => Value::Null,
    }
}

/// The events of an answer that is streamed.
struct MessageEvents {
    id: String,
    model: String,
    /// The record of the request, which has its warnings.
    record: Arc<Record>,
    /// The kind of the block that is open.
    block: Option<&'static str>,
    /// Blocks that have been closed.
    blocks: usize,
}

impl MessageEvents {
    fn message(&self, choice: &Choice, content: Value) -> Value {
        let mut message = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage(choice),
        });
        self.record.add_warnings(&mut message);
        message
    }

    fn open(&mut self, kind: &'static str, block: &Value, out: &mut String) {
        self.close(out);
        self.block = Some(kind);
        let (kind, index) = ("content_block_start", self.blocks);
        event(&json!({"type": kind, "index": index, "content_block": block}), out);
    }

    fn delta(&self, delta: &Value, out: &mut String) {
        let (kind, index) = ("content_block_delta", self.blocks);
        event(&json!({"type": kind, "index": index, "delta": delta}), out);
    }

    fn input(&self, json: &str, out: &mut String) {
        if !json.is_empty() {
            self.delta(&json!({"type": "input_json_delta", "partial_json": json}), out);
        }
    }

    fn close(&mut self, out: &mut String) {
        let Some(kind) = self.block.take() else { return };
        if kind == "thinking" {
            self.delta(&json!({"type": "signature_delta", "signature": SIGNATURE}), out);
        }
        event(&json!({"type": "content_block_stop", "index": self.blocks}), out);
        self.blocks += 1;
    }

    fn deltas(&mut self, deltas: Vec<Delta>, out: &mut String) {
        for delta in deltas {
            match delta {
                Delta::Content(text) => {
                    if self.block != Some("text") {
                        self.open("text", &json!({"type": "text", "text": ""}), out);
                    }
                    self.delta(&json!({"type": "text_delta", "text": text}), out);
                }
                Delta::Thinking(text) => {
                    if self.block != Some("thinking") {
                        let block = json!({"type": "thinking", "thinking": "", "signature": ""});
                        self.open("thinking", &block, out);
                    }
                    self.delta(&json!({"type": "thinking_delta", "thinking": text}), out);
                }
                Delta::Call(call) => {
                    self.open("tool_use", &tool_use(&call, json!({})), out);
                    self.input(&call.arguments, out);
                }
                Delta::Arguments(more) => self.input(&more, out),
                Delta::Id(_) => {}
            }
        }
    }
}

/// An event, whose name is its type.
fn event(value: &Value, out: &mut String) {
    let name = value["type"].as_str().unwrap_or_default();
    out.push_str(&format!("event: {name}\ndata: {value}\n\n"));
}

impl Shape for MessageEvents {
    fn keep_alive(&self) -> &'static str {
        "event: ping\ndata: {\"type\": \"ping\"}\n\n"
    }

    fn begin(&mut self, _: &[Choice], _: &mut String) {}

    fn update(&mut self, choices: &[Choice], at: usize, update: Update, out: &mut String) {
        let choice = &choices[at];
        match update {
            // The number of reused tokens is known only after the prompt has been read.
            Update::Reading(_) => {}
            Update::Read => {
                let message = self.message(choice, json!([]));
                event(&json!({"type": "message_start", "message": message}), out);
            }
            Update::More(piece) => self.deltas(piece.deltas, out),
            Update::Ended(piece, reason) => {
                self.deltas(piece.deltas, out);
                self.close(out);
                let (reason, sequence) = stop(choice, reason);
                let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
                let usage = usage(choice);
                event(&json!({"type": "message_delta", "delta": delta, "usage": usage}), out);
            }
            Update::Failed(failure) => event(&failure.anthropic(), out),
        }
    }

    fn end(&mut self, _: &[Choice], out: &mut String) {
        event(&json!({"type": "message_stop"}), out);
    }
}
