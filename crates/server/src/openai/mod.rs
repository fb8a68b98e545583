//! OpenAI's addresses: one file each, and what they share.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod models;

use serde_json::{Value, json};

use crate::body::fields::Fields;
use crate::failure::Failure;
use crate::generation::{Choice, Reason};
use crate::http::Call;
use crate::models::Serving;
use crate::worker::{Ask, Running};

/// Most answers to a request.
const MOST_CHOICES: usize = 128;
/// Most tokens that are told beside each one.
const MOST_TOP: usize = 20;

/// What all answers to a request have in common.
#[derive(Clone)]
struct About {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    /// Whether a stream ends with what it took.
    usage: bool,
}

impl About {
    /// The object of a response, or of a piece of one.
    fn with(&self, choices: Value, usage: Value) -> Value {
        let mut value = json!({
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": concat!("alight-", env!("CARGO_PKG_VERSION")),
            "choices": choices,
        });
        if !usage.is_null() {
            value["usage"] = usage;
        }
        value
    }
}

/// What the answers to a request took. Each prompt counts once, however many answers it has.
fn usage(choices: &[Choice], answers: usize) -> Value {
    let prompts = choices.iter().step_by(answers.max(1));
    let (prompt, reused) =
        prompts.fold((0, 0), |(prompt, reused), c| (prompt + c.prompt_tokens, reused + c.reused));
    let completion: usize = choices.iter().map(|choice| choice.tokens).sum();
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": reused},
    })
}

/// Why an answer ended, in OpenAI's words.
fn finish_reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Stop | Reason::Text => "stop",
        Reason::Length => "length",
    }
}

/// An event of a stream.
fn event(value: &Value, out: &mut String) {
    out.push_str("data: ");
    out.push_str(&value.to_string());
    out.push_str("\n\n");
}

/// Takes how many answers there are to be.
fn answers(fields: &mut Fields) -> Result<usize, Failure> {
    let what = format!("a whole number from 1 to {MOST_CHOICES}");
    let n = fields.read("n", &what, |value| {
        let n = usize::try_from(value.as_u64()?).ok()?;
        (1..=MOST_CHOICES).contains(&n).then_some(n)
    })?;
    Ok(n.unwrap_or(1))
}

/// Takes whether the response is a stream, and whether that ends with what it took.
fn streaming(fields: &mut Fields) -> Result<(bool, bool), Failure> {
    let stream = fields.truth("stream")?.unwrap_or(false);
    let options = fields.object("stream_options")?.unwrap_or_default();
    let usage = Fields::new(options).truth("include_usage").map_err(|mut refusal| {
        refusal.param = Some("stream_options.include_usage".into());
        refusal
    })?;
    Ok((stream, usage.unwrap_or(false)))
}

/// Begins to compute `n` answers to each prompt. Their seeds follow one another.
fn begin(
    serving: &Serving,
    prompts: Vec<Vec<u32>>,
    n: usize,
    ask: &Ask,
) -> Result<Vec<(Running, Vec<u32>)>, Failure> {
    let context = serving.worker.context();
    if let Some(long) = prompts.iter().find(|prompt| prompt.len() > context) {
        return Err(Failure::too_long(long.len(), context));
    }
    let vocab = serving.vocabulary().tokenizer.vocab_size();
    if prompts.iter().flatten().any(|id| *id as usize >= vocab) {
        let message = format!("prompt: a token's id is not below {vocab}, the number of tokens");
        return Err(Failure { param: Some("prompt".into()), ..Failure::invalid(message) });
    }
    let mut asks = Vec::new();
    for prompt in &prompts {
        for i in 0..n {
            let mut ask = Ask { prompt: prompt.clone(), ..ask.clone() };
            ask.sampling.seed = ask.sampling.seed.wrapping_add(i as u64);
            asks.push(ask);
        }
    }
    let prompts: Vec<Vec<u32>> = asks.iter().map(|ask| ask.prompt.clone()).collect();
    Ok(serving.worker.ask(asks)?.into_iter().zip(prompts).collect())
}

/// The model that a body names.
fn model<'s>(call: &'s Call, fields: &mut Fields) -> Result<&'s Serving, Failure> {
    call.server.models.find(fields.string("model")?.as_deref())
}

/// How a request's answers are chosen.
fn ask(call: &Call, fields: &mut Fields) -> Result<Ask, Failure> {
    use crate::body::options;
    let mut defaults = call.server.options.sampling;
    if !call.server.options.fixed_seed {
        defaults.seed = crate::ids::random() >> 32;
    }
    let most = call.server.options.max_tokens;
    let (sampling, max_tokens) = options::sampling(fields, &defaults, most)?;
    let ignore_eos = fields.truth("ignore_eos")?.unwrap_or(false);
    options::refuse_unsupported(fields)?;
    let salt = call.salt.clone();
    Ok(Ask { sampling, max_tokens, ignore_eos, salt, ..Ask::default() })
}
