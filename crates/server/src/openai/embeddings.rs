//! `POST /v1/embeddings`

use std::fmt::Write;
use std::sync::Arc;

use alight_chat::body::fields::Fields;
use alight_chat::vectors::Normalization;
use hyper::StatusCode;
use serde_json::{Value, json};

use crate::asking;
use crate::embedding::{self, ManyVectors, Texts, VectorRules};
use crate::endpoints;
use crate::failure::Failure;
use crate::http::{self, Answered, Call};

pub(crate) async fn answer(call: Call) -> Answered {
    let server = Arc::clone(&call.server);
    let (texts, encoded) = call.apart(begun).await?;
    let ManyVectors { model, all, tokens } = texts.vectors(&server).await?;
    let mut body = String::from("{\"object\":\"list\",\"data\":[");
    for (i, vector) in all.iter().enumerate() {
        body.push_str(if i == 0 { "" } else { "," });
        let _ = write!(body, "{{\"object\":\"embedding\",\"index\":{i},\"embedding\":");
        match encoded {
            false => embedding::write(vector, &mut body),
            true => embedding::write_base64(vector, &mut body),
        }
        body.push('}');
    }
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    let _ = write!(body, "],\"model\":{},\"usage\":{usage}}}", Value::from(model));
    Ok(http::text(StatusCode::OK, http::JSON, body))
}

/// Reads the request, and starts the computation.
fn begun(call: &Call) -> Result<(Texts, bool), Failure> {
    let mut fields = Fields::new(call.declared(&endpoints::EMBEDDINGS)?);
    let serving = asking::model_of_vectors(call, &mut fields)?;
    let encoded = fields.read("encoding_format", "\"float\" or \"base64\"", |value| {
        let known = ["float", "base64"].iter().position(|known| value == *known);
        known.map(|at| at == 1)
    })?;
    let normalization = embedding::normalization(&mut fields)?.unwrap_or(Normalization::Norm(2));
    let cut = fields.truth("truncate")?.unwrap_or(false);
    let rules = VectorRules { input: "input", cut, normalization, max_tokens: None };
    let texts = embedding::take(call, serving, &mut fields, rules)?;
    Ok((texts, encoded.unwrap_or(false)))
}
