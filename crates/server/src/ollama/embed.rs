//! `POST /api/embed`, and the older `POST /api/embeddings`

use std::time::Instant;

use hyper::StatusCode;
use serde_json::{Value, json};

use super::model;
use crate::body::fields::Fields;
use crate::body::refusal::Refusal;
use crate::embedding;
use crate::http::{self, Answered, Call};

pub(crate) async fn answer(call: Call) -> Answered {
    let began = Instant::now();
    let begun = call.apart(|call| {
        let mut fields = Fields::new(call.object()?);
        let serving = model(call, &mut fields)?;
        let cut = fields.truth("truncate")?.unwrap_or(true);
        let begun = embedding::begin(call, serving, &mut fields, cut)?;
        Ok((begun, serving.name.clone()))
    });
    let ((mut generation, wanted), name) = begun.await?;
    embedding::finish(&mut generation).await?;
    let vectors = generation.choices.iter().map(|choice| Value::from(wanted.of(&choice.embedding)));
    let tokens: usize = generation.choices.iter().map(|choice| choice.prompt_tokens).sum();
    let body = json!({
        "model": name,
        "embeddings": vectors.collect::<Value>(),
        "total_duration": began.elapsed().as_nanos() as u64,
        "load_duration": 0,
        "prompt_eval_count": tokens,
    });
    Ok(http::json(StatusCode::OK, &body))
}

/// One text, as one vector.
pub(crate) async fn one(call: Call) -> Answered {
    let begun = call.apart(|call| {
        let mut fields = Fields::new(call.object()?);
        let serving = model(call, &mut fields)?;
        let missing = || Refusal::invalid("prompt", "it is missing");
        let prompt = fields.string("prompt")?.ok_or_else(missing)?;
        fields.insert("input", prompt.into());
        embedding::begin(call, serving, &mut fields, true)
    });
    let (mut generation, wanted) = begun.await?;
    embedding::finish(&mut generation).await?;
    let vector = wanted.of(&generation.choices[0].embedding);
    Ok(http::json(StatusCode::OK, &json!({"embedding": vector})))
}
