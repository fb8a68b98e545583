//! `GET /api/version`: clients compare it with the minimum version that they need.

use hyper::StatusCode;
use serde_json::json;

use crate::http::{self, Answered, Call};

/// The version of Ollama whose API this is.
const VERSION: &str = "0.12.0";

pub(crate) async fn answer(_: Call) -> Answered {
    Ok(http::json(StatusCode::OK, &json!({"version": VERSION})))
}
