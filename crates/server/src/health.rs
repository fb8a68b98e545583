//! The health check. It needs no key, so it names no folder.

use hyper::StatusCode;
use serde_json::json;

use crate::http::{self, Answered, Call};

pub(crate) async fn answer(call: Call) -> Answered {
    let mut troubles =
        call.server.models.all().iter().filter_map(|serving| serving.worker.trouble());
    Ok(match troubles.next() {
        None => http::json(StatusCode::OK, &json!({"status": "ok"})),
        Some(message) => {
            let body = json!({"status": "error", "message": message});
            http::json(StatusCode::SERVICE_UNAVAILABLE, &body)
        }
    })
}
