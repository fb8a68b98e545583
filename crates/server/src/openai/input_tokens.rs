//! `POST /v1/responses/input_tokens`: the number of tokens of a response's prompt.

use hyper::StatusCode;
use serde_json::json;

use super::responses::asks;
use crate::http::{self, Answered, Call};

pub(crate) async fn answer(call: Call) -> Answered {
    let tokens = call.apart(|call| Ok(asks(call, call.object()?)?.1.prompt.len())).await?;
    let body = json!({"object": "response.input_tokens", "input_tokens": tokens});
    Ok(http::json(StatusCode::OK, &body))
}
