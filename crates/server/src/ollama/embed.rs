//! `POST /api/embed`

use std::time::Instant;

use hyper::StatusCode;
use serde_json::{Value, json};

use super::model;
use crate::body::fields::Fields;
use crate::embedding;
use crate::http::{self, Answered, Call};

pub(crate) async fn answer(call: Call) -> Answered {
    let began = Instant::now();
    let begun = call.apart(|call| {
        let mut fields = Fields::new(call.object()?);
        let serving = model(call, &mut fields)?;
        Ok((embedding::begin(call, serving, &mut fields)?, serving.name.clone()))
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
