//! `POST /api/generate`

use alight_chat::answer::AnswerOptions;
use alight_chat::body::fields::Fields;
use alight_chat::body::{conversation, options};
use alight_chat::grammar::Calls;
use alight_chat::thinking::ThinkingBudget;
use alight_text::infill::Gap;
use alight_text::prompt::check_length;
use alight_text::{Encoder, Style};
use serde_json::{Map, Value, json};

use super::{Lines, OllamaEffect, Place, in_words, model, renamed, thinking};
use crate::asking;
use crate::endpoints;
use crate::failure::Failure;
use crate::generation::Generation;
use crate::http::{Answered, Call};

pub(crate) async fn answer(call: Call) -> Answered {
    super::answer(call, begun).await
}

fn begun(call: &Call) -> Result<OllamaEffect, Failure> {
    let mut fields = Fields::new(call.declared(&endpoints::OLLAMA_GENERATE)?);
    let serving = model(call, &mut fields)?;
    let lines = Lines::new(serving, Place::Response);
    let text = fields.string("prompt")?.unwrap_or_default();
    let after = fields.string("suffix")?.filter(|after| !after.is_empty());
    if text.is_empty() && after.is_none() {
        return Ok(OllamaEffect::nothing(&mut fields, lines));
    }
    let stream = fields.truth("stream")?.unwrap_or(true);
    let mut options = renamed(call, &mut fields)?;
    let mut ask = asking::ask(call, serving, &mut options, Calls::None).map_err(in_words)?;
    let stops = options::stops(&mut options).map_err(in_words)?;
    let system = fields.string("system")?.filter(|system| !system.is_empty());
    let raw = fields.truth("raw")?.unwrap_or(false);
    let parse_special = asking::prompt_rules(&mut fields)?.parse_special && raw;
    let vocabulary = serving.vocabulary();
    let chat = !raw && after.is_none() && matches!(vocabulary.template(), Some(Ok(_)));
    let prompt = if let Some(after) = after {
        asking::infill(&Gap { before: text, after, ..Gap::default() }, serving, &ask)?
    } else if chat {
        let system = system.map(|text| json!({"role": "system", "content": text}));
        let user = json!({"role": "user", "content": text});
        let messages: Vec<Value> = system.into_iter().chain([user]).collect();
        let mut context: Map<String, Value> = conversation::context(messages);
        context.extend(thinking(&mut fields));
        let budget = asking::fit_thinking(&mut context, true, serving);
        let budget = budget.filter(|_| ask.grammar.is_none());
        ask.thinking = budget.map(|tokens| ThinkingBudget::new(tokens, vocabulary, None));
        asking::conversation(context, serving)?
    } else {
        check_length(text.len(), &vocabulary.tokenizer, serving.worker.context())
            .map_err(|why| Failure::invalid(why.to_string()))?;
        let encoder = Encoder::new(vocabulary, Style::Raw, parse_special);
        encoder.raw(&text).map_err(|error| Failure::invalid(error.to_string()))?
    };
    call.record.ignored_in(&[("", &fields), ("options.", &options)]);
    let running = asking::begin(serving, vec![prompt], 1, &ask)?;
    let chat = chat && ask.grammar.is_none();
    let asked = AnswerOptions { chat, stops, ..AnswerOptions::default() };
    let generation = Generation::new(&call.record, running, &asked, vocabulary);
    Ok(OllamaEffect::Answer { generation, lines, stream })
}
