//! `GET /v1/models`, and `GET /v1/models/ID`

use alight_chat::decoded::decoded;
use hyper::StatusCode;
use serde_json::{Value, json};

use crate::anthropic::models;
use crate::http::{self, Answered, Call};
use crate::models::Serving;

pub(crate) async fn answer(call: Call) -> Answered {
    if call.anthropic {
        return Ok(models::answer(&call));
    }
    let mut all = call.server.models.listed(about);
    for serving in call.server.models.all() {
        let adapters = serving.adapters.list();
        all.extend(adapters.iter().map(|adapter| about_adapter(serving, &adapter.name)));
    }
    Ok(http::json(StatusCode::OK, &json!({"object": "list", "data": all})))
}

pub(crate) async fn one(call: Call) -> Answered {
    let asked = decoded(&call.named);
    let serving = call.serving(Some(&asked))?;
    if let Some(adapter) = call.adapter.get().filter(|_| !call.anthropic) {
        return Ok(http::json(StatusCode::OK, &about_adapter(serving, adapter)));
    }
    let name = serving.names().find(|name| *name == asked).unwrap_or(&serving.name);
    let about = if call.anthropic { models::about } else { about };
    Ok(http::json(StatusCode::OK, &about(serving, name)))
}

/// Describes an adapter, which requests may name instead of its model.
fn about_adapter(serving: &Serving, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": serving.created,
        "owned_by": "alight",
        "parent": serving.name,
    })
}

fn about(serving: &Serving, name: &str) -> Value {
    let tokenizer = &serving.vocabulary().tokenizer;
    json!({
        "id": name,
        "object": "model",
        "created": serving.created,
        "owned_by": "alight",
        "meta": {
            "n_vocab": tokenizer.vocab_size(),
            "n_ctx": serving.worker.context(),
            "n_ctx_train": serving.model.spec().context,
            "n_params": serving.model.parameters(),
            "size": serving.model.file_bytes(),
        },
    })
}
