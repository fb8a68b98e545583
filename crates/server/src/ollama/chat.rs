//! `POST /api/chat`

use serde_json::{Map, Value, json};

use super::{Lines, Place, model, renamed, thinking};
use crate::asking;
use crate::body::fields::Fields;
use crate::body::{conversation, options};
use crate::failure::Failure;
use crate::generation::Generation;
use crate::http::{Answered, Call};

pub(crate) async fn answer(call: Call) -> Answered {
    let (generation, lines, stream) = call.apart(begun).await?;
    lines.answer(generation, stream).await
}

fn begun(call: &Call) -> Result<(Generation, Lines, bool), Failure> {
    let mut fields = Fields::new(call.object()?);
    let serving = model(call, &mut fields)?;
    let lines = Lines::new(serving, Place::Message);
    let stream = fields.truth("stream")?.unwrap_or(true);
    let mut options = renamed(&mut fields)?;
    let mut ask = asking::ask(call, serving, &mut options)?;
    let stops = options::stops(&mut options)?;
    let mut body = Map::new();
    let messages = fields.list("messages")?.unwrap_or_default();
    body.insert("messages".to_owned(), messages.into_iter().map(openai).collect());
    if let Some(tools) = fields.list("tools")? {
        body.insert("tools".to_owned(), tools.into());
    }
    let mut context = conversation::take(&mut Fields::new(body))?;
    context.extend(thinking(&mut fields));
    let (prompt, asked) = asking::chat(context, &[], stops, &mut ask, serving)?;
    let running = asking::begin(serving, vec![prompt], 1, &ask)?;
    Ok((Generation::new(running, &asked, serving.vocabulary()), lines, stream))
}

/// A message in the words of OpenAI's.
fn openai(mut message: Value) -> Value {
    if let Some(thinking) = message.get_mut("thinking").map(Value::take) {
        message["reasoning_content"] = thinking;
    }
    for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        if call.get("type").is_none() && call.is_object() {
            call["type"] = json!("function");
        }
    }
    message
}
