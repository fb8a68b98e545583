//! `alight embed` and `alight rerank`, and the same over HTTP: what they read and write, that a run goes on where it was cut, and that all
//! ways to a vector lead to the same one.

use std::fs;
use std::path::Path;

use alight_testing::adapters::{self, AdapterSpec};
use serde_json::{Value, json};

use crate::support::encoder::{self, LONGEST, WIDTH};
use crate::support::http::Serving;
use crate::support::{alight, with_stdin, write};

const TEXTS: &str = "a cat\n\nthe dog is a dog\nWhat?\n[SEP] cats\nkitten\n";

fn embed(args: &[&str], input: &str) -> Vec<Value> {
    let done = with_stdin(&[&["embed"], args].concat(), input.as_bytes()).succeeds();
    done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn vector(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn bits(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn length(vector: &[f32]) -> f64 {
    vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt()
}

#[test]
fn every_line_has_a_vector_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let model = encoder::model(folder.path(), "model.gguf", None);
    let lines = embed(&[&model], TEXTS);
    assert_eq!(lines.len(), 6);
    let mut all = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        assert_eq!(line["index"], index);
        let vector = vector(&line["embedding"]);
        assert_eq!(vector.len(), WIDTH);
        assert!((length(&vector) - 1.0).abs() < 1e-6);
        all.extend(bits(&vector));
    }
    // [CLS] and [SEP], and nothing between; and a name of a token that stays text.
    assert_eq!(lines[1]["tokens"], 2);
    assert_eq!(lines[4]["tokens"], 7);
    let special = embed(&[&model, "--parse-special"], TEXTS);
    assert_eq!(special[4]["tokens"], 5);

    let raw = folder.path().join("v.f32");
    let texts = write(folder.path(), "texts.txt", TEXTS);
    let raw_text = raw.to_str().unwrap();
    alight(&["embed", &model, &texts, "-o", raw_text]).succeeds();
    assert_eq!(fs::read(&raw).unwrap(), all);
    let npy = folder.path().join("v.npy");
    alight(&["embed", &model, &texts, "-o", npy.to_str().unwrap()]).succeeds();
    let bytes = fs::read(&npy).unwrap();
    let header = String::from_utf8_lossy(&bytes[10..128]);
    assert!(header.contains("'shape': (6, 32)") && header.ends_with('\n'), "{header}");
    assert_eq!(bytes[128..], all);
    // Alone and in company, in any order: the same bits.
    for (text, line) in TEXTS.lines().zip(&lines) {
        let alone = embed(&[&model, "--sequences", "1"], &format!("{text}\n"));
        assert_eq!(alone[0]["embedding"], line["embedding"], "{text:?}");
    }
    let json = embed(&[&model, "--json"], "{\"text\": \"a cat\", \"id\": \"x\"}\n\"kitten\"\n");
    assert_eq!((&json[0]["id"], &json[0]["embedding"]), (&json!("x"), &lines[0]["embedding"]));
    assert_eq!(json[1]["embedding"], lines[5]["embedding"]);
}

#[test]
fn options_change_vectors_as_they_say() {
    let folder = tempfile::tempdir().unwrap();
    let model = encoder::model(folder.path(), "model.gguf", None);
    let one =
        |args: &[&str]| vector(&embed(&[&[&*model], args].concat(), "a cat\n")[0]["embedding"]);
    let (unit, plain) = (one(&[]), one(&["--normalize", "-1"]));
    let scale = 1.0 / length(&plain);
    let scaled: Vec<f32> = plain.iter().map(|x| (f64::from(*x) * scale) as f32).collect();
    assert_eq!(unit, scaled);
    let cut = one(&["--dimensions", "8"]);
    let scale = 1.0 / length(&plain[..8]);
    let scaled: Vec<f32> = plain[..8].iter().map(|x| (f64::from(*x) * scale) as f32).collect();
    assert_eq!(cut, scaled);
    assert!(one(&["--pooling", "cls"]) != unit && one(&["--pooling", "last"]) != unit);
    let asked = vector(&embed(&[&model], "query: a cat\n")[0]["embedding"]);
    assert_eq!(one(&["--prompt-name", "query"]), asked);
    assert_eq!(one(&["--prompt", "query: "]), asked);
    assert_eq!(one(&["--prompt-name", "document"]), unit);
    alight(&["embed", &model, "--prompt-name", "x", "--similarity", "a", "b"])
        .fails(1, &["no prompt \"x\"", "query, document"]);
    alight(&["embed", &model, "--dimensions", "33", "--similarity", "a", "b"]).fails(1, &["32"]);
    let same = alight(&["embed", &model, "--similarity", "a cat", "A  CAT"]).succeeds();
    assert_eq!(same.stdout, "1.000000\n");
}

#[test]
fn a_text_that_is_too_long_is_cut_before_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let model = encoder::model(folder.path(), "model.gguf", None);
    for n in [LONGEST - 3, LONGEST - 2, LONGEST - 1, 100] {
        let lines = embed(&[&model], &format!("{}\n", "a ".repeat(n)));
        assert_eq!(lines[0]["tokens"], (n + 2).min(LONGEST), "{n}");
        assert_eq!(lines[0].get("truncated").is_some(), n + 2 > LONGEST, "{n}");
        let whole = embed(&[&model], &format!("{}\n", "a ".repeat(n.min(LONGEST - 2))));
        assert_eq!(lines[0]["embedding"], whole[0]["embedding"]);
    }
    let long = format!("a\n{}\n", "a ".repeat(100));
    with_stdin(&["embed", &model, "--no-truncate"], long.as_bytes())
        .fails(1, &["text 2", "102 tokens", "at most 16"]);
}

#[test]
fn a_run_that_was_cut_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let model = encoder::model(folder.path(), "model.gguf", None);
    let words = ["a", "cat", "dog", "the", "what", "kitten"];
    let texts: String =
        (0..40).map(|n| format!("{} {}\n", words[n % 6], words[n / 6 % 6])).collect();
    let texts = write(folder.path(), "texts.txt", texts);
    for name in ["v.jsonl", "v.npy", "v.f32"] {
        let path = folder.path().join(name);
        let out = path.to_str().unwrap();
        alight(&["embed", &model, &texts, "-o", out]).succeeds();
        let whole = fs::read(&path).unwrap();
        for cut in [0, 1, 100, 128, 129, 1000, whole.len() / 2, whole.len() - 1, whole.len()] {
            fs::write(&path, &whole[..cut]).unwrap();
            alight(&["embed", &model, &texts, "-o", out]).succeeds();
            assert!(fs::read(&path).unwrap() == whole, "{name} cut at {cut}");
        }
        // Of other options, or of fewer texts.
        let prompt = ["embed", &model, &texts, "-o", out, "--prompt", "the "];
        alight(&prompt).fails(1, &["other options", "--force"]);
        let few = write(folder.path(), "few.txt", "a\ncat\n");
        alight(&["embed", &model, &few, "-o", out]).fails(1, &["40 vectors"]);
        assert!(fs::read(&path).unwrap() == whole);
        alight(&[&prompt[..], &["--force"]].concat()).succeeds();
        assert!(fs::read(&path).unwrap() != whole);
    }
}

#[test]
fn vectors_and_scores_have_the_adapters_of_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let spec = AdapterSpec { rank: 3, size: 0.4, ..AdapterSpec::default() };
    for labels in [None, Some(1)] {
        let model = encoder::model(folder.path(), "model.gguf", labels);
        let base = fs::read(&model).unwrap();
        let mut names = adapters::matrices(&base);
        // What is after the layers is no adapter's, nor are positions.
        names.retain(|name| !name.starts_with("cls") && name != "position_embd.weight");
        let adapter = |names: &[String]| adapters::adapter(&base, &spec, names);
        let all = adapter(&names);
        let merged = adapters::merged(&base, &all, 0.5);
        let merged = write(folder.path(), "merged.gguf", merged);
        let all = write(folder.path(), "all.gguf", all);
        names.retain(|name| name != "token_types.weight");
        let few = write(folder.path(), "few.gguf", adapter(&names));
        let of = |model: &str, more: &[&str]| -> Vec<f32> {
            let pair = ["rerank", model, "what is a cat", "--raw", "--json"];
            let args = if labels.is_some() { &pair[..] } else { &["embed", model] };
            let input = if labels.is_some() { "\"the dog is a dog\"\n" } else { TEXTS };
            let lines = with_stdin(&[args, more].concat(), input.as_bytes()).succeeds().stdout;
            let numbers = |line: &str| {
                let line: Value = serde_json::from_str(line).unwrap();
                match &line["embedding"] {
                    Value::Null => vec![line["relevance_score"].as_f64().unwrap() as f32],
                    embedding => vector(embedding),
                }
            };
            lines.lines().flat_map(numbers).collect()
        };
        let apart =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let (plain, expected) = (of(&model, &[]), of(&merged, &[]));
        let found = of(&model, &["--lora", &format!("{all}:0.5")]);
        assert!(apart(&found, &expected) < 1e-5, "{found:?}, {expected:?}");
        let without = of(&model, &["--lora", &format!("{few}:0.5")]);
        assert!(apart(&without, &expected) > 1e-3, "segments have a change of their own");
        assert_eq!(of(&model, &["--lora", &format!("{all}:0")]), plain);
    }
}

#[test]
fn documents_are_listed_by_their_scores() {
    let folder = tempfile::tempdir().unwrap();
    let model = encoder::model(folder.path(), "rerank.gguf", Some(1));
    let documents = "a cat\nthe dog is a dog\nkitten\nwhat\n";
    let rerank = |args: &[&str], input: &str| {
        let args = [&["rerank", &model, "what is a cat"], args].concat();
        with_stdin(&args, input.as_bytes()).succeeds().stdout
    };
    let raw = rerank(&["--raw"], documents);
    let scores: Vec<f64> =
        raw.lines().map(|line| line.split('\t').next().unwrap().parse().unwrap()).collect();
    assert_eq!(scores.len(), 4);
    assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    let list = rerank(
        &["--top", "2", "--json"],
        "\"a cat\"\n\"the dog is a dog\"\n\"kitten\"\n\"what\"\n",
    );
    let list: Vec<Value> = list.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(list.len(), 2);
    for (found, raw) in list.iter().zip(&scores) {
        let expected = 1.0 / (1.0 + (-raw).exp());
        assert!((found["relevance_score"].as_f64().unwrap() - expected).abs() < 1e-5);
    }
    let long = "what ".repeat(20);
    let refused = ["rerank", &model, &long, "-"];
    with_stdin(&refused, b"a\n").fails(1, &["document 1", "query leaves no room"]);

    let vectors = encoder::model(folder.path(), "model.gguf", None);
    with_stdin(&["rerank", &vectors, "a"], b"a\n").fails(1, &["no classifier"]);
    with_stdin(&["embed", &model], b"a\n").fails(1, &["alight rerank"]);
    alight(&["run", &vectors, "--raw", "a"]).fails(1, &["embed"]);
}

fn serve(folder: &Path) -> Serving {
    let model = encoder::model(folder, "model.gguf", None);
    let rerank = encoder::model(folder, "rerank.gguf", Some(1));
    Serving::start(&[&model, &rerank])
}

#[test]
fn every_protocol_has_the_same_vectors() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path());
    let model = folder.path().join("model.gguf");
    let lines = embed(&[model.to_str().unwrap()], "a cat\nkitten\n");
    let known = [&lines[0]["embedding"], &lines[1]["embedding"]].map(vector);
    let texts = json!(["a cat", "kitten"]);
    // [CLS] and [SEP] are part of tokens that the client has made.
    let tokens = json!([[2, 5, 6, 3], [2, 8, 3]]);
    for input in [&texts, &tokens] {
        let answer =
            server.post("/v1/embeddings", &json!({"model": "model", "input": input})).json();
        for (i, known) in known.iter().enumerate() {
            assert_eq!(vector(&answer["data"][i]["embedding"]), *known, "{input}");
        }
        assert_eq!(answer["usage"], json!({"prompt_tokens": 7, "total_tokens": 7}));
    }
    let one = json!({"model": "model", "input": "a cat", "encoding_format": "base64"});
    let answer = server.post("/v1/embeddings", &one).json();
    let encoded = answer["data"][0]["embedding"].as_str().unwrap();
    assert_eq!(encoded.len(), (4 * WIDTH).div_ceil(3) * 4);
    let short = json!({"model": "model", "input": "a cat", "dimensions": 4});
    let short = server.post("/v1/embeddings", &short).json();
    assert_eq!(short["data"][0]["embedding"].as_array().unwrap().len(), 4);

    // A request of Text Embeddings Inference has no model: it is the one that makes vectors.
    for body in [json!({"model": "model", "inputs": texts}), json!({"inputs": texts})] {
        let tei = server.post("/embed", &body).json();
        assert_eq!([vector(&tei[0]), vector(&tei[1])], known);
    }
    let part = |text: &Value| json!({"content": [{"type": "text", "text": text}]});
    let parts: Value = texts.as_array().unwrap().iter().map(part).collect();
    let types = json!(["float", "base64", "ubinary", "binary"]);
    let cohere = server.post(
        "/v2/embed",
        &json!({"model": "model", "inputs": parts, "input_type": "clustering", "embedding_types": types}),
    );
    let cohere = cohere.json();
    assert_eq!(
        (&cohere["texts"], &cohere["response_type"]),
        (&texts, &json!("embeddings_by_type"))
    );
    let all = &cohere["embeddings"];
    for (i, known) in known.iter().enumerate() {
        assert_eq!(vector(&all["float"][i]), *known);
        for (j, byte) in all["ubinary"][i].as_array().unwrap().iter().enumerate() {
            let bits = known[8 * j..].iter().take(8).enumerate();
            let expected: u64 = bits.map(|(k, x)| u64::from(*x > 0.0) << (7 - k)).sum();
            assert_eq!(byte.as_u64(), Some(expected));
            assert_eq!(all["binary"][i][j].as_i64(), Some(expected as i64 - 128));
        }
    }
    assert_eq!(all["base64"][0], encoded);
    // The model has a prompt of queries and none of clusters.
    let query = json!({"model": "model", "input": "a cat", "prompt_name": "query"});
    let query = vector(&server.post("/v1/embeddings", &query).json()["data"][0]["embedding"]);
    let same = json!({"model": "model", "texts": ["a cat"], "input_type": "search_query"});
    assert_eq!(vector(&server.post("/v2/embed", &same).json()["embeddings"]["float"][0]), query);
    assert_ne!(query, known[0]);
    assert_eq!(cohere["meta"]["billed_units"], json!({"input_tokens": 7}));
    let first = server.post("/v1/embed", &json!({"model": "model", "texts": texts})).json();
    assert_eq!(first["response_type"], "embeddings_floats");
    assert_eq!([vector(&first["embeddings"][0]), vector(&first["embeddings"][1])], known);
    for (field, value, said) in [
        ("embedding_types", json!(["int8"]), "no scale"),
        ("input_type", json!("question"), "search_query"),
        ("truncate", json!("START"), "END"),
        ("output_dimension", json!(10_000), "output_dimension"),
        ("images", json!(["data:"]), "only text"),
        ("texts", json!([1]), "expected a text"),
        ("texts", json!([]), "at least one"),
    ] {
        let mut body = json!({"model": "model", "texts": texts});
        body[field] = value;
        let refused = server.post("/v2/embed", &body);
        assert_eq!(refused.status, 400, "{field}");
        assert!(refused.text().contains(said), "{field}: {}", refused.text());
    }
    let ollama = server.post("/api/embed", &json!({"model": "model", "input": texts})).json();
    assert_eq!([vector(&ollama["embeddings"][0]), vector(&ollama["embeddings"][1])], known);
    let older =
        server.post("/api/embeddings", &json!({"model": "model", "prompt": "a cat"})).json();
    assert_eq!(vector(&older["embedding"]), known[0]);

    let long = "a ".repeat(100);
    let refused = server.post("/v1/embeddings", &json!({"model": "model", "input": long}));
    assert_eq!(refused.status, 400);
    let cut = server.post("/api/embed", &json!({"model": "model", "input": long}));
    assert_eq!((cut.status, &cut.json()["prompt_eval_count"]), (200, &json!(LONGEST)));
    let limit = json!({"model": "model", "texts": [long], "max_tokens": 5});
    let cut = server.post("/v2/embed", &limit).json();
    assert_eq!(cut["meta"]["billed_units"], json!({"input_tokens": 5}));
    let whole = json!({"model": "model", "texts": [long], "truncate": "NONE"});
    assert_eq!(server.post("/v2/embed", &whole).status, 400);
    let tei = server.post("/embed", &json!({"model": "model", "inputs": long}));
    assert_eq!((tei.status, &tei.json()["error_type"]), (400, &json!("Validation")));

    let chat = json!({"model": "model", "messages": [{"role": "user", "content": "a"}]});
    let refused = server.post("/v1/chat/completions", &chat);
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("/v1/embeddings"), "{}", refused.text());
}

#[test]
fn every_protocol_has_the_same_scores() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path());
    let model = folder.path().join("rerank.gguf");
    let args = ["rerank", model.to_str().unwrap(), "what is a cat", "--json"];
    let list = with_stdin(&args, b"\"a cat\"\n\"the dog\"\n\"kitten\"\n").succeeds().stdout;
    let known: Vec<(u64, f64)> = list
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|line| (line["index"].as_u64().unwrap(), line["relevance_score"].as_f64().unwrap()))
        .collect();
    let documents = json!(["a cat", {"text": "the dog"}, "kitten"]);
    for path in ["/v1/rerank", "/rerank", "/reranking", "/v1/reranking", "/v2/rerank"] {
        let body = json!({
            "model": "rerank", "query": "what is a cat", "documents": documents, "return_documents": true,
        });
        let answer = server.post(path, &body).json();
        for ((index, score), result) in known.iter().zip(answer["results"].as_array().unwrap()) {
            assert_eq!(
                (&result["index"], &result["relevance_score"]),
                (&json!(index), &json!(score))
            );
            assert!(result["document"]["text"].is_string());
        }
        // Three pairs of [CLS] query [SEP] document [SEP].
        assert_eq!(answer["usage"]["total_tokens"], 3 * 7 + 2 + 2 + 1);
    }
    // Without a name, it is the model with a classifier.
    let body = json!({
        "query": "what is a cat", "texts": ["a cat", "the dog", "kitten"], "return_text": true,
    });
    let answer = server.post("/rerank", &body).json();
    for ((index, score), result) in known.iter().zip(answer.as_array().unwrap()) {
        assert_eq!((&result["index"], &result["score"]), (&json!(index), &json!(score)));
    }
    let top = json!({"model": "rerank", "query": "a", "documents": documents, "top_n": 1});
    assert_eq!(server.post("/rerank", &top).json()["results"].as_array().unwrap().len(), 1);
    for (wrong, part) in [
        (json!({"documents": documents}), "query"),
        (json!({"query": "a"}), "documents"),
        (json!({"query": "a", "documents": []}), "documents"),
        (json!({"query": "a", "documents": [7]}), "documents[0]"),
        (json!({"query": "a", "documents": documents, "top_n": -1}), "top_n"),
        (json!({"model": "model", "query": "a", "documents": documents}), "classifier"),
    ] {
        let mut body = json!({"model": "rerank"});
        body.as_object_mut().unwrap().extend(wrong.as_object().unwrap().clone());
        let refused = server.post("/v1/rerank", &body);
        assert_eq!(refused.status, 400);
        assert!(refused.text().contains(part), "{}", refused.text());
    }
}
