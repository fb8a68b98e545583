//! Ollama's endpoints, one file each, and the code they share.

pub(crate) mod chat;
pub(crate) mod embed;
pub(crate) mod generate;
pub(crate) mod pull;
pub(crate) mod show;
pub(crate) mod tags;
pub(crate) mod version;

use std::sync::Arc;
use std::time::Duration;

use alight_chat::answer::{Delta, input, joined};
use alight_chat::body::fields::Fields;
use alight_text::output::Call as ToolCall;
use hyper::StatusCode;
use serde_json::{Map, Value, json};

use crate::endpoints;
use crate::failure::Failure;
use crate::generation::{Choice, Generation, Reason, Update};
use crate::http::{self, Answered, Call, Shape, Stream};
use crate::ids;
use crate::models::Serving;
use crate::worker;

/// Returns the model that a body names, by the newer or the older name of the field.
fn model<'s>(call: &'s Call, fields: &mut Fields) -> Result<&'s Serving, Failure> {
    let full = |name: &String| !name.is_empty();
    let newer = fields.string("model")?.filter(full);
    let name = newer.or(fields.string("name")?.filter(full));
    call.serving(name.as_deref())
}

/// Reports a failure in options that [`renamed`] has renamed, under the names that were sent.
fn in_words(failure: impl Into<Failure>) -> Failure {
    let names =
        [("max_tokens", "options.num_predict"), ("response_format", "format"), ("tools", "tools")];
    failure.into().in_words(&names, "options.")
}

/// Returns the fields of a body under OpenAI's names: Ollama's options have other names, and are in an object of their own.
fn renamed(call: &Call, fields: &mut Fields) -> Result<Fields, Failure> {
    let mut options = fields.object("options")?.unwrap_or_default();
    call.admit(&endpoints::OLLAMA_OPTIONS, &mut options)?;
    if let Some(most) = options.shift_remove("num_predict") {
        // A negative number means as many as fit.
        let most = match most.as_f64() {
            Some(..0.0) => json!(-1),
            _ => most,
        };
        options.insert("max_tokens".to_owned(), most);
    }
    match fields.any("format") {
        None => {}
        Some(format) if format == "" => {}
        Some(format) => {
            let format = match format == "json" {
                true => json!({"type": "json_object"}),
                false => json!({"type": "json_schema", "schema": format}),
            };
            options.insert("response_format".to_owned(), format);
        }
    }
    Ok(Fields::new(options))
}

/// The effect of a request.
enum OllamaEffect {
    Answer {
        generation: Generation,
        lines: Lines,
        stream: bool,
    },
    /// No prompt: the model is to be loaded or unloaded.
    Nothing {
        unload: bool,
        lines: Lines,
    },
}

impl OllamaEffect {
    /// Returns the effect of a request without a prompt.
    fn nothing(fields: &mut Fields, lines: Lines) -> OllamaEffect {
        let keep_alive = fields.any("keep_alive").unwrap_or_default();
        // A number of seconds, or a text such as `0s`.
        let zero = |text: &str| text.contains('0') && !text.contains(|c| matches!(c, '1'..='9'));
        let unload = keep_alive.as_f64() == Some(0.0) || keep_alive.as_str().is_some_and(zero);
        OllamaEffect::Nothing { unload, lines }
    }
}

/// Answers a request that `begun` reads.
async fn answer(call: Call, begun: fn(&Call) -> Result<OllamaEffect, Failure>) -> Answered {
    let server = Arc::clone(&call.server);
    match call.apart(begun).await? {
        OllamaEffect::Answer { generation, lines, stream } => {
            lines.answer(generation, stream).await
        }
        OllamaEffect::Nothing { unload, lines } => {
            if !unload {
                // An engine that rests, or was not used yet, is made ready.
                let (serving, _) = server.models.find_adapted(Some(&lines.model), |_| true)?;
                worker::between(&serving.worker, |_| ()).await?;
            }
            let mut line = lines.line(Vec::new(), None);
            line["done"] = true.into();
            line["done_reason"] = if unload { "unload" } else { "load" }.into();
            Ok(http::json(StatusCode::OK, &line))
        }
    }
}

/// Returns the variables about thinking for a template.
fn thinking(fields: &mut Fields) -> Map<String, Value> {
    match fields.any("think") {
        Some(Value::Bool(wanted)) => {
            Map::from_iter([("enable_thinking".to_owned(), wanted.into())])
        }
        Some(Value::String(effort)) => {
            Map::from_iter([("reasoning_effort".to_owned(), effort.into())])
        }
        _ => Map::new(),
    }
}

/// Where an answer has its text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In a message of a conversation.
    Message,
    /// By itself.
    Response,
}

/// Lines of JSON.
struct Lines {
    model: String,
    place: Place,
    /// A tool call that has begun: its arguments are an object, and are sent once complete.
    call: Option<ToolCall>,
}

impl Lines {
    fn new(serving: &Serving, place: Place) -> Lines {
        Lines { model: serving.name.clone(), place, call: None }
    }

    /// Streams lines, or waits and sends one.
    async fn answer(self, mut generation: Generation, stream: bool) -> Answered {
        if stream {
            return Ok(Stream::response(generation, Box::new(self)));
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
        let line = self.line(deltas, Some((&generation.choices[0], ended)));
        Ok(http::json(StatusCode::OK, &line))
    }

    /// Returns the deltas that can be sent now. A call is complete once something follows it.
    fn certain(&mut self, deltas: Vec<Delta>, last: bool) -> Vec<Delta> {
        let mut all = joined(self.call.take().map(Delta::Call).into_iter().chain(deltas));
        match all.pop() {
            Some(Delta::Call(call)) if !last => self.call = Some(call),
            other => all.extend(other),
        }
        all
    }

    fn line(&self, deltas: Vec<Delta>, end: Option<(&Choice, Reason)>) -> Value {
        let (mut content, mut thinking, mut calls) = (String::new(), String::new(), Vec::new());
        for delta in joined(deltas) {
            match delta {
                Delta::Content(text) => content.push_str(&text),
                Delta::Thinking(text) => thinking.push_str(&text),
                Delta::Call(call) => {
                    let function = json!({"name": call.name, "arguments": input(&call)});
                    let id = call.id.unwrap_or_else(|| ids::id("call_"));
                    calls.push(json!({"id": id, "function": function}));
                }
                // Joining leaves none.
                Delta::Arguments(_) | Delta::Id(_) => {}
            }
        }
        let mut line = json!({
            "model": self.model, "created_at": ids::date(ids::now()), "done": end.is_some(),
        });
        let said = match self.place {
            Place::Message => {
                line["message"] = json!({"role": "assistant", "content": content});
                &mut line["message"]
            }
            Place::Response => {
                line["response"] = content.into();
                &mut line
            }
        };
        if !thinking.is_empty() {
            said["thinking"] = thinking.into();
        }
        if !calls.is_empty() {
            said["tool_calls"] = calls.into();
        }
        if let Some((choice, reason)) = end {
            let [prompt, answer] = choice.times();
            let nanoseconds = |time: Duration| time.as_nanos() as u64;
            let cut = reason == Reason::Length;
            line["done_reason"] = if cut { "length" } else { "stop" }.into();
            line["total_duration"] = nanoseconds(prompt + answer).into();
            line["load_duration"] = 0.into();
            line["prompt_eval_count"] = choice.prompt_tokens.into();
            line["prompt_eval_duration"] = nanoseconds(prompt).into();
            line["eval_count"] = choice.tokens.into();
            line["eval_duration"] = nanoseconds(answer).into();
        }
        line
    }
}

impl Shape for Lines {
    fn kind(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn keep_alive(&self) -> &'static str {
        // White space before a line is not a line.
        " "
    }

    fn begin(&mut self, _: &[Choice], _: &mut String) {}

    fn update(&mut self, choices: &[Choice], at: usize, update: Update, out: &mut String) {
        let line = match update {
            Update::Reading(_) | Update::Read => return,
            Update::More(piece) => {
                let deltas = self.certain(piece.deltas, false);
                if deltas.is_empty() && self.call.is_some() {
                    return;
                }
                self.line(deltas, None)
            }
            Update::Ended(piece, reason) => {
                let deltas = self.certain(piece.deltas, true);
                if !deltas.is_empty() {
                    let line = self.line(deltas, None);
                    out.push_str(&format!("{line}\n"));
                }
                self.line(Vec::new(), Some((&choices[at], reason)))
            }
            Update::Failed(failure) => failure.ollama(),
        };
        out.push_str(&format!("{line}\n"));
    }

    fn end(&mut self, _: &[Choice], _: &mut String) {}
}

/// Returns the details of a model.
fn details(serving: &Serving) -> Value {
    let family = serving.model.spec().architecture;
    let parameters = serving.model.parameters() as f64;
    let size = if parameters >= 1e9 {
        format!("{:.1}B", parameters / 1e9)
    } else {
        format!("{:.2}M", parameters / 1e6)
    };
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": size,
        "quantization_level": serving.quantization().unwrap_or("unknown"),
    })
}
