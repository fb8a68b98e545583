//! `alight serve` over real sockets: answers, streams, errors, who may ask, clients that leave, and the end.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::support::http::Serving;
use crate::support::said::{self, CONTROL, OWN, SAID, TEXT};
use crate::support::{self, alight, everything, gemma3, kill, smollm2, write};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A server with a model that always says the same.
fn saying(args: &[&str]) -> (tempfile::TempDir, Serving) {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &SAID, 3);
    let serving = Serving::start(&[&[&*model, "--no-cache", "--temp", "0"], args].concat());
    (folder, serving)
}

fn messages() -> Value {
    json!([{"role": "user", "content": [{"type": "text", "text": "a"}]}])
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "f", "parameters": {}}}])
}

/// Body with other fields.
fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// What the pieces of a stream say when they are put together, by choice: the message, why it ended; and the usage.
fn joined(events: &[Value]) -> (BTreeMap<u64, (Value, Value)>, Value) {
    let (mut choices, mut usage) = (BTreeMap::new(), Value::Null);
    for event in events {
        assert_eq!(event["id"], events[0]["id"]);
        if !event["usage"].is_null() {
            assert_eq!(event["choices"], json!([]));
            usage = event["usage"].clone();
        }
        for choice in event["choices"].as_array().unwrap() {
            let first = choice["delta"].get("role").is_some();
            let at = choice["index"].as_u64().unwrap();
            assert_eq!(first, !choices.contains_key(&at));
            let (message, finish) = choices.entry(at).or_insert((json!({}), Value::Null));
            assert!(finish.is_null(), "nothing follows the end");
            for (name, value) in choice["delta"].as_object().unwrap() {
                match (name.as_str(), value) {
                    (_, Value::Null) => {}
                    ("tool_calls", calls) => {
                        let all = message
                            .as_object_mut()
                            .unwrap()
                            .entry("tool_calls")
                            .or_insert(json!([]));
                        for call in calls.as_array().unwrap() {
                            let all = all.as_array_mut().unwrap();
                            let mut call = call.clone();
                            let index = call.as_object_mut().unwrap().shift_remove("index");
                            if call.get("id").is_some() {
                                assert_eq!(index.unwrap(), all.len());
                                all.push(call);
                                continue;
                            }
                            // More of the arguments of the last one, and nothing else.
                            assert_eq!(index.unwrap(), all.len() - 1);
                            let last = &mut all.last_mut().unwrap()["function"]["arguments"];
                            let more = call["function"]["arguments"].as_str().unwrap();
                            assert_eq!(call, json!({"function": {"arguments": more}}));
                            *last = format!("{}{more}", last.as_str().unwrap()).into();
                        }
                    }
                    (_, text) => {
                        let so_far = message[name].as_str().unwrap_or_default().to_owned();
                        message[name] = format!("{so_far}{}", text.as_str().unwrap()).into();
                    }
                }
            }
            *finish = choice["finish_reason"].clone();
        }
    }
    (choices, usage)
}

/// Without the ids of calls, which differ.
fn nameless(mut message: Value) -> Value {
    for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
        let id = call.as_object_mut().unwrap().shift_remove("id").unwrap();
        assert!(id.as_str().unwrap().starts_with("call_"));
    }
    if message["tool_calls"].is_null() {
        message.as_object_mut().unwrap().shift_remove("tool_calls");
    }
    message
}

#[test]
fn thinking_answer_and_calls_are_apart_whole_and_streamed() {
    let (_folder, serving) = saying(&[]);
    let call = json!({"type": "function", "function": {"name": "f", "arguments": "{\"b\": [1]}"}});
    for (more, content, calls, finish, tokens) in [
        (json!({"tools": tools()}), "Yes. No.", Some(json!([call])), "tool_calls", 8),
        (
            json!({"tools": tools(), "tool_choice": "none", "max_tokens": 5}),
            "Yes. No.",
            None,
            "length",
            5,
        ),
        (json!({"stop": ["o.", "es."]}), "Y", None, "stop", 5),
        (json!({"stop": "never", "max_completion_tokens": 4}), "Yes", None, "length", 4),
    ] {
        let body = with(json!({"messages": messages(), "n": 2, "x": 1, "user": null}), more);
        let answer = serving.post(CHAT, &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let whole = answer.json();
        assert_eq!(whole["object"], "chat.completion");
        let mut wanted =
            json!({"role": "assistant", "content": content, "reasoning_content": "So it is."});
        if let Some(calls) = calls {
            wanted["tool_calls"] = calls;
        }
        for choice in whole["choices"].as_array().unwrap() {
            assert_eq!(nameless(choice["message"].clone()), wanted);
            assert_eq!(choice["finish_reason"], finish);
        }
        let usage = &whole["usage"];
        assert_eq!(
            (&usage["prompt_tokens"], &usage["completion_tokens"]),
            (&3.into(), &(2 * tokens).into())
        );

        let options = json!({"stream": true, "stream_options": {"include_usage": true}});
        let streamed = serving.post(CHAT, &with(body, options));
        let events = streamed.events();
        assert!(events.iter().all(|event| event["object"] == "chat.completion.chunk"));
        assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": null}));
        let (choices, told) = joined(&events);
        assert_eq!(choices.len(), 2);
        for (message, reason) in choices.into_values() {
            assert_eq!(nameless(message), wanted);
            assert_eq!(reason, finish);
        }
        // By then it was known what the prompt is.
        let all = |usage: &Value| usage["total_tokens"].as_u64().unwrap();
        assert_eq!(all(&told), all(usage));
        assert_eq!(told["prompt_tokens_details"]["cached_tokens"], 2);
    }
}

#[test]
fn likelihoods_stand_with_their_tokens() {
    let (_folder, serving) = saying(&[]);
    let body = json!({"messages": messages(), "logprobs": true, "top_logprobs": 2, "stop": ["No"]});
    let whole = serving.post(CHAT, &body).json();
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let tokens: Vec<&str> = content.iter().map(|t| t["token"].as_str().unwrap()).collect();
    // The text of the last one was cut, not all of it.
    assert_eq!(tokens, SAID[..5].iter().map(|t| t.0).collect::<Vec<_>>());
    for entry in content {
        let (chosen, top) = (&entry["logprob"], entry["top_logprobs"].as_array().unwrap());
        assert!(chosen.as_f64().unwrap() <= 0.0 && top.len() == 2);
        assert_eq!((&top[0]["logprob"], &top[0]["token"]), (chosen, &entry["token"]));
        assert_eq!(entry["bytes"], json!(entry["token"].as_str().unwrap().as_bytes()));
    }
    let events = serving.post(CHAT, &with(body, json!({"stream": true}))).events();
    let streamed: Vec<Value> = events
        .iter()
        .flat_map(|event| {
            event["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default()
        })
        .collect();
    assert_eq!(&streamed, content);

    // OpenAI's older interface, which continues tokens.
    let body = json!({"prompt": [[3], [4]], "logprobs": 1, "max_tokens": 2});
    let answer = serving.post(COMPLETIONS, &body).json();
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["<think>", "\nSo it is.\n"]));
    assert_eq!(logprobs["text_offset"], json!([0, 7]));
    assert_eq!(logprobs["top_logprobs"][0]["<think>"], logprobs["token_logprobs"][0]);
    assert_eq!(answer["choices"][1]["text"], "\n\nYes. No.");
    let texts: Vec<Value> = serving
        .post(COMPLETIONS, &with(body, json!({"stream": true})))
        .events()
        .iter()
        .map(|event| event["choices"][0]["text"].clone())
        .collect();
    let all: String = texts.iter().map(|text| text.as_str().unwrap()).collect();
    assert!(all.len() == "<think>\nSo it is.\n\n\nYes. No.".len(), "{all:?}");
}

/// The lines of a body, or the events of a stream.
fn parsed(text: &str, prefix: &str) -> Vec<Value> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn anthropic_s_blocks_are_the_same_whole_and_streamed() {
    let (_folder, serving) = saying(&[]);
    let tools = json!([{"name": "f", "input_schema": {"type": "object"}}]);
    let body =
        json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 50, "tools": tools});
    for (more, reason, sequence, blocks) in [
        (json!({}), "tool_use", Value::Null, 3),
        (json!({"max_tokens": 4}), "max_tokens", Value::Null, 2),
        (json!({"stop_sequences": [" No"]}), "stop_sequence", json!(" No"), 2),
    ] {
        let body = with(body.clone(), more);
        let whole = serving.post("/v1/messages", &body).json();
        assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!(reason), &sequence));
        let content = whole["content"].as_array().unwrap();
        assert_eq!(content.len(), blocks, "{whole}");
        assert_eq!(
            (&content[0]["type"], &content[0]["thinking"]),
            (&json!("thinking"), &json!("So it is."))
        );
        assert_ne!(content[0]["signature"], "", "pydantic-ai takes such thinking for text");
        if blocks == 3 {
            let wanted = (&json!("f"), &json!({"b": [1]}));
            assert_eq!((&content[2]["name"], &content[2]["input"]), wanted);
        }
        let events = serving.post("/v1/messages", &with(body, json!({"stream": true}))).text();
        let events = parsed(&events, "data: ");
        let mut got: Vec<Value> = Vec::new();
        for event in &events {
            match event["type"].as_str().unwrap() {
                "content_block_start" => {
                    assert_eq!(event["index"], got.len());
                    got.push(event["content_block"].clone());
                }
                "content_block_delta" => {
                    let block = got.last_mut().unwrap();
                    let delta = &event["delta"];
                    match delta["type"].as_str().unwrap() {
                        "input_json_delta" => {
                            let json = delta["partial_json"].as_str().unwrap();
                            block["input"] = serde_json::from_str(json).unwrap();
                        }
                        kind => {
                            let field = kind.strip_suffix("_delta").unwrap();
                            let all = format!(
                                "{}{}",
                                block[field].as_str().unwrap(),
                                delta[field].as_str().unwrap()
                            );
                            block[field] = all.into();
                        }
                    }
                }
                _ => {}
            }
        }
        let nameless = |block: &Value| {
            let mut block = block.clone();
            block.as_object_mut().unwrap().shift_remove("id");
            block
        };
        assert_eq!(
            got.iter().map(nameless).collect::<Vec<_>>(),
            content.iter().map(nameless).collect::<Vec<_>>()
        );
        let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!((kinds[0], kinds[kinds.len() - 1]), ("message_start", "message_stop"));
        let last = &events[events.len() - 2];
        assert_eq!(
            (&last["delta"]["stop_reason"], &last["usage"]["output_tokens"]),
            (&json!(reason), &whole["usage"]["output_tokens"])
        );
    }
    let count = serving.post("/v1/messages/count_tokens", &body).json();
    assert_eq!(count["input_tokens"], 3);
    let wrong =
        serving.post("/v1/messages", &json!({"messages": [{"role": "nobody", "content": "a"}]}));
    assert_eq!(
        (wrong.status, &wrong.json()["error"]["type"]),
        (400, &json!("invalid_request_error"))
    );
}

/// The answer of a model that wants to say `said`, and has one other text, `{"b": 1}`.
fn called(said: &[(&str, i32)], template: &str, strict: bool) -> Value {
    let folder = tempfile::tempdir().unwrap();
    // As many tokens as it wants to say: after the other text comes what is not for it.
    let max_tokens = said.len();
    // A vocabulary without bytes has to spell what one case has after its mark in one token.
    let said = [&[("{\"b\": 1}", TEXT), ("\n{\"name", TEXT)], said].concat();
    let model = said::model(folder.path(), &said, 2);
    let template = write(folder.path(), "template", template);
    let args = [&*model, "--no-cache", "--temp", "0", "--chat-template-file", &*template];
    let serving = Serving::start(&args);
    let schema = json!({"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"],
        "additionalProperties": false});
    let function = json!({"name": "f", "parameters": schema, "strict": strict});
    let tools = json!([{"type": "function", "function": function}]);
    let body = json!({"messages": messages(), "tools": tools, "max_tokens": max_tokens});
    let answer = serving.post(CHAT, &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["choices"][0]["message"].clone()
}

#[test]
fn calls_of_strict_tools_keep_to_their_schemas() {
    let wrong = ("{\"c\": 2}", TEXT);
    let text = |text| (text, TEXT);
    let own = |text| (text, OWN);
    let begin = text("{\"name\": \"f\", \"arguments\": ");
    let [channel, message, constrain] = ["<|channel|>", "<|message|>", "<|constrain|>"].map(own);
    let yes = text("Yes. ");
    for (said, names, content) in [
        (vec![yes, own("<tool_call>"), begin, wrong, text("}"), own("</tool_call>")], "", "Yes. "),
        // A mark over two tokens, the second of which continues after it.
        (
            vec![
                yes,
                text("<tool"),
                text("_call>\n{\"name"),
                text("\": \"f\", \"arguments\": "),
                wrong,
                text("}"),
                text("</tool_call>"),
            ],
            "<tool_call>",
            "Yes. ",
        ),
        (vec![yes, own("[TOOL_CALLS]"), text("f"), own("[ARGS]"), wrong], "[ARGS]", "Yes. "),
        (
            vec![yes, own("[TOOL_CALLS]"), text("["), begin, wrong, text("}"), text("]")],
            "",
            "Yes. ",
        ),
        (
            vec![
                channel,
                text("commentary to=functions.f "),
                constrain,
                text("json"),
                message,
                wrong,
            ],
            "",
            "",
        ),
    ] {
        let template = format!("{{{{ messages[-1].content }}}}<no>{{# tools {names} #}}");
        for (strict, expected) in [(false, json!({"c": 2})), (true, json!({"b": 1}))] {
            let message = called(&said, &template, strict);
            let call = &message["tool_calls"][0]["function"];
            assert_eq!(
                (&call["name"], message["content"].as_str().unwrap_or("")),
                (&json!("f"), content),
                "{message}"
            );
            let arguments: Value =
                serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
            assert_eq!(arguments, expected, "{said:?}");
        }
    }
}

#[test]
fn arguments_of_calls_are_sent_while_they_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let text = |text| (text, TEXT);
    let own = |text| (text, OWN);
    let call = [
        text("Yes."),
        own("<tool_call>"),
        text("{\"name\": \"f\", \"arguments\": "),
        text("{\"b\": "),
        text("[1]"),
        text("}}"),
        own("</tool_call>"),
    ];
    let model = said::model(folder.path(), &call, 0);
    let serving = Serving::start(&[&*model, "--no-cache", "--temp", "0"]);
    let stream = |body: &Value| with(body.clone(), json!({"stream": true}));
    // All of it, and cut within the arguments.
    for (most, arguments, input) in
        [(9, "{\"b\": [1]}", json!({"b": [1]})), (5, "{\"b\": [1]", json!({}))]
    {
        let cut = most == 5;
        let body = json!({"messages": messages(), "tools": tools(), "max_tokens": most});
        let whole = serving.post(CHAT, &body).json();
        let message = nameless(whole["choices"][0]["message"].clone());
        let function = json!({"name": "f", "arguments": arguments});
        assert_eq!(message["tool_calls"][0]["function"], function);
        let events = serving.post(CHAT, &stream(&body)).events();
        let (choices, _) = joined(&events);
        let reason = if cut { "length" } else { "tool_calls" };
        assert_eq!(whole["choices"][0]["finish_reason"], reason);
        assert_eq!((nameless(choices[&0].0.clone()), &choices[&0].1), (message, &json!(reason)));
        let pieces: Vec<&str> = events
            .iter()
            .filter_map(|event| {
                let call = &event["choices"][0]["delta"]["tool_calls"][0];
                call["function"]["arguments"].as_str()
            })
            .collect();
        assert_eq!(pieces[..3], ["", "{\"b\": ", "[1]"], "{events:?}");

        let flat = json!([{"type": "function", "name": "f", "parameters": {}}]);
        let body = json!({"input": "a", "tools": flat, "max_output_tokens": most});
        let whole = serving.post("/v1/responses", &body).json();
        let status = if cut { "incomplete" } else { "completed" };
        let item = |response: &Value| {
            let item = &response["output"][1];
            ["type", "name", "arguments", "status"]
                .map(|name| item[name].as_str().unwrap())
                .join(" ")
        };
        assert_eq!(item(&whole), format!("function_call f {arguments} {status}"));
        let events = parsed(&serving.post("/v1/responses", &stream(&body)).text(), "data: ");
        let of = |kind: &str, field: &str| -> Vec<String> {
            let kind = format!("response.{kind}");
            let events = events.iter().filter(|event| event["type"] == *kind);
            events.map(|event| event[field].as_str().unwrap().to_owned()).collect()
        };
        let pieces = of("function_call_arguments.delta", "delta");
        assert!(pieces.len() >= 2 && pieces.concat() == arguments, "{pieces:?}");
        assert_eq!(of("function_call_arguments.done", "arguments"), [arguments]);
        assert_eq!(item(&events.last().unwrap()["response"]), item(&whole));

        let named = json!([{"name": "f", "input_schema": {"type": "object"}}]);
        let body = json!({"messages": messages(), "tools": named, "max_tokens": most});
        let whole = serving.post("/v1/messages", &body).json();
        assert_eq!(whole["content"][1]["input"], input);
        let events = parsed(&serving.post("/v1/messages", &stream(&body)).text(), "data: ");
        let pieces: Vec<&str> =
            events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
        assert!(pieces.len() >= 2 && pieces.concat() == arguments, "{pieces:?}");
        let block = events.iter().find(|event| event["content_block"]["type"] == "tool_use");
        let block = &block.unwrap()["content_block"];
        assert_eq!((&block["name"], &block["input"]), (&json!("f"), &json!({})));
        let ends = events.iter().filter(|event| event["type"] == "content_block_stop");
        assert_eq!(ends.count(), 2);

        // Ollama's interface sends a call in one piece.
        let body =
            json!({"messages": messages(), "tools": tools(), "options": {"num_predict": most}});
        let lines = parsed(&serving.post("/api/chat", &body).text(), "");
        let calls: Vec<&Value> =
            lines.iter().filter_map(|line| line["message"].get("tool_calls")).collect();
        assert_eq!(calls.len(), 1, "{lines:?}");
        assert_eq!(calls[0][0]["function"], json!({"name": "f", "arguments": input}));
    }
}

#[test]
fn an_answer_may_call_a_tool_or_be_what_was_asked_for() {
    let text = |text| (text, TEXT);
    let own = |text| (text, OWN);
    let call = [
        own("<tool_call>"),
        text("{\"name\": \"f\", \"arguments\": "),
        text("{\"b\": 1}"),
        text("}"),
        own("</tool_call>"),
    ];
    let answer = [text("{\"c\":2}"), text("Yes.")];
    let schema = |name: &str| {
        json!({"type": "object", "properties": {name: {"type": "integer"}},
        "required": [name], "additionalProperties": false})
    };
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": schema("b")}}]);
    let format = json!({"type": "json_schema", "json_schema": {"schema": schema("c")}});
    let body =
        json!({"messages": messages(), "tools": tools, "response_format": format, "max_tokens": 9});
    for (first, said) in [(&call[..], "call"), (&answer[..], "answer")] {
        let folder = tempfile::tempdir().unwrap();
        // It would say the first of them; what it does not say is there to be said.
        let rest = if said == "call" { &answer[..] } else { &call[..] };
        let model = said::model(folder.path(), &[rest, first].concat(), rest.len());
        let template =
            write(folder.path(), "template", "{{ messages[-1].content }}<no>{# tools #}");
        let args = [&*model, "--no-cache", "--temp", "0", "--chat-template-file", &*template];
        let serving = Serving::start(&args);
        let message = |body: &Value| {
            let answer = serving.post(CHAT, body);
            assert_eq!(answer.status, 200, "{}", answer.text());
            answer.json()["choices"][0]["message"].clone()
        };
        let free = message(&body);
        if said == "call" {
            let function = json!({"name": "f", "arguments": "{\"b\": 1}"});
            assert_eq!(free["tool_calls"][0]["function"], function, "{free}");
            assert_eq!(free["content"], Value::Null);
        } else {
            assert_eq!(
                (&free["content"], &free["tool_calls"]),
                (&json!("{\"c\":2}"), &Value::Null)
            );
        }
        // A call that the client insists on is what the answer is.
        let forced = message(&with(body.clone(), json!({"tool_choice": "required"})));
        assert_eq!(forced["tool_calls"][0]["function"]["name"], "f", "{forced}");
        let none = message(&with(body.clone(), json!({"tool_choice": "none"})));
        assert_eq!(none["content"], "{\"c\":2}", "{none}");
    }
}

/// The message of a model that says `said` from `short` on, where its template ends the prompt with `end`.
fn message_of(said: &[(&str, i32)], short: usize, end: &str, more: Value) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), said, short);
    let template = format!("{{{{ messages[-1].content }}}}{end}{{# tools #}}");
    let template = write(folder.path(), "template", template);
    let args = [&*model, "--no-cache", "--temp", "0", "--chat-template-file", &*template];
    let serving = Serving::start(&args);
    let schema = json!({"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"],
        "additionalProperties": false});
    let function = json!({"name": "f", "parameters": schema, "strict": true});
    let tools = json!([{"type": "function", "function": function}]);
    let body = json!({"messages": messages(), "tools": tools, "max_tokens": 20});
    let answer = serving.post(CHAT, &with(body, more));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["choices"][0].clone()
}

#[test]
fn what_is_held_begins_where_the_thinking_ends() {
    let own = |text| (text, OWN);
    let text = |text| (text, TEXT);
    // A schema, although the template opens thinking.
    let schema = json!({"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"],
        "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"schema": schema}});
    let said = [text("{\"b\":1}"), own("<think>"), text("So "), own("</think>"), text("{\"c\":2}")];
    let choice = message_of(&said, 1, "<think>", json!({"response_format": format, "tools": null}));
    assert_eq!(choice["message"]["reasoning_content"], "So ", "{choice}");
    assert_eq!(choice["message"]["content"], "{\"b\":1}", "{choice}");
    // Between both, blanks, or the mark before an answer, as the model has learned them.
    for (between, clue) in
        [(vec![text("\n\n")], ""), (vec![text("\n"), own("<response>")], "{# <tool_call> #}")]
    {
        let mut said = vec![text("{\"b\":1}"), own("<think>"), text("So "), own("</think>")];
        said.extend(between);
        said.push(text("{\"b\":7}"));
        let more = json!({"response_format": format, "tools": null});
        let choice = message_of(&said, 1, &format!("<think>{clue}"), more);
        assert_eq!(choice["message"]["reasoning_content"], "So ", "{choice}");
        assert_eq!(choice["message"]["content"], "{\"b\":7}", "{clue} {choice}");
    }
    // A call that must be made, in the model's own notation.
    let said = [
        text("{\"b\": 1}"),
        own("<tool_call>"),
        text("\n{\"name\": \"f\", \"arguments\": "),
        text("}"),
        own("</tool_call>"),
        own("<think>"),
        text("So "),
        own("</think>"),
        text("Well."),
    ];
    let choice = message_of(&said, 5, "<think>", json!({"tool_choice": "required"}));
    let (message, call) = (&choice["message"], &choice["message"]["tool_calls"][0]["function"]);
    assert_eq!(*call, json!({"name": "f", "arguments": "{\"b\": 1}"}), "{choice}");
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("So "), &Value::Null));
    assert_eq!(choice["finish_reason"], "tool_calls");
    // A model that only thinks about a call, in a notation whose calls do not come from thinking.
    let said = [
        // The text that would follow if the mark counted.
        text("f"),
        own("<think>"),
        text("So "),
        own("<tool_call>"),
        text("f(c)"),
        own("</think>"),
        text("Yes."),
    ];
    let choice = message_of(&said, 1, "<think>{# <arg_key> #}", json!({}));
    assert_eq!(choice["message"]["reasoning_content"], "So <tool_call>f(c)", "{choice}");
    assert_eq!(choice["message"]["content"], "Yes.", "{choice}");
}

#[test]
fn the_id_that_a_model_gives_a_call_reaches_clients_of_ollama() {
    let folder = tempfile::tempdir().unwrap();
    let call =
        "<|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{\"b\": 1}<|tool_call_end|>";
    let model = said::model(folder.path(), &[(call, OWN)], 0);
    let template = "{{ messages[-1].content }}<no>{# tools <|tool_call_begin|> #}";
    let template = write(folder.path(), "template", template);
    let serving = Serving::start(&[&*model, "--no-cache", "--chat-template-file", &*template]);
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let body = json!({"messages": messages(), "tools": tools, "stream": false});
    let called = &serving.post("/api/chat", &body).json()["message"]["tool_calls"][0];
    let expected = json!({"id": "functions.f:3", "function": {"name": "f", "arguments": {"b": 1}}});
    assert_eq!(*called, expected);
}

#[test]
fn a_client_may_want_one_call_only() {
    let one = "<tool_call>{\"name\": \"f\", \"arguments\": {\"b\": 1}}</tool_call>";
    let two = "<tool_call>{\"name\": \"f\", \"arguments\": {\"b\": 2}}</tool_call>";
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    for (parallel, calls) in [(Value::Null, 2), (json!(false), 1)] {
        let more = json!({"parallel_tool_calls": parallel, "tools": tools});
        let choice =
            message_of(&[(one, OWN), (two, OWN), ("So.", TEXT)], 0, "<no>{# <tool_call> #}", more);
        let message = &choice["message"];
        assert_eq!(message["tool_calls"].as_array().unwrap().len(), calls, "{choice}");
        assert_eq!(choice["finish_reason"], "tool_calls");
        assert_eq!(message["content"].is_null(), calls == 1, "{choice}");
    }
}

#[test]
fn what_is_left_out_of_a_schema_is_named() {
    let said = [("[1]", TEXT), ("So.", TEXT)];
    let schema = json!({"type": "array", "items": {"const": 1}, "minItems": 1, "maxItems": 1, "uniqueItems": true});
    let named = json!({"schema": schema});
    let format = json!({"type": "json_schema", "json_schema": named});
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &said, 0);
    let serving = Serving::start(&[&*model, "--no-cache", "--temp", "0"]);
    let body = json!({"messages": messages(), "max_tokens": 9});
    let held = serving.post(CHAT, &with(body.clone(), json!({"response_format": format}))).json();
    let warnings = json!(["the answer is not held to uniqueItems of its schema"]);
    assert_eq!(
        (&held["warnings"], &held["choices"][0]["message"]["content"]),
        (&warnings, &json!("[1]"))
    );
    assert_eq!(serving.post(CHAT, &body).json()["warnings"], Value::Null);
}

#[test]
fn an_error_names_the_tool_and_the_place_in_its_schema() {
    let folder = tempfile::tempdir().unwrap();
    // The right one can be written in this vocabulary.
    let model = said::model(folder.path(), &[("{\"a\":1}", TEXT), ("<tool_call>", OWN)], 0);
    let serving = Serving::start(&[&*model, "--no-cache", "--temp", "0"]);
    let tool = |name: &str, schema: Value| json!({"type": "function", "function": {"name": name, "parameters": schema, "strict": true}});
    let right = tool("f", json!({"type": "object", "properties": {"a": {"type": "integer"}}}));
    let wrong = tool("g", json!({"type": "object", "properties": {"a": {"type": "strange"}}}));
    for choice in ["auto", "required"] {
        let body = json!({"messages": messages(), "tools": [right, wrong], "tool_choice": choice, "max_tokens": 3});
        let answer = serving.post(CHAT, &body);
        assert_eq!(answer.status, 400, "{}", answer.text());
        let error = &answer.json()["error"];
        assert_eq!(error["param"], "tools[1].function.parameters", "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("at /properties/a: ") && !message.contains('\n'), "{message}");
    }
}

#[test]
fn responses_are_the_same_whole_and_streamed() {
    let (_folder, serving) = saying(&[]);
    let tools =
        json!([{"type": "function", "name": "f", "parameters": {}}, {"type": "web_search"}]);
    let body = json!({"input": "a", "tools": tools, "instructions": "x", "store": false, "include": [],
        "prompt_cache_key": "k", "parallel_tool_calls": false, "tool_choice": "auto", "reasoning": {"effort": "low"}});
    // Ids and times differ.
    let nameless = |response: &Value| {
        let mut response = response.clone();
        let fields = response.as_object_mut().unwrap();
        for name in ["id", "created_at", "usage", "timings"] {
            fields.shift_remove(name).unwrap();
        }
        for item in response["output"].as_array_mut().unwrap() {
            item.as_object_mut().unwrap().retain(|name, _| name != "id" && name != "call_id");
        }
        response
    };
    for (more, status, items) in [
        (json!({}), "completed", &["reasoning", "message", "function_call"][..]),
        (json!({"max_output_tokens": 4}), "incomplete", &["reasoning", "message"]),
        (json!({"max_output_tokens": 2}), "incomplete", &["reasoning"]),
    ] {
        let body = with(body.clone(), more);
        let whole = serving.post("/v1/responses", &body).json();
        assert_eq!(whole["status"], status, "{whole}");
        let output = whole["output"].as_array().unwrap();
        let kinds: Vec<&str> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, items);
        if let [_, message, call] = &output[..] {
            assert_eq!(message["content"][0]["text"], "Yes. No.");
            assert_eq!((&call["name"], &call["arguments"]), (&json!("f"), &json!("{\"b\": [1]}")));
        }
        // A blank in the end is none of the mark's before that has come.
        let thought = output[0]["content"][0]["text"].as_str().unwrap();
        assert_eq!(thought.trim_end(), "So it is.");
        let text = serving.post("/v1/responses", &with(body, json!({"stream": true}))).text();
        let events = parsed(&text, "data: ");
        for (i, event) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], i);
        }
        let names: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("event: ")).collect();
        let kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
        assert_eq!(names, kinds);
        assert_eq!((kinds[0], kinds[1]), ("response.created", "response.in_progress"));
        let last = events.last().unwrap();
        assert_eq!(last["type"], format!("response.{status}"));
        assert_eq!(nameless(&last["response"]), nameless(&whole));
        // What came piece by piece is what is in the items.
        let all = |kind: &str| -> String {
            let pieces = events.iter().filter(|event| event["type"] == kind);
            pieces.map(|event| event["delta"].as_str().unwrap()).collect()
        };
        assert_eq!(all("response.reasoning_text.delta"), thought);
        let said =
            if items.len() > 1 { output[1]["content"][0]["text"].as_str().unwrap() } else { "" };
        assert_eq!(all("response.output_text.delta"), said);
        let done = events.iter().filter(|e| e["type"] == "response.output_item.done");
        assert_eq!(done.count(), items.len());
    }
    // Counted as it is read, whatever shapes the prompt.
    let held = json!({"regex": "a", "tools": null});
    for more in [json!({}), json!({"tool_choice": "required"}), held] {
        let body = with(body.clone(), more);
        let counted = serving.post("/v1/responses/input_tokens", &body).json();
        let whole =
            serving.post("/v1/responses", &with(body, json!({"max_output_tokens": 1}))).json();
        let wanted = json!({"object": "response.input_tokens", "input_tokens": whole["usage"]["input_tokens"]});
        assert_eq!(counted, wanted, "{whole}");
    }
    for (more, param) in [
        (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"input": null}), "input"),
        (json!({"background": true}), "background"),
    ] {
        let wrong = serving.post("/v1/responses", &with(body.clone(), more));
        assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!(param)));
    }
}

#[test]
fn ollama_s_lines_say_the_same_whole_and_streamed() {
    let (_folder, serving) = saying(&[]);
    let body = json!({"model": "said", "messages": [{"role": "user", "content": "a"}], "tools": tools(), "options": {"stop": []}});
    let whole = serving.post("/api/chat", &with(body.clone(), json!({"stream": false}))).json();
    let message = &whole["message"];
    assert_eq!(
        (&message["content"], &message["thinking"]),
        (&json!("Yes. No."), &json!("So it is."))
    );
    assert_eq!(message["tool_calls"][0]["function"], json!({"name": "f", "arguments": {"b": [1]}}));
    assert_eq!(
        (&whole["done"], &whole["done_reason"], &whole["eval_count"]),
        (&json!(true), &json!("stop"), &json!(8))
    );
    let lines = parsed(&serving.post("/api/chat", &body).text(), "");
    let all = |field: &str| -> String {
        lines.iter().filter_map(|line| line["message"][field].as_str()).collect()
    };
    assert_eq!((&*all("content"), &*all("thinking")), ("Yes. No.", "So it is."));
    assert_eq!(lines.iter().filter(|line| line["done"] == true).count(), 1);
    assert_eq!(lines.last().unwrap()["eval_count"], 8);
    let text = serving
        .post("/api/generate", &json!({"prompt": "a", "stream": false, "think": false}))
        .json();
    assert_eq!(
        text["response"],
        "\n\nYes. No.<tool_call>{\"name\": \"f\", \"arguments\": {\"b\": [1]}}</tool_call>"
    );
    let wrong = serving.post("/api/chat", &with(body, json!({"format": "yaml"})));
    assert_eq!(wrong.status, 400);
    assert!(wrong.json()["error"].as_str().unwrap().starts_with("format: "), "{}", wrong.text());
}

#[test]
fn a_field_is_called_what_the_client_calls_it() {
    let (_folder, serving) = saying(&[]);
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    let both = json!({"format": "json", "options": {"regex": "a"}});
    for (path, more, name) in [
        ("/api/chat", json!({"options": {"num_predict": "x"}}), "options.num_predict"),
        ("/api/chat", json!({"options": {"temperature": -1}}), "options.temperature"),
        ("/api/chat", json!({"options": {"stop": 1}}), "options.stop"),
        ("/api/chat", json!({"format": 7}), "format"),
        ("/api/chat", both, "options.regex"),
        (
            "/api/generate",
            json!({"prompt": "a", "options": {"num_predict": 1.5}}),
            "options.num_predict",
        ),
        ("/api/embeddings", json!({"prompt": "a ".repeat(1 << 20), "dimensions": 0}), "dimensions"),
        ("/v1/messages", json!({"stop_sequences": 7}), "stop_sequences"),
        ("/v1/messages", json!({"max_tokens": -7}), "max_tokens"),
        (
            "/v1/messages",
            json!({"output_config": {"format": {"type": "x"}}}),
            "output_config.format",
        ),
        ("/v1/messages", json!({"output_format": {"type": "json_schema"}}), "output_format"),
        (
            "/v1/messages",
            json!({"tools": [{"name": "f"}], "tool_choice": {"type": "must"}}),
            "tool_choice.type",
        ),
        ("/v1/responses", json!({"input": "a", "max_output_tokens": -7}), "max_output_tokens"),
        ("/v1/responses", json!({"input": "a", "text": {"format": {"type": "x"}}}), "text.format"),
    ] {
        let wrong = serving.post(path, &with(chat.clone(), more));
        let error = &wrong.json()["error"];
        let message = error.as_str().or(error["message"].as_str()).unwrap();
        assert_eq!(wrong.status, 400, "{message}");
        assert!(message.starts_with(&format!("{name}: ")), "{path} {name}: {message}");
        assert!(!message.contains("response_format"), "{message}");
    }
}

#[test]
fn ollama_s_clients_find_what_they_look_for() {
    let folder = tempfile::tempdir().unwrap();
    let own = |name: &str, tokens: &[(&str, i32)]| {
        let path = folder.path().join(name);
        std::fs::rename(said::model(folder.path(), tokens, 0), &path).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (one, other) = (own("one.gguf", &[("One.", TEXT)]), own("other.gguf", &[("Two.", TEXT)]));
    let template = write(folder.path(), "template", "{{ messages[-1].content }}<go>{# tools #}");
    let args = [&*one, &other, "--alias", "one,other:latest", "--no-cache", "--temp", "0"];
    let serving = Serving::start(&[&args[..], &["--chat-template-file", &template]].concat());
    for path in ["/", "/api/version", "/health"] {
        let head = serving.request("HEAD", path, &[], b"");
        assert_eq!((head.status, &*head.body), (200, &b""[..]), "{path}");
    }
    let listed = ["/api/tags", "/api/ps"].map(|path| {
        let listed = serving.get(path).json();
        let models = listed["models"].as_array().unwrap().iter();
        models.map(|model| model["digest"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    });
    assert_eq!(listed[0], listed[1]);
    assert!(listed[0].iter().all(|digest| digest.len() == 64) && listed[0][0] != listed[0][1]);
    for name in ["other", "other:latest"] {
        let shown = serving.post("/api/show", &json!({"model": "", "name": name}));
        assert_eq!(shown.status, if name == "other" { 404 } else { 200 }, "{}", shown.text());
    }
    let pulled = serving.post("/api/pull", &json!({"model": "one:latest"}));
    assert_eq!((pulled.status, &pulled.json()["status"]), (200, &json!("success")));
    let pulled = serving.post("/api/pull", &json!({"model": "three"}));
    assert_eq!(pulled.status, 404);
    assert!(pulled.json()["error"].as_str().unwrap().contains("alight pull"), "{}", pulled.text());
    let shown = serving.post("/api/show", &json!({"name": "one:latest"})).json();
    assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
    // What the file does not say is seen by its weights.
    let details = &shown["details"];
    assert_eq!(details["quantization_level"], "F32", "{shown}");
    assert!(details["parameter_size"].as_str().unwrap().ends_with('M'), "{shown}");

    // Nothing is asked: the model is loaded, and says nothing.
    let sleeps = || serving.get("/props?model=other%3Alatest").json()["is_sleeping"] == true;
    assert!(sleeps());
    for (path, more, said) in [
        ("/api/generate", json!({"prompt": ""}), "response"),
        ("/api/chat", json!({"messages": []}), "message"),
        ("/api/chat", json!({}), "message"),
    ] {
        for (keep_alive, reason) in [
            (json!(0), "unload"),
            (json!("0s"), "unload"),
            (json!("10m"), "load"),
            (Value::Null, "load"),
        ] {
            let body =
                with(json!({"model": "other:latest", "keep_alive": keep_alive}), more.clone());
            let line = serving.post(path, &body).json();
            assert_eq!(
                (&line["done"], &line["done_reason"]),
                (&json!(true), &json!(reason)),
                "{line}"
            );
            assert_eq!(line[said].as_str().or(line[said]["content"].as_str()), Some(""), "{line}");
        }
    }
    assert!(!sleeps());
    let said = json!({"model": "other:latest", "prompt": "a", "stream": false});
    let options =
        json!({"num_predict": -1, "top_k": -1, "repeat_last_n": -1, "seed": -1, "stop": ""});
    let said = serving.post("/api/generate", &with(said, json!({"options": options}))).json();
    assert_eq!(said["response"], "Two.", "{said}");

    // What would change the answer is not left out.
    let picture = json!(["iVBORw0KGgo="]);
    for (path, more, field) in [
        ("/api/generate", json!({"logprobs": true}), "logprobs"),
        ("/api/generate", json!({"images": picture}), "images"),
        ("/api/generate", json!({"template": "{{ .Prompt }}"}), "template"),
        ("/api/generate", json!({"context": [1, 2]}), "context"),
        (
            "/api/chat",
            json!({"messages": [{"role": "user", "content": "a", "images": picture}]}),
            "messages[0].images",
        ),
    ] {
        let body = with(json!({"model": "one", "prompt": "a"}), more);
        let refused = serving.post(path, &body);
        assert_eq!(refused.status, 400, "{body}");
        let error = refused.json()["error"].as_str().unwrap().to_owned();
        assert!(error.starts_with(&format!("{field}: ")), "{error}");
    }
    let empty = json!({"model": "one", "prompt": "a", "images": [], "template": "", "context": null, "stream": false});
    assert_eq!(serving.post("/api/generate", &empty).json()["response"], "One.");

    // Tools that the model would not see are refused, in Ollama's words.
    let plain = write(folder.path(), "plain", "{{ messages[-1].content }}<go>");
    let serving = Serving::start(&[&one, "--no-cache", "--chat-template-file", &plain]);
    let ask = json!({"messages": messages(), "stream": false});
    let refused = serving.post("/api/chat", &with(ask.clone(), json!({"tools": tools()})));
    assert_eq!(refused.status, 400);
    let error = refused.json()["error"].as_str().unwrap().to_owned();
    assert!(error.contains("does not support tools"), "{error}");
    assert_eq!(serving.post("/api/chat", &with(ask, json!({"tools": []}))).status, 200);
}

#[test]
fn ollama_s_clients_are_told_the_mix_of_a_model() {
    let (Some(model), Some(mixed)) = (smollm2(), gemma3()) else { return };
    let serving = Serving::start(&[&model, &mixed, "--alias", "smol,mixed", "--no-cache"]);
    let listed = serving.get("/api/tags").json();
    let levels: Vec<&Value> = listed["models"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["details"]["quantization_level"])
        .collect();
    assert_eq!(levels, ["Q4_1", "Q4_K_M"]);
    let shown = serving.post("/api/show", &json!({"name": "mixed"})).json();
    assert_eq!(shown["details"]["quantization_level"], "Q4_K_M");
}

#[test]
fn ollama_s_embeddings_are_cut_unless_the_client_says_otherwise() {
    let (_folder, serving) = saying(&["--ctx-size", "20"]);
    for input in ["a".repeat(30), "a".repeat(100_000)] {
        let body = json!({"input": ["a", input]});
        let cut = serving.post("/api/embed", &body).json();
        assert!((21..=23).contains(&cut["prompt_eval_count"].as_u64().unwrap()), "{cut:.300}");
        let refused = serving.post("/api/embed", &with(body, json!({"truncate": false})));
        assert_eq!(refused.status, 400);
        let older = serving.post("/api/embeddings", &json!({"prompt": input})).json();
        assert_eq!(older["embedding"], cut["embeddings"][1]);
        assert_eq!(serving.post("/v1/embeddings", &json!({"input": input})).status, 400);
    }
    assert_eq!(serving.post("/api/embeddings", &json!({})).status, 400);
}

#[test]
fn a_last_message_of_the_assistant_s_is_continued() {
    let folder = tempfile::tempdir().unwrap();
    // It says the second after the first.
    let model = said::model(folder.path(), &[("b", TEXT), ("Yes.", TEXT)], 0);
    let serving = Serving::start(&[&*model, "--no-cache", "--temp", "0"]);
    let said = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
    let body = json!({"messages": said, "max_tokens": 1});
    let prompt = |body: &Value| {
        let prompt = serving.post("/apply-template", body).json()["prompt"].clone();
        prompt.as_str().unwrap().to_owned()
    };
    assert!(prompt(&body).ends_with('b'), "{}", prompt(&body));
    let again = with(body.clone(), json!({"continue_final_message": false}));
    assert!(prompt(&again).ends_with("b<go>"));
    let openai = serving.post(CHAT, &body).json();
    assert_eq!(openai["choices"][0]["message"]["content"], "Yes.");
    let anthropic = serving.post("/v1/messages", &body).json();
    assert_eq!(anthropic["content"][0]["text"], "Yes.");
    let ollama = json!({"messages": said, "stream": false, "options": {"num_predict": 1}});
    assert_eq!(serving.post("/api/chat", &ollama).json()["message"]["content"], "Yes.");
    // There an answer is an item of its own.
    let responses = serving.post("/v1/responses", &json!({"input": said})).json();
    assert_eq!(responses["output"][0]["content"][0]["text"], "bYes.", "{responses}");
}

#[test]
fn a_prompt_can_be_echoed_scored_biased_and_embedded() {
    let (_folder, serving) = saying(&[]);
    let body = json!({"prompt": [[3, 6, 7]], "logprobs": 2, "max_tokens": 0, "echo": true});
    let told = serving.post(COMPLETIONS, &body).json();
    let logprobs = &told["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["<go>", "<think>", "\nSo it is.\n"]));
    assert_eq!(
        (&logprobs["token_logprobs"][0], &logprobs["top_logprobs"][0]),
        (&Value::Null, &Value::Null)
    );
    // The model says these tokens after each other.
    for i in [1, 2] {
        assert_eq!(logprobs["top_logprobs"][i].as_object().unwrap().len(), 2);
        assert!(logprobs["token_logprobs"][i].as_f64().unwrap() > -0.1, "{logprobs}");
    }
    let biased = json!({"messages": messages(), "logit_bias": {"9": 1000}, "max_tokens": 2, "ignore_eos": true});
    let answer = serving.post(CHAT, &biased).json();
    assert_eq!(answer["choices"][0]["message"]["content"], "\n\nYes\n\nYes");
    for bias in [json!({"99999": 1}), json!({"": 1}), json!({"3": "a"}), json!([1])] {
        let wrong = serving.post(CHAT, &json!({"messages": messages(), "logit_bias": bias}));
        assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!("logit_bias")));
    }
    let body = json!({"input": [[3], [4], [3]], "dimensions": 8});
    let vectors = serving.post("/v1/embeddings", &body).json();
    let vector = |i: usize| vectors["data"][i]["embedding"].as_array().unwrap().clone();
    assert!(vector(0) == vector(2) && vector(0) != vector(1) && vector(0).len() == 8);
    let length: f64 = vector(0).iter().map(|x| x.as_f64().unwrap().powi(2)).sum();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
}

#[test]
fn a_request_may_have_more_texts_than_the_queue_has_places() {
    let (_folder, serving) = saying(&["--parallel", "2", "--queue", "1"]);
    let ids: Vec<[u32; 1]> = (0..301).map(|i| [3 + i % 7]).collect();
    let vectors = serving.post("/v1/embeddings", &json!({"input": ids})).json();
    let all = vectors["data"].as_array().unwrap();
    assert_eq!((all.len(), &vectors["usage"]["prompt_tokens"]), (301, &json!(301)));
    for (i, one) in all.iter().enumerate() {
        assert_eq!((&one["index"], &one["embedding"]), (&json!(i), &all[i % 7]["embedding"]));
    }
    assert_ne!(all[0]["embedding"], all[1]["embedding"]);
    let many = serving.post("/v1/embeddings", &json!({"input": vec![[3]; 2049]}));
    assert_eq!((many.status, &many.json()["error"]["param"]), (400, &json!("input")));
}

#[test]
fn the_prompt_of_each_interface_is_shown() {
    let (_folder, serving) = saying(&[]);
    let asked = json!([{"role": "user", "content": "a"}]);
    let shown = |of: &str, body: Value| {
        let shown = serving.post(&format!("/apply-template{of}"), &body).json();
        assert!(shown["prompt"].is_string(), "{of}: {shown}");
        shown["prompt"].clone()
    };
    let chat = shown("", json!({"messages": asked}));
    assert_eq!(shown("?of=responses", json!({"input": asked})), chat);
    let system = json!({"system": [{"type": "text", "text": "b"}], "messages": asked});
    let both = json!({"messages": [{"role": "system", "content": "b"}, asked[0]]});
    assert_eq!(shown("?of=messages", system), shown("", both));
    let refused = serving.post("/apply-template?of=mail", &json!({"messages": asked}));
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("of")));
}

#[test]
fn llama_server_s_own_addresses() {
    let (_folder, serving) = saying(&[]);
    let tokens =
        serving.post("/tokenize", &json!({"content": "a<go>", "with_pieces": true})).json();
    let ids: Vec<&Value> = tokens["tokens"].as_array().unwrap().iter().map(|t| &t["id"]).collect();
    assert_eq!(ids.last(), Some(&&json!(3)), "{tokens}");
    let text = serving.post("/detokenize", &json!({"tokens": ids})).json();
    assert!(text["content"].as_str().unwrap().ends_with("a<go>"), "{text}");
    assert_eq!(serving.post("/detokenize", &json!({"tokens": [99_999]})).status, 400);
    let long = "a ".repeat(3 << 20);
    assert_eq!(serving.post("/tokenize", &json!({"content": long})).status, 400);
    let prompt = serving.post("/apply-template", &json!({"messages": messages()})).json();
    assert!(prompt["prompt"].as_str().unwrap().ends_with("a<go>"), "{prompt}");
    let props = serving.get("/props").json();
    assert_eq!((&props["total_slots"], &props["eos_token"]), (&json!(8), &json!("</s>")));

    let body = json!({"prompt": [3], "stop": [" No"], "n_predict": -1, "return_tokens": true});
    let whole = serving.post("/completion", &body).json();
    let said = "<think>\nSo it is.\n</think>\n\nYes.";
    assert_eq!((&whole["content"], &whole["stop_type"]), (&json!(said), &json!("word")));
    assert_eq!((&whole["stopping_word"], &whole["tokens_evaluated"]), (&json!(" No"), &json!(1)));
    assert_eq!(whole["timings"]["predicted_n"], whole["tokens_predicted"]);
    let lines =
        parsed(&serving.post("/completion", &with(body, json!({"stream": true}))).text(), "data: ");
    let all: String = lines.iter().map(|line| line["content"].as_str().unwrap()).collect();
    assert_eq!(all, said);
    let ids = |lines: &[Value]| -> Vec<Value> {
        lines.iter().flat_map(|line| line["tokens"].as_array().unwrap().clone()).collect()
    };
    assert_eq!(ids(&lines), ids(&[whole]));

    // A chat's answer tells it, too: a stream in its last piece, whatever that is; several answers do not.
    let body = json!({"messages": messages()});
    let told = |value: &Value| value["timings"]["predicted_n"].as_u64();
    let whole = serving.post(CHAT, &body).json();
    assert_eq!(told(&whole), whole["usage"]["completion_tokens"].as_u64());
    for more in [json!({}), json!({"stream_options": {"include_usage": true}})] {
        let streamed = serving.post(CHAT, &with(body.clone(), with(json!({"stream": true}), more)));
        let (last, others) =
            streamed.events().split_last().map(|(l, o)| (l.clone(), o.to_vec())).unwrap();
        assert_eq!(told(&last), told(&whole));
        assert!(others.iter().all(|event| told(event).is_none()));
    }
    assert_eq!(told(&serving.post(CHAT, &with(body, json!({"n": 2}))).json()), None);
    let wrong = serving.post("/completion", &json!({"prompt": "a", "grammar": "root = \"a\""}));
    assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!("grammar")));
}

/// Another folder in this one.
fn other(folder: &std::path::Path) -> std::path::PathBuf {
    let other = folder.join("other");
    std::fs::create_dir_all(&other).unwrap();
    other
}

#[test]
fn what_belongs_between_two_texts_is_asked_for_in_three_ways() {
    let folder = tempfile::tempdir().unwrap();
    let marks = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"].map(|mark| (mark, CONTROL));
    let said = [&marks[..], &[("Yes", TEXT), (".", TEXT)]].concat();
    let model = said::model(folder.path(), &said, 0);
    let serving = Serving::start(&[&model, "--no-cache", "--temp", "0"]);
    let body = json!({"input_prefix": "a", "input_suffix": "aa"});
    let counted = |more: Value| {
        let answer = serving.post("/infill", &with(body.clone(), more)).json();
        assert_eq!(answer["content"], "Yes.", "{answer}");
        answer["tokens_evaluated"].as_u64().unwrap()
    };
    let least = counted(json!({}));
    let files = json!([{"filename": "a", "text": "aaa"}, {"text": "a"}]);
    assert!(counted(json!({"prompt": "a"})) > least);
    assert!(counted(json!({"input_extra": files, "n_predict": 9})) > least);
    let stream = serving.post("/infill", &with(body.clone(), json!({"stream": true})));
    let lines = parsed(&stream.text(), "data: ");
    let all: String = lines.iter().map(|line| line["content"].as_str().unwrap()).collect();
    assert_eq!(all, "Yes.");

    let between = json!({"prompt": "a", "suffix": "aa"});
    let answer = serving.post(COMPLETIONS, &between).json();
    assert_eq!(answer["choices"][0]["text"], "Yes.");
    assert_eq!(answer["usage"]["prompt_tokens"], least);
    let asked = with(between.clone(), json!({"stream": false}));
    let answer = serving.post("/api/generate", &asked).json();
    assert_eq!(
        (&answer["response"], &answer["prompt_eval_count"]),
        (&json!("Yes."), &json!(least))
    );
    // Lines that are indented less than they should be, and time.
    let lines = said::model(
        &other(folder.path()),
        &[&marks[..], &[("Yes", TEXT), ("\n  a", TEXT), ("\n", TEXT), (" b", TEXT)]].concat(),
        0,
    );
    let limited = Serving::start(&[&lines, "--no-cache", "--temp", "0", "--ctx-size", "1000000"]);
    for (more, content, kind) in [
        (json!({"n_indent": 0, "t_max_predict_ms": 0}), "Yes\n  a\n b", "eos"),
        (json!({"n_indent": 1, "t_max_predict_ms": 600_000}), "Yes\n  a\n b", "eos"),
        (json!({"n_indent": 2}), "Yes\n  a\n ", "limit"),
        (json!({"n_indent": 3}), "Yes\n  ", "limit"),
        // A text that ends the answer where the limit does is what ended it.
        (json!({"n_indent": 3, "stop": "a"}), "Yes\n  ", "word"),
    ] {
        let body = with(body.clone(), more);
        let answer = limited.post("/infill", &body).json();
        assert_eq!((&answer["content"], &answer["stop_type"]), (&json!(content), &json!(kind)));
        let stream = limited.post("/infill", &with(body, json!({"stream": true})));
        let lines = parsed(&stream.text(), "data: ");
        let all: String = lines.iter().map(|line| line["content"].as_str().unwrap()).collect();
        assert_eq!((&*all, &lines.last().unwrap()["stop_type"]), (content, &json!(kind)));
    }
    // Without the limit it would go on for minutes.
    let long = json!({"ignore_eos": true, "t_max_predict_ms": 50});
    let answer = limited.post("/infill", &with(body.clone(), long)).json();
    assert_eq!(answer["stop_type"], "limit", "{answer:.200}");
    assert!(answer["tokens_predicted"].as_u64().unwrap() < 900_000, "{answer:.200}");
    for field in ["n_indent", "t_max_predict_ms"] {
        let wrong = limited.post("/infill", &with(body.clone(), json!({field: "x"})));
        assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!(field)));
    }

    // An empty text is none.
    let plain = serving.post(COMPLETIONS, &json!({"prompt": [3], "suffix": ""})).json();
    assert_eq!(plain["usage"]["prompt_tokens"], 1);
    let shown = serving.post("/api/show", &json!({})).json();
    assert!(shown["capabilities"].as_array().unwrap().contains(&json!("insert")), "{shown}");

    for (path, more, param) in [
        ("/infill", json!({"input_suffix": null}), json!("input_suffix")),
        ("/infill", json!({"input_prefix": 1}), json!("input_prefix")),
        ("/infill", json!({"input_extra": "a"}), json!("input_extra")),
        ("/infill", json!({"input_extra": [{"filename": "a"}]}), json!("input_extra")),
        ("/infill", json!({"prompt": [1]}), json!("prompt")),
        (COMPLETIONS, with(between.clone(), json!({"echo": true})), json!("echo")),
        (COMPLETIONS, json!({"prompt": ["a", "a"], "suffix": "a"}), json!("prompt")),
    ] {
        let wrong = serving.post(path, &with(body.clone(), more));
        assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &param));
    }
    let (_other, serving) = saying(&[]);
    for (path, asked) in [("/infill", &body), (COMPLETIONS, &between), ("/api/generate", &between)]
    {
        let refused = serving.post(path, asked);
        assert!(refused.status == 400 && refused.text().contains("cannot fill a gap"), "{path}");
    }
}

#[test]
fn a_mistake_is_told_once_and_names_its_field() {
    let (_folder, serving) = saying(&["--ctx-size", "20", "--parallel", "2", "--queue", "3"]);
    let chat = |more: Value| with(json!({"messages": messages()}), more).to_string();
    let mut deep = "[".repeat(100_000);
    deep.insert_str(0, "{\"messages\": ");
    for (path, body, status, kind, param) in [
        (CHAT, "{".to_owned(), 400, "invalid_request_error", None),
        (CHAT, String::new(), 400, "invalid_request_error", None),
        (CHAT, "[]".to_owned(), 400, "invalid_request_error", None),
        (CHAT, deep, 400, "invalid_request_error", None),
        (CHAT, "{}".to_owned(), 400, "invalid_request_error", Some("messages")),
        (CHAT, chat(json!({"temperature": -1})), 400, "invalid_request_error", Some("temperature")),
        (
            CHAT,
            chat(json!({"temperature": "hot"})),
            400,
            "invalid_request_error",
            Some("temperature"),
        ),
        (CHAT, chat(json!({"n": 0})), 400, "invalid_request_error", Some("n")),
        (CHAT, chat(json!({"n": 1e300})), 400, "invalid_request_error", Some("n")),
        (CHAT, chat(json!({"n": 100})), 400, "invalid_request_error", None),
        (
            CHAT,
            chat(json!({"top_logprobs": 21, "logprobs": true})),
            400,
            "invalid_request_error",
            Some("top_logprobs"),
        ),
        (
            CHAT,
            chat(json!({"top_logprobs": 2})),
            400,
            "invalid_request_error",
            Some("top_logprobs"),
        ),
        (
            CHAT,
            chat(json!({"tool_choice": "required"})),
            400,
            "invalid_request_error",
            Some("tool_choice"),
        ),
        (CHAT, chat(json!({"stop": [1]})), 400, "invalid_request_error", Some("stop")),
        (CHAT, chat(json!({"stop": vec!["x"; 65]})), 400, "invalid_request_error", Some("stop")),
        (CHAT, chat(json!({"max_tokens": -7})), 400, "invalid_request_error", Some("max_tokens")),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": "a".repeat(40)}]}).to_string(),
            400,
            "exceed_context_size_error",
            None,
        ),
        (
            COMPLETIONS,
            json!({"prompt": [[99_999]]}).to_string(),
            400,
            "invalid_request_error",
            Some("prompt"),
        ),
        (
            COMPLETIONS,
            json!({"prompt": [[]]}).to_string(),
            400,
            "invalid_request_error",
            Some("prompt"),
        ),
        (
            COMPLETIONS,
            json!({"prompt": vec![3; 21]}).to_string(),
            400,
            "exceed_context_size_error",
            None,
        ),
        ("/v1/nothing", "{}".to_owned(), 404, "not_found_error", None),
        ("/v1/models", "{}".to_owned(), 405, "invalid_request_error", None),
    ] {
        for stream in [false, true] {
            let body = body.replacen("{\"m", &format!("{{\"stream\": {stream}, \"m"), 1);
            let answer = serving.request("POST", path, &[], body.as_bytes());
            assert_eq!(answer.status, status, "{path} {body:.80} {}", answer.text());
            let error = &answer.json()["error"];
            assert_eq!(error["type"], kind, "{body:.80} {error}");
            assert_eq!(error["param"], json!(param), "{body:.80} {error}");
            assert!(!error["message"].as_str().unwrap().is_empty());
        }
    }
    assert_eq!(serving.post("/v1/models", &json!({})).header("allow"), Some("GET, HEAD"));
    let unknown = serving.post("/api/nothing", &json!({}));
    assert_eq!((unknown.status, unknown.json()["error"].is_string()), (404, true));
    let long = serving.post(COMPLETIONS, &json!({"prompt": vec![3; 21]})).json();
    assert_eq!(
        (&long["error"]["n_prompt_tokens"], &long["error"]["n_ctx"]),
        (&21.into(), &20.into())
    );
    // All of it has cost nothing.
    assert_eq!(serving.post(CHAT, &json!({"messages": messages()})).status, 200);
}

#[test]
fn bodies_heads_and_numbers_without_measure_are_refused_and_the_server_lives() {
    let (_folder, serving) = saying(&[]);
    let large =
        format!("POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", 64 << 20);
    assert_eq!(serving.raw(large.as_bytes()).status, 413);
    // Of a length that is not known beforehand.
    let mut chunked =
        format!("POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
            .into_bytes();
    let chunk = vec![b'a'; 1 << 20];
    for _ in 0..33 {
        chunked.extend(b"100000\r\n");
        chunked.extend(&chunk);
        chunked.extend(b"\r\n");
    }
    assert_eq!(serving.raw(&chunked).status, 413);
    let head =
        format!("GET /health HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "a".repeat(1 << 20));
    assert_eq!(serving.raw(head.as_bytes()).status, 431);
    assert_eq!(serving.raw(b"\x00\xff nonsense\r\n\r\n").status, 400);
    for body in [
        &b"{\"messages\": \"\xff\xfe\"}"[..],
        b"{\"messages\": NaN}",
        b"{\"messages\": [], \"temperature\": 1e999}",
        b"{\"messages\": [], \"seed\": 123456789012345678901234567890}",
    ] {
        assert_eq!(serving.request("POST", CHAT, &[], body).status, 400);
    }
    // Two requests in one packet have two answers.
    let ask = "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let last = "GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let both = serving.bytes(format!("{ask}{last}").as_bytes());
    assert_eq!(String::from_utf8_lossy(&both).matches("HTTP/1.1 200").count(), 2);
    // And a thousand as many, in their order.
    let many = format!("{}{last}", ask.repeat(999));
    let all = serving.bytes(many.as_bytes());
    assert_eq!(String::from_utf8_lossy(&all).matches("HTTP/1.1 200").count(), 1000);
    // No more than a few bodies of the largest kind were in memory at a time.
    if let Some(peak) = serving.get("/alight/memory").json()["process"]["peak_rss"].as_u64() {
        assert!(peak < 256 << 20, "{peak}");
    }
    assert_eq!(serving.get("/health").status, 200);
}

#[test]
fn only_known_names_pages_and_keys() {
    let (folder, serving) = saying(&[]);
    let ask = |serving: &Serving, headers: &[(&str, &str)]| {
        serving.request("GET", "/v1/models", headers, b"")
    };
    assert_eq!(ask(&serving, &[]).status, 200);
    assert_eq!(ask(&serving, &[("origin", "http://localhost:3000")]).status, 403);
    assert_eq!(ask(&serving, &[("host", "evil.example")]).status, 403);
    assert_eq!(ask(&serving, &[("origin", "http://evil.example")]).status, 403);
    // What looks after containers asks by whatever name.
    let health = serving.request("GET", "/health", &[("host", "evil.example")], b"");
    assert_eq!(health.status, 200);
    let zipped = [("content-encoding", "gzip")];
    assert_eq!(serving.request("POST", CHAT, &zipped, b"\x1f\x8b").status, 415);
    drop(serving);
    let (_folder, serving) = saying(&["--cors-origins", "localhost,tauri://localhost"]);
    for page in
        ["http://localhost:3000", "http://127.0.0.1:5173", "http://[::1]", "tauri://localhost"]
    {
        let preflight = serving.request("OPTIONS", CHAT, &[("origin", page)], b"");
        assert_eq!(
            (preflight.status, preflight.header("access-control-allow-origin")),
            (204, Some(page))
        );
    }
    assert_eq!(ask(&serving, &[("origin", "http://localhost.evil.example")]).status, 403);
    drop(serving);

    let keys = write(folder.path(), "keys", "one\n\n two \n");
    let model = folder.path().join("said.gguf");
    let args = [
        model.to_str().unwrap(),
        "--no-cache",
        "--api-key-file",
        &keys,
        "--cors-origins",
        "https://page.example",
    ];
    let serving = Serving::start(&args);
    assert_eq!(serving.get("/health").status, 200);
    let refused = ask(&serving, &[("authorization", "Bearer tw")]);
    assert_eq!(
        (refused.status, &refused.json()["error"]["type"]),
        (401, &"authentication_error".into())
    );
    assert_eq!(ask(&serving, &[]).status, 401);
    for key in [("authorization", "Bearer two"), ("x-api-key", "one")] {
        assert_eq!(ask(&serving, &[key]).status, 200);
    }
    let page = ("origin", "https://page.example");
    let preflight = serving.request("OPTIONS", CHAT, &[page], b"");
    assert_eq!(
        (preflight.status, preflight.header("access-control-allow-origin")),
        (204, Some(page.1))
    );
    // The headers that OpenAI's client adds in a browser.
    let names = "authorization,content-type,x-stainless-arch,x-stainless-retry-count";
    let wanted = ("access-control-request-headers", names);
    let preflight = serving.request("OPTIONS", CHAT, &[page, wanted], b"");
    assert_eq!(preflight.header("access-control-allow-headers"), Some(names));
    let preflight =
        serving.request("OPTIONS", CHAT, &[("origin", "http://evil.example"), wanted], b"");
    assert_eq!((preflight.status, preflight.header("access-control-allow-headers")), (403, None));
    assert_eq!(
        ask(&serving, &[page, ("x-api-key", "one")]).header("access-control-allow-origin"),
        Some(page.1)
    );
}

#[test]
fn a_client_that_leaves_frees_its_place() {
    let (_folder, serving) = saying(&["--parallel", "1", "--queue", "1", "--ctx-size", "1000000"]);
    let endless = json!({"messages": messages(), "ignore_eos": true, "stream": true});
    // One is computed and one waits; the others are told to come again.
    let mut first = serving.begin(CHAT, &endless);
    first.wait_for("\"content\"");
    // A stream begins as soon as its request is in the queue.
    let mut second = serving.begin(CHAT, &endless);
    second.wait_for("\"role\"");
    let busy = serving.until(CHAT, &json!({"messages": messages()}), 503);
    assert_eq!(busy.json()["error"]["type"], "unavailable_error");
    assert_eq!(busy.header("retry-after"), Some("1"));
    // Nobody reads the first any more, and it is not even asked whether it is there: the second one waits for it.
    drop(first);
    drop(second);
    let done = serving.until(CHAT, &json!({"messages": messages()}), 200);
    assert_eq!(done.json()["choices"][0]["finish_reason"], "stop");
}

/// The log probabilities of an answer that is sent whole are in memory until its end.
#[test]
fn an_answer_that_is_sent_whole_has_a_limited_number_of_log_probabilities() {
    // It takes seconds to compute more than are allowed.
    if !everything() {
        return;
    }
    let (_folder, serving) = saying(&["--ctx-size", "1000000"]);
    let ask = json!({"messages": messages(), "ignore_eos": true, "max_tokens": 4000, "n": 8, "logprobs": true, "top_logprobs": 20});
    let refused = serving.post(CHAT, &ask);
    assert_eq!(refused.status, 400, "{:.300}", refused.text());
    assert!(refused.text().contains("more than 262144 log probabilities"), "{}", refused.text());
}

/// A client may close its sending side and wait for its answer. One that has closed its socket is known by what is sent to it.
#[test]
fn a_client_that_sends_no_more_is_answered() {
    let (_folder, serving) = saying(&["--parallel", "1", "--queue", "1", "--ctx-size", "1000000"]);
    let long = json!({"messages": messages(), "ignore_eos": true, "max_tokens": 2000});
    let whole = serving.post(CHAT, &long).json();
    let answer = serving.begin(CHAT, &long).ending().answer();
    assert_eq!(answer.json()["choices"], whole["choices"]);
    let streamed = with(long, json!({"stream": true}));
    let answer = serving.begin(CHAT, &streamed).ending().answer();
    let (choices, _) = joined(&answer.events());
    assert_eq!(choices[&0].1, whole["choices"][0]["finish_reason"]);
    // So is one whose body does not come.
    let head = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{";
    let answer = serving.begin_with(head.as_bytes()).ending().answer();
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("the body is cut off"), "{}", answer.text());
    for stream in [false, true] {
        let endless = json!({"messages": messages(), "ignore_eos": true, "stream": stream});
        let left = serving.begin(CHAT, &endless);
        let began = std::time::Instant::now();
        while serving.get("/slots").json()[0]["is_processing"] != true {
            assert!(began.elapsed() < support::PATIENCE);
        }
        drop(left);
        serving.until(CHAT, &json!({"messages": messages()}), 200);
    }
}

#[test]
fn several_models_are_chosen_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let own = |name: &str, tokens: &[(&str, i32)]| {
        let made = said::model(folder.path(), tokens, 0);
        let path = folder.path().join(name);
        std::fs::rename(made, &path).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let one = own("one.gguf", &[("I am one.", TEXT)]);
    let other = own("other.gguf", &[("I am", TEXT), (" other.", TEXT)]);
    write(folder.path(), "note.txt", "no model");
    own("big-00002-of-00002.gguf", &[("no model by itself", TEXT)]);
    std::fs::copy(&one, folder.path().join("one.packed.gguf")).unwrap();
    write(
        folder.path(),
        "half.gguf",
        "GGUF and no more: it is left out, and the others are served",
    );
    let all = [folder.path().to_str().unwrap()];
    for (models, alias, names) in [
        (&all[..], &[][..], ["one", "other"]),
        (&[&*other, &*one], &["--alias", "b,a"], ["b", "a"]),
    ] {
        let args = [models, &["--no-cache", "--temp", "0", "--metrics"], alias].concat();
        let serving = Serving::start(&args);
        let listed = serving.get("/v1/models").json();
        let ids: Vec<&Value> =
            listed["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
        assert_eq!(ids, names);
        let say = |name: &str| {
            let answer = serving.post(CHAT, &json!({"model": name, "messages": messages()})).json();
            assert_eq!(answer["model"], name);
            answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
        };
        let wanted = if alias.is_empty() {
            ["I am one.", "I am other."]
        } else {
            ["I am other.", "I am one."]
        };
        let sleeps =
            |name: &str| serving.get(&format!("/props?model={name}")).json()["is_sleeping"] == true;
        assert_eq!(names.map(sleeps), [true, true], "nothing was asked of them");
        assert_eq!(say(names[0]), wanted[0]);
        assert_eq!(names.map(sleeps), [false, true], "the other was not asked");
        assert_eq!(say(names[1]), wanted[1]);
        let about = serving.get(&format!("/v1/models/{}", names[1])).json();
        assert_eq!(about, listed["data"][1]);
        // As Anthropic's clients ask.
        let version = ("anthropic-version", "2023-06-01");
        let listed = serving.request("GET", "/v1/models", &[version], b"").json();
        assert_eq!((&listed["first_id"], &listed["last_id"]), (&json!(names[0]), &json!(names[1])));
        let path = format!("/v1/models/{}", names[1]);
        let about = serving.request("GET", &path, &[version], b"").json();
        assert_eq!((&about["type"], &about), (&json!("model"), &listed["data"][1]));
        assert_eq!(serving.get("/v1/models/neither").status, 404);
        for (wrong, status, code) in
            [(json!("neither"), 404, "model_not_found"), (Value::Null, 400, "invalid_request")]
        {
            let refused = serving.post(CHAT, &json!({"model": wrong, "messages": messages()}));
            let error = &refused.json()["error"];
            assert_eq!((refused.status, &error["code"]), (status, &json!(code)), "{error}");
            assert_eq!(error["param"], "model");
            assert!(error["message"].as_str().unwrap().contains(&names.join(", ")), "{error}");
        }
        assert_eq!(serving.get("/props").json()["model_alias"], names[0]);
        let props = serving.get(&format!("/props?model={}", names[1])).json();
        assert_eq!(props["model_alias"], names[1]);
        assert_eq!(serving.get("/slots").json().as_array().unwrap().len(), 16);
        let told = metrics(&serving);
        let generated =
            |name: &str| told[&format!("llamacpp:tokens_predicted_total{{model=\"{name}\"}}")];
        assert_eq!(generated(names[0]) + generated(names[1]), 3.0);
    }
    let empty = tempfile::tempdir().unwrap();
    alight(&["serve", empty.path().to_str().unwrap()])
        .fails(1, &["is a folder without a model in it", "give the path of a .gguf file"]);
    let half = write(empty.path(), "half.gguf", "GGUF");
    let done = alight(&["serve", empty.path().to_str().unwrap()]);
    assert_eq!(done.status, Some(1), "{}", done.stderr);
    let why = format!("alight: note: half is not served: {half}: ");
    assert!(done.stderr.starts_with(&why), "{}", done.stderr);
    assert!(done.stderr.contains("\nalight: error: no file in the folder "), "{}", done.stderr);
    alight(&["serve", &one, &half]).fails(1, &[&*half]);
    alight(&["serve", &one, &one]).fails(2, &["two models are called", "--alias"]);
    alight(&["serve", &one, &other, "--alias", "a"]).fails(2, &["1 name for 2 models:"]);
    alight(&["serve", &one, "--alias", "a,b,a"]).fails(2, &["--alias has \"a\" twice"]);
    for alias in ["", "a,", " "] {
        alight(&["serve", &one, "--alias", alias]).fails_as_usage("expected a name");
    }
}

#[test]
fn a_model_may_have_several_names() {
    let (_folder, serving) = saying(&["--alias", "one,two:latest,a/b"]);
    let names = ["one", "two:latest", "a/b"];
    let ids = |listed: &Value, name: &str| {
        let all = listed.as_array().unwrap().iter();
        all.map(|model| model[name].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&serving.get("/v1/models").json()["data"], "id"), names);
    assert_eq!(ids(&serving.get("/api/tags").json()["models"], "name"), names);
    for name in names {
        let about = serving.get(&format!("/v1/models/{name}")).json();
        assert_eq!(about["id"], name);
        let answer = serving.post(CHAT, &json!({"model": name, "messages": messages()}));
        assert_eq!((answer.status, &answer.json()["model"]), (200, &json!("one")));
    }
}

#[test]
fn prompts_of_chats_are_counted_as_they_are_read() {
    let (_folder, serving) = saying(&[]);
    for more in [
        json!({}),
        json!({"tools": tools(), "tool_choice": "required"}),
        json!({"messages": [{"role": "assistant", "content": "aaa"}], "stream": true}),
        json!({"messages": [{"role": "user", "content": "aa"}], "add_generation_prompt": false}),
    ] {
        let body = with(json!({"messages": messages()}), more);
        let counted = serving.post(&format!("{CHAT}/input_tokens"), &body);
        assert_eq!(counted.status, 200, "{}", counted.text());
        let counted = counted.json()["input_tokens"].clone();
        let asked = with(body, json!({"stream": false, "max_tokens": 1}));
        assert_eq!(serving.post(CHAT, &asked).json()["usage"]["prompt_tokens"], counted);
    }
    let wrong = serving.post(&format!("{CHAT}/input_tokens"), &json!({"n": 0}));
    assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!("messages")));
}

#[test]
fn a_prompt_begins_an_answer_or_continues_a_message() {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &[("b", TEXT), ("Yes.", TEXT)], 0);
    // The model's own template shows the last message alone.
    let template = "{% for m in messages %}{{ m.content }}<no>{% endfor %}{% if add_generation_prompt %}<go>{% endif %}";
    let template = write(folder.path(), "template", template);
    let args = [&*model, "--no-cache", "--temp", "0", "--chat-template-file", &template];
    let serving = Serving::start(&args);
    let said = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
    for (more, end) in [
        (json!({}), "b"),
        (json!({"add_generation_prompt": false, "continue_final_message": true}), "b"),
        (json!({"add_generation_prompt": true}), "b<no><go>"),
        (json!({"continue_final_message": false}), "b<no><go>"),
        (json!({"add_generation_prompt": false, "continue_final_message": false}), "b<no>"),
    ] {
        let body = with(json!({"messages": said}), more);
        let prompt = serving.post("/apply-template", &body).json()["prompt"].clone();
        assert!(prompt.as_str().unwrap().ends_with(end), "{body} {prompt}");
    }
    let both = json!({"add_generation_prompt": true, "continue_final_message": true});
    let refused = serving.post(CHAT, &with(json!({"messages": said}), both));
    let error = &refused.json()["error"];
    assert_eq!(
        (refused.status, &error["param"]),
        (400, &json!("add_generation_prompt")),
        "{error}"
    );
}

#[test]
fn roles_that_no_template_has_are_refused_in_every_interface() {
    let (_folder, serving) = saying(&[]);
    for role in ["bob", "User", ""] {
        let said = json!([{"role": "user", "content": "a"}, {"role": role, "content": "b"}]);
        for (path, field) in [
            (CHAT, "messages"),
            ("/v1/messages", "messages"),
            ("/api/chat", "messages"),
            ("/v1/responses", "input"),
            ("/apply-template", "messages"),
        ] {
            let refused = serving.post(path, &json!({field: said}));
            let error = &refused.json()["error"];
            let message = error.as_str().or(error["message"].as_str()).unwrap();
            assert_eq!(refused.status, 400, "{path} {message}");
            let wanted = format!("{field}[1].role: it is {role:?}, expected ");
            assert!(message.starts_with(&wanted), "{path} {message}");
        }
    }
    let older = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "a"},
    ]);
    let answer = serving.post(CHAT, &json!({"messages": older}));
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn a_body_may_begin_with_a_mark_and_a_doubled_version_is_explained() {
    let (_folder, serving) = saying(&[]);
    let body = format!("\u{feff}{}", json!({"messages": messages()}));
    assert_eq!(serving.request("POST", CHAT, &[], body.as_bytes()).status, 200);
    let twice = serving.post(&format!("/v1{CHAT}"), &json!({}));
    let message = twice.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(twice.status, 404);
    assert!(message.contains("the base URL already ends with /v1"), "{message}");
}

#[test]
fn two_hundred_clients_that_leave_take_nothing_with_them() {
    let (_folder, serving) = saying(&["--metrics", "--parallel", "3", "--ctx-size", "100000"]);
    let long = json!([{"role": "user", "content": "a".repeat(3000)}]);
    let watched = json!({"messages": messages(), "temperature": 1.5, "seed": 3, "ignore_eos": true, "max_tokens": 300});
    let alone = serving.post(CHAT, &watched).json()["choices"].clone();
    let began = metrics(&serving);
    let own_memory =
        || serving.get("/alight/memory").json()["process"]["rss_anon"].as_u64().unwrap_or(0);
    let mut memory = Vec::new();
    for round in 0..2u64 {
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let (serving, long) = (&serving, &long);
                scope.spawn(move || {
                    for i in 0..25 {
                        let which = (round * 8 + thread) * 25 + i + 1;
                        let random = which.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
                        let endless = json!({"ignore_eos": true, "stream": random % 5 != 0});
                        let prompt = if random % 2 == 0 { long.clone() } else { messages() };
                        let mut client =
                            serving.begin(CHAT, &with(json!({"messages": prompt}), endless));
                        match random % 5 {
                            0 | 1 => {}
                            2 => client.wait_for("role"),
                            _ => client.wait_for("reasoning_content"),
                        }
                    }
                });
            }
            for _ in 0..8 {
                // No other answer is changed by it.
                assert_eq!(serving.post(CHAT, &watched).json()["choices"], alone);
            }
        });
        let began_waiting = std::time::Instant::now();
        loop {
            let told = metrics(&serving);
            if told["llamacpp:requests_processing"] + told["llamacpp:requests_deferred"] == 0.0 {
                break;
            }
            assert!(began_waiting.elapsed() < support::PATIENCE, "{told:?}");
        }
        memory.push(own_memory());
    }
    let told = metrics(&serving);
    // The first two hundred have touched all that there is.
    assert!(memory[1] < memory[0] + (16 << 20), "memory grows: {memory:?}");
    let grown = |name: &str| told[name] - began[name];
    assert_eq!(grown("alight:requests_ended_total"), 16.0);
    assert_eq!(grown("alight:requests_failed_total"), 0.0);
    // Who left before the request was read has asked for nothing.
    assert!((200.0..=400.0).contains(&grown("alight:requests_left_total")), "{told:?}");
    assert_eq!(serving.post(CHAT, &watched).json()["choices"], alone);
}

#[test]
fn an_agent_s_conversation_is_known_up_to_what_is_new() {
    let Some(model) = smollm2() else { return };
    let serving = Serving::start(&[&model, "--no-cache", "--temp", "0"]);
    let rules = "You are a careful agent. Read a file before you change it, and say what you did. "
        .repeat(30);
    let tools = json!([{"name": "read", "description": "Reads a file.", "input_schema": {
        "type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}}]);
    let mut turns = vec![json!({"role": "user", "content": "Mend the tests of this project."})];
    let mut before = 0;
    for turn in 0..10 {
        // A stamp that differs each time stands in front of the system prompt.
        let stamp = format!("x-anthropic-billing-header: cc_version=2.1; cch={:05x};", turn * 7919);
        let system = json!([{"type": "text", "text": stamp}, {"type": "text", "text": rules, "cache_control": {"type": "ephemeral"}}]);
        let body = json!({"system": system, "messages": turns, "tools": tools, "max_tokens": 4});
        let answer = serving.post("/v1/messages", &body).json();
        let number =
            |name: &str| answer["usage"][name].as_u64().unwrap_or_else(|| panic!("{answer}"));
        let (new, known) = (number("input_tokens"), number("cache_read_input_tokens"));
        // What is known is a whole number of pages; what was generated may be read again.
        assert!(turn == 0 || known + 64 > before, "turn {turn}: {known} of {before} are known");
        assert!(new + known > before);
        before = new + known;
        let id = format!("t{turn}");
        turns.push(json!({"role": "assistant", "content": [
            {"type": "text", "text": "I read the next file."},
            {"type": "tool_use", "id": id, "name": "read", "input": {"path": format!("src/{turn}.rs")}},
        ]}));
        let text = format!("fn part_{turn}() -> usize {{ {turn} }}\n").repeat(3);
        turns.push(json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": text}]}));
    }
}

#[test]
fn a_reader_that_does_not_read_stops_nobody() {
    let (_folder, serving) = saying(&["--parallel", "2", "--ctx-size", "1000000"]);
    let endless = json!({"messages": messages(), "ignore_eos": true, "stream": true});
    let mut lazy = serving.begin(CHAT, &endless);
    lazy.wait_for("\"content\"");
    for _ in 0..20 {
        let answer = serving.post(CHAT, &json!({"messages": messages()})).json();
        assert_eq!(answer["usage"]["completion_tokens"], 8);
    }
}

/// A client that reads nothing loses its request, once too much waits for it or after a minute. Which of both comes first depends on the load.
#[test]
fn a_client_that_reads_nothing_loses_its_request() {
    if !everything() {
        return;
    }
    let (_folder, serving) = saying(&["--metrics", "--parallel", "2", "--ctx-size", "1000000"]);
    let endless = json!({"messages": messages(), "ignore_eos": true, "stream": true, "logprobs": true, "top_logprobs": 20});
    let mut lazy = serving.begin(CHAT, &endless);
    lazy.wait_for("\"content\"");
    let began = std::time::Instant::now();
    while metrics(&serving)["llamacpp:requests_processing"] > 0.0 {
        assert!(began.elapsed() < support::PATIENCE, "it is computed, and not read");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(metrics(&serving)["alight:requests_left_total"], 1.0);
    assert_eq!(serving.post(CHAT, &json!({"messages": messages()})).status, 200);
}

/// The numbers that `/metrics` tells, by their names.
fn metrics(serving: &Serving) -> BTreeMap<String, f64> {
    let text = serving.get("/metrics").text();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.map(|line| line.rsplit_once(' ').unwrap());
    pairs.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

#[test]
fn metrics_are_what_clients_have_counted() {
    let (_folder, serving) = saying(&["--metrics", "--parallel", "3", "--batch-size", "16"]);
    let (threads, each) = (5, 100);
    let ask = |thread: usize| {
        let mut random = thread as u64 + 1;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let (mut prompt, mut cached, mut generated, mut answers) = (0, 0, 0, 0);
        for _ in 0..each {
            let stream = next(2) == 0;
            let more = json!({
                "max_tokens": 1 + next(9),
                "stream": stream,
                "stream_options": {"include_usage": true},
            });
            let (path, body) = match next(2) {
                0 => {
                    let text = "a".repeat(1 + next(90) as usize);
                    (CHAT, json!({"messages": [{"role": "user", "content": text}]}))
                }
                _ => {
                    let one = |n: u64| -> Value { (0..=n).map(|i| 3 + i % 3).collect() };
                    let texts: Vec<Value> = (0..=next(3)).map(|_| one(next(50))).collect();
                    answers += texts.len() - 1;
                    (COMPLETIONS, json!({"prompt": texts}))
                }
            };
            let answer = serving.post(path, &with(body, more));
            let usage = match stream {
                true => answer.events().pop().unwrap()["usage"].clone(),
                false => answer.json()["usage"].clone(),
            };
            let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{usage}"));
            prompt += number(&usage["prompt_tokens"]);
            cached += number(&usage["prompt_tokens_details"]["cached_tokens"]);
            generated += number(&usage["completion_tokens"]);
            answers += 1;
        }
        [prompt - cached, cached, generated, answers as u64]
    };
    let counted = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|i| scope.spawn(move || ask(i))).collect();
        let all = all.into_iter().map(|one| one.join().unwrap());
        all.fold([0; 4], |sum, one| std::array::from_fn(|i| sum[i] + one[i]))
    });
    let told = metrics(&serving);
    let names = [
        "llamacpp:prompt_tokens_total",
        "llamacpp:prompt_tokens_cached_total",
        "llamacpp:tokens_predicted_total",
        "alight:requests_ended_total",
    ];
    for (name, counted) in names.into_iter().zip(counted) {
        assert_eq!(told[name], counted as f64, "{name} {told:?}");
    }
    // Each token is the first one, or follows another.
    let times = ["to_first_token", "between_tokens"]
        .map(|name| told[&format!("alight:time_{name}_seconds_count")]);
    assert_eq!(times[0] + times[1], counted[2] as f64);
    for name in ["llamacpp:requests_processing", "llamacpp:requests_deferred"] {
        assert_eq!(told[name], 0.0, "{name}");
    }
    assert!(told["llamacpp:n_busy_slots_per_decode"] <= 3.0, "{told:?}");
}

#[test]
fn slots_tell_what_is_computed_and_nothing_of_what_is_said() {
    let (_folder, serving) = saying(&["--metrics", "--parallel", "2", "--ctx-size", "1000000"]);
    let idle = serving.get("/slots").json();
    let busy = |slots: &Value| -> usize {
        let slots = slots.as_array().unwrap();
        slots.iter().filter(|slot| slot["is_processing"] == true).count()
    };
    assert_eq!((idle.as_array().unwrap().len(), busy(&idle)), (2, 0));
    let endless = json!({"messages": messages(), "ignore_eos": true, "stream": true});
    let mut first = serving.begin(CHAT, &endless);
    first.wait_for("Yes");
    let mut second = serving.begin(CHAT, &endless);
    second.wait_for("Yes");
    let slots = serving.get("/slots").json();
    assert_eq!(busy(&slots), 2, "{slots}");
    for slot in slots.as_array().unwrap() {
        assert_eq!((&slot["n_ctx"], &slot["n_prompt_tokens"]), (&json!(1_000_000), &json!(3)));
        assert!(slot["next_token"][0]["n_decoded"].as_u64() > Some(0), "{slot}");
    }
    assert_eq!(serving.get("/slots?fail_on_no_slot=1").status, 503);
    // One that waits is deferred, and one that leaves has left.
    let mut third = serving.begin(CHAT, &endless);
    third.wait_for("role");
    // The engine hears of both between two steps.
    let until = |name: &str, wanted: f64| {
        let began = std::time::Instant::now();
        while metrics(&serving)[name] != wanted {
            assert!(began.elapsed() < support::PATIENCE);
        }
    };
    until("llamacpp:requests_deferred", 1.0);
    drop((first, second, third));
    until("alight:requests_left_total", 3.0);
    assert_eq!(serving.get("/slots?fail_on_no_slot=1").status, 200);
    drop(serving);
    let (_folder, serving) = saying(&["--no-slots"]);
    assert_eq!(serving.get("/slots").status, 501);
    assert_eq!(serving.get("/metrics").json()["error"]["type"], "not_supported_error");
}

#[test]
fn a_stream_tells_how_far_its_prompt_is() {
    let (_folder, serving) = saying(&["--batch-size", "16"]);
    let text = json!([{"role": "user", "content": "a".repeat(100)}]);
    let body = json!({"messages": text, "stream": true, "return_progress": true});
    let events = serving.post(CHAT, &body).events();
    let told: Vec<&Value> = events.iter().filter_map(|e| e.get("prompt_progress")).collect();
    let at = |progress: &Value| progress["processed"].as_u64().unwrap();
    assert!(told.len() > 3 && told.windows(2).all(|two| at(two[0]) < at(two[1])), "{told:?}");
    let last = told.last().unwrap();
    assert_eq!((&last["processed"], &last["cache"]), (&last["total"], &json!(0)));
    // Whoever does not ask is not told.
    let plain = serving.post(CHAT, &json!({"messages": text, "stream": true})).text();
    assert!(!plain.contains("prompt_progress"));
    let ids: Vec<u32> = (0..100).map(|i| 3 + i % 3).collect();
    let body = json!({"prompt": ids, "stream": true, "return_progress": true});
    let told = serving.post("/completion", &body).text();
    assert!(told.contains("\"prompt_progress\":{\"total\":100,"), "{told}");
}

#[test]
fn a_stream_reports_how_many_requests_get_a_place_first() {
    let (_folder, serving) = saying(&["--parallel", "1", "--ctx-size", "1000000"]);
    let endless = json!({"messages": messages(), "ignore_eos": true, "stream": true, "return_progress": true});
    let mut first = serving.begin(CHAT, &endless);
    first.wait_for("Yes");
    let mut second = serving.begin(CHAT, &endless);
    second.wait_for("\"queue\":0");
    let mut third = serving.begin(CHAT, &endless);
    third.wait_for("\"queue\":1");
    drop(second);
    third.wait_for("\"queue\":0");
    drop(first);
    let rest = third.read_to("Yes");
    assert!(rest.contains("prompt_progress") && !rest.contains("queue"), "{rest}");
    // Without the field, nothing is reported.
    let plain = json!({"messages": messages(), "ignore_eos": true, "stream": true});
    let mut plain = serving.begin(CHAT, &plain);
    plain.wait_for("role");
    drop(third);
    let rest = plain.read_to("Yes");
    assert!(!rest.contains("queue"), "{rest}");
}

#[test]
fn an_answer_is_that_of_run_whoever_asks_beside_it() {
    let Some(model) = smollm2() else { return };
    let cache = tempfile::tempdir().unwrap();
    let serving = Serving::start(&[&model, "--cache-dir", cache.path().to_str().unwrap()]);
    let long = "Explain this sentence, and every word in it, one after the other. ".repeat(12);
    let cases = [
        ("Why is the sky blue?", 3),
        ("Name a colour.", 4),
        (&*long, 5),
        ("Say \"é日\".", u64::MAX >> 33),
    ];
    let wanted = cases.map(|(prompt, seed)| {
        let seed = seed.to_string();
        let out = alight(&["run", &model, prompt, "-n", "24", "-s", &seed, "--json"]).succeeds();
        let said: Value = serde_json::from_str(&out.stdout).unwrap();
        said["text"].as_str().unwrap_or_else(|| panic!("{said}")).to_owned()
    });
    let body = |prompt: &str, seed: u64| json!({"messages": [{"role": "user", "content": prompt}], "max_tokens": 24, "seed": seed});
    let check = |round: &str| {
        std::thread::scope(|scope| {
            let asked = cases.map(|(prompt, seed)| {
                let serving = &serving;
                scope.spawn(move || serving.post(CHAT, &body(prompt, seed)).json())
            });
            for (asked, wanted) in asked.into_iter().zip(&wanted) {
                let answer = asked.join().unwrap();
                assert_eq!(answer["choices"][0]["message"]["content"], **wanted, "{round}");
            }
        });
    };
    check("cold");
    check("cached");
    let again = serving.post(CHAT, &body(&long, 5)).json();
    assert!(again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() >= 64);
    // The choices of a request have seeds that follow one another.
    let two = serving.post(CHAT, &with(body(cases[0].0, 2), json!({"n": 2}))).json();
    assert_eq!(two["choices"][1]["message"]["content"], *wanted[0]);
    let listed = serving.get("/v1/models").json();
    assert_eq!(listed["data"][0]["id"], "SmolLM2-135M-Instruct.Q4_1");

    // What was computed of prompts is there after a restart.
    let (status, _) = serving.stop(libc::SIGTERM);
    assert_eq!(status.code(), Some(0));
    let serving = Serving::start(&[&model, "--cache-dir", cache.path().to_str().unwrap()]);
    let answer = serving.post(CHAT, &body(&long, 5)).json();
    assert_eq!(answer["choices"][0]["message"]["content"], *wanted[2]);
    assert!(answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() >= 64);
}

#[test]
fn an_answer_is_held_to_its_schema() {
    let Some(model) = smollm2() else { return };
    let serving = Serving::start(&[&model, "--no-cache"]);
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 1, "maximum": 99},
            "kind": {"enum": ["cat", "dog"]},
        },
        "required": ["name", "age", "kind"],
        "additionalProperties": false,
    });
    let messages = json!([{"role": "user", "content": "Tell me about a pet."}]);
    let format = json!({"type": "json_schema", "json_schema": {"name": "pet", "schema": schema, "strict": true}});
    let body = json!({"messages": messages, "max_tokens": 100, "temperature": 1.5, "n": if everything() { 4 } else { 2 }, "response_format": format});
    let held = |text: &Value| {
        let text = text.as_str().unwrap();
        let pet: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(pet["name"].as_str().unwrap().chars().count() <= 12, "{pet}");
        assert!((1..=99).contains(&pet["age"].as_i64().unwrap()), "{pet}");
        assert!(pet["kind"] == "cat" || pet["kind"] == "dog", "{pet}");
        assert_eq!(pet.as_object().unwrap().len(), 3);
    };
    for seed in 0..if everything() { 4 } else { 1 } {
        let answer = serving.post(CHAT, &with(body.clone(), json!({"seed": seed}))).json();
        for choice in answer["choices"].as_array().unwrap() {
            assert_eq!(choice["finish_reason"], "stop", "{answer}");
            held(&choice["message"]["content"]);
        }
    }
    let (choices, _) =
        joined(&serving.post(CHAT, &with(body.clone(), json!({"stream": true}))).events());
    choices.into_values().for_each(|(message, _)| held(&message["content"]));
    let any = json!({"messages": messages, "max_tokens": 60, "response_format": {"type": "json_object"}, "stop": "}"});
    let any = serving.post(CHAT, &any).json();
    assert!(any["choices"][0]["message"]["content"].as_str().unwrap().starts_with('{'), "{any}");
    let text = json!({"prompt": "A pet: ", "json_schema": schema, "n_predict": 100});
    held(&serving.post("/completion", &text).json()["content"]);
    let format = json!({"format": {"type": "json_schema", "schema": schema}});
    let ask = json!({"messages": messages, "max_tokens": 100, "output_config": format});
    held(&serving.post("/v1/messages", &ask).json()["content"][0]["text"]);

    // Schemas that are none, that nobody knows, or that would cost too much, are mistakes of their requests.
    let mut deep = json!({"type": "string"});
    for _ in 0..60 {
        deep = json!({"type": "array", "items": deep, "minItems": 2});
    }
    // References to references, which double with each, and which go deeper than a thread's usual stack.
    let chain = |n: usize, of: &dyn Fn(Value) -> Value| {
        let next = |i: usize| json!({"$ref": format!("#/$defs/{}", i + 1)});
        let one = |i| if i < n { of(next(i)) } else { json!({"type": "string", "pattern": "a"}) };
        let all: Map<String, Value> = (0..=n).map(|i| (i.to_string(), one(i))).collect();
        json!({"$defs": all, "$ref": "#/$defs/0"})
    };
    let doubling = chain(26, &|next| json!({"allOf": [next, next]}));
    let far = chain(3000, &|next| json!({"type": "object", "properties": {"a": next}}));
    for wrong in [
        doubling,
        json!({"type": "string", "pattern": "a?".repeat(30_000)}),
        json!({"type": "nonsense"}),
        json!({"type": "string", "pattern": "("}),
        json!({"$ref": "#/nowhere"}),
        json!({"$ref": "http://elsewhere.example/schema"}),
        json!({"$ref": "#"}),
        json!(7),
    ] {
        for stream in [false, true] {
            let format = json!({"type": "json_schema", "json_schema": {"schema": wrong}});
            let body = with(body.clone(), json!({"response_format": format, "stream": stream}));
            let answer = serving.post(CHAT, &body);
            assert_eq!(answer.status, 400, "{wrong} {}", answer.text());
            assert_eq!(answer.json()["error"]["param"], "response_format");
        }
    }
    for schema in [deep, far] {
        let format =
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
        assert!(serving.post(CHAT, &with(body.clone(), format)).status < 500);
    }
    held(&serving.post(CHAT, &body).json()["choices"][0]["message"]["content"]);
}

#[test]
fn an_answer_is_held_to_a_grammar_or_an_expression() {
    let Some(model) = smollm2() else { return };
    let serving = Serving::start(&[&model, "--no-cache"]);
    let gbnf = "root ::= answer \" \" [0-9]{3}\nanswer ::= \"yes\" | \"no\"";
    let lark = "%llguidance {}\nstart: (\"yes\" | \"no\") \" \" /[0-9]{3}/";
    let nested = "root ::= list\nlist ::= \"[\" (list (\",\" list)*)? \"]\"";
    let held = |text: &str| {
        let (word, digits) = text.split_once(' ').unwrap_or_else(|| panic!("{text:?}"));
        assert!(word == "yes" || word == "no", "{text:?}");
        assert!(digits.len() == 3 && digits.bytes().all(|b| b.is_ascii_digit()), "{text:?}");
    };
    let messages = json!([{"role": "user", "content": "Is the sky blue?"}]);
    for how in
        [json!({"grammar": gbnf}), json!({"grammar": lark}), json!({"regex": "(yes|no) [0-9]{3}"})]
    {
        for seed in 0..3 {
            let more =
                with(json!({"max_tokens": 50, "temperature": 1.5, "seed": seed}), how.clone());
            let answer =
                serving.post(CHAT, &with(json!({"messages": messages}), more.clone())).json();
            assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
            held(answer["choices"][0]["message"]["content"].as_str().unwrap());
            let answer =
                serving.post("/completion", &with(json!({"prompt": "Blue? "}), more)).json();
            held(answer["content"].as_str().unwrap());
        }
    }
    let body = json!({"prompt": "Lists: ", "grammar": nested, "temperature": 1.5, "seed": 1, "max_tokens": 40});
    let answer = serving.post(COMPLETIONS, &body).json();
    let text = answer["choices"][0]["text"].as_str().unwrap();
    assert!(text.starts_with('[') && text.bytes().all(|b| b"[],".contains(&b)), "{text:?}");

    let huge = format!("root ::= \"{}\"", "a".repeat(300 << 10));
    for (how, param) in [
        (json!({"grammar": "root ::= other"}), "grammar"),
        (json!({"grammar": "%llguidance {}\nstart: ("}), "grammar"),
        (json!({"grammar": huge}), "grammar"),
        (json!({"regex": "("}), "regex"),
        (json!({"regex": "a?".repeat(24_000)}), "regex"),
        (json!({"grammar": gbnf, "json_schema": {}}), "grammar"),
    ] {
        let wrong = serving.post(CHAT, &with(json!({"messages": messages}), how));
        assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!(param)));
    }
    // What is small and would cost much fails alone, and soon.
    let far = (0..900).map(|i| format!("r{i} ::= \"a\" r{}?\n", i + 1));
    let far = format!("root ::= r0\n{}r900 ::= \"b\"\n", far.collect::<String>());
    for hostile in [
        "root ::= ((((([a-z]*)*)*)*)*)*",
        "root ::= (([a-z]{0,2000}){0,2000}){0,2000}",
        "root ::= s\ns ::= s s | s s s | [^z]",
        &far,
    ] {
        let body = json!({"messages": messages, "grammar": hostile, "max_tokens": 2});
        assert!(serving.post(CHAT, &body).status < 600);
    }
    assert_eq!(serving.get("/health").status, 200);
}

#[test]
fn a_tool_is_called_if_the_client_insists() {
    let Some(model) = smollm2() else { return };
    let serving = Serving::start(&[&model, "--no-cache"]);
    let tool = |name: &str, properties: Value| {
        let required: Vec<&String> = properties.as_object().unwrap().keys().collect();
        json!({"type": "function", "function": {"name": name, "parameters": {
            "type": "object", "properties": properties, "required": required,
            "additionalProperties": false, "$defs": {"unit": {"enum": ["C", "F"]}},
        }}})
    };
    let weather =
        json!({"city": {"type": "string", "maxLength": 12}, "unit": {"$ref": "#/$defs/unit"}});
    let tools = json!([
        tool("weather", weather),
        tool("sum\"s", json!({"a": {"type": "integer", "maximum": 99}}))
    ]);
    let messages = json!([{"role": "user", "content": "How is the weather in Oslo?"}]);
    let body = json!({"messages": messages, "tools": tools, "max_tokens": 80, "temperature": 1.2});
    let held = |name: &Value, arguments: &Value| match name.as_str() {
        Some("weather") => {
            assert!(arguments["city"].is_string(), "{arguments}");
            assert!(arguments["unit"] == "C" || arguments["unit"] == "F", "{arguments}");
        }
        Some("sum\"s") => assert!(arguments["a"].as_i64().unwrap() <= 99, "{arguments}"),
        other => panic!("{other:?}"),
    };
    let named = json!({"type": "function", "function": {"name": "sum\"s"}});
    for (choice, only) in [(json!("required"), None), (named, Some("sum\"s"))] {
        for seed in 0..if everything() { 4 } else { 2 } {
            let body = with(body.clone(), json!({"tool_choice": choice, "seed": seed}));
            let answer = serving.post(CHAT, &body).json();
            assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
            let message = &answer["choices"][0]["message"];
            assert_eq!(message["content"], Value::Null);
            let call = &message["tool_calls"][0]["function"];
            assert!(only.is_none_or(|only| call["name"] == only), "{call}");
            held(
                &call["name"],
                &serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap(),
            );
            let streamed = serving.post(CHAT, &with(body, json!({"stream": true}))).events();
            let (choices, _) = joined(&streamed);
            let (said, reason) = &choices[&0];
            assert_eq!(*reason, "tool_calls");
            assert_eq!(said["tool_calls"][0]["function"], *call);
        }
    }
    // One that is cut is a call nevertheless, with what there is of its arguments.
    let choice = json!({"type": "function", "function": {"name": "weather"}});
    let cut = with(body.clone(), json!({"tool_choice": choice, "max_tokens": 24, "seed": 1}));
    let answer = serving.post(CHAT, &cut).json();
    let (message, reason) =
        (&answer["choices"][0]["message"], &answer["choices"][0]["finish_reason"]);
    assert_eq!((reason, &message["content"]), (&json!("length"), &Value::Null), "{answer}");
    let call = &message["tool_calls"][0]["function"];
    assert!(call["name"] == "weather", "{answer}");
    assert!(call["arguments"].as_str().unwrap().starts_with("{\"city"), "{answer}");
    let tools = json!([{"name": "sum", "input_schema": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"], "additionalProperties": false}}]);
    let ask = json!({"messages": messages, "tools": tools, "max_tokens": 50, "tool_choice": {"type": "any"}});
    let answer = serving.post("/v1/messages", &ask).json();
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    assert!(answer["content"][0]["input"]["a"].as_i64().unwrap() <= 9, "{answer}");
    for choice in
        [json!({"type": "function", "function": {"name": "other"}}), json!("sometimes"), json!(7)]
    {
        let wrong = serving.post(CHAT, &with(body.clone(), json!({"tool_choice": choice})));
        assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!("tool_choice")));
    }
}

/// The rest of a stream whose server gets a signal when the answer has begun; the server ends well.
fn signalled(serving: Serving, ask: &Value, signal: i32) -> String {
    let mut stream = serving.begin(CHAT, ask);
    stream.wait_for("\"content\"");
    kill(&serving.child, signal);
    let rest = stream.read_to_end();
    let (status, said) = serving.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    String::from_utf8_lossy(&rest).into_owned()
}

#[test]
fn a_signal_lets_answers_end_and_cuts_those_that_do_not() {
    // It computes for all of the time that answers have.
    if !everything() {
        return;
    }
    let (_folder, serving) = saying(&["--ctx-size", "1000000", "--parallel", "2"]);
    let ask = |stream: bool| json!({"messages": messages(), "ignore_eos": true, "stream": stream});
    let whole = serving.begin(CHAT, &ask(false));
    let began = std::time::Instant::now();
    while serving.get("/slots").json()[0]["is_processing"] != true {
        assert!(began.elapsed() < support::PATIENCE, "it is not computed");
    }
    let all = signalled(serving, &ask(true), libc::SIGINT);
    assert!(all.contains("\"error\"") && !all.contains("[DONE]"), "{all:.300}");
    // A client may repeat a request of whose answer it has received nothing.
    let answer = whole.answer();
    let found = (answer.status, answer.header("retry-after"));
    assert_eq!(found, (503, Some("1")), "{}", answer.text());
    assert_eq!(answer.header("x-should-retry"), None);
}

#[test]
fn sigterm_and_sighup_let_a_stream_end() {
    let (_folder, serving) = saying(&["--ctx-size", "1000000"]);
    let ask = |tokens: u64| json!({"messages": messages(), "ignore_eos": true, "stream": true, "max_tokens": tokens});
    // A stream of about a quarter of a second, of the five seconds that it may take: on a busy machine it takes many times as long.
    let began = std::time::Instant::now();
    serving.post(CHAT, &ask(2000));
    let tokens = (500.0 / began.elapsed().as_secs_f64()) as u64;
    let all = signalled(serving, &ask(tokens), libc::SIGTERM);
    assert!(all.contains("[DONE]") && !all.contains("\"error\""), "{all:.300}");
    // The terminal is closed.
    let (_folder, serving) = saying(&["--ctx-size", "1000000"]);
    let all = signalled(serving, &ask(tokens), libc::SIGHUP);
    assert!(all.contains("[DONE]") && !all.contains("\"error\""), "{all:.300}");
}

/// The file is cut and completed in place, by which its maps have no pages for a while.
#[test]
fn a_file_that_cannot_be_read_for_a_while_shows_in_the_health_check() {
    let (folder, serving) = saying(&["--load", "mmap", "--repack", "off"]);
    let name = support::names(folder.path()).remove(0);
    let path = folder.path().join(&name);
    let whole = std::fs::read(&path).unwrap();
    let file = || std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let ask = || serving.post(CHAT, &json!({"messages": messages()}));
    let expected = ask().json()["choices"].clone();
    for _ in 0..2 {
        file().set_len(whole.len() as u64 / 4).unwrap();
        let failed = ask();
        assert_eq!(failed.status, 500, "{}", failed.text());
        assert!(failed.text().contains(&name), "{}", failed.text());
        let health = serving.get("/health");
        assert_eq!(health.status, 503, "{}", health.text());
        let health = health.json();
        let message = health["message"].as_str().unwrap();
        assert_eq!(health["status"], "error");
        assert!(message.contains(&format!("{name}' was cut short")), "{message}");
        assert!(!message.contains(folder.path().to_str().unwrap()), "{message}");
        std::io::Write::write_all(&mut file(), &whole).unwrap();
        assert_eq!(ask().json()["choices"], expected);
        let health = serving.get("/health");
        assert_eq!((health.status, health.json()), (200, json!({"status": "ok"})));
    }
    let (status, stderr) = serving.stop(libc::SIGTERM);
    assert_eq!(status.code(), Some(0), "{stderr}");
    assert_eq!(stderr.matches("a step has failed").count(), 2, "{stderr}");
}

#[test]
fn a_unix_socket_is_one_s_own_and_goes_with_the_server() {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &SAID, 3);
    let path = folder.path().join("s.sock");
    let host = path.to_str().unwrap();
    // Of a server that was killed.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut child = support::command(&["serve", &model, "--no-cache", "--host", host])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("listening on") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it has ended");
    }
    assert_eq!(line.trim(), format!("listening on unix:{host}"));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
    // No browser can reach it, so the name in the request is nothing to it.
    let ask = "GET /v1/models HTTP/1.1\r\nhost: a.example\r\nconnection: close\r\n\r\n";
    stream.write_all(ask.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // One that is in use is not taken away.
    let used = alight(&["serve", &model, "--no-cache", "--host", host]);
    used.fails(1, &["cannot listen", host]);
    assert!(!used.stderr.contains("port"), "{}", used.stderr);
    kill(&child, libc::SIGTERM);
    assert!(support::ended(&mut child).success());
    assert!(!path.exists());
}

#[test]
fn a_lack_of_descriptors_is_reported_once() {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &SAID, 3);
    let program = support::command(&["serve", &model, "--no-cache", "--port", "0"]);
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "ulimit -n 64; exec \"$@\"", "sh"]).arg(program.get_program());
    let serving = Serving::of({
        shell.args(program.get_args()).env("ALIGHT_CONFIG", "");
        shell
    });
    // The system takes all of them; the server has descriptors for some.
    let all: Vec<_> = (0..80).map(|_| serving.connect()).collect();
    std::thread::sleep(Duration::from_millis(1500));
    drop(all);
    assert_eq!(serving.get("/health").status, 200);
    let (status, said) = serving.stop(libc::SIGTERM);
    assert!(status.success(), "{said}");
    let lines = |text: &str| said.lines().filter(|line| line.contains(text)).count();
    // The remaining connections of the eighty may be too many once more.
    let (failed, again) = (lines("no connection can be accepted"), lines("accepted again, after"));
    assert!((1..=3).contains(&failed) && again == failed, "{said}");
}

#[test]
fn what_cannot_be_served_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &SAID, 3);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    alight(&["serve", &model, "--no-cache", "--port", &port]).fails(1, &["cannot listen", &port]);
    let empty = write(folder.path(), "empty", "\n");
    alight(&["serve", &model, "--api-key-file", &empty]).fails(2, &["there is no key"]);
    alight(&["serve", "/nowhere.gguf"]).fails(1, &["/nowhere.gguf"]);
    alight(&["serve", &model, "--cors-origins", "*,page.org"]).fails_as_usage("https://host");
    alight(&["serve", &model, "--slot-save-path", "/nowhere"]).fails(1, &["'/nowhere'", "folder"]);
    // Everyone can come in, which is said.
    let serving = Serving::start(&[&model, "--no-cache", "--host", "0.0.0.0"]);
    let (status, said) = serving.stop(libc::SIGTERM);
    assert!(status.success() && said.contains("there is no key"), "{said}");
}

#[test]
fn the_page_needs_no_key_and_may_run_its_own_script_alone() {
    let (_folder, serving) = saying(&["--api-key", "secret"]);
    let page = serving.get("/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    for part in [
        "default-src 'none'",
        "script-src 'sha256-",
        "connect-src 'self'",
        "frame-ancestors 'none'",
    ] {
        assert!(policy.contains(part), "{part}: {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    // Nothing of the server stands in it.
    let html = page.text();
    assert!(
        html.contains("<title>Alight</title>")
            && !html.contains("secret")
            && !html.contains(".gguf")
    );
    assert_eq!(serving.get("/alight/memory").status, 401);
    assert_eq!(serving.request("GET", "/", &[("origin", "http://evil.example")], b"").status, 403);
    assert_eq!(serving.request("POST", "/", &[], b"").status, 405);
    drop(serving);
    for option in ["--no-ui", "--no-webui"] {
        let (_folder, serving) = saying(&[option]);
        assert_eq!(serving.get("/").text(), "Ollama is running");
        assert_eq!(serving.request("HEAD", "/", &[], b"").status, 200);
    }
}

#[test]
fn memory_is_told_by_part_sequence_and_process() {
    let (_folder, serving) =
        saying(&["--parallel", "2", "--ctx-size", "1000000", "--load", "read"]);
    let told = || serving.get("/alight/memory").json();
    let model = |told: &Value| told["models"][0].clone();
    let idle = model(&told());
    let parts = idle["parts"].as_array().unwrap();
    assert_eq!(parts[0]["part"], "embedding");
    assert_eq!((&parts[1]["part"], &parts[1]["layer"]), (&json!("layer"), &json!(0)));
    let sum = |name: &str| parts.iter().map(|part| part[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!(
        (idle["bytes"].as_u64(), idle["resident"].as_u64()),
        (Some(sum("bytes")), Some(sum("resident")))
    );
    assert_eq!(idle["sequences"], json!([null, null]));
    let endless = json!({"messages": messages(), "ignore_eos": true, "stream": true});
    let mut stream = serving.begin(CHAT, &endless);
    stream.wait_for("Yes");
    // What was found out last may be told again for a moment.
    let began = std::time::Instant::now();
    let until = |what: &str, good: &dyn Fn(&Value) -> bool| loop {
        let told = told();
        if good(&told) {
            return told;
        }
        assert!(began.elapsed() < support::PATIENCE, "{what}: {told}");
        std::thread::sleep(Duration::from_millis(50));
    };
    // A step has read all weights, which were copied.
    let busy = until("read", &|told| {
        let model = model(told);
        model["sequences"][0]["generated"].as_u64() > Some(100)
            && model["bytes"] == model["resident"]
    });
    let sequence = &model(&busy)["sequences"][0];
    let tokens = sequence["read"].as_u64().unwrap() + sequence["generated"].as_u64().unwrap();
    let positions = model(&busy)["page"]["positions"].as_u64().unwrap();
    assert_eq!(sequence["pages"].as_u64().unwrap(), tokens.div_ceil(positions));
    assert_eq!((&sequence["prompt"], &sequence["read"]), (&json!(3), &json!(3)));
    if cfg!(target_os = "linux") {
        assert!(busy["process"]["rss_anon"].as_u64().unwrap() > 0);
        assert!(busy["process"]["peak_rss"].as_u64() >= busy["process"]["rss_anon"].as_u64());
    }
    drop(stream);
    until("ended", &|told| model(told)["sequences"] == json!([null, null]));
    drop(serving);
    let (_folder, serving) = saying(&["--no-slots"]);
    let told = serving.get("/alight/memory").json();
    assert!(told["models"][0]["sequences"].is_null() && told["models"][0]["parts"].is_array());
}
