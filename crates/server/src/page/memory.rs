//! `GET /alight/memory`: the contents of memory, as the page draws them: the weights of each model part by part, the experts of each
//! layer, the KV cache sequence by sequence, and the process. It reveals nothing of the texts.

use std::time::{Duration, Instant};

use alight_chat::counts::Task;
use alight_model::{CachePage, PartName, ResidentPart};
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, HeaderValue};
use rusage::Memory;
use serde_json::{Value, json};

use crate::http::{self, Answered, Call};
use crate::models::Serving;

/// The minimum interval between two queries, however many pages are open: the system counts pages for milliseconds per gigabyte.
const EVERY: Duration = Duration::from_millis(500);

pub(crate) async fn answer(call: Call) -> Answered {
    let body = call
        .apart(|call| {
            let latest = &call.server.memory;
            // Requests that arrive meanwhile wait for the result of this one.
            let mut latest = latest.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if let Some((when, body)) = &*latest
                && when.elapsed() < EVERY
            {
                return Ok(body.clone());
            }
            let body = Bytes::from(all(call).to_string());
            *latest = Some((Instant::now(), body.clone()));
            Ok(body)
        })
        .await?;
    let mut response = http::bytes(StatusCode::OK, http::JSON, body);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

fn all(call: &Call) -> Value {
    let slots = call.server.options.slots;
    let models = call.server.models.all().iter().map(|serving| of_model(serving, slots));
    let models: Value = models.collect();
    let Memory { rss_anon, rss_file, rss_shmem, pss, peak_rss } = Memory::of_self();
    json!({
        "models": models,
        "process": {"rss_anon": rss_anon, "rss_file": rss_file, "rss_shmem": rss_shmem, "pss": pss, "peak_rss": peak_rss},
    })
}

fn of_model(serving: &Serving, sequences: bool) -> Value {
    let parts = serving.model.resident();
    let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
    let resident: Option<u64> = parts.iter().map(|part| part.resident).sum();
    let counts = serving.worker.counts().now();
    let page = serving.worker.page();
    let mut model = json!({
        "name": serving.name,
        "bytes": bytes,
        "resident": resident,
        "parts": parts.iter().map(of_part).collect::<Value>(),
        "page": page.map(of_page),
        "kept": counts.kept,
        "waiting": counts.waiting.len(),
    });
    if let Some(slots) = serving.model.load_report().slots.filter(|slots| !slots.streamed) {
        let (sizes, counts) = (slots.sizes, slots.counts);
        model["experts"] = json!({
            "all": sizes.pieces,
            "slots": sizes.slots,
            "bytes": sizes.bytes,
            "wanted": counts.wanted,
            "hits": counts.hits,
            "read_bytes": counts.read_bytes,
        });
    }
    if sequences {
        let places = counts.places.iter().map(|place| match (place, page) {
            (Some(task), Some(page)) => of_sequence(task, page.positions),
            _ => Value::Null,
        });
        model["sequences"] = places.collect();
    }
    model
}

fn of_part(part: &ResidentPart) -> Value {
    let (kind, layer) = match part.part {
        PartName::Embedding => ("embedding", None),
        PartName::Layer(index) => ("layer", Some(index)),
        PartName::Output => ("output", None),
        _ => ("other", None),
    };
    let mut value = json!({"part": kind, "bytes": part.bytes, "resident": part.resident});
    if let Some(layer) = layer {
        value["layer"] = layer.into();
    }
    if !part.experts.is_empty() {
        // Whole percent: there may be thousands of them.
        value["experts"] = part.experts.iter().map(|share| (share * 100.0).round() as u8).collect();
    }
    value
}

fn of_page(page: CachePage) -> Value {
    let CachePage { positions, bytes, window_bytes, window_pages } = page;
    let mut value = json!({"positions": positions, "bytes": bytes});
    if window_bytes > 0 {
        value["window"] = json!({"bytes": window_bytes, "pages": window_pages});
    }
    value
}

fn of_sequence(task: &Task, positions: usize) -> Value {
    let tokens = task.read + task.generated;
    json!({
        "prompt": task.prompt,
        "read": task.read,
        "reused": task.reused,
        "generated": task.generated,
        "pages": tokens.div_ceil(positions),
        // Whole pages of a reused prompt also belong to other sequences.
        "shared_pages": task.reused / positions,
    })
}
