//! `alight batch`: the forms of lines, results, errors of single lines, order, what an answer depends on, and runs that are cut
//! and go on.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::support::http::Serving;
use crate::support::said::{self, CONTROL, OWN, SAID, TEXT};
use crate::support::{
    Done, PATIENCE, alight, command, done, ended, everything, kill, pty, smollm2, text, wild,
    with_stdin, write,
};

/// The results, one to a line.
#[track_caller]
fn results(text: &str) -> Vec<Value> {
    assert!(text.is_empty() || text.ends_with('\n'), "{text:?}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Without what tells the time.
fn timeless(mut result: Value) -> Value {
    if let Some(body) = result["response"]["body"].as_object_mut() {
        body.shift_remove("created");
    }
    result
}

/// Without what the result was made of, either.
fn bare(result: Value) -> Value {
    let mut result = timeless(result);
    let made_of = result.as_object_mut().unwrap().shift_remove("fingerprint");
    assert_eq!(made_of.unwrap().as_str().map(str::len), Some(33));
    result
}

/// The lines of JSON.
fn lines(values: &[Value]) -> String {
    values.iter().map(|value| format!("{value}\n")).collect()
}

/// The body of a request of OpenAI's batches.
fn request(id: &str, url: &str, body: Value) -> Value {
    json!({"custom_id": id, "method": "POST", "url": url, "body": body})
}

/// What an answer says.
fn content(result: &Value) -> &Value {
    &result["response"]["body"]["choices"][0]["message"]["content"]
}

#[test]
fn every_form_of_a_line_has_openai_s_result() {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &SAID, 3);
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": "a"}]}]);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    let input = lines(&[
        json!("a"),
        json!({"prompt": "a", "custom_id": "two"}),
        request("three", "/v1/chat/completions", json!({"model": "x", "messages": messages})),
        request("four", "/v1/chat/completions", json!({"messages": messages, "tools": tools})),
        json!({"messages": messages, "max_tokens": 4, "n": 1, "stop": null}),
        json!({"messages": messages, "stop": ["o.", "es."]}),
        json!({"messages": messages, "chat_template_kwargs": {"enable_thinking": false}, "max_completion_tokens": 2}),
        request("eight", "/v1/completions", json!({"prompt": "a", "max_tokens": 1})),
        request("nine", "/v1/completions", json!({"prompt": [3], "max_tokens": 3})),
    ]);
    let out = with_stdin(&["batch", &model, "--temp", "0", "--parse-special"], input.as_bytes());
    let got = results(&out.succeeds().stdout);
    let message = |i: usize| &got[i]["response"]["body"]["choices"][0];
    let first = bare(got[0].clone());
    let called = "Yes. No.<tool_call>{\"name\": \"f\", \"arguments\": {\"b\": [1]}}</tool_call>";
    assert_eq!(
        first,
        json!({
            "id": "batch_req_1", "custom_id": null, "error": null,
            "response": {"status_code": 200, "request_id": "req_1", "body": {
                "id": "chatcmpl-1", "object": "chat.completion",
                "model": got[0]["response"]["body"]["model"],
                "choices": [{
                    "index": 0, "logprobs": null, "finish_reason": "stop",
                    // No tool was there to be called, so this is text.
                    "message": {"role": "assistant", "content": called, "reasoning_content": "So it is."},
                }],
                "usage": {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11},
            }},
        })
    );
    assert!(got[0]["response"]["body"]["created"].as_u64().unwrap() > 1_700_000_000);
    for (i, id) in [(1, "two"), (2, "three")] {
        assert_eq!(got[i]["custom_id"], id);
        assert_eq!(message(i), message(0));
    }
    let call = json!({
        "id": "call_4_0", "type": "function",
        "function": {"name": "f", "arguments": "{\"b\": [1]}"},
    });
    assert_eq!(message(3)["message"]["tool_calls"], json!([call]));
    assert_eq!(message(3)["finish_reason"], "tool_calls");
    assert_eq!(*content(&got[3]), "Yes. No.");
    assert_eq!((content(&got[4]), &message(4)["finish_reason"]), (&json!("Yes"), &json!("length")));
    // The first of the texts is "es." in "Yes. No.".
    assert_eq!((content(&got[5]), &message(5)["finish_reason"]), (&json!("Y"), &json!("stop")));
    assert_eq!(got[5]["response"]["body"]["usage"]["completion_tokens"], 5);
    // Without thinking the answer begins later.
    assert_eq!(content(&got[6]).as_str().unwrap().trim_start(), "Yes. No.");
    assert!(message(6)["message"].get("reasoning_content").is_none());
    // A text that is continued has no template: nothing follows an "a", and <go> continues.
    assert_eq!((&message(7)["text"], &message(7)["finish_reason"]), (&json!(""), &json!("stop")));
    assert_eq!(got[7]["response"]["body"]["object"], "text_completion");
    assert_eq!(message(8)["text"], "<think>\nSo it is.\n</think>");
}

#[test]
fn what_a_line_cannot_have_is_named_in_its_result_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &SAID, 3);
    let user = json!([{"role": "user", "content": "a"}]);
    let with = |field: &str, value: Value| json!({"prompt": "a", field: value}).to_string();
    let chat = |field: &str, value: Value| json!({"messages": user, field: value}).to_string();
    let deep = format!("{{\"prompt\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let image = json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]});
    let cases: Vec<(String, &str, Option<&str>)> = vec![
        ("nonsense".into(), "invalid_json", None),
        ("{\"prompt\": \"a\"".into(), "invalid_json", None),
        (deep, "invalid_json", None),
        ("7".into(), "invalid_request", None),
        ("[\"a\"]".into(), "invalid_request", None),
        ("{}".into(), "invalid_request", None),
        (with("custom_id", json!(7)), "invalid_request", Some("custom_id")),
        (with("temperature", json!("hot")), "invalid_request", Some("temperature")),
        (with("temperature", json!(-1)), "invalid_request", Some("temperature")),
        (with("top_p", json!(1.5)), "invalid_request", Some("top_p")),
        (with("max_tokens", json!(-2)), "invalid_request", Some("max_tokens")),
        (with("max_tokens", json!(1.5)), "invalid_request", Some("max_tokens")),
        (with("seed", json!(0.5)), "invalid_request", Some("seed")),
        (with("stop", json!("a".repeat(2000))), "invalid_request", Some("stop")),
        (with("stop", json!([1])), "invalid_request", Some("stop")),
        (with("temperatur", json!(1)), "unsupported", Some("temperatur")),
        (with("mirostat", json!(3)), "invalid_request", Some("mirostat")),
        (with("samplers", json!(["temperature", "top_k"])), "unsupported", Some("samplers")),
        (
            with("dry_sequence_breakers", json!("x")),
            "invalid_request",
            Some("dry_sequence_breakers"),
        ),
        (chat("dry_multiplier", json!(0.5)), "", None),
        (with("suffix", json!("b")), "unsupported", Some("suffix")),
        (with("suffix", json!(7)), "invalid_request", Some("suffix")),
        (chat("suffix", json!("b")), "unsupported", Some("suffix")),
        (json!({"prompt": [1], "suffix": "b"}).to_string(), "invalid_request", Some("prompt")),
        (with("n", json!(2)), "unsupported", Some("n")),
        (with("logprobs", json!(true)), "unsupported", Some("logprobs")),
        (with("logit_bias", json!({"1": 1})), "unsupported", Some("logit_bias")),
        (chat("frequency_penalty", json!(0.5)), "", None),
        (with("presence_penalty", json!("x")), "invalid_request", Some("presence_penalty")),
        (with("stream", json!(true)), "unsupported", Some("stream")),
        (
            chat("response_format", json!({"type": "yaml"})),
            "invalid_request",
            Some("response_format"),
        ),
        (chat("tool_choice", json!("required")), "invalid_request", Some("tool_choice")),
        (chat("messages", json!([])), "invalid_request", Some("messages")),
        (image.to_string(), "unsupported", Some("messages[0].content[0].type")),
        (json!({"prompt": ["a", "b"]}).to_string(), "unsupported", Some("prompt")),
        (json!({"prompt": [4_000_000]}).to_string(), "invalid_request", None),
        (json!({"prompt": "a".repeat(600)}).to_string(), "context_length_exceeded", None),
        (json!({"prompt": "a".repeat(600_000)}).to_string(), "context_length_exceeded", None),
        (request("u", "/v1/embeddings", json!({})).to_string(), "unsupported", Some("url")),
        (request("b", "/v1/completions", json!(1)).to_string(), "invalid_request", Some("body")),
        (request("p", "/v1/completions", json!({})).to_string(), "invalid_request", Some("prompt")),
        (
            json!({"method": "GET", "url": "x", "body": {}}).to_string(),
            "invalid_request",
            Some("method"),
        ),
        (request("f", "/v1/chat/completions", json!({"messages": user})).to_string(), "", None),
        (
            request("f", "/v1/chat/completions", json!({"messages": user})).to_string(),
            "duplicate_custom_id",
            Some("custom_id"),
        ),
    ];
    // Blank lines count and have no results.
    let input: String = cases.iter().map(|(line, _, _)| format!("{line}\n \n")).collect();
    let out = with_stdin(&["batch", &model, "--temp", "0"], input.as_bytes());
    assert_eq!(out.status, Some(1), "{}", out.stderr);
    let failed = cases.iter().filter(|(_, code, _)| !code.is_empty()).count();
    let said = format!("alight: error: {failed} of {} lines failed", cases.len());
    assert!(out.stderr.contains(&said), "{}", out.stderr);
    let got = results(&out.stdout);
    assert_eq!(got.len(), cases.len());
    for (i, ((line, code, param), result)) in cases.iter().zip(&got).enumerate() {
        let number = 2 * i + 1;
        assert_eq!(result["id"], format!("batch_req_{number}"));
        if code.is_empty() {
            assert_eq!((&result["error"], content(result).is_string()), (&Value::Null, true));
            continue;
        }
        let (error, response) = (&result["error"], &result["response"]);
        let line = &line[..line.len().min(100)];
        assert_eq!(
            (&error["code"], &error["param"]),
            (&json!(code), &json!(param)),
            "{line}: {error}"
        );
        assert_eq!(error["line"], number);
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("line {number}: ")), "{message}");
        assert!(param.is_none_or(|param| message.contains(param)), "{message}");
        assert!(message.len() < 400, "{message}");
        assert_eq!(
            (&response["status_code"], &response["body"]["error"]["message"]),
            (&json!(400), &error["message"])
        );
    }
    assert!(got[0]["error"]["message"].as_str().unwrap().contains("quotes"), "{}", got[0]);
    assert!(!got[1]["error"]["message"].as_str().unwrap().contains("quotes"), "{}", got[1]);
    assert!(got[43]["error"]["message"].as_str().unwrap().contains("line 85"), "{}", got[43]);
}

/// As `alight serve` fills it.
#[test]
fn a_gap_is_filled_by_a_model_that_was_trained_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let marks = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"].map(|mark| (mark, CONTROL));
    let said = [&marks[..], &[("Yes", TEXT), (".", TEXT)]].concat();
    let model = said::model(folder.path(), &said, 0);
    let gap = json!({"prompt": "a", "suffix": "aa"});
    let input = lines(&[
        gap.clone(),
        request("b", "/v1/completions", gap.clone()),
        json!({"suffix": "aa", "stop": "."}),
        json!({"prompt": ["a"], "suffix": "a".repeat(100_000)}),
        request("e", "/v1/completions", json!({"prompt": "a", "suffix": ""})),
    ]);
    let args = ["batch", &*model, "--temp", "0"];
    let got = results(&with_stdin(&args, input.as_bytes()).succeeds().stdout);
    let body = |i: usize| &got[i]["response"]["body"];
    let texts: Vec<&Value> = (0..4).map(|i| &body(i)["choices"][0]["text"]).collect();
    assert_eq!(texts, ["Yes.", "Yes.", "Yes", "Yes."], "{got:?}");
    assert_eq!(body(0)["object"], "text_completion");
    let serving = Serving::start(&[&model, "--no-cache", "--temp", "0"]);
    let told = serving.post("/v1/completions", &gap).json();
    assert_eq!(
        body(0)["usage"],
        told["usage"]
            .as_object()
            .map(|usage| {
                let mut usage = usage.clone();
                usage.shift_remove("prompt_tokens_details");
                Value::from(usage)
            })
            .unwrap()
    );
    // An empty text is none, and no more of a long one is read than counts.
    assert!(
        body(4)["usage"]["prompt_tokens"].as_u64() < body(0)["usage"]["prompt_tokens"].as_u64()
    );
    assert!(body(3)["usage"]["prompt_tokens"].as_u64().unwrap() < 2048, "{}", body(3));
}

/// In place of an answer, what a line asks for, which may be the call of a tool.
#[test]
fn the_answer_to_a_line_is_held_to_what_it_asks_for() {
    let call = [
        ("<tool_call>", OWN),
        ("{\"name\": \"f\", \"arguments\": ", TEXT),
        ("{\"b\": 1}", TEXT),
        ("}", TEXT),
        ("</tool_call>", OWN),
    ];
    let answer = [("{\"c\":2}", TEXT), ("Yes", TEXT), ("[]", TEXT)];
    let schema = |name: &str| {
        json!({"type": "object", "properties": {name: {"type": "integer"}},
            "required": [name], "additionalProperties": false})
    };
    let user = json!([{"role": "user", "content": "a"}]);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": schema("b")}}]);
    let format =
        json!({"type": "json_schema", "json_schema": {"schema": schema("c"), "strict": true}});
    let object = json!({"type": "json_object"});
    let input = lines(&[
        json!({"messages": user, "response_format": format, "tools": tools}),
        json!({"messages": user, "response_format": format}),
        json!({"messages": user, "json_schema": schema("c"), "ignore_eos": true}),
        json!({"messages": user, "response_format": object}),
        json!({"prompt": "a", "grammar": "root ::= \"Yes\" \"[]\""}),
        json!({"prompt": "a", "regex": "(Yes){2}"}),
        request(
            "7",
            "/v1/completions",
            json!({"prompt": "a", "grammar": "root ::= \"Yes\"", "max_tokens": 9}),
        ),
        json!({"messages": user, "response_format": {"type": "text"}}),
        // What no answer can be, and what is none.
        json!({"prompt": "a", "grammar": "root ::= other"}),
        json!({"prompt": "a", "regex": "("}),
        json!({"prompt": "a", "json_schema": 7}),
        json!({"prompt": "a", "json_schema": {}, "grammar": "root ::= \"Yes\""}),
    ]);
    for (first, calls) in [(&call[..], true), (&answer[..], false)] {
        let folder = tempfile::tempdir().unwrap();
        // It would say the first of them; what it does not say is there to be said.
        let rest = if calls { &answer[..] } else { &call[..] };
        let model = said::model(folder.path(), &[rest, first].concat(), rest.len());
        let args = ["batch", &*model, "--temp", "0", "--parse-special", "-q"];
        let out = with_stdin(&args, input.as_bytes());
        assert_eq!(out.status, Some(1), "{}", out.stderr);
        let got = results(&out.stdout);
        let choice = |i: usize| &got[i]["response"]["body"]["choices"][0];
        let message = &choice(0)["message"];
        if calls {
            let function = json!({"name": "f", "arguments": "{\"b\": 1}"});
            assert_eq!(message["tool_calls"][0]["function"], function, "{message}");
            assert_eq!(choice(0)["finish_reason"], "tool_calls");
        } else {
            assert_eq!(
                (&message["content"], message.get("tool_calls")),
                (&json!("{\"c\":2}"), None)
            );
        }
        for i in [1, 2] {
            assert_eq!(
                (content(&got[i]), &choice(i)["finish_reason"]),
                (&json!("{\"c\":2}"), &json!("stop"))
            );
            assert_eq!(got[i]["response"]["body"]["object"], "chat.completion");
        }
        let object: Value = serde_json::from_str(content(&got[3]).as_str().unwrap()).unwrap();
        assert!(object.is_object(), "{object}");
        assert_eq!(*content(&got[4]), "Yes[]");
        assert_eq!(*content(&got[5]), "YesYes");
        assert_eq!(
            (&choice(6)["text"], &choice(6)["finish_reason"]),
            (&json!("Yes"), &json!("stop"))
        );
        assert_eq!(got[6]["response"]["body"]["object"], "text_completion");
        assert_ne!(*content(&got[7]), "{\"c\":2}");
        for (i, param) in [(8, "grammar"), (9, "regex"), (10, "json_schema"), (11, "grammar")] {
            let error = &got[i]["error"];
            assert_eq!(
                (&error["code"], &error["param"]),
                (&json!("invalid_request"), &json!(param))
            );
        }
        // What is beside a line changes nothing of it.
        let alone = with_stdin(&[&args[..], &["--sequences", "1"]].concat(), input.as_bytes());
        let alone = results(&alone.stdout).into_iter().map(timeless);
        assert!(alone.eq(got.into_iter().map(timeless)));
    }
}

#[test]
fn bytes_that_are_no_text_are_an_error_of_their_line() {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &SAID, 3);
    let out =
        with_stdin(&["batch", &model, "-n", "1"], b"\"a\xff\"\r\n\xef\xbb\xbf\"a\"\r\n\0\n\"a\"");
    let got = results(&out.stdout);
    let codes: Vec<&Value> = got.iter().map(|result| &result["error"]["code"]).collect();
    assert_eq!(
        codes,
        [&json!("invalid_utf8"), &json!("invalid_json"), &json!("invalid_json"), &Value::Null]
    );
    assert!(got[0]["error"]["message"].as_str().unwrap().ends_with("byte 2"), "{}", got[0]);
}

/// Runs it with an input that is made piece by piece. Returns what it did and, where the system tells, the most memory that it had in
/// KiB when all but the end of the input was read.
fn measured(args: &[&str], pieces: &mut dyn Iterator<Item = &[u8]>) -> (Done, Option<u64>) {
    let mut child = command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let mut out = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        out.read_to_string(&mut text).map(|_| text).unwrap()
    });
    pieces.for_each(|piece| pipe.write_all(piece).unwrap());
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.map(|peak| peak.trim().trim_end_matches(" kB").parse().unwrap());
    drop(pipe);
    let mut done = done(child.wait_with_output().unwrap());
    done.stdout = reader.join().unwrap();
    (done, peak)
}

#[test]
fn a_line_of_any_length_and_any_number_of_lines_take_bounded_memory() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let args = ["batch", &model, "--raw", "-n", "1", "-t", "1", "-q"];
    let megabyte = vec![b'a'; 1 << 20];
    let long = std::iter::repeat_n(&megabyte[..], 100);
    let (out, peak) = measured(
        &args,
        &mut [&b"\"a\"\n\""[..]].into_iter().chain(long).chain([&b"\"\n\"a\"\n"[..]]),
    );
    let got = results(&out.stdout);
    let codes: Vec<&Value> = got.iter().map(|result| &result["error"]["code"]).collect();
    assert_eq!(codes, [&Value::Null, &json!("line_too_long"), &Value::Null], "{}", out.stderr);
    assert!(got[1]["error"]["message"].as_str().unwrap().contains("8 MiB"), "{}", got[1]);
    assert!(peak.is_none_or(|kib| kib < 80 << 10), "{peak:?}");

    if !everything() {
        return;
    }
    // The input is a hundred megabytes, the results are more, and each is written in its turn.
    let some = format!("{}1{}\n", "[".repeat(240), "]".repeat(240)).repeat(2000);
    let file = folder.path().join("results");
    let args = [&args[..], &["-o", text(&file)]].concat();
    let all = std::iter::once(&b"\"a\"\n"[..]).chain(std::iter::repeat_n(some.as_bytes(), 100));
    let (out, peak) = measured(&args, &mut { all });
    assert_eq!(out.status, Some(1), "{}", out.stderr);
    assert!(out.stderr.contains("200000 of 200001 lines failed"), "{}", out.stderr);
    assert!(peak.is_none_or(|kib| kib < 80 << 10), "{peak:?}");
}

#[test]
fn a_line_that_never_ends_ends_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let zeros = Stdio::from(fs::File::open("/dev/zero").unwrap());
    let out = command(&["batch", &model, "--raw", "-t", "1"]).stdin(zeros).output();
    done(out.unwrap()).fails(1, &["standard input", "line 1 does not end within 1024 MiB"]);
}

/// What each line is answered, by its id.
fn answers(text: &str) -> BTreeMap<String, Value> {
    let answer = |result: Value| {
        let choice = result["response"]["body"]["choices"][0].clone();
        assert!(choice.is_object(), "{result}");
        (result["custom_id"].as_str().unwrap().to_owned(), choice)
    };
    results(text).into_iter().map(answer).collect()
}

/// Lines of different lengths, options and forms.
fn questions() -> Vec<Value> {
    let things = ["a colour", "an animal of the sea", "some fruit", "three rivers", "a word"];
    let mut all = Vec::new();
    for (i, thing) in things.iter().cycle().take(12).enumerate() {
        let ask = format!("{}Name {thing}.", "Think of nothing else. ".repeat(i % 4 * 4));
        let mut body = json!({"max_tokens": 4 + 5 * (i % 5)});
        if i % 3 == 0 {
            body["seed"] = json!(i / 5);
        }
        if i % 4 == 1 {
            body["temperature"] = json!(0);
        }
        if i % 5 == 2 {
            body["repeat_penalty"] = json!(1.3);
        }
        let url = if i % 6 == 5 { "/v1/completions" } else { "/v1/chat/completions" };
        if i % 6 == 5 {
            body["prompt"] = ask.into();
        } else {
            body["messages"] = json!([{"role": "user", "content": ask}]);
        }
        all.push(request(&format!("q{i}"), url, body));
    }
    all
}

#[test]
fn an_answer_depends_on_its_line_alone() {
    let Some(model) = smollm2() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut questions = questions();
    let run = |input: &str, more: &[&str]| {
        let args = [&["batch", &model, "-", "--temp", "1", "-c", "512"][..], more].concat();
        with_stdin(&args, input.as_bytes()).succeeds().stdout
    };
    let alone = run(&lines(&questions), &["--sequences", "1", "-t", "1"]);
    let expected = answers(&alone);
    assert_eq!(expected.len(), 12);
    let texts: std::collections::BTreeSet<String> =
        expected.values().map(Value::to_string).collect();
    assert!(texts.len() > 8, "they are different answers: {texts:?}");
    assert_eq!(answers(&run(&lines(&questions), &["--sequences", "5"])), expected);
    // In the order of the lines, however long each takes.
    let ids = |text: &str| -> Vec<Value> {
        results(text).iter().map(|result| result["custom_id"].clone()).collect()
    };
    questions.reverse();
    questions.swap(2, 9);
    let shuffled = run(&lines(&questions), &["--sequences", "5", "-t", "2"]);
    assert_eq!(answers(&shuffled), expected);
    let asked: Vec<Value> = questions.iter().map(|line| line["custom_id"].clone()).collect();
    assert_eq!(ids(&shuffled), asked);
    // As they come, the short ones do not wait.
    let unordered = run(&lines(&questions), &["--sequences", "3", "--unordered"]);
    assert_eq!(answers(&unordered), expected);
    assert_ne!(ids(&unordered), asked);
    // Into a file, with a part of the lines done before.
    let file = folder.path().join("results");
    run(&lines(&questions[3..7]), &["-o", text(&file)]);
    run(&lines(&questions), &["-o", text(&file), "--sequences", "4"]);
    assert_eq!(answers(&fs::read_to_string(&file).unwrap()), expected);
}

#[test]
fn a_prompt_is_answered_as_run_does() {
    let Some(model) = smollm2() else { return };
    let batch = |line: Value, more: &[&str]| {
        let args = [&["batch", &model, "-n", "12", "-q"][..], more].concat();
        let out = with_stdin(&args, format!("{line}\n").as_bytes()).succeeds();
        assert_eq!(out.stderr, "");
        results(&out.stdout).remove(0)["response"]["body"]["choices"][0].clone()
    };
    let run = |more: &[&str]| {
        let args = [&["run", &model, "Name a bird.", "-n", "12", "--json"][..], more].concat();
        let line: Value = serde_json::from_str(&alight(&args).succeeds().stdout).unwrap();
        line["answer"].clone()
    };
    let said = batch(json!("Name a bird."), &[])["message"]["content"].clone();
    assert_eq!(said, run(&["--seed", "0"]));
    let seven = batch(json!({"prompt": "Name a bird.", "seed": 7}), &["--seed", "3"]);
    assert_eq!(seven["message"]["content"], run(&["--seed", "7"]));
    assert_ne!(seven["message"]["content"], said);
    let system = ["--system", "Answer in French."];
    let french = batch(json!("Name a bird."), &[&system[..], &["--seed", "3"]].concat());
    assert_eq!(french["message"]["content"], run(&[&system[..], &["--seed", "3"]].concat()));
    let raw = batch(json!("Name a bird."), &["--raw"])["text"].clone();
    assert_eq!(raw, run(&["--raw", "--seed", "0"]));
    let completed = request("1", "/v1/completions", json!({"prompt": "Name a bird."}));
    assert_eq!(batch(completed, &[])["text"], raw);
}

/// What a file of results says, without times.
fn told(path: &Path) -> Vec<Value> {
    results(&fs::read_to_string(path).unwrap()).into_iter().map(timeless).collect()
}

#[test]
fn a_run_goes_on_wherever_its_file_was_cut() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let input = lines(&[
        json!("a"),
        json!({"prompt": "aa", "custom_id": "x"}),
        json!([]),
        json!({"prompt": "aaa", "custom_id": "x"}),
        json!({"prompt": "aaaa", "n": 3, "custom_id": "y"}),
        json!("aaaaa"),
        json!({"prompt": "a", "custom_id": "z", "max_tokens": 3}),
    ]);
    let input = write(folder.path(), "input", input + "no newline here");
    let path = folder.path().join("results");
    let to = text(&path);
    let args =
        ["batch", &model, &input, "--raw", "-n", "9", "-t", "1", "--sequences", "2", "-o", to];
    let failed = "alight: error: 4 of 8 lines failed";
    let status = |out: &Done, summary: &str| {
        assert_eq!(out.status, Some(1), "{}", out.stderr);
        assert_eq!(out.stdout, "");
        assert!(out.stderr.contains(failed) && out.stderr.contains(summary), "{}", out.stderr);
    };
    status(&alight(&args), "8 lines: 4 answered, 4 failed; ");
    let whole = fs::read(&path).unwrap();
    let expected = told(&path);
    assert_eq!(expected.len(), 8);
    // With nothing left to do, nothing changes.
    status(&alight(&args), "8 lines: 0 answered, 0 failed, 8 had results already");
    assert_eq!(fs::read(&path).unwrap(), whole);
    let ends = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
    let ends: Vec<usize> = ends.collect();
    let cuts = ends.iter().flat_map(|end| [end - 1, *end, end + 1, end + 2, end + 9, end + 40]);
    for cut in [0, 1, 5].into_iter().chain(cuts).filter(|cut| *cut < whole.len()) {
        fs::write(&path, &whole[..cut]).unwrap();
        let done = ends.iter().filter(|end| **end < cut).count();
        let summary =
            if done > 0 { format!("{done} had results already") } else { "failed; ".to_owned() };
        status(&alight(&args), &summary);
        assert_eq!(told(&path), expected, "cut at {cut}");
    }
    // Results in another order, as --unordered has them, count as well: a line that was refused for its id is no answer to
    // the first of that id.
    let mut parts: Vec<&str> = std::str::from_utf8(&whole).unwrap().lines().collect();
    parts.swap(1, 3);
    fs::write(&path, format!("{}\n{}\n", parts[1], parts[4])).unwrap();
    status(&alight(&args), "2 had results already");
    let mut got = told(&path);
    got.sort_by_key(|result| result["id"].as_str().unwrap().to_owned());
    assert_eq!(got, expected);
    // From the beginning.
    fs::write(&path, &whole[..ends[3]]).unwrap();
    status(&alight(&[&args[..], &["--force"]].concat()), "8 lines: 4 answered, 4 failed; ");
    assert_eq!(told(&path), expected);
}

#[test]
fn a_run_that_is_killed_or_interrupted_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let path = folder.path().join("results");
    // The longer, the later: the first ones are there while the last ones take their time.
    let all: Vec<Value> =
        (0..40).map(|i| json!({"prompt": "a", "seed": i, "max_tokens": 10 * i})).collect();
    let input = write(folder.path(), "input", lines(&all));
    let args = |more: &[&str]| -> Vec<String> {
        let args = [
            "batch",
            &model,
            &input,
            "--raw",
            "--ignore-eos",
            "--sequences",
            "3",
            "-o",
            text(&path),
        ];
        args.iter().chain(more).map(|arg| arg.to_string()).collect()
    };
    alight(&args(&["-q"])).succeeds();
    let expected = told(&path);
    for (signal, status) in
        [(libc::SIGKILL, None), (libc::SIGINT, Some(130)), (libc::SIGTERM, None)]
    {
        for unordered in [&[][..], &["--unordered"]] {
            fs::remove_file(&path).unwrap();
            let mut child = command(&args(unordered))
                .stdin(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            while fs::read(&path).map_or(0, |bytes| bytes.len()) < 100 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            kill(&child, signal);
            let code = ended(&mut child).code();
            if code == Some(0) {
                eprintln!("skipped: it was too quick for signal {signal}");
            } else {
                assert_eq!(code, status, "{signal}");
            }
            let before = fs::read_to_string(&path).unwrap();
            if signal == libc::SIGINT {
                let there = results(&before).len();
                let mut said = String::new();
                child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                assert!(said.contains(&format!(": {there} answered")), "{said}");
            }
            let out = alight(&args(unordered)).succeeds();
            assert!(out.stderr.contains("had results already"), "{}", out.stderr);
            let mut got = told(&path);
            if !unordered.is_empty() {
                got.sort_by_key(|result| {
                    result["id"].as_str().unwrap()[10..].parse::<u32>().unwrap()
                });
            }
            assert_eq!(got, expected, "{signal} {unordered:?}");
        }
    }
}

#[test]
fn the_file_of_results_is_ours_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let at = |name: &str| folder.path().join(name);
    let input = write(folder.path(), "input", "\"a\"\n");
    let batch = |to: &Path, more: &[&str]| {
        let args = ["batch", &model, &input, "--raw", "-n", "2", "-q", "-o", text(to)];
        alight(&[&args[..], more].concat())
    };
    // A file of something else stays as it is, also where it has no newline.
    for other in ["precious\n", "precious", "{}\n", "{\"id\":\"a\"}\n", "{\"id\":\"batch_reg"] {
        let path = at("other");
        fs::write(&path, other).unwrap();
        batch(&path, &[]).fails(1, &["other", "line 1 is no result of `alight batch`", "--force"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), other);
    }
    batch(&at("other"), &["--force"]).succeeds();
    assert_eq!(told(&at("other")).len(), 1);
    for (path, why) in [(&input, "is the source itself"), (&model, "is the source itself")] {
        for force in [&[][..], &["--force"]] {
            let before = fs::read(path).unwrap();
            batch(Path::new(path), force).fails(1, &[why]);
            assert_eq!(fs::read(path).unwrap(), before);
        }
    }
    batch(Path::new("/dev/null"), &[]).fails(1, &["expected a regular file"]);
    batch(&at("nowhere/x"), &[]).fails(1, &["nowhere"]);
    // It can be read by nobody who may not read what it is made of.
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(&input, fs::Permissions::from_mode(0o600)).unwrap();
    let private = at("private");
    batch(&private, &[]).succeeds();
    assert_eq!(fs::metadata(&private).unwrap().permissions().mode() & 0o777, 0o600);
    // Two at a time would write over each other.
    let held = fs::File::open(&private).unwrap();
    held.lock().unwrap();
    batch(&private, &[]).fails(1, &["private", "is being written by another process"]);
}

#[test]
fn a_run_goes_on_with_its_own_results_alone() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let other = tempfile::tempdir().unwrap();
    let spec = wild::Spec { heads: 2, kv_heads: 1, ..wild::Spec::llama() };
    let other = wild::model_of(other.path(), spec);
    let path = folder.path().join("results");
    let batch = |model: &str, input: &str, more: &[&str]| {
        let args = ["batch", model, "-", "--raw", "-n", "2", "-t", "1", "-o", text(&path)];
        with_stdin(&[&args[..], more].concat(), input.as_bytes())
    };
    let input = "\"a\"\n{\"prompt\": \"aa\", \"custom_id\": \"x\"}\n\"aaa\"\n";
    batch(&model, input, &["--seed", "-1"]).succeeds();
    let made = fs::read_to_string(&path).unwrap();
    // How fast it is, and a seed that is another one in every run, change nothing.
    let same = batch(&model, input, &["--seed", "-1", "--sequences", "1", "--unordered"]);
    assert!(same.succeeds().stderr.contains("3 had results already"));
    let others = "line 1 is a result of another model or of other options";
    batch(&other, input, &["--seed", "-1"]).fails(1, &["results", others, "--force"]);
    for options in
        [&["--seed", "0"][..], &["--seed", "-1", "--temp", "0"], &["--seed", "-1", "-c", "64"]]
    {
        batch(&model, input, options).fails(1, &[others]);
    }
    for (at, input) in [
        (1, input.replacen("\"a\"", "\"b\"", 1)),
        (2, input.replace("\"aa\"", "\"bb\"")),
        // A line that was put before others moves those that have a number alone.
        (1, format!("\"new\"\n{input}")),
    ] {
        let part = format!("line {at} of standard input is not the line");
        batch(&model, &input, &["--seed", "-1"]).fails(1, &[&part, "--force"]);
        fs::write(&path, &made).unwrap();
    }
    // Of results that an older version has written it is said that nobody knows.
    let old: String =
        results(&made).into_iter().map(|result| format!("{}\n", bare(result))).collect();
    fs::write(&path, old).unwrap();
    let kept = batch(&model, input, &[]).succeeds().stderr;
    assert!(kept.contains("3 results in") && kept.contains("3 had results already"), "{kept}");
}

#[test]
fn a_line_is_answered_before_the_next_one_comes() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let mut child = command(&["batch", &model, "--raw", "-n", "3"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    for id in ["one", "two", "three"] {
        writeln!(input, "{}", json!({"prompt": "a", "custom_id": id})).unwrap();
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["custom_id"], id);
    }
    // While it waits for a line, Ctrl-C ends it.
    kill(&child, libc::SIGINT);
    assert_eq!(ended(&mut child).code(), Some(130));
}

#[test]
fn progress_is_for_a_terminal_and_the_summary_for_all_who_want_it() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let line = json!({"prompt": "a", "max_tokens": 400, "ignore_eos": true});
    let input = write(folder.path(), "input", lines(&vec![line; 30]));
    let out = folder.path().join("results");
    let args = ["batch", &model, &input, "--raw", "-o", text(&out), "--force"];
    let piped = alight(&args).succeeds();
    assert_eq!((piped.stdout.as_str(), piped.stderr.lines().count()), ("", 1), "{}", piped.stderr);
    assert!(
        piped.stderr.starts_with("30 lines: 30 answered, 0 failed; 12000 tokens in "),
        "{}",
        piped.stderr
    );
    let mut shown = pty::Pty::start(command(&args), None);
    assert!(shown.end().success());
    let text = shown.text();
    assert!(text.contains("batch [") && text.contains(" tokens/s, prompts "), "{text:?}");
    // What was shown is removed before the summary.
    assert!(text.contains("\r\u{1b}[K30 lines: "), "{text:?}");
    let quiet = alight(&[&args[..], &["-q"]].concat()).succeeds();
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
}

/// True if a child has a handler for SIGINT, as Linux tells; of other systems it is taken for granted.
fn catches_ctrl_c(child: &Child) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id()));
    let Ok(status) = status else { return true };
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    caught & (1 << (libc::SIGINT - 1)) != 0
}

#[test]
fn what_was_finished_and_not_written_counts_as_not_done() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let path = folder.path().join("results");
    let line = |n: usize| json!({"prompt": "a", "max_tokens": n, "ignore_eos": true});
    // The first one takes its time, and those after it are finished long before.
    let input: Vec<Value> = [1 << 20, 1, 1, 1].map(line).into();
    let input = write(folder.path(), "input", lines(&input));
    let usual = ["batch", &model, &input, "--raw", "-c", "2000000", "-t", "1"];
    for (more, advice) in
        [(&["-o", text(&path)][..], "the same command continues"), (&[], "with -o")]
    {
        let mut child = command(&[&usual[..], more].concat())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A program that does not catch Ctrl-C yet would end without a word.
        let began = std::time::Instant::now();
        while !catches_ctrl_c(&child) {
            assert!(began.elapsed() < PATIENCE, "it has not begun");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        std::thread::sleep(std::time::Duration::from_millis(1500));
        kill(&child, libc::SIGINT);
        assert_eq!(ended(&mut child).code(), Some(130));
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains(": 0 answered, 0 failed"), "{said}");
        assert!(said.contains("4 lines have no result yet") && said.contains(advice), "{said}");
    }
}

#[test]
fn a_text_is_no_input_and_results_go_to_standard_output_by_its_sign() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let words = "How many lines are these?\n".repeat(1000);
    let out = with_stdin(&["batch", &model, "--raw", "-n", "1"], words.as_bytes());
    assert_eq!((out.status, out.stdout.lines().count()), (Some(1), 99), "{}", out.stderr);
    for part in ["none of the first 100 lines of standard input is JSON", "jq -R . FILE"] {
        assert!(out.stderr.contains(part), "{}", out.stderr);
    }
    // A line that is JSON says what the others should be.
    let mixed = format!("\"a\"\n{words}");
    let args = ["batch", &model, "--raw", "-n", "1", "-o", "-"];
    let mut there = command(&args);
    there.current_dir(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = there.stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(mixed.as_bytes()).unwrap();
    let out = done(child.wait_with_output().unwrap());
    assert_eq!((out.status, out.stdout.lines().count()), (Some(1), 1001), "{}", out.stderr);
    assert!(!folder.path().join("-").exists());
}

#[test]
fn inputs_that_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    alight(&["batch", &model, "/nowhere.jsonl"])
        .fails(1, &["'/nowhere.jsonl' does not exist", "a file of prompts"]);
    alight(&["batch", &model, text(folder.path())]).fails(1, &["is a folder"]);
    for input in ["", "\n \n"] {
        let out = with_stdin(&["batch", &model, "--raw"], input.as_bytes()).succeeds();
        assert!(out.stdout.is_empty() && out.stderr.starts_with("0 lines: "), "{}", out.stderr);
    }
    let mut terminal = pty::Pty::start(command(&["batch", &model]), Some(Stdio::null()));
    assert_eq!(terminal.end().code(), Some(2));
    assert!(terminal.text().contains("there is no input"), "{}", terminal.text());
    for args in [["--sequences", "0"], ["--sequences", "1025"], ["--force", "-q"]] {
        let out = alight(&[&["batch", &model][..], &args].concat());
        assert_eq!(out.status, Some(2), "{}", out.stderr);
    }
}
