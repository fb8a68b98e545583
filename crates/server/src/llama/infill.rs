//! `POST /infill`: the text that belongs between two texts, as llama-server's editor plugins request it.

use alight_chat::body::fields::{Fields, kind};
use alight_chat::body::refusal::Refusal;
use alight_chat::worker::GenerateRequest;
use alight_text::infill::Gap;
use serde_json::Value;

use super::completion;
use crate::asking;
use crate::endpoints;
use crate::failure::Failure;
use crate::http::{Answered, Call};
use crate::models::Serving;

pub(crate) async fn answer(call: Call) -> Answered {
    completion::answered(call, &endpoints::INFILL, prompts).await
}

fn prompts(
    fields: &mut Fields,
    serving: &Serving,
    ask: &GenerateRequest,
) -> Result<Vec<Vec<u32>>, Failure> {
    let mut text = |name| match fields.string(name)? {
        Some(text) => Ok(text),
        None => Err(Refusal::invalid(name, "it is missing")),
    };
    let (before, after) = (text("input_prefix")?, text("input_suffix")?);
    let line = fields.string("prompt")?.unwrap_or_default();
    let files = fields.list("input_extra")?.unwrap_or_default();
    let files = files.into_iter().map(file).collect::<Result<_, _>>()?;
    Ok(vec![asking::infill(&Gap { before, line, after, files }, serving, ask)?])
}

/// Returns the name and the text of a file.
fn file(mut value: Value) -> Result<(String, String), Refusal> {
    match (value["filename"].take(), value["text"].take()) {
        (Value::String(name), Value::String(text)) => Ok((name, text)),
        // llama-server's default name.
        (Value::Null, Value::String(text)) => Ok(("tmp".to_owned(), text)),
        _ => {
            let message = format!(
                "{} is in it, expected objects with two texts: filename and text",
                kind(&value)
            );
            Err(Refusal::invalid("input_extra", message))
        }
    }
}
