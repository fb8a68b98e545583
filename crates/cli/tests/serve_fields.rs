//! The fields of requests to `alight serve`: what the tables of docs/reference/server.md say of each is what the server does with it.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::http::Serving;
use crate::support::said::{self, CONTROL, TEXT};

/// A row of a table: the endpoints, the field, and what becomes of it.
struct Row {
    paths: Vec<String>,
    field: String,
    fate: String,
}

/// The rows of a protocol's table.
fn rows(page: &str, protocol: &str) -> Vec<Row> {
    let begin = format!("<!-- fields of {protocol} -->");
    let table = page.split_once(&begin).unwrap().1.split_once("<!-- end of").unwrap().0;
    let lines = table.lines().filter(|line| line.starts_with("| `"));
    let rows = lines.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').splitn(3, '|').map(str::trim).collect();
        Row {
            paths: cells[1].split(", ").map(str::to_owned).collect(),
            field: cells[0].trim_matches('`').to_owned(),
            fate: cells[2].to_owned(),
        }
    });
    rows.collect()
}

/// The paths of a protocol by their names in its table, and a body for each that is answered.
fn bodies(protocol: &str) -> Vec<(&'static str, &'static str, Value)> {
    let messages = json!([{"role": "user", "content": "a"}]);
    let texts = json!({"input": "a"});
    match protocol {
        "OpenAI" => vec![
            ("chat/completions", "/v1/chat/completions", json!({"messages": messages})),
            ("completions", "/v1/completions", json!({"prompt": "a"})),
            ("responses", "/v1/responses", texts.clone()),
            ("embeddings", "/v1/embeddings", texts),
        ],
        "Anthropic" => vec![("messages", "/v1/messages", json!({"messages": messages}))],
        "Ollama" => vec![
            ("chat", "/api/chat", json!({"messages": messages, "stream": false})),
            ("generate", "/api/generate", json!({"prompt": "a", "stream": false})),
            ("embed", "/api/embed", texts),
            ("embeddings", "/api/embeddings", json!({"prompt": "a"})),
        ],
        _ => vec![
            ("/completion", "/completion", json!({"prompt": "a"})),
            ("/infill", "/infill", json!({"input_prefix": "a", "input_suffix": "a"})),
            ("/tokenize", "/tokenize", json!({"content": "a"})),
            ("/detokenize", "/detokenize", json!({"tokens": [3]})),
        ],
    }
}

/// The body with a field, whose name may be that of an object and of a field in it.
fn with(body: &Value, field: &str, value: Value) -> Value {
    let mut body = body.clone();
    match field.split_once('.') {
        None => body[field] = value,
        Some((object, field)) => body[object] = json!({field: value}),
    }
    body
}

/// The values with which a refused field changes nothing.
fn harmless(fate: &str) -> Vec<Value> {
    let Some(rest) = fate.strip_prefix("**refused** unless it is ") else { return Vec::new() };
    let values = rest.split_once("`:").unwrap().0;
    values.trim_matches('`').split("` or `").map(|off| serde_json::from_str(off).unwrap()).collect()
}

/// A server whose model fills gaps, too.
fn started(folder: &Path, more: &[&str]) -> Serving {
    let marks = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"].map(|mark| (mark, CONTROL));
    let model = said::model(folder, &[&marks[..], &[("Yes", TEXT)]].concat(), 0);
    Serving::start(&[&[&*model, "--no-cache", "--temp", "0"], more].concat())
}

#[test]
fn each_field_of_the_page_is_read_refused_or_ignored() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/server.md");
    let page = std::fs::read_to_string(page).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let serving = started(folder.path(), &["--log", "on", "--metrics"]);
    // The note that the log has of each request, in their order; `None` if it is of no interest.
    let mut notes: Vec<(String, Option<String>)> = Vec::new();
    for protocol in ["OpenAI", "Anthropic", "Ollama", "llama-server"] {
        let bodies = bodies(protocol);
        for Row { paths, field, fate } in rows(&page, protocol) {
            let of = |name: &str| paths == ["all"] || paths.iter().any(|path| path == name);
            let some: Vec<_> = bodies.iter().filter(|(name, _, _)| of(name)).collect();
            assert!(!some.is_empty(), "{protocol}: {field} of {paths:?}");
            for (_, path, body) in some {
                let ask = |value: Value| serving.post(path, &with(body, &field, value));
                let what = format!("{field} of {path}");
                let answer = ask(json!({"nonsense": true}));
                let text = answer.text();
                if fate.starts_with("**refused**") {
                    assert_eq!(answer.status, 400, "{what}: {text}");
                    assert!(text.contains(&field), "{what}: {text}");
                    notes.push((what.clone(), None));
                    for value in harmless(&fate) {
                        let answer = ask(value);
                        assert_eq!(answer.status, 200, "{what}: {}", answer.text());
                        notes.push((what.clone(), None));
                    }
                } else if fate.starts_with("ignored") {
                    assert_eq!(answer.status, 200, "{what}: {text}");
                    notes.push((what, Some(format!("; ignored: {field}"))));
                } else {
                    // A field that is read is wrong, or it is not among those that are ignored.
                    assert!([200, 400].contains(&answer.status), "{what}: {text}");
                    notes.push((what, Some(String::new())));
                }
            }
        }
    }
    let unknown = serving.get("/metrics").text();
    assert!(!unknown.contains("alight:unknown_fields_total{"), "{unknown}");
    let (_, said) = serving.stop(libc::SIGTERM);
    let posts: Vec<&str> = said.lines().filter(|line| line.contains(" POST /")).collect();
    assert_eq!(posts.len(), notes.len(), "{said}");
    for ((what, note), line) in notes.iter().zip(posts) {
        match note.as_deref() {
            None => {}
            Some("") => assert!(!line.contains("ignored: "), "{what}: {line}"),
            Some(note) => assert!(line.ends_with(note), "{what}: {line}"),
        }
    }
}

#[test]
fn unknown_fields_are_counted_and_logged_once() {
    let folder = tempfile::tempdir().unwrap();
    let serving = started(folder.path(), &["--metrics"]);
    let body = json!({"prompt": "a", "max_tokens": 1, "x\"y": 1, "best": null, "user": "u"});
    let counts = || -> BTreeMap<String, String> {
        let text = serving.get("/metrics").text();
        assert!(text.contains("# TYPE alight:unknown_fields_total counter"), "{text}");
        let lines = text.lines().filter_map(|line| {
            line.strip_prefix("alight:unknown_fields_total{field=\"")?.split_once("\"} ")
        });
        lines.map(|(field, count)| (field.to_owned(), count.to_owned())).collect()
    };
    assert_eq!(counts(), BTreeMap::new());
    for _ in 0..3 {
        assert_eq!(serving.post("/v1/completions", &body).status, 200);
    }
    let options = json!({"prompt": "a", "stream": false, "options": {"num_predict": 1, "best": 1}});
    assert_eq!(serving.post("/api/generate", &options).status, 200);
    let of = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(name, count)| ((*name).to_owned(), (*count).to_owned())).collect()
    };
    assert_eq!(counts(), of(&[("x_y", "3"), ("options.best", "1")]));
    // However many names there are, the list of them is bounded.
    for i in 0..5 {
        let names = (0..40).map(|j| (format!("f{i}_{j}"), 1.into()));
        let more: Value = Value::Object(names.collect());
        let mut body = json!({"prompt": "a", "max_tokens": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(serving.post("/v1/completions", &body).status, 200);
    }
    let all = counts();
    assert_eq!(all.len(), 65, "{all:?}");
    assert_eq!(all["(others)"], (200 - 62).to_string());
    let (_, said) = serving.stop(libc::SIGTERM);
    assert_eq!(said.matches("has no field \"x\\\"y\"").count(), 1, "{said}");
    assert_eq!(said.matches("has no field \"options.best\"").count(), 1, "{said}");
}
