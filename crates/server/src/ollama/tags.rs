//! `GET /api/tags`, and `GET /api/ps`: all models are ready at any time.

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
    let running = |serving: &Serving| {
        let mut about = about(serving);
        about["size_vram"] = 0.into();
        about["context_length"] = serving.worker.context().into();
        // Never, as Ollama writes it: clients compute with it, and some have no later years.
        about["expires_at"] = "2318-01-01T00:00:00Z".into();
        about
    };
    listed(call, running).await
}

/// All models. What tells one from others is read from its file, the first time.
async fn listed(call: Call, about: fn(&Serving) -> Value) -> Answered {
    let all =
        call.apart(move |call| Ok(call.server.models.all().iter().map(about).collect::<Value>()));
    Ok(http::json(StatusCode::OK, &json!({"models": all.await?})))
}

fn about(serving: &Serving) -> Value {
    let digest = serving.model.identity().into_iter().map(|byte| format!("{byte:02x}"));
    let digest: String = digest.collect();
    json!({
        "name": serving.name,
        "model": serving.name,
        "modified_at": ids::date(serving.created),
        "size": serving.model.file_bytes(),
        // Clients show the beginning of it, and compare it.
        "digest": digest,
        "details": details(serving),
    })
}
