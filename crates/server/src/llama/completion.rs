//! `POST /completion`: continues a text, in llama-server's format.

use std::time::Duration;

use alight_chat::answer::{AnswerOptions, Delta, Limits};
use alight_chat::body::fields::Fields;
use alight_chat::body::options;
use alight_chat::body::refusal::Refusal;
use alight_chat::grammar::Calls;
use alight_chat::worker::GenerateRequest;
use hyper::StatusCode;
use serde_json::{Value, json};

use crate::asking::{self, MAX_CHOICES};
use crate::failure::Failure;
use crate::generation::{Choice, Generation, Piece, Reason, Update};
use crate::http::{self, Answered, Call, Shape, Stream};
use crate::models::Serving;

pub(crate) async fn answer(call: Call) -> Answered {
    answered(call, prompt).await
}

/// Takes the tokens of a prompt from the fields of a request.
pub(super) type Prompt = fn(&mut Fields, &Serving, &GenerateRequest) -> Result<Vec<u32>, Failure>;

/// Answers with the continuation of that prompt.
pub(super) async fn answered(call: Call, prompt: Prompt) -> Answered {
    let (mut generation, shape, stream) = call.apart(move |call| begun(call, prompt)).await?;
    if stream {
        return Ok(Stream::response(generation, Box::new(shape)));
    }
    let (mut all, mut ended) = (Piece::default(), Reason::Stop);
    while let Some((_, update)) = generation.next().await {
        let piece = match update {
            Update::Reading(_) | Update::Read => continue,
            Update::More(piece) => piece,
            Update::Ended(piece, reason) => {
                ended = reason;
                piece
            }
            Update::Failed(failure) => return Err(failure),
        };
        all.deltas.extend(piece.deltas);
        all.tokens.extend(piece.tokens);
    }
    let body = shape.object(all, Some((&generation.choices[0], ended)));
    Ok(http::json(StatusCode::OK, &body))
}

/// Takes a text to be continued.
fn prompt(
    fields: &mut Fields,
    serving: &Serving,
    _: &GenerateRequest,
) -> Result<Vec<u32>, Failure> {
    let mut prompts = asking::texts(fields, "prompt", MAX_CHOICES, false, serving)?;
    if prompts.len() != 1 {
        let message = format!("there are {}, expected one", prompts.len());
        return Err(Refusal::invalid("prompt", message).into());
    }
    Ok(prompts.swap_remove(0))
}

/// Reads the request, and starts the computation.
fn begun(call: &Call, prompt: Prompt) -> Result<(Generation, Pieces, bool), Failure> {
    let mut fields = Fields::new(call.object()?);
    let serving = asking::model(call, &mut fields)?;
    let ask = asking::ask(call, serving, &mut fields, Calls::None)?;
    let tokens = prompt(&mut fields, serving, &ask)?;
    fields.only("n_probs", |n| *n == 0, options::NO_LOGPROBS)?;
    let stops = options::stops(&mut fields)?;
    // In both, llama-server uses 0 and −1 for no limit.
    let indent = fields.count_or_all("n_indent", 0)?.unwrap_or(0);
    let time = fields.count_or_all("t_max_predict_ms", 0)?.filter(|time| *time > 0);
    let limits = Limits { indent, time: time.map(|ms| Duration::from_millis(ms as u64)) };
    let stream = fields.truth("stream")?.unwrap_or(false);
    let progress = fields.truth("return_progress")?.unwrap_or(false);
    call.record.ignored(&fields);
    let running = asking::begin(serving, vec![tokens], 1, &ask)?;
    let asked = AnswerOptions { stops, limits, ..AnswerOptions::default() };
    let generation = Generation::new(&call.record, running, &asked, serving.vocabulary());
    Ok((generation, Pieces { model: serving.name.clone(), progress }, stream))
}

/// The pieces of an answer.
struct Pieces {
    model: String,
    /// True if the progress of the prompt is reported.
    progress: bool,
}

impl Pieces {
    fn object(&self, piece: Piece, end: Option<(&Choice, Reason)>) -> Value {
        let texts = piece.deltas.into_iter().map(|delta| match delta {
            Delta::Content(text) | Delta::Thinking(text) => text,
            Delta::Call(_) | Delta::Arguments(_) => String::new(),
        });
        let ids: Value = piece.tokens.iter().map(|told| told.id).collect();
        let content = texts.collect::<String>();
        let mut object = json!({"content": content, "tokens": ids, "stop": end.is_some()});
        let Some((choice, reason)) = end else { return object };
        let (kind, word) = match reason {
            Reason::Stop => ("eos", ""),
            Reason::Length => ("limit", ""),
            Reason::Text => ("word", choice.answer.stopped().unwrap_or_default()),
        };
        object["model"] = self.model.as_str().into();
        object["stop_type"] = kind.into();
        object["stopping_word"] = word.into();
        object["truncated"] = false.into();
        object["tokens_predicted"] = choice.tokens.into();
        object["tokens_evaluated"] = choice.prompt_tokens.into();
        object["tokens_cached"] = choice.reused.into();
        object["timings"] = choice.timings();
        object
    }

    fn progress(&self, choice: &Choice, read: Option<usize>, out: &mut String) {
        if self.progress {
            let mut value = self.object(Piece::default(), None);
            value["prompt_progress"] = choice.progress(read);
            out.push_str(&format!("data: {value}\n\n"));
        }
    }
}

impl Shape for Pieces {
    fn begin(&mut self, _: &[Choice], _: &mut String) {}

    fn update(&mut self, choices: &[Choice], at: usize, update: Update, out: &mut String) {
        let value = match update {
            Update::Reading(read) => {
                self.progress(&choices[at], Some(read), out);
                return;
            }
            Update::Read => {
                self.progress(&choices[at], None, out);
                return;
            }
            Update::More(piece) => self.object(piece, None),
            Update::Ended(piece, reason) => self.object(piece, Some((&choices[at], reason))),
            Update::Failed(failure) => failure.openai(),
        };
        out.push_str(&format!("data: {value}\n\n"));
    }

    fn end(&mut self, _: &[Choice], _: &mut String) {}
}
