//! `GET /metrics`: counters in Prometheus' format, under llama-server's names. Counters that llama-server does not have begin with
//! `alight:`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use alight_chat::counts::{BOUNDS, Times, Totals};
use hyper::StatusCode;
use hyper::header::HeaderName;

use crate::failure::Failure;
use crate::http::{self, Answered, Call};

/// A metric: its name, its type, its description, and its value.
type Number = (&'static str, &'static str, &'static str, fn(&Totals) -> f64);

const NUMBERS: [Number; 19] = [
    ("llamacpp:prompt_tokens_total", "counter", "Tokens of prompts that were computed", |t| {
        t.prompt as f64
    }),
    (
        "llamacpp:prompt_tokens_cached_total",
        "counter",
        "Tokens of prompts that were known already",
        |t| t.reused as f64,
    ),
    (
        "llamacpp:prompt_seconds_total",
        "counter",
        "Time from getting a place to having read the prompt, of all requests",
        |t| t.prompt_time.as_secs_f64(),
    ),
    ("llamacpp:tokens_predicted_total", "counter", "Tokens that were generated", |t| {
        t.generated as f64
    }),
    (
        "llamacpp:tokens_predicted_seconds_total",
        "counter",
        "Time between the tokens of answers, of all requests",
        |t| t.generated_time.as_secs_f64(),
    ),
    ("llamacpp:n_decode_total", "counter", "Steps of the engine", |t| t.steps as f64),
    ("llamacpp:n_tokens_max", "counter", "Most tokens of a sequence so far", |t| t.longest as f64),
    (
        "llamacpp:prompt_tokens_seconds",
        "gauge",
        "Tokens of prompts a second, since the server began",
        |t| rate(t.prompt, t.prompt_time),
    ),
    (
        "llamacpp:predicted_tokens_seconds",
        "gauge",
        "Tokens of an answer a second, since the server began",
        |t| {
            // The first token of an answer is computed with its prompt.
            rate(t.next_token.classes.iter().sum(), t.generated_time)
        },
    ),
    ("llamacpp:requests_processing", "gauge", "Requests that have a place", |t| {
        t.processing() as f64
    }),
    ("llamacpp:requests_deferred", "gauge", "Requests that wait for a place", |t| {
        t.waiting.len() as f64
    }),
    (
        "llamacpp:n_busy_slots_per_decode",
        "gauge",
        "Requests that had a place in a step, on average",
        |t| t.busy as f64 / t.steps.max(1) as f64,
    ),
    ("llamacpp:spec_decode_num_drafts_total", "counter", "Drafts of tokens computed ahead", |t| {
        t.drafts.drafts as f64
    }),
    (
        "llamacpp:spec_decode_num_draft_tokens_total",
        "counter",
        "Tokens that were proposed and computed ahead",
        |t| t.drafts.proposed as f64,
    ),
    (
        "llamacpp:spec_decode_num_accepted_tokens_total",
        "counter",
        "Tokens that were computed ahead and are part of an answer",
        |t| t.drafts.accepted as f64,
    ),
    ("alight:requests_ended_total", "counter", "Answers that have come to their end", |t| {
        t.ended as f64
    }),
    ("alight:requests_failed_total", "counter", "Answers that have ended with an error", |t| {
        t.failed as f64
    }),
    ("alight:requests_left_total", "counter", "Answers whose clients have left", |t| t.left as f64),
    ("alight:places", "gauge", "Requests that have a place at most", |t| t.places.len() as f64),
];

/// Histograms of times: name, description, and value.
type Classes = (&'static str, &'static str, fn(&Totals) -> &Times);

const TIMES: [Classes; 2] = [
    ("alight:time_to_first_token_seconds", "Time from a request to its first token", |t| {
        &t.first_token
    }),
    ("alight:time_between_tokens_seconds", "Time from a token to the next one", |t| &t.next_token),
];

pub(crate) async fn answer(call: Call) -> Answered {
    if !call.server.options.metrics {
        return Err(Failure::off("--metrics"));
    }
    let all = call.server.models.all();
    let all: Vec<(String, Totals)> = all
        .iter()
        .map(|serving| {
            // A single model needs no label, and then the lines are the same as llama-server's.
            let label = match all.len() > 1 {
                true => format!("model=\"{}\"", label_value(&serving.name)),
                false => String::new(),
            };
            (label, serving.worker.counts().now())
        })
        .collect();
    let text = text(&all) + &unknown_fields(&call.server.unknown_fields.now());
    let mut response = http::text(StatusCode::OK, "text/plain; version=0.0.4", text);
    let started = call.server.started.to_string();
    if let Ok(started) = started.parse() {
        let name = HeaderName::from_static("process-start-time-unix");
        response.headers_mut().insert(name, started);
    }
    Ok(response)
}

fn text(all: &[(String, Totals)]) -> String {
    let mut out = String::new();
    for (name, kind, what, number) in NUMBERS {
        head(name, kind, what, &mut out);
        for (label, totals) in all {
            let label = if label.is_empty() { String::new() } else { format!("{{{label}}}") };
            let _ = writeln!(out, "{name}{label} {}", number(totals));
        }
    }
    for (name, what, times) in TIMES {
        head(name, "histogram", what, &mut out);
        for (label, totals) in all {
            let times = times(totals);
            let comma = if label.is_empty() { "" } else { "," };
            let bounds = BOUNDS.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
            let mut sum = 0;
            for (bound, n) in bounds.zip(times.classes) {
                sum += n;
                let _ = writeln!(out, "{name}_bucket{{{label}{comma}le=\"{bound}\"}} {sum}");
            }
            let label = if label.is_empty() { String::new() } else { format!("{{{label}}}") };
            let _ = writeln!(out, "{name}_sum{label} {}", times.all.as_secs_f64());
            let _ = writeln!(out, "{name}_count{label} {sum}");
        }
    }
    out
}

/// A text between quotes, without characters that end it or a line.
fn label_value(text: &str) -> String {
    text.replace(|c: char| c.is_control() || "\\\"".contains(c), "_")
}

/// How often fields came that nothing here knows, by name.
fn unknown_fields(counts: &[(String, u64)]) -> String {
    let name = "alight:unknown_fields_total";
    let mut out = String::new();
    head(name, "counter", "Fields of requests that are unknown here", &mut out);
    // Names that differ in what a label cannot have are one.
    let mut labels: BTreeMap<String, u64> = BTreeMap::new();
    for (field, count) in counts {
        *labels.entry(label_value(field)).or_default() += count;
    }
    for (field, count) in labels {
        let _ = writeln!(out, "{name}{{field=\"{field}\"}} {count}");
    }
    out
}

fn head(name: &str, kind: &str, what: &str, out: &mut String) {
    let _ = writeln!(out, "# HELP {name} {what}.\n# TYPE {name} {kind}");
}

fn rate(n: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { n as f64 / time.as_secs_f64() }
}
