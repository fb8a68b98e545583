//! `POST /api/chat`

use alight_chat::body::conversation::ToolChoice;
use alight_chat::body::declared::refused;
use alight_chat::body::fields::Fields;
use alight_chat::body::refusal::Refusal;
use alight_chat::body::{conversation, options};
use alight_chat::grammar::Calls;
use serde_json::{Map, Value, json};

use super::{Lines, OllamaEffect, Place, in_words, model, renamed, thinking};
use crate::asking;
use crate::endpoints::{self, NO_IMAGES};
use crate::failure::Failure;
use crate::generation::Generation;
use crate::http::{Answered, Call};

pub(crate) async fn answer(call: Call) -> Answered {
    super::answer(call, begun).await
}

fn begun(call: &Call) -> Result<OllamaEffect, Failure> {
    let mut fields = Fields::new(call.declared(&endpoints::OLLAMA_CHAT)?);
    let serving = model(call, &mut fields)?;
    let lines = Lines::new(serving, Place::Message);
    let messages = fields.list("messages")?.unwrap_or_default();
    if messages.is_empty() {
        return Ok(OllamaEffect::nothing(&mut fields, lines));
    }
    let stream = fields.truth("stream")?.unwrap_or(true);
    let mut options = renamed(call, &mut fields)?;
    let mut body = Map::new();
    let messages = messages.into_iter().enumerate().map(|(i, message)| openai(i, message));
    body.insert("messages".to_owned(), messages.collect::<Result<_, _>>()?);
    if let Some(tools) = fields.list("tools")?.filter(|tools| !tools.is_empty()) {
        if !serving.vocabulary().template_has("tools") {
            // Ollama's wording, which programs look for.
            let why =
                format!("{} does not support tools: its template does not show them", serving.name);
            return Err(Refusal::unsupported("tools", why).into());
        }
        body.insert("tools".to_owned(), tools.into());
    }
    let mut context = conversation::take(&mut Fields::new(body))?;
    context.extend(thinking(&mut fields));
    let mut ask =
        asking::ask(call, serving, &mut options, Calls::of(&context, &[])).map_err(in_words)?;
    let stops = options::stops(&mut options).map_err(in_words)?;
    let (prompt, asked) = asking::chat(context, &ToolChoice::default(), stops, &mut ask, serving)?;
    call.record.ignored_in(&[("", &fields), ("options.", &options)]);
    let running = asking::begin(serving, vec![prompt], 1, &ask)?;
    let generation = Generation::new(&call.record, running, &asked, serving.vocabulary());
    Ok(OllamaEffect::Answer { generation, lines, stream })
}

/// Converts a message into OpenAI's format.
fn openai(i: usize, mut message: Value) -> Result<Value, Refusal> {
    if let Some(images) = message.get_mut("images").map(Value::take) {
        let field = refused("images", &["[]", "\"\""], NO_IMAGES);
        field.check(&images).map_err(|refusal| refusal.within(&format!("messages[{i}].")))?;
    }
    if let Some(thinking) = message.get_mut("thinking").map(Value::take) {
        message["reasoning_content"] = thinking;
    }
    for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        if call.get("type").is_none() && call.is_object() {
            call["type"] = json!("function");
        }
    }
    Ok(message)
}
