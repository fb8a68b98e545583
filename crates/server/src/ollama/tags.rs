//! `GET /api/tags`, and `GET /api/ps`: all models are always ready.

use hyper::StatusCode;
use serde_json::{Value, json};

use super::details;
use crate::http::{self, Answered, Call};
use crate::ids;
use crate::models::Serving;

pub(crate) async fn answer(call: Call) -> Answered {
    listed(call, about).await
}

pub(crate) async fn running(call: Call) -> Answered {
    let running = |serving: &Serving, name: &str| {
        let mut about = about(serving, name);
        about["size_vram"] = 0.into();
        about["context_length"] = serving.worker.context().into();
        // Ollama's value for never: clients compute with it, and some do not support later years.
        about["expires_at"] = "2318-01-01T00:00:00Z".into();
        about
    };
    listed(call, running).await
}

/// Lists all models. On the first call, the fingerprint of each model is read from its file.
async fn listed(call: Call, about: fn(&Serving, &str) -> Value) -> Answered {
    let all = call.apart(move |call| Ok(call.server.models.listed(about)));
    Ok(http::json(StatusCode::OK, &json!({"models": all.await?})))
}

fn about(serving: &Serving, name: &str) -> Value {
    let digest = serving.model.identity().into_iter().map(|byte| format!("{byte:02x}"));
    let digest: String = digest.collect();
    json!({
        "name": name,
        "model": name,
        "modified_at": ids::date(serving.created),
        "size": serving.model.file_bytes(),
        // Clients show its beginning, and compare it.
        "digest": digest,
        "details": details(serving),
    })
}
