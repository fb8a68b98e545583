//! `GET /props`: what a model is, and how it is served: that of `?model=`, or the first one.

use hyper::StatusCode;
use serde_json::json;

use crate::http::{self, Answered, Call};

pub(crate) async fn answer(call: Call) -> Answered {
    let models = &call.server.models;
    let named = call.asked("model");
    let serving = models.find(named.as_deref().or(models.all().first().map(|m| &*m.name)))?;
    let options = &call.server.options;
    let sampling = &options.sampling;
    let tokenizer = &serving.vocabulary().tokenizer;
    let text = |id: Option<u32>| {
        let mut bytes = Vec::new();
        id.iter().for_each(|id| tokenizer.decode_special(*id, &mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let body = json!({
        "default_generation_settings": {
            "n_ctx": serving.worker.context(),
            "params": {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "repeat_penalty": sampling.repeat_penalty,
                "repeat_last_n": sampling.repeat_last_n,
                "frequency_penalty": sampling.frequency_penalty,
                "presence_penalty": sampling.presence_penalty,
            },
        },
        "total_slots": options.engine.sequences,
        "model_alias": serving.name,
        "model_path": serving.model.files().next(),
        "modalities": {"vision": false, "audio": false},
        "chat_template": serving.vocabulary().template_source().unwrap_or_default(),
        "bos_token": text(tokenizer.bos()),
        "eos_token": text(tokenizer.eos()),
        "build_info": concat!("alight-", env!("CARGO_PKG_VERSION")),
        "is_sleeping": serving.worker.counts().now().resting,
    });
    Ok(http::json(StatusCode::OK, &body))
}
