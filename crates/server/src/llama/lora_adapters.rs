//! `GET /lora-adapters` and `POST /lora-adapters`: the adapters, and their scales for requests that name none. `POST /v1/load_lora_adapter` and
//! `POST /v1/unload_lora_adapter` are vLLM's.

use alight_chat::body::fields::Fields;
use alight_chat::body::refusal::Refusal;
use hyper::StatusCode;
use serde_json::{Value, json};

use crate::adapters::ListedAdapter;
use crate::failure::Failure;
use crate::http::{self, Answered, Call};

/// Lists the adapters of the model that the query names, or of the only one.
pub(crate) async fn list(call: Call) -> Answered {
    let serving = call.serving(call.asked("model").as_deref())?;
    let all = serving.adapters.list();
    let all: Vec<Value> = all.iter().map(ListedAdapter::json).collect();
    Ok(http::json(StatusCode::OK, &Value::from(all)))
}

/// Sets the scales for requests that name no adapter.
pub(crate) async fn set(call: Call) -> Answered {
    let list: Value = serde_json::from_slice(&call.body)
        .map_err(|error| Failure::invalid(format!("the body is no JSON: {error}")))?;
    let Value::Array(list) = list else {
        return Err(Failure::invalid("expected a list of {\"id\", \"scale\"}"));
    };
    call.serving(call.asked("model").as_deref())?.adapters.set_standing(&list)?;
    Ok(http::json(StatusCode::OK, &json!({"success": true})))
}

/// Adds an adapter.
pub(crate) async fn load(call: Call) -> Answered {
    check_allowed(&call)?;
    let name = call.apart(|call| {
        let mut fields = Fields::new(call.object()?);
        let (name, path) =
            (required(&mut fields, "lora_name")?, required(&mut fields, "lora_path")?);
        let replace = fields.truth("load_inplace")?.unwrap_or(false);
        let model = fields.string("base_model_name")?;
        call.serving(model.as_deref())?.adapters.load(&name, path.as_ref(), replace)?;
        Ok(name)
    });
    let message = format!("the adapter {:?} is loaded", name.await?);
    Ok(http::json(StatusCode::OK, &json!({"success": true, "message": message})))
}

/// Removes an adapter.
pub(crate) async fn unload(call: Call) -> Answered {
    check_allowed(&call)?;
    let mut fields = Fields::new(call.object()?);
    let name = required(&mut fields, "lora_name")?;
    let model = fields.string("base_model_name")?;
    match call.serving(model.as_deref())?.adapters.unload(&name) {
        true => Ok(http::json(StatusCode::OK, &json!({"success": true}))),
        false => Err(Failure::not_found(format!("there is no adapter {name:?}"))),
    }
}

fn required(fields: &mut Fields, name: &str) -> Result<String, Failure> {
    let missing = || Refusal::invalid(name, "it is missing").into();
    fields.string(name)?.ok_or_else(missing)
}

/// Checks that clients may name files of this machine.
fn check_allowed(call: &Call) -> Result<(), Failure> {
    match call.server.options.allow_load {
        true => Ok(()),
        false => Err(Failure::off("--allow-load")),
    }
}
