//! `/completion` of `alight serve`, as clients of llama-server use it; and what its other addresses have in common with that.

use serde_json::{Value, json};

use crate::support::http::Serving;
use crate::support::said::{self, TEXT};

const SAID: [(&str, i32); 4] = [("Yes", TEXT), ("\n", TEXT), (" or", TEXT), (" no", TEXT)];
const ALL: &str = "Yes\n or no";

fn started(more: &[&str]) -> (tempfile::TempDir, Serving) {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &SAID, 2);
    let serving = Serving::start(&[&[&*model, "--no-cache", "--temp", "0"], more].concat());
    (folder, serving)
}

/// Body with other fields.
fn with(body: &Value, more: Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The events of a stream.
fn events(text: &str) -> Vec<Value> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("data: "));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_prompt_has_every_form_that_llama_server_takes() {
    let (_folder, serving) = started(&[]);
    let asked = |prompt: &Value| serving.post("/completion", &json!({"prompt": prompt}));
    let counted = |answer: &Value| answer["tokens_evaluated"].as_u64().unwrap();
    let plain = asked(&json!("a<go>")).json();
    assert_eq!(plain["content"], ALL, "{plain}");
    // One prompt; in a list, too.
    for (prompt, tokens) in [
        (json!(["a<go>"]), counted(&plain)),
        (json!({"prompt_string": "a<go>", "multimodal_data": []}), counted(&plain)),
        (json!({"content": [{"type": "text", "text": "a<go>"}]}), counted(&plain)),
        // No token stands before tokens.
        (json!([5, 3]), 2),
        (json!([[5, 3]]), 2),
        (json!([5, 3, "a<go>"]), 2 + counted(&plain) - 1),
        (json!(["a", 3]), counted(&plain)),
    ] {
        let answer = asked(&prompt).json();
        let got = (&answer["content"], counted(&answer), &answer["index"]);
        assert_eq!(got, (&json!(ALL), tokens, &json!(0)), "{prompt}");
    }
    // Several.
    let prompt = json!(["a<go>", [5, 3], [5, "a<go>"], {"prompt_string": "a<no>"}]);
    let answers = asked(&prompt).json();
    let contents: Vec<&Value> =
        answers.as_array().unwrap().iter().map(|answer| &answer["content"]).collect();
    assert_eq!(contents, [ALL, ALL, ALL, " or no"]);
    assert!((0..4).all(|i| answers[i]["index"] == i), "{answers}");
    let two = serving.post("/completion", &json!({"prompt": ["a<go>", "a<no>"], "n": 2})).json();
    assert_eq!((&two[1]["content"], &two[2]["content"]), (&json!(ALL), &json!(" or no")));
    assert_eq!((&two[2]["prompt"], two.as_array().unwrap().len()), (&json!("<s>a<no>"), 4));
    let stream = json!({"prompt": ["a<go>", "a<no>"], "stream": true, "return_progress": true});
    let pieces = events(&serving.post("/completion", &stream).text());
    for (index, wanted) in [(0, ALL), (1, " or no")] {
        let own: Vec<&Value> = pieces.iter().filter(|piece| piece["index"] == index).collect();
        let (last, others) = own.split_last().unwrap();
        let text: String = others.iter().map(|p| p["content"].as_str().unwrap()).collect();
        assert_eq!(text, wanted);
        // Clients leave out the text of the last piece.
        assert_eq!((&last["stop"], &last["content"]), (&json!(true), &json!("")));
        let progress = others.iter().find(|piece| piece.get("prompt_progress").is_some());
        assert!(progress.unwrap()["timings"]["prompt_n"].is_u64());
    }
    for wrong in [
        json!([]),
        json!([5, null]),
        json!([5, 99_999]),
        json!([5, -1]),
        json!({"prompt": "a"}),
        json!({"prompt_string": 1}),
        json!({"prompt_string": "a", "multimodal_data": ["x"]}),
        json!(vec!["a"; 129]),
        json!(1),
    ] {
        let answer = asked(&wrong);
        let error = answer.json()["error"].clone();
        assert_eq!(answer.status, 400, "{wrong}");
        assert!(error["param"].as_str().unwrap().starts_with("prompt"), "{error}");
    }
}

#[test]
fn names_of_special_tokens_are_these_tokens_where_a_text_is_continued() {
    let (_folder, serving) = started(&[]);
    let answers = |parse: Value| -> [Value; 3] {
        let body = json!({"prompt": "a<go>", "parse_special": parse, "stream": false, "raw": true});
        let completion = serving.post("/completion", &body).json()["content"].take();
        let openai = serving.post("/v1/completions", &body).json()["choices"][0]["text"].take();
        [completion, openai, serving.post("/api/generate", &body).json()["response"].take()]
    };
    assert_eq!(answers(Value::Null), [ALL, ALL, ALL].map(Value::from));
    assert_eq!(answers(json!(true)), [ALL, ALL, ALL].map(Value::from));
    assert!(answers(json!(false)).iter().all(|text| text != ALL));
    // The text of a conversation stays text.
    let rendered = |text: &str| {
        let messages = json!([{"role": "user", "content": text}]);
        serving.post("/v1/chat/completions/input_tokens", &json!({"messages": messages})).json()
            ["input_tokens"]
            .as_u64()
            .unwrap()
    };
    assert!(rendered("a<no>") > rendered("a") + 1);
}

#[test]
fn an_answer_has_what_was_used_and_what_a_client_selects() {
    let (_folder, serving) = started(&["--seed", "7", "--repeat-penalty", "1.5"]);
    let body = json!({"prompt": "a<go>", "n_predict": 3, "top_k": 5, "stop": ["x"], "min_keep": 2});
    let answer = serving.post("/completion", &body).json();
    let settings = &answer["generation_settings"];
    for (name, wanted) in [
        ("seed", json!(7)),
        ("n_predict", json!(3)),
        ("top_k", json!(5)),
        ("min_keep", json!(2)),
        ("repeat_penalty", json!(1.5)),
        ("stop", json!(["x"])),
        ("mirostat", json!(0)),
        ("stream", json!(false)),
    ] {
        assert_eq!(settings[name], wanted, "{name}");
    }
    let ways = json!({
        "dry_multiplier": 0.5, "dry_base": 2.0, "dry_allowed_length": 3, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["x"],
        "xtc_probability": 0.25, "xtc_threshold": 0.5, "top_n_sigma": 2.0, "mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.5,
    });
    let other = serving.post("/completion", &with(&body, ways.clone())).json();
    for (name, wanted) in ways.as_object().unwrap() {
        assert_eq!(other["generation_settings"][name], *wanted, "{name}");
    }
    let props = serving.get("/props").json()["default_generation_settings"]["params"].take();
    assert_eq!(props["dry_sequence_breakers"], json!(["\n", ":", "\"", "*"]));
    assert_eq!((&props["samplers"][1], &props["top_n_sigma"]), (&json!("dry"), &json!(-1.0)));
    assert_eq!(answer["prompt"], "<s>a<go>");
    assert_eq!((&answer["has_new_line"], &answer["tokens"]), (&json!(true), &json!([])));
    assert_eq!(serving.get("/props").json()["default_generation_settings"]["params"]["seed"], 7);
    let n_predict = |more: Value| {
        let answer = serving.post("/completion", &with(&body, more)).json();
        answer["generation_settings"].clone()
    };
    assert_eq!(n_predict(json!({"n_predict": -1}))["n_predict"], -1);
    assert_eq!(n_predict(json!({"seed": 9, "n": 1}))["seed"], 9);
    let two = serving.post("/completion", &with(&body, json!({"n_cmpl": 2}))).json();
    assert_eq!(two[1]["generation_settings"]["seed"], 8);
    let more = json!({"return_tokens": true, "n_predict": 2});
    assert_eq!(serving.post("/completion", &with(&body, more)).json()["tokens"], json!([6, 7]));
    let fields = json!(["content", "generation_settings/n_predict", "timings/no", "tokens"]);
    let selected = serving.post("/completion", &with(&body, json!({"response_fields": fields})));
    let wanted = json!({"content": "Yes\n or", "generation_settings/n_predict": 3, "tokens": []});
    assert_eq!(selected.json(), wanted);
    // Each piece has its timings, if they are wanted.
    for (path, body) in [
        ("/completion", body.clone()),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "a"}]})),
    ] {
        for wanted in [true, false] {
            let more = json!({"stream": true, "timings_per_token": wanted});
            let text = serving.post(path, &with(&body, more)).text().replace("data: [DONE]", "");
            let pieces = events(&text);
            let said = |piece: &Value| {
                let text = piece.pointer("/choices/0/delta/content").unwrap_or(&piece["content"]);
                text.as_str().is_some_and(|text| !text.is_empty())
            };
            let pieces: Vec<&Value> = pieces.iter().filter(|piece| said(piece)).collect();
            assert!(pieces.len() > 1, "{text}");
            assert!(pieces.iter().all(|p| p["timings"].is_object() == wanted), "{text}");
        }
    }
    let response = serving.post("/v1/responses", &json!({"input": "a"})).json();
    assert_eq!(response["timings"]["predicted_n"], response["usage"]["output_tokens"]);
}

#[test]
fn likely_tokens_are_reported_in_llama_server_s_form() {
    let (_folder, serving) = started(&[]);
    let body = json!({"prompt": "a<go>", "n_predict": 3});
    let check = |all: &Value, count: usize| {
        let all = all.as_array().unwrap();
        assert_eq!(all.len(), count);
        for token in all {
            assert!(token["logprob"].as_f64().unwrap() <= 0.0 && token["id"].is_u64(), "{token}");
            let top = token["top_logprobs"].as_array().unwrap();
            assert_eq!((top.len(), &top[0]["id"]), (3, &token["id"]), "{token}");
            let bytes: Vec<Value> =
                token["token"].as_str().unwrap().bytes().map(Value::from).collect();
            assert_eq!(token["bytes"], Value::from(bytes));
        }
    };
    for name in ["n_probs", "logprobs"] {
        let answer = serving.post("/completion", &with(&body, json!({name: 3}))).json();
        check(&answer["completion_probabilities"], 3);
        assert_eq!(answer["completion_probabilities"][0]["token"], "Yes");
    }
    let stream = with(&body, json!({"n_probs": 3, "stream": true}));
    let pieces = events(&serving.post("/completion", &stream).text());
    let (last, others) = pieces.split_last().unwrap();
    assert_eq!(last["completion_probabilities"], json!([]));
    assert_eq!(others.len(), 3);
    others.iter().for_each(|piece| check(&piece["completion_probabilities"], 1));
    let none = serving.post("/completion", &body).json();
    assert_eq!(none.get("completion_probabilities"), None);
    for (more, param) in [
        (json!({"n_probs": 101}), "n_probs"),
        (json!({"n_probs": 1, "post_sampling_probs": true}), "post_sampling_probs"),
        (json!({"response_fields": "content"}), "response_fields"),
    ] {
        let wrong = serving.post("/completion", &with(&body, more));
        assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!(param)));
    }
}

#[test]
fn a_bias_names_its_token_by_a_text_too() {
    let (_folder, serving) = started(&[]);
    let said = |bias: Value| {
        let body = json!({"prompt": "a<go>", "logit_bias": bias});
        let answer = serving.post("/completion", &body);
        (answer.status, answer.json())
    };
    let ids = serving.post("/tokenize", &json!({"content": "\n", "parse_special": false})).json();
    assert_eq!(ids["tokens"], json!([7]));
    for bias in [
        json!([["\n", false]]),
        json!({"\n": -1000}),
        json!(
            ids["tokens"]
                .as_array()
                .unwrap()
                .iter()
                .map(|id| json!([id, -1000]))
                .collect::<Value>()
        ),
    ] {
        let (status, answer) = said(bias);
        assert_eq!(status, 200, "{answer}");
        assert!(!answer["content"].as_str().unwrap().contains('\n'), "{answer}");
        let biases = answer["generation_settings"]["logit_bias"].as_array().unwrap();
        assert_eq!(biases.len(), ids["tokens"].as_array().unwrap().len());
    }
    for wrong in [json!({"": 1}), json!([["Yes"]]), json!({"99999": 1}), json!({"a": "b"})] {
        let (status, answer) = said(wrong);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!("logit_bias")));
    }
}

#[test]
fn a_request_may_choose_its_slot() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let (_folder, serving) =
        started(&["--parallel", "3", "--ctx-size", "1000000", "--slot-save-path", path]);
    let body = json!({"prompt": format!("{}<go>", "a".repeat(200)), "n_predict": 1});
    let slot = |more: Value| serving.post("/completion", &with(&body, more)).json();
    assert_eq!(slot(json!({}))["id_slot"], 0);
    assert_eq!(slot(json!({"id_slot": 2}))["id_slot"], 2);
    assert_eq!(slot(json!({"id_slot": -1}))["id_slot"], 0);
    for n in [3, -2] {
        let error = slot(json!({"id_slot": n}))["error"].take();
        assert_eq!(error["param"], "id_slot", "{error}");
    }
    // So its prompt is the one that is saved.
    let act = |n: usize, action: &str| {
        serving.post(&format!("/slots/{n}?action={action}"), &json!({"filename": "kept"}))
    };
    assert_eq!(act(1, "save").status, 400, "nothing was read there");
    let chat = json!({"messages": [{"role": "user", "content": "a".repeat(300)}], "id_slot": 1});
    assert_eq!(serving.post("/v1/chat/completions", &chat).status, 200);
    assert!(act(1, "save").json()["n_saved"].as_u64().unwrap() >= 300);
    // A slot that is busy is waited for, though others are free.
    let endless = json!({"prompt": "a", "ignore_eos": true, "id_slot": 2, "stream": true});
    let mut first = serving.begin("/completion", &endless);
    first.wait_for("\"content\"");
    let waits = serving.begin("/completion", &with(&body, json!({"id_slot": 2})));
    assert_eq!(slot(json!({"id_slot": 1}))["id_slot"], 1);
    let slots = serving.get("/slots").json();
    let busy: Vec<bool> = (0..3).map(|i| slots[i]["is_processing"] == true).collect();
    assert_eq!(busy, [false, false, true]);
    drop(first);
    let waited = waits.answer();
    assert_eq!(waited.json()["id_slot"], 2, "{}", waited.text());
}

#[test]
fn tokens_computed_ahead_are_counted_and_averages_are_gauges() {
    let (_folder, serving) = started(&["--metrics", "--speculate", "3", "--ctx-size", "4096"]);
    let number = |text: &str, name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
    };
    // A model that says the same again and again says what is proposed.
    let body = json!({"prompt": "a", "n_predict": 200, "ignore_eos": true});
    assert_eq!(serving.post("/completion", &body).status, 200);
    let text = serving.get("/metrics").text();
    let [drafts, proposed, accepted] = ["drafts", "draft_tokens", "accepted_tokens"]
        .map(|kind| number(&text, &format!("llamacpp:spec_decode_num_{kind}_total")));
    assert!(0.0 < drafts && drafts <= proposed && proposed < 1000.0, "{text}");
    assert!(0.0 < accepted && accepted <= proposed, "{text}");
    for (name, kind) in [
        ("llamacpp:n_busy_slots_per_decode", "gauge"),
        ("llamacpp:n_decode_total", "counter"),
        ("llamacpp:spec_decode_num_draft_tokens_total", "counter"),
    ] {
        assert!(text.contains(&format!("# TYPE {name} {kind}\n")), "{name}: {text}");
    }
    // A name says what it is.
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let only_grows = name.ends_with("_total") || name == "llamacpp:n_tokens_max";
        assert_eq!(only_grows, kind == "counter", "{line}");
    }
}
