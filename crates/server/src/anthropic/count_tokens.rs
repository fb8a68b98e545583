//! `POST /v1/messages/count_tokens`

use alight_chat::body::fields::Fields;
use hyper::StatusCode;
use serde_json::json;

use super::take;
use crate::asking;
use crate::endpoints;
use crate::failure::Failure;
use crate::http::{self, Answered, Call};
use crate::models::Serving;

pub(crate) async fn answer(call: Call) -> Answered {
    let tokens = call.apart(|call| Ok(prompt(call)?.1.len()));
    Ok(http::json(StatusCode::OK, &json!({"input_tokens": tokens.await?})))
}

/// Returns the model that a body names, and the tokens of its conversation.
pub(crate) fn prompt(call: &Call) -> Result<(&Serving, Vec<u32>), Failure> {
    let mut fields = Fields::new(call.declared(&endpoints::MESSAGES)?);
    let serving = asking::model(call, &mut fields)?;
    let mut context = take(&mut fields)?.context;
    asking::fit_thinking(&mut context, true, serving);
    Ok((serving, asking::conversation(context, serving)?))
}
