//! `GET /props`: properties of a model and how it is served: of `?model=`, or of the first one.

use hyper::StatusCode;
use serde_json::json;

use super::settings;
use crate::http::{self, Answered, Call};

pub(crate) async fn answer(call: Call) -> Answered {
    let models = &call.server.models;
    let named = call.asked("model");
    let serving = call.serving(named.as_deref().or(models.all().first().map(|m| &*m.name)))?;
    let options = &call.server.options;
    let tokenizer = &serving.vocabulary().tokenizer;
    let text = |id: Option<u32>| {
        let mut bytes = Vec::new();
        id.iter().for_each(|id| tokenizer.decode_special(*id, &mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let seed = options.fixed_seed.then_some(options.sampling.seed);
    let breakers = options.dry_sequence_breakers.as_deref();
    let params = settings::of_sampling(&options.sampling, breakers, seed);
    let body = json!({
        "default_generation_settings": {
            "n_ctx": serving.worker.context(),
            "params": params,
        },
        "total_slots": options.engine.sequences,
        "model_alias": serving.name,
        "model_path": serving.model.files().next(),
        "modalities": {"vision": false, "audio": false},
        "chat_template": serving.vocabulary().template_source().unwrap_or_default(),
        "tool_format": serving.vocabulary().output_format().name(),
        "bos_token": text(tokenizer.bos()),
        "eos_token": text(tokenizer.eos()),
        "build_info": concat!("alight-", env!("CARGO_PKG_VERSION")),
        "is_sleeping": serving.worker.counts().now().resting,
    });
    Ok(http::json(StatusCode::OK, &body))
}
