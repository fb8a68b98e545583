//! `POST /v1/rerank`, `/rerank`, `/reranking` and `/v2/rerank`: documents in the order in which they suit a query.
//!
//! One handler answers four dialects. A body with `documents` gets an object, which has what the clients of Cohere, Jina and llama-server look
//! for. A body with `texts` is that of Text Embeddings Inference, and gets a list.

use std::sync::Arc;

use alight_chat::body::fields::{Fields, kind};
use alight_chat::body::refusal::Refusal;
use alight_chat::vectors::{ScoreRule, ranked};
use hyper::StatusCode;
use serde_json::{Value, json};

use crate::embedding::{ManyScores, Pairs};
use crate::endpoints;
use crate::failure::Failure;
use crate::http::{self, Answered, Call};
use crate::{asking, ids};

/// Maximum number of documents in a request.
const MAX_DOCUMENTS: usize = 4096;

/// A request, as far as it shapes the response.
struct Wanted {
    pairs: Pairs,
    documents: Vec<String>,
    top: usize,
    /// True for the list of Text Embeddings Inference.
    is_list: bool,
    /// True if the documents are wanted with their scores.
    with_text: bool,
}

pub(crate) async fn answer(call: Call) -> Answered {
    let server = Arc::clone(&call.server);
    let Wanted { pairs, documents, top, is_list, with_text } = call.apart(begun).await?;
    let ManyScores { model, all, tokens } = pairs.scores(&server).await?;
    let results = ranked(&all).into_iter().take(top).map(|index| {
        let mut result = match is_list {
            true => json!({"index": index, "score": all[index]}),
            false => json!({"index": index, "relevance_score": all[index]}),
        };
        if with_text {
            let text = documents[index].as_str();
            let (name, value) =
                if is_list { ("text", text.into()) } else { ("document", json!({"text": text})) };
            result[name] = value;
        }
        result
    });
    let results: Value = results.collect();
    if is_list {
        return Ok(http::json(StatusCode::OK, &results));
    }
    let response = json!({
        "id": ids::id("rerank-"),
        "object": "list",
        "model": model,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    });
    Ok(http::json(StatusCode::OK, &response))
}

/// Reads the request, and tokenizes the pairs.
fn begun(call: &Call) -> Result<Wanted, Failure> {
    let mut fields = Fields::new(call.declared(&endpoints::RERANK)?);
    let serving = asking::model_of_scores(call, &mut fields)?;
    let query =
        fields.string("query")?.ok_or_else(|| Refusal::invalid("query", "it is missing"))?;
    let is_list = !fields.has("documents") && fields.has("texts");
    let name = if is_list { "texts" } else { "documents" };
    let documents = documents(&mut fields, name)?;
    let top = fields.count("top_n")?.unwrap_or(documents.len());
    let with_text = match is_list {
        true => fields.truth("return_text")?,
        false => fields.truth("return_documents")?,
    };
    let rule = match fields.truth("raw_scores")?.unwrap_or(false) {
        true => ScoreRule::Raw,
        false => ScoreRule::Probability,
    };
    let max_tokens = fields.count("max_tokens_per_doc")?.filter(|n| *n > 0);
    let cut = fields.truth("truncate")?.unwrap_or(true);
    let fit = (max_tokens, cut);
    let pairs = Pairs::new(call, serving, &mut fields, &query, &documents, fit, rule)?;
    Ok(Wanted { pairs, documents, top, is_list, with_text: with_text.unwrap_or(false) })
}

/// Takes documents: texts, or objects with `text`.
fn documents(fields: &mut Fields, name: &'static str) -> Result<Vec<String>, Refusal> {
    let missing = || Refusal::invalid(name, "it is missing");
    let all = fields.list(name)?.ok_or_else(missing)?;
    if !(1..=MAX_DOCUMENTS).contains(&all.len()) {
        let message = format!("there are {}, expected 1 to {MAX_DOCUMENTS}", all.len());
        return Err(Refusal::invalid(name, message));
    }
    let text = |(i, document): (usize, Value)| {
        let found = kind(&document);
        let text = match document {
            Value::String(text) => Some(text),
            Value::Object(mut object) => match object.remove("text") {
                Some(Value::String(text)) => Some(text),
                _ => None,
            },
            _ => None,
        };
        text.ok_or_else(|| {
            let message = format!("it is {found}, expected a text, or an object with text");
            Refusal::invalid(format!("{name}[{i}]"), message)
        })
    };
    all.into_iter().enumerate().map(text).collect()
}
