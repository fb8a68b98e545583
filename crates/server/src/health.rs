//! Whether the server answers. Nobody needs a key to know.

use hyper::StatusCode;
use serde_json::json;

use crate::http::{self, Answered, Call};

pub(crate) async fn answer(_: Call) -> Answered {
    Ok(http::json(StatusCode::OK, &json!({"status": "ok"})))
}
