//! OpenAI's endpoints, one file each, and the code they share.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod input_tokens;
mod items;
pub(crate) mod models;
pub(crate) mod responses;
mod tools;

use std::sync::Arc;

use alight_chat::body::fields::Fields;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::generation::{Choice, Reason};
use crate::request_log::Record;

/// Maximum number of top tokens reported for each token.
const MAX_TOP_LOGPROBS: usize = 20;

/// The fields that all answers to a request have in common.
#[derive(Clone)]
struct About {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    /// True if a stream ends with the token counts.
    usage: bool,
    /// The record of the request, which has its warnings.
    record: Arc<Record>,
}

impl About {
    /// Returns the object of a response, or of a chunk of one.
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
        self.record.add_warnings(&mut value);
        value
    }
}

/// Returns the token counts of the answers to a request. Each prompt counts once, however many answers it has.
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

/// Adds the timings to a response, or to the last chunk of one, if it has one answer, as llama-server does.
fn timed(mut response: Value, choices: &[Choice]) -> Value {
    if let [choice] = choices {
        response["timings"] = choice.timings();
    }
    response
}

/// Returns why an answer ended, in OpenAI's terms.
fn finish_reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Stop | Reason::Text => "stop",
        Reason::Length => "length",
    }
}

/// Writes an event of a stream.
fn event(value: &Value, out: &mut String) {
    out.push_str("data: ");
    out.push_str(&value.to_string());
    out.push_str("\n\n");
}

/// Takes the flags that make the response a stream, and that end it with the token counts.
fn streaming(fields: &mut Fields) -> Result<(bool, bool), Failure> {
    let stream = fields.truth("stream")?.unwrap_or(false);
    let options = fields.object("stream_options")?.unwrap_or_default();
    let usage = Fields::new(options).truth("include_usage").map_err(|mut refusal| {
        refusal.param = Some("stream_options.include_usage".into());
        refusal
    })?;
    Ok((stream, usage.unwrap_or(false)))
}
