//! `POST /v1/completions`

use std::sync::Arc;

use alight_chat::answer::{AnswerOptions, Delta};
use alight_chat::body::fields::{Fields, whole};
use alight_chat::body::options;
use alight_chat::body::refusal::Refusal;
use alight_chat::grammar::Calls;
use alight_chat::worker::LogitsWanted;
use alight_model::OfPrompt;
use alight_text::Tokenizer;
use alight_text::infill::Gap;
use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::{About, event, finish_reason, streaming, timed, usage};
use crate::asking;
use crate::endpoints;
use crate::failure::Failure;
use crate::generation::{Choice, Generation, MAX_LOGPROBS, Reason, TokenLogprob, Update};
use crate::http::{self, Answered, Call, Shape, Stream};
use crate::ids;

/// The running generation, and the format of its response.
struct RunningCompletion {
    generation: Generation,
    about: About,
    stream: bool,
    logprobs: bool,
    /// The number of answers to each prompt.
    n: usize,
    /// The text that precedes each answer.
    echo: Vec<String>,
}

pub(crate) async fn answer(call: Call) -> Answered {
    let RunningCompletion { mut generation, about, stream, logprobs, n, echo } =
        call.apart(begun).await?;
    let offsets = match logprobs {
        // The echoed tokens are sent with their log probabilities.
        true => vec![0; echo.len()],
        false => echo.iter().map(|text| text.chars().count()).collect(),
    };
    let mut shape = CompletionChunks { about, logprobs, n, echo, offsets };
    if stream {
        return Ok(Stream::response(generation, Box::new(shape)));
    }
    let mut said = vec![CollectedCompletion::default(); generation.choices.len()];
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
    let mut choices = Vec::new();
    for (at, said) in said.into_iter().enumerate() {
        let choice = &generation.choices[at];
        let echoed = if shape.echo[at].is_empty() { &[][..] } else { &choice.echoed };
        let told = shape.told(choice, at, &[echoed, &said.tokens].concat());
        choices.push(json!({
            "index": at,
            "text": format!("{}{}", shape.echo[at], said.text),
            "logprobs": told,
            "finish_reason": finish_reason(said.reason.unwrap_or(Reason::Stop)),
        }));
    }
    let usage = usage(&generation.choices, n);
    let response = timed(shape.about.with(choices.into(), usage), &generation.choices);
    Ok(http::json(StatusCode::OK, &response))
}

/// Reads the request, and starts the computation.
fn begun(call: &Call) -> Result<RunningCompletion, Failure> {
    let mut fields = Fields::new(call.declared(&endpoints::COMPLETIONS)?);
    let serving = asking::model(call, &mut fields)?;
    let after = fields.string("suffix")?.filter(|after| !after.is_empty());
    let mut ask = asking::ask(call, serving, &mut fields, Calls::None)?;
    let (infill, rules) = (after.is_some(), asking::prompt_rules(&mut fields)?);
    let prompts = match after {
        None => asking::texts(&mut fields, "prompt", rules, serving)?,
        Some(after) => {
            let before = fields.string("prompt")?.unwrap_or_default();
            vec![asking::infill(&Gap { before, after, ..Gap::default() }, serving, &ask)?]
        }
    };
    let stops = options::stops(&mut fields)?;
    let n = asking::answers(&mut fields, "n")?;
    asking::check_answers(prompts.len(), n)?;
    let (stream, usage) = streaming(&mut fields)?;
    let what = format!("a whole number from 0 to {}", super::MAX_TOP_LOGPROBS);
    let top = fields.read("logprobs", &what, |value| {
        let top = usize::try_from(whole(&value)?).ok()?;
        (top <= super::MAX_TOP_LOGPROBS).then_some(top)
    })?;
    let logprobs = top.is_some();
    ask.logits = top.map_or(LogitsWanted::Nothing, LogitsWanted::Logprobs);
    let echo = fields.truth("echo")?.unwrap_or(false);
    if echo && infill {
        let why = "with suffix the answer stands between two texts";
        return Err(Refusal::unsupported("echo", why).into());
    }
    if let Some(top) = top.filter(|_| echo) {
        check_echo(&prompts, n, top)?;
        ask.request.of_prompt = OfPrompt::Logits;
    }
    fields.only(
        "best_of",
        |value| *value == json!(n),
        "the best of several answers is not looked for",
    )?;
    let tokenizer = &serving.vocabulary().tokenizer;
    let text = |prompt: &Vec<u32>| if echo { tokenizer.decode(prompt) } else { String::new() };
    let echo = prompts.iter().flat_map(|prompt| vec![text(prompt); n]).collect();
    call.record.ignored(&fields);
    let running = asking::begin(serving, prompts, n, &ask)?;
    let asked = AnswerOptions { stops, ..AnswerOptions::default() };
    let generation = Generation::new(&call.record, running, &asked, serving.vocabulary());
    let about = About {
        id: ids::id("cmpl-"),
        object: "text_completion",
        created: ids::now(),
        model: serving.name.clone(),
        usage,
        record: Arc::clone(&call.record),
    };
    Ok(RunningCompletion { generation, about, stream, logprobs, n, echo })
}

/// Refuses to return more log probabilities of prompts than one request may have.
fn check_echo(prompts: &[Vec<u32>], n: usize, top: usize) -> Result<(), Refusal> {
    let tokens: usize = prompts.iter().map(Vec::len).sum();
    let count = tokens.saturating_mul(n).saturating_mul(1 + top);
    if count <= MAX_LOGPROBS {
        return Ok(());
    }
    let message = format!(
        "{tokens} tokens of prompts, {n} times, with {top} top logprobs each are {count} log probabilities, expected at most \
         {MAX_LOGPROBS}: send fewer prompts at a time"
    );
    Err(Refusal::invalid("echo", message))
}

/// An answer that is sent whole.
#[derive(Clone, Default)]
struct CollectedCompletion {
    text: String,
    tokens: Vec<TokenLogprob>,
    reason: Option<Reason>,
}

impl CollectedCompletion {
    fn take(&mut self, deltas: Vec<Delta>, tokens: Vec<TokenLogprob>) {
        self.text.push_str(&text(deltas));
        self.tokens.extend(tokens);
    }
}

/// Returns the new text. A continued text has no other parts.
fn text(deltas: Vec<Delta>) -> String {
    let texts = deltas.into_iter().map(|delta| match delta {
        Delta::Content(text) | Delta::Thinking(text) => text,
        Delta::Call(_) | Delta::Arguments(_) | Delta::Id(_) => String::new(),
    });
    texts.collect()
}

/// The chunks of answers.
struct CompletionChunks {
    about: About,
    logprobs: bool,
    n: usize,
    echo: Vec<String>,
    /// The number of characters of each answer that have been sent.
    offsets: Vec<usize>,
}

impl CompletionChunks {
    /// Returns the log probabilities of tokens, in the format of OpenAI's older API.
    fn told(&mut self, choice: &Choice, at: usize, tokens: &[TokenLogprob]) -> Value {
        if !self.logprobs || tokens.is_empty() {
            return Value::Null;
        }
        let tokenizer = choice.answer.tokenizer();
        let [mut texts, mut logprobs, mut tops, mut offsets] = [(); 4].map(|()| Vec::new());
        for told in tokens {
            let text = spelled(tokenizer, told.id);
            offsets.push(Value::from(self.offsets[at]));
            self.offsets[at] += text.chars().count();
            texts.push(Value::from(text));
            let Some(likely) = &told.logprobs else {
                // The first token of the prompt.
                logprobs.push(Value::Null);
                tops.push(Value::Null);
                continue;
            };
            logprobs.push(Value::from(likely.chosen));
            let mut top = Map::new();
            for (id, logprob) in likely.top.iter().chain([&(told.id, likely.chosen)]) {
                top.insert(spelled(tokenizer, *id), Value::from(*logprob));
            }
            tops.push(Value::Object(top));
        }
        json!({
            "tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets,
        })
    }

    fn piece(&self, at: usize, text: &str, logprobs: Value, reason: Value, out: &mut String) {
        let choice =
            json!({"index": at, "text": text, "logprobs": logprobs, "finish_reason": reason});
        event(&self.about.with(json!([choice]), Value::Null), out);
    }
}

fn spelled(tokenizer: &Tokenizer, id: u32) -> String {
    let mut bytes = Vec::new();
    tokenizer.decode_special(id, &mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Shape for CompletionChunks {
    fn begin(&mut self, _: &[Choice], _: &mut String) {}

    fn update(&mut self, choices: &[Choice], at: usize, update: Update, out: &mut String) {
        let (piece, reason) = match update {
            Update::Reading(_) => return,
            Update::Read => {
                if !self.echo[at].is_empty() {
                    let told = self.told(&choices[at], at, &choices[at].echoed);
                    self.piece(at, &self.echo[at], told, Value::Null, out);
                }
                return;
            }
            Update::More(piece) => (piece, Value::Null),
            Update::Ended(piece, reason) => (piece, finish_reason(reason).into()),
            Update::Failed(failure) => return event(&failure.openai(), out),
        };
        let told = self.told(&choices[at], at, &piece.tokens);
        let text = text(piece.deltas);
        if !text.is_empty() || !told.is_null() || !reason.is_null() {
            self.piece(at, &text, told, reason, out);
        }
    }

    fn end(&mut self, choices: &[Choice], out: &mut String) {
        if self.about.usage {
            event(&self.about.with(json!([]), usage(choices, self.n)), out);
        }
        out.push_str("data: [DONE]\n\n");
    }
}
