//! `GET /api/version`: clients compare it with the first one that has what they need.

use hyper::StatusCode;
use serde_json::json;

use crate::http::{self, Answered, Call};

/// The version of Ollama whose interface this is.
const VERSION: &str = "0.12.0";

pub(crate) async fn answer(_: Call) -> Answered {
    Ok(http::json(StatusCode::OK, &json!({"version": VERSION})))
}
