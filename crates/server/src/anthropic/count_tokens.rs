//! `POST /v1/messages/count_tokens`

use alight_chat::body::fields::Fields;
use hyper::StatusCode;
use serde_json::json;

use super::take;
use crate::asking;
use crate::http::{self, Answered, Call};

pub(crate) async fn answer(call: Call) -> Answered {
    let tokens = call.apart(|call| {
        let mut fields = Fields::new(call.object()?);
        let serving = asking::model(call, &mut fields)?;
        let mut context = take(&mut fields)?.context;
        asking::fit_thinking(&mut context, true, serving);
        Ok(asking::conversation(context, serving)?.len())
    });
    Ok(http::json(StatusCode::OK, &json!({"input_tokens": tokens.await?})))
}
