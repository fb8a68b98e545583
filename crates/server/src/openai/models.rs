//! `GET /v1/models`

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::http::{self, Answered, Call};

pub(crate) async fn answer(call: Call) -> Answered {
    let all = call.server.models.all().iter().map(|serving| {
        let tokenizer = &serving.vocabulary().tokenizer;
        json!({
            "id": serving.name,
            "object": "model",
            "created": serving.created,
            "owned_by": "alight",
            "meta": {
                "n_vocab": tokenizer.vocab_size(),
                "n_ctx": serving.worker.context(),
                "n_ctx_train": serving.model.spec().context,
                "n_params": serving.model.parameters(),
                "size": serving.model.file_bytes(),
            },
        })
    });
    let all: Value = all.collect();
    Ok(http::json(StatusCode::OK, &json!({"object": "list", "data": all})))
}
