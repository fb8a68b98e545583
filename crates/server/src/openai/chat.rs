//! `POST /v1/chat/completions`

use std::sync::Arc;

use alight_chat::answer::{AnswerOptions, Delta, Message, openai_call};
use alight_chat::body::fields::{Fields, whole};
use alight_chat::body::refusal::Refusal;
use alight_chat::body::{conversation, options};
use alight_chat::grammar::Calls;
use alight_chat::worker::{GenerateRequest, LogitsWanted};
use alight_text::Tokenizer;
use alight_text::output::Call as ToolCall;
use hyper::StatusCode;
use serde_json::{Value, json};

use super::{About, event, finish_reason, streaming, timed, usage};
use crate::failure::Failure;
use crate::generation::{Choice, Generation, Reason, TokenLogprob, Update};
use crate::http::{self, Answered, Call, Shape, Stream};
use crate::models::Serving;
use crate::{asking, endpoints, ids};

/// The running generation, and the format of its response.
struct Begun {
    generation: Generation,
    about: About,
    stream: bool,
    logprobs: bool,
    /// True if the progress of prompts is reported.
    progress: bool,
    /// True if each chunk has the timings so far.
    timings: bool,
    /// The names of the tools whose input is a text.
    custom: Vec<String>,
}

pub(crate) async fn answer(call: Call) -> Answered {
    let Begun { mut generation, mut about, stream, logprobs, progress, timings, custom } =
        call.apart(begun).await?;
    if stream {
        about.object = "chat.completion.chunk";
        let called = vec![(0, false); generation.choices.len()];
        return Ok(Stream::response(
            generation,
            Box::new(Chunks { about, logprobs, progress, timings, called, custom }),
        ));
    }
    let mut said = vec![CollectedAnswer::default(); generation.choices.len()];
    while let Some((at, update)) = generation.next().await {
        match update {
            Update::Reading(_) | Update::Read => {}
            Update::More(piece) => said[at].take(piece.deltas, piece.tokens),
            Update::Ended(piece, reason) => {
                said[at].take(piece.deltas, piece.tokens);
                said[at].reason = Some(reason);
            }
            Update::Failed(failure) => return Err(failure),
        }
    }
    let choices =
        said.into_iter().zip(&generation.choices).enumerate().map(|(i, (said, choice))| {
            let reason = reason(said.reason.unwrap_or(Reason::Stop), choice);
            let told = logprobs.then(|| content(&said.tokens, choice.answer.tokenizer()));
            json!({
                "index": i,
                "message": said.message.openai(&custom, |_| ids::id("call_")),
                "logprobs": told,
                "finish_reason": reason,
            })
        });
    let usage = usage(&generation.choices, generation.choices.len());
    let response = timed(about.with(choices.collect(), usage), &generation.choices);
    Ok(http::json(StatusCode::OK, &response))
}

/// The contents of a request.
pub(super) struct Asks {
    ask: GenerateRequest,
    pub(super) prompt: Vec<u32>,
    asked: AnswerOptions,
    n: usize,
    stream: bool,
    usage: bool,
    logprobs: bool,
    progress: bool,
    timings: bool,
}

/// Reads a request without computing anything.
pub(super) fn asks(call: &Call) -> Result<(&Serving, Asks), Failure> {
    let mut fields = Fields::new(call.declared(&endpoints::CHAT)?);
    let serving = asking::model(call, &mut fields)?;
    let (context, choice) = conversation::take_with_choice(&mut fields)?;
    let mut ask = asking::ask(call, serving, &mut fields, Calls::of(&context, &choice.must))?;
    let stops = options::stops(&mut fields)?;
    let n = asking::answers(&mut fields, "n")?;
    let (stream, usage) = streaming(&mut fields)?;
    let top = logprobs(&mut fields)?;
    let logprobs = top.is_some();
    ask.logits = top.map_or(LogitsWanted::Nothing, LogitsWanted::Logprobs);
    let progress = fields.truth("return_progress")?.unwrap_or(false);
    let timings = fields.truth("timings_per_token")?.unwrap_or(false);
    call.record.ignored(&fields);
    let (prompt, asked) = asking::chat(context, &choice, stops, &mut ask, serving)?;
    Ok((serving, Asks { ask, prompt, asked, n, stream, usage, logprobs, progress, timings }))
}

/// Reads the request, and starts the computation.
fn begun(call: &Call) -> Result<Begun, Failure> {
    let (serving, asks) = asks(call)?;
    let Asks { ask, prompt, asked, n, stream, usage, logprobs, progress, timings } = asks;
    let running = asking::begin(serving, vec![prompt], n, &ask)?;
    let generation = Generation::new(&call.record, running, &asked, serving.vocabulary());
    let about = About {
        id: ids::id("chatcmpl-"),
        object: "chat.completion",
        created: ids::now(),
        model: serving.name.clone(),
        usage,
        record: Arc::clone(&call.record),
    };
    Ok(Begun { generation, about, stream, logprobs, progress, timings, custom: asked.custom })
}

/// Takes the number of top tokens to be reported, if log probabilities are requested.
fn logprobs(fields: &mut Fields) -> Result<Option<usize>, Failure> {
    let wanted = fields.truth("logprobs")?.unwrap_or(false);
    let what = format!("a whole number from 0 to {}", super::MAX_TOP_LOGPROBS);
    let top = fields.read("top_logprobs", &what, |value| {
        let top = usize::try_from(whole(&value)?).ok()?;
        (top <= super::MAX_TOP_LOGPROBS).then_some(top)
    })?;
    match (wanted, top) {
        (false, Some(1..)) => {
            Err(Refusal::invalid("top_logprobs", "it needs \"logprobs\": true").into())
        }
        (wanted, top) => Ok(wanted.then_some(top.unwrap_or(0))),
    }
}

/// The log probabilities of tokens, in OpenAI's format.
fn content(tokens: &[TokenLogprob], tokenizer: &Tokenizer) -> Value {
    let all = tokens.iter().filter_map(|token| token.value(tokenizer));
    json!({"content": all.collect::<Value>()})
}

/// Returns why an answer ended.
fn reason(reason: Reason, choice: &Choice) -> &'static str {
    match reason {
        Reason::Stop | Reason::Text if choice.answer.called() => "tool_calls",
        reason => finish_reason(reason),
    }
}

/// An answer that is sent whole.
#[derive(Clone, Default)]
struct CollectedAnswer {
    message: Message,
    tokens: Vec<TokenLogprob>,
    reason: Option<Reason>,
}

impl CollectedAnswer {
    fn take(&mut self, deltas: Vec<Delta>, tokens: Vec<TokenLogprob>) {
        deltas.into_iter().for_each(|delta| self.message.take(delta));
        self.tokens.extend(tokens);
    }
}

/// The chunks of answers that are streamed.
struct Chunks {
    about: About,
    logprobs: bool,
    progress: bool,
    timings: bool,
    /// The number of calls in each answer, and whether the last one is that of a custom tool.
    called: Vec<(usize, bool)>,
    custom: Vec<String>,
}

impl Chunks {
    fn chunk(&self, at: usize, delta: &Value, logprobs: Value, reason: Value) -> Value {
        let choice =
            json!({"index": at, "delta": delta, "logprobs": logprobs, "finish_reason": reason});
        self.about.with(json!([choice]), Value::Null)
    }

    fn progress(&self, choice: &Choice, at: usize, read: Option<usize>, out: &mut String) {
        if !self.progress {
            return;
        }
        let progress = choice.progress(read);
        let mut chunk = self.chunk(at, &json!({}), Value::Null, Value::Null);
        chunk["prompt_progress"] = progress;
        chunk["timings"] = choice.timings();
        event(&chunk, out);
    }

    fn call(&mut self, at: usize, call: ToolCall) -> Value {
        let ToolCall { name, arguments, id } = call;
        let is_custom = self.custom.contains(&name);
        let id = id.unwrap_or_else(|| ids::id("call_"));
        let mut call = openai_call(id, &name, &arguments, is_custom);
        call["index"] = self.called[at].0.into();
        self.called[at] = (self.called[at].0 + 1, is_custom);
        json!({"tool_calls": [call]})
    }

    /// Returns the next part of the arguments of the last call, or of its input.
    fn arguments(&self, at: usize, more: &str) -> Value {
        let (called, is_custom) = self.called[at];
        let index = called.saturating_sub(1);
        match is_custom {
            true => json!({"tool_calls": [{"index": index, "custom": {"input": more}}]}),
            false => json!({"tool_calls": [{"index": index, "function": {"arguments": more}}]}),
        }
    }

    /// The log probabilities of tokens are sent with the first chunk of their text.
    fn deltas(
        &mut self,
        choice: &Choice,
        at: usize,
        said: (Vec<Delta>, Vec<TokenLogprob>),
        out: &mut String,
    ) {
        let (deltas, tokens) = said;
        let told = self.logprobs && !tokens.is_empty();
        let mut told = told.then(|| content(&tokens, choice.answer.tokenizer()));
        for delta in deltas {
            let delta = match delta {
                Delta::Content(text) => json!({"content": text}),
                Delta::Thinking(text) => json!({"reasoning_content": text}),
                Delta::Call(call) => self.call(at, call),
                Delta::Arguments(more) => self.arguments(at, &more),
                Delta::Id(_) => continue,
            };
            let told = told.take().unwrap_or_default();
            self.piece(choice, self.chunk(at, &delta, told, Value::Null), out);
        }
        if let Some(told) = told {
            self.piece(choice, self.chunk(at, &json!({}), told, Value::Null), out);
        }
    }

    /// Writes a chunk of an answer.
    fn piece(&self, choice: &Choice, mut chunk: Value, out: &mut String) {
        if self.timings {
            chunk["timings"] = choice.timings();
        }
        event(&chunk, out);
    }
}

impl Shape for Chunks {
    fn begin(&mut self, choices: &[Choice], out: &mut String) {
        for at in 0..choices.len() {
            let delta = json!({"role": "assistant", "content": null});
            event(&self.chunk(at, &delta, Value::Null, Value::Null), out);
        }
    }

    fn update(&mut self, choices: &[Choice], at: usize, update: Update, out: &mut String) {
        let choice = &choices[at];
        match update {
            Update::Reading(read) => self.progress(choice, at, Some(read), out),
            Update::Read => self.progress(choice, at, None, out),
            Update::More(piece) => self.deltas(choice, at, (piece.deltas, piece.tokens), out),
            Update::Ended(piece, why) => {
                self.deltas(choice, at, (piece.deltas, piece.tokens), out);
                let last = self.chunk(at, &json!({}), Value::Null, reason(why, choice).into());
                event(&if self.about.usage { last } else { timed(last, choices) }, out);
            }
            Update::Failed(failure) => event(&failure.openai(), out),
        }
    }

    fn end(&mut self, choices: &[Choice], out: &mut String) {
        if self.about.usage {
            let usage = usage(choices, choices.len());
            event(&timed(self.about.with(json!([]), usage), choices), out);
        }
        out.push_str("data: [DONE]\n\n");
    }
}
