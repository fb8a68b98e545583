//! `POST /api/embed`, and the older `POST /api/embeddings`

use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use alight_chat::body::fields::Fields;
use alight_chat::body::refusal::Refusal;
use alight_chat::vectors::Normalization;
use hyper::StatusCode;
use serde_json::{Value, json};

use super::model;
use crate::embedding::{self, ManyVectors, VectorRules};
use crate::endpoints;
use crate::http::{self, Answered, Call};

/// As both are read.
const RULES: VectorRules = VectorRules {
    input: "input",
    cut: true,
    normalization: Normalization::Norm(2),
    max_tokens: None,
};

pub(crate) async fn answer(call: Call) -> Answered {
    let (began, server) = (Instant::now(), Arc::clone(&call.server));
    let begun = call.apart(|call| {
        let mut fields = Fields::new(call.declared(&endpoints::OLLAMA_EMBED)?);
        let serving = model(call, &mut fields)?;
        let cut = fields.truth("truncate")?.unwrap_or(true);
        embedding::take(call, serving, &mut fields, VectorRules { cut, ..RULES })
    });
    let ManyVectors { model, all, tokens } = begun.await?.vectors(&server).await?;
    let mut body = format!("{{\"model\":{},\"embeddings\":[", Value::from(model));
    for (i, vector) in all.iter().enumerate() {
        body.push_str(if i == 0 { "" } else { "," });
        embedding::write(vector, &mut body);
    }
    let nanoseconds = began.elapsed().as_nanos() as u64;
    let _ = write!(
        body,
        "],\"total_duration\":{nanoseconds},\"load_duration\":0,\"prompt_eval_count\":{tokens}}}"
    );
    Ok(http::text(StatusCode::OK, http::JSON, body))
}

/// Answers with one vector for one text.
pub(crate) async fn one(call: Call) -> Answered {
    let server = Arc::clone(&call.server);
    let begun = call.apart(|call| {
        let mut fields = Fields::new(call.declared(&endpoints::OLLAMA_EMBEDDINGS)?);
        let serving = model(call, &mut fields)?;
        let missing = || Refusal::invalid("prompt", "it is missing");
        let prompt = fields.string("prompt")?.ok_or_else(missing)?;
        fields.insert("input", prompt.into());
        embedding::take(call, serving, &mut fields, RULES)
            .map_err(|failure| failure.in_words(&[("input", "prompt")], ""))
    });
    let ManyVectors { all, .. } = begun.await?.vectors(&server).await?;
    Ok(http::json(StatusCode::OK, &json!({"embedding": all.first()})))
}
