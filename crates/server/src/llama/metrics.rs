//! `GET /metrics`: counters in Prometheus' format, under llama-server's names. Counters that llama-server does not have begin with
//! `alight:`. With vLLM's names next to them, a picker of endpoints of Kubernetes' Gateway API finds what its protocol of model servers asks for.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Deref;
use std::time::Duration;

use alight_chat::counts::{BOUNDS, Times, Totals};
use hyper::StatusCode;
use hyper::header::HeaderName;

use crate::failure::Failure;
use crate::http::{self, Answered, Call};

/// The state of a model's engine.
struct Sample {
    /// The model's name.
    name: String,
    totals: Totals,
    /// Positions of a sequence.
    context: usize,
    /// Positions of a page of the KV cache, and its bytes; `None` before there is an engine.
    page: Option<(usize, usize)>,
    /// Bytes of computed prompts that are kept at most.
    kept_limit: usize,
}

impl Deref for Sample {
    type Target = Totals;

    fn deref(&self) -> &Totals {
        &self.totals
    }
}

impl Sample {
    /// The share of all positions of all sequences that have keys and values.
    fn cache_usage(&self) -> f64 {
        let used: usize = self.places.iter().flatten().map(|task| task.read + task.generated).sum();
        let all = self.places.len() * self.context;
        if all == 0 { 0.0 } else { (used as f64 / all as f64).min(1.0) }
    }

    /// Positions of a page of the KV cache.
    fn block_tokens(&self) -> usize {
        self.page.map_or(0, |(positions, _)| positions)
    }

    /// Pages that computed prompts may take.
    fn blocks(&self) -> usize {
        self.page.map_or(0, |(_, bytes)| self.kept_limit / bytes.max(1))
    }
}

/// A metric: its name, its type, its description, and its value.
type Number = (&'static str, &'static str, &'static str, fn(&Sample) -> f64);

const NUMBERS: [Number; 22] = [
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
    (
        "alight:cache_usage_ratio",
        "gauge",
        "Share of all positions of all places that have keys and values",
        Sample::cache_usage,
    ),
    (
        "alight:cache_block_tokens",
        "gauge",
        "Tokens of a page of the KV cache, the unit of prompts that are kept; 0 before the first request",
        |t| t.block_tokens() as f64,
    ),
    (
        "alight:cache_blocks",
        "gauge",
        "Pages that prompts which are kept may take; 0 before the first request",
        |t| t.blocks() as f64,
    ),
];

/// Metrics under vLLM's names.
const VLLM_NUMBERS: [Number; 5] = [
    ("vllm:num_requests_waiting", "gauge", "Requests that wait for a place", |t| {
        t.waiting.len() as f64
    }),
    ("vllm:num_requests_running", "gauge", "Requests that have a place", |t| t.processing() as f64),
    (
        "vllm:kv_cache_usage_perc",
        "gauge",
        "Share of all positions of all places that have keys and values, from 0 to 1",
        Sample::cache_usage,
    ),
    ("vllm:prompt_tokens_total", "counter", "Tokens of prompts, known ones included", |t| {
        (t.prompt + t.reused) as f64
    }),
    ("vllm:generation_tokens_total", "counter", "Tokens that were generated", |t| {
        t.generated as f64
    }),
];

/// Histograms of times: name, description, and value.
type Classes = (&'static str, &'static str, fn(&Sample) -> &Times);

const TIMES: [Classes; 2] = [
    ("alight:time_to_first_token_seconds", "Time from a request to its first token", |t| {
        &t.first_token
    }),
    ("alight:time_between_tokens_seconds", "Time from a token to the next one", |t| &t.next_token),
];

const VLLM_TIMES: [Classes; 2] = [
    ("vllm:time_to_first_token_seconds", "Time from a request to its first token", |t| {
        &t.first_token
    }),
    ("vllm:inter_token_latency_seconds", "Time from a token to the next one", |t| &t.next_token),
];

pub(crate) async fn answer(call: Call) -> Answered {
    if !call.server.options.metrics {
        return Err(Failure::off("--metrics"));
    }
    let options = &call.server.options;
    let all = call.server.models.all();
    let samples = all.iter().map(|serving| Sample {
        name: label_value(&serving.name),
        totals: serving.worker.counts().now(),
        context: serving.worker.context(),
        page: serving.worker.page().map(|page| (page.positions, page.bytes)),
        kept_limit: options.engine.prompt_cache,
    });
    let samples: Vec<Sample> = samples.collect();
    let mut text = text(&samples);
    if options.vllm_metrics {
        text += &vllm_text(&samples);
    }
    text += &unknown_fields(&call.server.unknown_fields.now());
    let mut response = http::text(StatusCode::OK, "text/plain; version=0.0.4", text);
    let started = call.server.started.to_string();
    if let Ok(started) = started.parse() {
        let name = HeaderName::from_static("process-start-time-unix");
        response.headers_mut().insert(name, started);
    }
    Ok(response)
}

fn text(samples: &[Sample]) -> String {
    // A single model needs no label, and then the lines are the same as llama-server's.
    let label = |sample: &Sample| match samples.len() > 1 {
        true => format!("model=\"{}\"", sample.name),
        false => String::new(),
    };
    lines(samples, &NUMBERS, &TIMES, label)
}

/// The same under vLLM's names, and the size of the cache as a label, where vLLM has it.
fn vllm_text(samples: &[Sample]) -> String {
    let label = |sample: &Sample| format!("model_name=\"{}\"", sample.name);
    let mut out = lines(samples, &VLLM_NUMBERS, &VLLM_TIMES, label);
    let name = "vllm:cache_config_info";
    head(name, "gauge", "Pages that prompts which are kept may take, and tokens of each", &mut out);
    for sample in samples.iter().filter(|sample| sample.page.is_some()) {
        let (tokens, blocks, label) = (sample.block_tokens(), sample.blocks(), label(sample));
        let _ = writeln!(
            out,
            "{name}{{block_size=\"{tokens}\",num_gpu_blocks=\"{blocks}\",{label}}} 1"
        );
    }
    out
}

/// The lines of two tables. Labels are those of a model, or empty.
fn lines(
    samples: &[Sample],
    numbers: &[Number],
    times: &[Classes],
    label: impl Fn(&Sample) -> String,
) -> String {
    let mut out = String::new();
    for (name, kind, what, number) in numbers {
        head(name, kind, what, &mut out);
        for sample in samples {
            let label = braced(&label(sample));
            let _ = writeln!(out, "{name}{label} {}", number(sample));
        }
    }
    for (name, what, times) in times {
        head(name, "histogram", what, &mut out);
        for sample in samples {
            let (label, times) = (label(sample), times(sample));
            let comma = if label.is_empty() { "" } else { "," };
            let bounds = BOUNDS.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
            let mut sum = 0;
            for (bound, n) in bounds.zip(times.classes) {
                sum += n;
                let _ = writeln!(out, "{name}_bucket{{{label}{comma}le=\"{bound}\"}} {sum}");
            }
            let label = braced(&label);
            let _ = writeln!(out, "{name}_sum{label} {}", times.all.as_secs_f64());
            let _ = writeln!(out, "{name}_count{label} {sum}");
        }
    }
    out
}

/// Labels in braces, if there are some.
fn braced(label: &str) -> String {
    if label.is_empty() { String::new() } else { format!("{{{label}}}") }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_picker_of_endpoints_finds_what_it_asks_for() {
        let mut totals = Totals { places: vec![None, None], ..Totals::default() };
        for key in 0..5 {
            totals.came(key, [30, 10], None, Instant::now());
        }
        totals.read(0, 0);
        totals.read(1, 20);
        (0..4).for_each(|_| totals.token(1));
        let sample = |page, kept_limit| Sample {
            name: "a".into(),
            totals: totals.clone(),
            context: 128,
            page,
            kept_limit,
        };
        let samples = [sample(Some((64, 1000)), 64_500)];
        let text = text(&samples) + &vllm_text(&samples);
        for line in [
            "llamacpp:requests_deferred 3",
            "alight:cache_usage_ratio 0.25",
            "alight:cache_block_tokens 64",
            "alight:cache_blocks 64",
            "vllm:num_requests_waiting{model_name=\"a\"} 3",
            "vllm:num_requests_running{model_name=\"a\"} 2",
            "vllm:kv_cache_usage_perc{model_name=\"a\"} 0.25",
            "vllm:prompt_tokens_total{model_name=\"a\"} 60",
            "vllm:generation_tokens_total{model_name=\"a\"} 4",
            "vllm:inter_token_latency_seconds_count{model_name=\"a\"} 3",
            "vllm:cache_config_info{block_size=\"64\",num_gpu_blocks=\"64\",model_name=\"a\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        // Before the first request there is no engine, and no size of its pages.
        let text = vllm_text(&[sample(None, 64_500)]);
        assert!(!text.contains("block_size"), "{text}");
    }
}
