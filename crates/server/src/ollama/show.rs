//! `POST /api/show`

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::{date, details, model};
use crate::body::fields::Fields;
use crate::http::{self, Answered, Call};

pub(crate) async fn answer(call: Call) -> Answered {
    let mut fields = Fields::new(call.object()?);
    // Its older name.
    if let Some(name) = fields.any("name").filter(|_| !fields.has("model")) {
        fields = Fields::new(Map::from_iter([("model".to_owned(), name)]));
    }
    let serving = model(&call, &mut fields)?;
    let spec = serving.model.spec();
    let architecture = spec.architecture;
    let mut info = Map::new();
    let mut set = |key: String, value: Value| info.insert(key, value);
    set("general.architecture".to_owned(), architecture.into());
    set("general.basename".to_owned(), serving.model.name().into());
    set("general.parameter_count".to_owned(), serving.model.parameters().into());
    set(format!("{architecture}.context_length"), serving.worker.context().into());
    set(format!("{architecture}.embedding_length"), spec.hidden_size.into());
    set(format!("{architecture}.block_count"), spec.layers.len().into());
    let body = json!({
        "modelfile": "",
        "parameters": "",
        "template": "",
        "license": "",
        "modified_at": date(serving.created),
        "details": details(serving),
        "model_info": info,
        "capabilities": ["completion", "tools", "thinking"],
    });
    Ok(http::json(StatusCode::OK, &body))
}
