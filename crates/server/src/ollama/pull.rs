//! `POST /api/pull`: programs pull their model when they start. A served model is present; no other is downloaded for strangers.

use alight_chat::body::fields::Fields;
use hyper::StatusCode;
use serde_json::json;

use super::model;
use crate::failure::Failure;
use crate::http::{self, Answered, Call};

pub(crate) async fn answer(call: Call) -> Answered {
    let mut fields = Fields::new(call.object()?);
    model(&call, &mut fields).map_err(|failure| {
        let message = format!(
            "{}; a server has the models that it was started with: `alight pull` fetches others",
            failure.message
        );
        Failure { message, ..failure }
    })?;
    // A single line is a valid stream.
    let line = format!("{}\n", json!({"status": "success"}));
    Ok(http::text(StatusCode::OK, "application/x-ndjson", line))
}
