//! `POST /api/show`

use alight_chat::body::fields::Fields;
use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::{details, model};
use crate::failure::Failure;
use crate::http::{self, Answered, Call};
use crate::ids;

/// Capabilities of a model, each shown by one of these texts in its template.
const CAPABILITIES: [(&str, &[&str]); 2] = [
    ("tools", &["tools"]),
    ("thinking", &["enable_thinking", "reasoning_effort", "<think>", "[THINK]"]),
];

pub(crate) async fn answer(call: Call) -> Answered {
    // The header of the model's file may be read.
    Ok(http::json(StatusCode::OK, &call.apart(shown).await?))
}

fn shown(call: &Call) -> Result<Value, Failure> {
    let mut fields = Fields::new(call.object()?);
    let serving = model(call, &mut fields)?;
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
    let vocabulary = serving.vocabulary();
    let mut capabilities = vec!["completion"];
    for (capability, marks) in CAPABILITIES {
        if marks.iter().any(|mark| vocabulary.template_has(mark)) {
            capabilities.push(capability);
        }
    }
    if vocabulary.tokenizer.infill().is_some() {
        capabilities.push("insert");
    }
    Ok(json!({
        "modelfile": "",
        "parameters": "",
        "template": "",
        "license": "",
        "modified_at": ids::date(serving.created),
        "details": details(serving),
        "model_info": info,
        "capabilities": capabilities,
    }))
}
