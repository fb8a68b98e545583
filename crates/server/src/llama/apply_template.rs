//! `POST /apply-template`: the prompt text of a conversation. The query `of=responses` or `of=messages` says that the body is one of these
//! interfaces'.

use alight_chat::body::conversation;
use alight_chat::body::fields::Fields;
use alight_chat::body::refusal::Refusal;
use hyper::StatusCode;
use serde_json::json;

use crate::anthropic::count_tokens;
use crate::asking;
use crate::endpoints;
use crate::failure::Failure;
use crate::http::{self, Answered, Call};
use crate::models::Serving;
use crate::openai::responses;

pub(crate) async fn answer(call: Call) -> Answered {
    let prompt = call.apart(|call| {
        let (serving, tokens) = prompt(call)?;
        let mut bytes = Vec::new();
        let tokenizer = &serving.vocabulary().tokenizer;
        tokens.iter().for_each(|id| tokenizer.decode_special(*id, &mut bytes));
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    });
    Ok(http::json(StatusCode::OK, &json!({"prompt": prompt.await?})))
}

/// Returns the model that a body names, and the tokens of its prompt.
fn prompt(call: &Call) -> Result<(&Serving, Vec<u32>), Failure> {
    match call.asked("of").as_deref() {
        None => {
            let mut fields = Fields::new(call.declared(&endpoints::CHAT)?);
            let serving = asking::model(call, &mut fields)?;
            let mut context = conversation::take_with_choice(&mut fields)?.0;
            asking::fit_thinking(&mut context, true, serving);
            Ok((serving, asking::conversation(context, serving)?))
        }
        Some("responses") => {
            let (serving, asks) = responses::asks(call, call.declared(&endpoints::RESPONSES)?)?;
            Ok((serving, asks.prompt))
        }
        Some("messages") => count_tokens::prompt(call),
        Some(other) => {
            let why = format!("it is {other:?}, expected \"responses\" or \"messages\"");
            Err(Refusal::invalid("of", why).into())
        }
    }
}
