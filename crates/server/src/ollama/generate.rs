//! `POST /api/generate`

use alight_text::prompt::check_length;
use alight_text::{Encoder, Style};
use serde_json::{Map, Value, json};

use super::{Lines, Place, model, renamed, thinking};
use crate::answer::Asked;
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
    let lines = Lines::new(serving, Place::Response);
    let stream = fields.truth("stream")?.unwrap_or(true);
    let mut options = renamed(&mut fields)?;
    let ask = asking::ask(call, serving, &mut options)?;
    let stops = options::stops(&mut options)?;
    fields.only("suffix", |suffix| *suffix == json!(""), "a text is continued at its end")?;
    let text = fields.string("prompt")?.unwrap_or_default();
    let system = fields.string("system")?.filter(|system| !system.is_empty());
    let raw = fields.truth("raw")?.unwrap_or(false);
    let vocabulary = serving.vocabulary();
    let chat = !raw && matches!(vocabulary.template(), Some(Ok(_)));
    let prompt = if chat {
        let system = system.map(|text| json!({"role": "system", "content": text}));
        let user = json!({"role": "user", "content": text});
        let messages: Vec<Value> = system.into_iter().chain([user]).collect();
        let mut context: Map<String, Value> = conversation::context(messages);
        context.extend(thinking(&mut fields));
        asking::conversation(context, serving)?
    } else {
        check_length(text.len(), &vocabulary.tokenizer, serving.worker.context())
            .map_err(|why| Failure::invalid(why.to_string()))?;
        let encoder = Encoder::new(vocabulary, Style::Raw, false);
        encoder.raw(&text).map_err(|error| Failure::invalid(error.to_string()))?
    };
    let running = asking::begin(serving, vec![prompt], 1, &ask)?;
    let chat = chat && ask.grammar.is_none();
    let asked = Asked { chat, stops, ..Asked::default() };
    Ok((Generation::new(running, &asked, vocabulary), lines, stream))
}
