//! `POST /apply-template`: the prompt text of a conversation.

use alight_chat::body::conversation;
use alight_chat::body::fields::Fields;
use hyper::StatusCode;
use serde_json::json;

use crate::asking;
use crate::http::{self, Answered, Call};

pub(crate) async fn answer(call: Call) -> Answered {
    let prompt = call.apart(|call| {
        let mut fields = Fields::new(call.object()?);
        let serving = asking::model(call, &mut fields)?;
        let mut context = conversation::take_with_choice(&mut fields)?.0;
        asking::fit_thinking(&mut context, true, serving);
        let mut bytes = Vec::new();
        let tokenizer = &serving.vocabulary().tokenizer;
        let tokens = asking::conversation(context, serving)?;
        tokens.iter().for_each(|id| tokenizer.decode_special(*id, &mut bytes));
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    });
    Ok(http::json(StatusCode::OK, &json!({"prompt": prompt.await?})))
}
