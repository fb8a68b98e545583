//! `GET /api/tags`, and `GET /api/ps`: all models are ready at any time.

use hyper::StatusCode;
use serde_json::{Value, json};

use super::{date, details};
use crate::http::{self, Answered, Call};
use crate::models::Serving;

pub(crate) async fn answer(call: Call) -> Answered {
    let all: Value = call.server.models.all().iter().map(about).collect();
    Ok(http::json(StatusCode::OK, &json!({"models": all})))
}

pub(crate) async fn running(call: Call) -> Answered {
    let all = call.server.models.all().iter().map(|serving| {
        let mut about = about(serving);
        about["size_vram"] = 0.into();
        about["context_length"] = serving.worker.context().into();
        about["expires_at"] = "9999-12-31T23:59:59Z".into();
        about
    });
    Ok(http::json(StatusCode::OK, &json!({"models": all.collect::<Value>()})))
}

fn about(serving: &Serving) -> Value {
    json!({
        "name": serving.name,
        "model": serving.name,
        "modified_at": date(serving.created),
        "size": serving.model.file_bytes(),
        "digest": "",
        "details": details(serving),
    })
}
