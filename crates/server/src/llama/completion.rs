//! `POST /completion`: continues texts, in llama-server's format.

use std::time::Duration;

use alight_chat::answer::{AnswerOptions, Delta, Limits};
use alight_chat::body::fields::{Fields, whole};
use alight_chat::body::options;
use alight_chat::body::refusal::Refusal;
use alight_chat::grammar::Calls;
use alight_chat::worker::{GenerateRequest, LogitsWanted};
use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::settings;
use crate::asking;
use crate::endpoints::{self, Endpoint};
use crate::failure::Failure;
use crate::generation::{Choice, Generation, Piece, Reason, Update};
use crate::http::{self, Answered, Call, Shape, Stream};
use crate::models::Serving;

/// Maximum number of likely tokens reported with each, and of fields that a request wants of its answer.
const MAX_PROBABILITIES: usize = 100;
const MAX_RESPONSE_FIELDS: usize = 64;

pub(crate) async fn answer(call: Call) -> Answered {
    answered(call, &endpoints::COMPLETION, prompts).await
}

/// Takes the tokens of the prompts from the fields of a request.
pub(super) type Prompts =
    fn(&mut Fields, &Serving, &GenerateRequest) -> Result<Vec<Vec<u32>>, Failure>;

/// Answers with the continuations of those prompts.
pub(super) async fn answered(
    call: Call,
    endpoint: &'static Endpoint,
    prompts: Prompts,
) -> Answered {
    let begun = call.apart(move |call| begun(call, endpoint, prompts));
    let (mut generation, mut shape, stream) = begun.await?;
    if stream {
        return Ok(Stream::response(generation, Box::new(shape)));
    }
    let mut all: Vec<(Piece, Reason)> = Vec::new();
    all.resize_with(generation.choices.len(), || (Piece::default(), Reason::Stop));
    while let Some((at, update)) = generation.next().await {
        let piece = match update {
            Update::Reading(_) | Update::Read => continue,
            Update::More(piece) => piece,
            Update::Ended(piece, reason) => {
                all[at].1 = reason;
                piece
            }
            Update::Failed(failure) => return Err(failure),
        };
        all[at].0.deltas.extend(piece.deltas);
        all[at].0.tokens.extend(piece.tokens);
    }
    let answers = all.into_iter().zip(&generation.choices).enumerate();
    let mut answers: Vec<Value> = answers
        .map(|(at, ((piece, reason), choice))| shape.whole(at, choice, piece, reason))
        .collect();
    let body = match answers.len() {
        1 => answers.swap_remove(0),
        _ => answers.into(),
    };
    Ok(http::json(StatusCode::OK, &body))
}

/// Takes the texts to be continued.
fn prompts(
    fields: &mut Fields,
    serving: &Serving,
    _: &GenerateRequest,
) -> Result<Vec<Vec<u32>>, Failure> {
    let rules = asking::prompt_rules(fields)?;
    asking::texts(fields, "prompt", rules, serving)
}

/// Reads the request, and starts the computation.
fn begun(
    call: &Call,
    endpoint: &Endpoint,
    prompts: Prompts,
) -> Result<(Generation, Pieces, bool), Failure> {
    let object = call.declared(endpoint)?;
    let grammar = object.get("grammar").filter(|text| text.is_string()).cloned();
    let mut fields = Fields::new(object);
    let serving = asking::model(call, &mut fields)?;
    let mut ask = asking::ask(call, serving, &mut fields, Calls::None)?;
    let prompts = prompts(&mut fields, serving, &ask)?;
    let n = match asking::answers(&mut fields, "n_cmpl")? {
        1 => asking::answers(&mut fields, "n")?,
        n => n,
    };
    asking::check_answers(prompts.len(), n)?;
    let n_probs = probabilities(&mut fields)?;
    if n_probs > 0 {
        ask.logits = LogitsWanted::Logprobs(n_probs);
    }
    let stops = options::stops(&mut fields)?;
    // In both, llama-server uses 0 and −1 for no limit.
    let indent = fields.count_or_all("n_indent", 0)?.unwrap_or(0);
    let time = fields.count_or_all("t_max_predict_ms", 0)?.filter(|time| *time > 0);
    let limits = Limits { indent, time: time.map(|ms| Duration::from_millis(ms as u64)) };
    let mut truth = |name: &str| fields.truth(name).map(|given| given.unwrap_or(false));
    let stream = truth("stream")?;
    let (progress, timings) = (truth("return_progress")?, truth("timings_per_token")?);
    let return_tokens = stream || truth("return_tokens")?;
    let response_fields = response_fields(&mut fields)?;
    call.record.ignored(&fields);

    let mut settings = settings::of_request(&ask.request);
    settings.extend([
        ("grammar".to_owned(), grammar.unwrap_or_else(|| "".into())),
        ("n_indent".to_owned(), indent.into()),
        ("n_probs".to_owned(), n_probs.into()),
        ("stop".to_owned(), stops.clone().into()),
        ("stream".to_owned(), stream.into()),
        ("t_max_predict_ms".to_owned(), time.map_or(json!(-1), Value::from)),
        ("timings_per_token".to_owned(), timings.into()),
    ]);
    let tokenizer = &serving.vocabulary().tokenizer;
    let text = |prompt: &Vec<u32>| {
        let mut bytes = Vec::new();
        prompt.iter().for_each(|id| tokenizer.decode_special(*id, &mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let texts = prompts.iter().map(text).collect();
    let running = asking::begin(serving, prompts, n, &ask)?;
    let asked = AnswerOptions { stops, limits, ..AnswerOptions::default() };
    let generation = Generation::new(&call.record, running, &asked, serving.vocabulary());
    let pieces = Pieces {
        model: serving.name.clone(),
        first_slot: asking::slot(call, serving, 0),
        n,
        prompts: texts,
        seed: ask.request.sampling.seed,
        settings,
        probabilities: n_probs > 0,
        return_tokens,
        response_fields,
        progress,
        timings,
        lines: vec![false; generation.choices.len()],
    };
    Ok((generation, pieces, stream))
}

/// Takes the number of likely tokens to be reported with each, by either of its names.
fn probabilities(fields: &mut Fields) -> Result<usize, Refusal> {
    let what = format!("a whole number from 0 to {MAX_PROBABILITIES}");
    let mut take = |name| {
        fields.read(name, &what, |value| {
            let n = usize::try_from(whole(&value)?).ok()?;
            (n <= MAX_PROBABILITIES).then_some(n)
        })
    };
    let (n_probs, logprobs) = (take("n_probs")?, take("logprobs")?);
    Ok(n_probs.or(logprobs).unwrap_or(0))
}

/// Takes the paths of the fields that an answer has; all, if there are none.
fn response_fields(fields: &mut Fields) -> Result<Vec<String>, Refusal> {
    let what = format!("a list of at most {MAX_RESPONSE_FIELDS} names of fields");
    let names = fields.read("response_fields", &what, |value| {
        let names = value.as_array().filter(|names| names.len() <= MAX_RESPONSE_FIELDS)?;
        names.iter().map(|name| name.as_str().map(str::to_owned)).collect()
    })?;
    Ok(names.unwrap_or_default())
}

/// Returns the fields at these paths, whose parts a `/` separates. A path that leads nowhere is left out.
fn selected(answer: &Value, paths: &[String]) -> Value {
    let at = |path: &str| path.split('/').try_fold(answer, |value, name| value.get(name)).cloned();
    let fields = paths.iter().filter_map(|path| Some((path.clone(), at(path)?)));
    Value::Object(fields.collect())
}

/// The pieces of answers.
struct Pieces {
    model: String,
    /// The number of the model's first slot.
    first_slot: usize,
    /// The number of answers to each prompt.
    n: usize,
    /// The texts of the prompts.
    prompts: Vec<String>,
    /// The seed of the first answer to each prompt.
    seed: u64,
    /// The options of the answers, except for their seeds.
    settings: Map<String, Value>,
    probabilities: bool,
    return_tokens: bool,
    /// The paths of the fields that a whole answer has; all, if there are none.
    response_fields: Vec<String>,
    /// True if the progress of the prompt is reported.
    progress: bool,
    /// True if each piece has the timings so far.
    timings: bool,
    /// True for each answer in which a line has ended.
    lines: Vec<bool>,
}

impl Pieces {
    /// The fields of a piece, and of a whole answer.
    fn object(&mut self, at: usize, choice: &Choice, piece: Piece) -> Value {
        let texts = piece.deltas.into_iter().map(|delta| match delta {
            Delta::Content(text) | Delta::Thinking(text) => text,
            Delta::Call(_) | Delta::Arguments(_) | Delta::Id(_) => String::new(),
        });
        let content = texts.collect::<String>();
        self.lines[at] |= content.contains('\n');
        let ids = piece.tokens.iter().map(|token| token.id).filter(|_| self.return_tokens);
        let mut object = json!({
            "index": at,
            "content": content,
            "tokens": ids.collect::<Value>(),
            "stop": false,
            "id_slot": choice.place.map_or(json!(-1), |place| (self.first_slot + place).into()),
            "tokens_predicted": choice.tokens,
            "tokens_evaluated": choice.prompt_tokens,
        });
        if self.probabilities {
            let tokenizer = choice.answer.tokenizer();
            let all = piece.tokens.iter().filter_map(|token| token.value(tokenizer));
            object["completion_probabilities"] = all.collect();
        }
        object
    }

    /// An answer that is sent whole, or the end of one that was streamed.
    fn whole(&mut self, at: usize, choice: &Choice, piece: Piece, reason: Reason) -> Value {
        let mut object = self.object(at, choice, piece);
        let (kind, word) = match reason {
            Reason::Stop => ("eos", ""),
            Reason::Length => ("limit", ""),
            Reason::Text => ("word", choice.answer.stopped().unwrap_or_default()),
        };
        let mut settings = self.settings.clone();
        let seed = self.seed.wrapping_add((at % self.n) as u64);
        settings.insert("seed".to_owned(), seed.into());
        object["stop"] = true.into();
        object["model"] = self.model.as_str().into();
        object["generation_settings"] = settings.into();
        object["prompt"] = self.prompts[at / self.n].as_str().into();
        object["has_new_line"] = self.lines[at].into();
        object["truncated"] = false.into();
        object["stop_type"] = kind.into();
        object["stopping_word"] = word.into();
        object["tokens_cached"] = choice.reused.into();
        object["timings"] = choice.timings();
        match &self.response_fields[..] {
            [] => object,
            paths => selected(&object, paths),
        }
    }

    fn progress(&mut self, at: usize, choice: &Choice, read: Option<usize>, out: &mut String) {
        if self.progress {
            let mut value = self.object(at, choice, Piece::default());
            value["prompt_progress"] = choice.progress(read);
            value["timings"] = choice.timings();
            event(&value, out);
        }
    }

    fn piece(&mut self, at: usize, choice: &Choice, piece: Piece, out: &mut String) {
        let mut value = self.object(at, choice, piece);
        if self.timings {
            value["timings"] = choice.timings();
        }
        event(&value, out);
    }
}

/// Writes an event of a stream.
fn event(value: &Value, out: &mut String) {
    out.push_str(&format!("data: {value}\n\n"));
}

impl Shape for Pieces {
    fn begin(&mut self, _: &[Choice], _: &mut String) {}

    fn update(&mut self, choices: &[Choice], at: usize, update: Update, out: &mut String) {
        let choice = &choices[at];
        match update {
            Update::Reading(read) => self.progress(at, choice, Some(read), out),
            Update::Read => self.progress(at, choice, None, out),
            Update::More(piece) => self.piece(at, choice, piece, out),
            Update::Ended(piece, reason) => {
                // Clients take no text of the last event.
                if !piece.deltas.is_empty() || !piece.tokens.is_empty() {
                    self.piece(at, choice, piece, out);
                }
                event(&self.whole(at, choice, Piece::default(), reason), out);
            }
            Update::Failed(failure) => event(&failure.openai(), out),
        }
    }

    fn end(&mut self, _: &[Choice], _: &mut String) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_an_answer_are_selected_by_their_paths() {
        let answer = json!({"a": {"b": {"c": 1}}, "d": null, "e": [2]});
        let paths = ["a/b/c", "a/b", "d", "x", "a/x", "e/0", "a/b/c/d", ""].map(str::to_owned);
        assert_eq!(selected(&answer, &paths), json!({"a/b/c": 1, "a/b": {"c": 1}, "d": null}));
    }
}
