//! `GET /slots`: the current state of each sequence of the engines. It reveals nothing of the texts.

use alight_chat::counts::Task;
use hyper::StatusCode;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::http::{self, Answered, Call};

pub(crate) async fn answer(call: Call) -> Answered {
    if !call.server.options.slots {
        return Err(Failure::off("--slots"));
    }
    let mut all = Vec::new();
    for serving in call.server.models.all() {
        let context = serving.worker.context();
        for place in serving.worker.counts().now().places {
            let mut slot = json!({
                "id": all.len(),
                "model": serving.name,
                "n_ctx": context,
                "speculative": false,
                "is_processing": place.is_some(),
            });
            if let Some(task) = &place {
                describe(task, context, &mut slot);
            }
            all.push(slot);
        }
    }
    let free = all.iter().any(|slot| slot["is_processing"] == false);
    // Load balancers look only at the status.
    if !free && call.asked("fail_on_no_slot").as_deref() == Some("1") {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        return Err(Failure::new(status, "unavailable_error", "no slot is free"));
    }
    Ok(http::json(StatusCode::OK, &Value::from(all)))
}

fn describe(task: &Task, context: usize, slot: &mut Value) {
    let room = context.saturating_sub(task.prompt).min(task.most);
    slot["id_task"] = task.key.into();
    slot["n_prompt_tokens"] = task.prompt.into();
    slot["n_prompt_tokens_processed"] = task.read.into();
    slot["n_prompt_tokens_cache"] = task.reused.into();
    slot["next_token"] = json!([{
        "has_next_token": task.generated < room,
        "n_decoded": task.generated,
        "n_remain": room.saturating_sub(task.generated),
    }]);
}
