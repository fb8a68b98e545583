//! `--lora`: adapters of a command's answers, and those that requests to a server choose.

use std::path::Path;

use alight_testing::adapters::{self, AdapterSpec};
use serde_json::{Value, json};

use crate::support::http::Serving;
use crate::support::{alight, wild, write};

/// A model, and adapters of it that change its answers.
fn files(folder: &Path) -> (String, [String; 2]) {
    let model = wild::model(folder);
    let base = std::fs::read(&model).unwrap();
    let mut names = adapters::matrices(&base);
    names.retain(|name| name != "token_embd.weight");
    let adapter = |seed: u64| {
        let spec = AdapterSpec { rank: 4, seed, size: 2.0, ..AdapterSpec::default() };
        write(folder, &format!("a{seed}.gguf"), adapters::adapter(&base, &spec, &names))
    };
    (model.clone(), [adapter(1), adapter(2)])
}

fn run(model: &str, more: &[&str]) -> String {
    let args =
        [&["run", model, "aaaa aaa", "--raw", "--temp", "0", "-n", "8", "--ignore-eos"], more]
            .concat();
    alight(&args).succeeds().stdout
}

#[test]
fn an_answer_has_the_adapters_of_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let (model, [one, two]) = files(folder.path());
    let base = run(&model, &[]);
    let of_one = run(&model, &["--lora", &one]);
    assert_ne!(of_one, base);
    assert_eq!(run(&model, &["--lora", &format!("{one}:0")]), base);
    let both = run(&model, &["--lora", &one, "--lora", &format!("{two}:0.5")]);
    assert_eq!(run(&model, &["--lora", &format!("{two}:0.5,{one}")]), both, "in any order");
    assert_ne!(both, of_one);
    alight(&["run", &model, "--raw", "x", "--lora", &model])
        .fails(1, &["not an adapter, but a model"]);
    alight(&["run", &model, "--raw", "x", "--lora", "missing.gguf"]).fails(1, &["missing.gguf"]);
    alight(&["run", &one, "x"]).fails(1, &["is an adapter", "--lora"]);
    alight(&["run", &model, "x", "--lora", "a.gguf:inf"])
        .fails_as_usage("expected a finite number");
}

/// In a record, adapters are known by their contents.
#[test]
fn an_answer_with_adapters_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let (model, [one, two]) = files(folder.path());
    let scaled = format!("{one}:0.5");
    let args = ["run", &model, "aaaa aaa", "--raw", "-n", "8", "--json", "--lora", &scaled];
    let line = alight(&[&args[..], &["--lora", &two]].concat()).succeeds().stdout;
    let found: Value = serde_json::from_str(&line).unwrap();
    let scales: Vec<_> =
        found["record"]["lora"].as_array().unwrap().iter().map(|one| &one["scale"]).collect();
    assert!(scales.len() == 2 && scales.contains(&&json!(0.5)) && scales.contains(&&json!(1.0)));
    let record = write(folder.path(), "answer.json", line);
    let moved = folder.path().join("moved.gguf");
    std::fs::copy(&one, &moved).unwrap();
    let moved = moved.to_str().unwrap();
    let replay = ["replay", &record, &model, "--lora", moved];
    alight(&[&replay[..], &["--lora", &two]].concat()).succeeds();
    alight(&replay).fails(2, &["the answer has the adapter 'a2.gguf'", "--lora"]);
    let other = line_with_another_scale(&found);
    let record = write(folder.path(), "other.json", other);
    let args = ["replay", &record, &model, "--lora", moved, "--lora", &two];
    assert_eq!(alight(&args).status, Some(1));
}

/// The line with all scales doubled.
fn line_with_another_scale(line: &Value) -> String {
    let mut line = line.clone();
    for one in line["record"]["lora"].as_array_mut().unwrap() {
        one["scale"] = json!(2.0 * one["scale"].as_f64().unwrap());
    }
    line.to_string()
}

fn asked(serving: &Serving, model: &str, more: Value) -> Value {
    let mut body = json!({"model": model, "prompt": "aaaa aaa", "max_tokens": 8, "temperature": 0, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serving.post("/v1/completions", &body).json()
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn a_request_chooses_adapters() {
    let folder = tempfile::tempdir().unwrap();
    let (model, [one, two]) = files(folder.path());
    let more = folder.path().join("more");
    std::fs::create_dir(&more).unwrap();
    let (named, more) = (format!("one={one}"), more.to_str().unwrap());
    let serving = Serving::start(&[
        &model,
        "--alias",
        "base",
        "--lora",
        &named,
        "--lora-folder",
        more,
        "--no-cache",
        "--allow-load",
    ]);
    let none = json!({});
    let (base, of_one) = (run(&model, &[]), run(&model, &["--lora", &one]));
    let answers =
        |name: &str, more: Value| text(&asked(&serving, name, more)).trim_end().to_owned();
    let [base, of_one] = [base, of_one].map(|text| text.trim_end().to_owned());
    assert_ne!(base, of_one);
    for _ in 0..2 {
        // Again when its prompt is cached.
        assert_eq!(answers("base", none.clone()), base);
        assert_eq!(answers("one", none.clone()), of_one);
        assert_eq!(answers("base:one", none.clone()), of_one);
    }
    let unknown = asked(&serving, "two", none.clone());
    assert_eq!(unknown["error"]["code"], "model_not_found", "{unknown}");
    // A file that comes later.
    std::fs::copy(&two, Path::new(more).join("two.gguf")).unwrap();
    let of_two = run(&model, &["--lora", &two]).trim_end().to_owned();
    assert_eq!(answers("two", none.clone()), of_two);
    let half = run(&model, &["--lora", &format!("{one}:0.5,{two}:-1")]).trim_end().to_owned();
    let list = json!({"lora": [{"name": "two", "scale": -1}, {"id": 0, "scale": 0.5}]});
    assert_eq!(answers("base", list), half);
    assert_eq!(answers("base", json!({"lora": [{"id": 0, "scale": 0}]})), base);
    for wrong in [
        json!([{"id": 9}]),
        json!([{"id": 0}, {"name": "one"}]),
        json!([{"scale": 1}]),
        json!([{"id": 0, "scale": "much"}]),
    ] {
        let refused = asked(&serving, "base", json!({"lora": wrong}));
        assert_eq!(refused["error"]["param"], "lora", "{refused}");
    }
    // A file that changes under its name.
    std::fs::copy(&one, Path::new(more).join("new.gguf")).unwrap();
    std::fs::rename(Path::new(more).join("new.gguf"), Path::new(more).join("two.gguf")).unwrap();
    assert_eq!(answers("two", none.clone()), of_one);

    let listed = serving.get("/v1/models").json();
    let ids: Vec<&str> =
        listed["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["base", "one", "two"]);
    assert_eq!(listed["data"][1]["parent"], "base");
    // llama-server's, for requests that name none.
    assert!(
        serving.post("/lora-adapters", &json!([{"id": 0, "scale": 1.0}])).json()["success"] == true
    );
    assert_eq!(answers("base", none.clone()), of_one);
    assert_eq!(serving.get("/lora-adapters").json()[0]["scale"], 1.0);
    assert_eq!(serving.post("/lora-adapters", &json!([{"id": 5, "scale": 1.0}])).status, 400);
    assert!(serving.post("/lora-adapters", &json!([])).json()["success"] == true);
    assert_eq!(answers("base", none.clone()), base);
    // vLLM's.
    let load = |name: &str, path: &str| {
        serving.post("/v1/load_lora_adapter", &json!({"lora_name": name, "lora_path": path}))
    };
    assert_eq!(load("three", &two).status, 200);
    assert_eq!(answers("three", none.clone()), of_two);
    assert_eq!(load("three", &two).status, 400, "its name is taken");
    assert_eq!(load("four", &model).status, 400, "it is no adapter");
    let unload =
        |name: &str| serving.post("/v1/unload_lora_adapter", &json!({"lora_name": name})).status;
    assert_eq!((unload("three"), unload("three"), unload("four")), (200, 404, 404));
    assert_eq!(asked(&serving, "three", none)["error"]["code"], "model_not_found");
    drop(serving);
    let serving = Serving::start(&[&model, "--lora", &format!("{one}:0.5")]);
    assert_eq!(serving.post("/v1/load_lora_adapter", &json!({})).status, 501);
    let half = run(&model, &["--lora", &format!("{one}:0.5")]);
    let standing = asked(&serving, "a1", json!({"lora": []}));
    assert_eq!(text(&standing).trim_end(), of_one, "its own name: at a scale of 1");
    let name = serving.get("/v1/models").json()["data"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(text(&asked(&serving, &name, json!({}))).trim_end(), half.trim_end());
}
