//! `GET /v1/models` and `GET /v1/models/ID` as Anthropic's clients read them; these clients are recognised by a header.

use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use crate::http::{self, Call, Reply};
use crate::ids;
use crate::models::Serving;

pub(crate) fn answer(call: &Call) -> Response<Reply> {
    let all = call.server.models.listed(about);
    let id = |model: Option<&Value>| model.map_or(Value::Null, |model| model["id"].clone());
    let [first, last] = [all.first(), all.last()].map(id);
    let body = json!({"data": all, "has_more": false, "first_id": first, "last_id": last});
    http::json(StatusCode::OK, &body)
}

pub(crate) fn about(serving: &Serving, name: &str) -> Value {
    json!({
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": ids::date(serving.created),
    })
}
