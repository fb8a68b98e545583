//! `POST /v1/responses/input_tokens` and `POST /v1/chat/completions/input_tokens`: the number of tokens of a prompt.

use hyper::StatusCode;
use serde_json::json;

use super::{chat, responses};
use crate::endpoints;
use crate::failure::Failure;
use crate::http::{self, Answered, Call};

pub(crate) async fn answer(call: Call) -> Answered {
    counted(call, |call| {
        Ok(responses::asks(call, call.declared(&endpoints::RESPONSES)?)?.1.prompt.len())
    })
    .await
}

/// Answers for a chat, as llama-server does.
pub(crate) async fn of_chat(call: Call) -> Answered {
    counted(call, |call| Ok(chat::asks(call)?.1.prompt.len())).await
}

async fn counted(call: Call, count: fn(&Call) -> Result<usize, Failure>) -> Answered {
    let tokens = call.apart(count).await?;
    let body = json!({"object": "response.input_tokens", "input_tokens": tokens});
    Ok(http::json(StatusCode::OK, &body))
}
