//! The health check. It needs no key.

use hyper::StatusCode;
use serde_json::json;

use crate::http::{self, Answered, Call};

pub(crate) async fn answer(_: Call) -> Answered {
    Ok(http::json(StatusCode::OK, &json!({"status": "ok"})))
}
