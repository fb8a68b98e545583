//! `alight serve`: tools that are no functions, items of earlier answers, limits on thinking, and warnings, in each of the interfaces.

use serde_json::{Value, json};

use crate::support::http::Serving;
use crate::support::said::{self, OWN, TEXT};
use crate::support::{alight, write};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// A server with a model that always says the same. Its prompts end with `end`, which the template writes.
fn saying(said: &[(&str, i32)], end: &str) -> (tempfile::TempDir, Serving) {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), said, 0);
    let template = format!("{{{{ messages[-1].content }}}}{end}{{# tools <tool_call> #}}");
    let template = write(folder.path(), "template", template);
    let args = [&*model, "--no-cache", "--temp", "0", "--chat-template-file", &*template];
    let serving = Serving::start(&args);
    (folder, serving)
}

/// A model that calls a tool with these arguments.
fn calling(name: &str, arguments: &Value) -> (tempfile::TempDir, Serving) {
    let call = json!({"name": name, "arguments": arguments}).to_string();
    saying(&[("<tool_call>", OWN), (&call, TEXT), ("</tool_call>", OWN)], "<go>")
}

fn messages() -> Value {
    json!([{"role": "user", "content": "a"}])
}

fn with(mut body: Value, more: &Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The JSON of the events of a stream.
fn events(serving: &Serving, path: &str, body: Value) -> Vec<Value> {
    let text = serving.post(path, &with(body, &json!({"stream": true}))).text();
    let lines = text.lines().filter_map(|line| line.strip_prefix("data: "));
    lines.filter(|line| *line != "[DONE]").map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn tools_of_a_namespace_come_back_in_it_and_their_items_can_be_referred_to() {
    let (_folder, serving) = calling("crm__list", &json!({"a": 1}));
    let tools = json!([{"type": "namespace", "name": "crm", "description": "Customers.", "tools": [
        {"type": "function", "name": "list", "parameters": {"type": "object"}},
    ]}]);
    let body = json!({"input": "a", "tools": tools});
    let whole = serving.post(RESPONSES, &body).json();
    let item = &whole["output"][0];
    assert_eq!(
        (&item["type"], &item["name"], &item["namespace"], &item["arguments"]),
        (&json!("function_call"), &json!("list"), &json!("crm"), &json!("{\"a\":1}")),
        "{whole}"
    );
    let all = events(&serving, RESPONSES, body.clone());
    let done = all.iter().find(|event| event["type"] == "response.output_item.done").unwrap();
    assert_eq!(done["item"]["namespace"], "crm");

    let go_on = |id: &Value| {
        let output =
            json!({"type": "function_call_output", "call_id": item["call_id"], "output": "a"});
        let input =
            json!([{"role": "user", "content": "a"}, {"type": "item_reference", "id": id}, output]);
        serving.post(RESPONSES, &with(body.clone(), &json!({"input": input})))
    };
    let known = go_on(&item["id"]);
    assert_eq!(known.status, 200, "{}", known.text());
    let unknown = go_on(&json!("fc_x"));
    assert_eq!((unknown.status, &unknown.json()["error"]["param"]), (400, &json!("input[1].id")));
    // Items that a client does not want to be kept are not, and no answer claims that it can be asked for later.
    let unkept = serving.post(RESPONSES, &with(body.clone(), &json!({"store": false}))).json();
    assert_eq!((&whole["store"], &unkept["store"]), (&json!(false), &json!(false)));
    assert_eq!(go_on(&unkept["output"][0]["id"]).status, 400);
}

#[test]
fn custom_tools_get_their_text() {
    // As the grammar of a call has it, with the blanks that templates write.
    let call = "{\"name\": \"edit\", \"arguments\": {\"input\": \"a\\n\\\"b\\\"\"}}";
    let said = [("<tool_call>", OWN), (call, TEXT), ("</tool_call>", OWN)];
    let (_folder, serving) = saying(&said, "<go>");
    let with_grammar = |definition: &str| {
        let grammar = json!({"type": "grammar", "syntax": "lark", "definition": definition});
        json!({"input": "a", "tools": [{"type": "custom", "name": "edit", "format": grammar}]})
    };
    let refused = serving.post(RESPONSES, &with_grammar("start: \"(\" start \")\" | \"a\""));
    let error = &refused.json()["error"];
    assert_eq!(
        (refused.status, &error["param"]),
        (400, &json!("tools[0].format.definition")),
        "{error}"
    );
    assert!(error["message"].as_str().unwrap().contains("occurs in itself"), "{error}");
    let body = with_grammar("start: \"a\" LF /.+/\n%import common.LF");
    let whole = serving.post(RESPONSES, &body).json();
    let item = &whole["output"][0];
    assert_eq!(
        (&item["type"], &item["name"], &item["input"]),
        (&json!("custom_tool_call"), &json!("edit"), &json!("a\n\"b\"")),
        "{whole}"
    );
    assert_eq!(whole.get("warnings"), None);
    // Where a schema holds the answer, the input is free.
    let format = json!({"type": "json_schema", "name": "n", "schema": {"type": "object"}});
    let free = serving.post(RESPONSES, &with(body.clone(), &json!({"text": {"format": format}})));
    let warning = "the input of the tool \"edit\" is not held to its grammar";
    assert!(free.json()["warnings"].as_array().unwrap().contains(&json!(warning)));
    let all = events(&serving, RESPONSES, body);
    let deltas = all.iter().filter(|e| e["type"] == "response.custom_tool_call_input.delta");
    let text: String = deltas.map(|event| event["delta"].as_str().unwrap()).collect();
    let done = all.iter().find(|e| e["type"] == "response.custom_tool_call_input.done").unwrap();
    assert_eq!((&*text, &done["input"]), ("a\n\"b\"", &item["input"]));

    let custom = json!({"name": "edit", "format": {"type": "text"}});
    let body = json!({"messages": messages(), "tools": [{"type": "custom", "custom": custom}]});
    let whole = serving.post(CHAT, &body).json();
    let call = &whole["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["custom"], json!({"name": "edit", "input": "a\n\"b\""}), "{whole}");
    assert_eq!(
        (&call["type"], &whole["choices"][0]["finish_reason"]),
        (&json!("custom"), &json!("tool_calls"))
    );
    let mut input = String::new();
    for event in events(&serving, CHAT, body) {
        for call in event["choices"][0]["delta"]["tool_calls"].as_array().into_iter().flatten() {
            assert_eq!((&call["index"], call.get("function")), (&json!(0), None));
            input += call["custom"]["input"].as_str().unwrap();
        }
    }
    assert_eq!(input, "a\n\"b\"");
    let wrong = json!({"messages": messages(), "tools": [{"type": "web_search"}]});
    let refused = serving.post(CHAT, &wrong);
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("tools[0].type")));
}

#[test]
fn thinking_ends_at_its_limit() {
    let said = [
        ("<think>", OWN),
        ("So ", TEXT),
        ("and ", TEXT),
        ("so.", TEXT),
        ("</think>", OWN),
        ("Yes.", TEXT),
    ];
    let (_folder, serving) = saying(&said, "<think>");
    let chat = |more: Value| {
        let body = with(json!({"messages": messages(), "max_tokens": 20}), &more);
        let whole = serving.post(CHAT, &body).json();
        let message = &whole["choices"][0]["message"];
        // The same, streamed.
        let all = events(&serving, CHAT, body);
        let deltas = all
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["reasoning_content"].as_str());
        let thought = message["reasoning_content"].as_str().unwrap_or_default().to_owned();
        assert_eq!(deltas.collect::<String>(), thought);
        assert_eq!(message["content"], "Yes.", "{whole}");
        (thought, whole["usage"]["completion_tokens"].as_u64().unwrap())
    };
    let all = ("So and so.".to_owned(), 5);
    assert_eq!(chat(json!({})), all);
    assert_eq!(chat(json!({"thinking_budget": -1})), all);
    assert_eq!(chat(json!({"thinking_budget": 3})), all);
    assert_eq!(chat(json!({"thinking_budget": 2})), ("So and ".to_owned(), 4));
    assert_eq!(chat(json!({"thinking_budget_tokens": 1})), ("So ".to_owned(), 3));
    let none = (String::new(), 2);
    assert_eq!(chat(json!({"thinking_budget": 0})), none);
    // The template has no variable for it.
    assert_eq!(chat(json!({"reasoning_effort": "none"})), none);
    assert_eq!(chat(json!({"chat_template_kwargs": {"enable_thinking": false}})), none);
    // A grammar begins where the thinking ends, wherever that is.
    let held = json!({"regex": "Yes\\.", "thinking_budget": 1});
    assert_eq!(chat(held).0, "So ");

    let thinking = json!({"type": "enabled", "budget_tokens": 2});
    let body = json!({"messages": messages(), "max_tokens": 20, "thinking": thinking});
    let content = &serving.post(MESSAGES, &body).json()["content"];
    assert_eq!((&content[0]["thinking"], &content[1]["text"]), (&json!("So and "), &json!("Yes.")));
    let effort = json!({"input": "a", "reasoning": {"effort": "none"}});
    let output = &serving.post(RESPONSES, &effort).json()["output"];
    assert_eq!((&output[0]["type"], output.as_array().unwrap().len()), (&json!("message"), 1));
    for path in ["/api/chat", "/api/generate"] {
        let body = json!({"messages": messages(), "prompt": "a", "think": false, "stream": false});
        let line = serving.post(path, &body).json();
        let text = line["message"]["content"].as_str().or(line["response"].as_str());
        assert_eq!((text, &line["eval_count"]), (Some("Yes."), &json!(2)), "{line}");
    }
}

#[test]
fn a_mark_that_the_limit_has_used_up_does_not_come() {
    // The model would think of its own accord.
    let said = [("<think>", OWN), ("So.", TEXT), ("</think>", OWN), ("Yes.", TEXT)];
    let (_folder, serving) = saying(&said, "<go>");
    let body =
        |budget: i64| json!({"messages": messages(), "max_tokens": 9, "thinking_budget": budget});
    let thought = |budget: i64| {
        let whole = serving.post(CHAT, &body(budget)).json();
        whole["choices"][0]["message"]["reasoning_content"].clone()
    };
    assert_eq!(thought(-1), "So.");
    assert_eq!(thought(1), "So.");
    assert_eq!(thought(0), Value::Null);
}

#[test]
fn wishes_that_are_not_met_are_named_in_each_interface() {
    let (_folder, serving) = saying(&[("[1]", TEXT)], "<go>");
    let schema = json!({"type": "array", "items": {"const": 1}, "minItems": 1, "maxItems": 1, "uniqueItems": true});
    let format = json!({"type": "json_schema", "name": "n", "schema": schema});
    let left_out = "the answer is not held to uniqueItems of its schema";
    let elsewhere = "tools that only run at their maker's are left out: 1";
    let wanted = json!([elsewhere, left_out]);
    let responses =
        json!({"input": "a", "text": {"format": format}, "tools": [{"type": "web_search"}]});
    let whole = serving.post(RESPONSES, &responses).json();
    assert_eq!(
        (&whole["warnings"], &whole["output"][0]["content"][0]["text"]),
        (&wanted, &json!("[1]"))
    );
    let all = events(&serving, RESPONSES, responses);
    assert_eq!(all.last().unwrap()["response"]["warnings"], wanted);
    let tools = json!([{"type": "web_search_20250305", "name": "web_search"}]);
    let body = json!({"messages": messages(), "output_config": {"format": format}, "tools": tools});
    assert_eq!(serving.post(MESSAGES, &body).json()["warnings"], wanted);
    assert_eq!(events(&serving, MESSAGES, body)[0]["message"]["warnings"], wanted);
    let free = serving.post(MESSAGES, &json!({"messages": messages()})).json();
    assert_eq!(free.get("warnings"), None);
}

#[test]
fn an_error_names_the_tool_where_the_client_has_it() {
    let (_folder, serving) = calling("f", &json!({"a": 1}));
    let wrong = json!({"type": "object", "properties": {"a": {"type": "strange"}}});
    let right = json!({"type": "object"});
    let flat = |name: &str, schema: &Value| json!({"type": "function", "name": name, "parameters": schema, "strict": true});
    let namespace =
        json!({"type": "namespace", "name": "n", "tools": [flat("f", &right), flat("g", &wrong)]});
    let anthropic =
        |name: &str, schema: &Value| json!({"name": name, "input_schema": schema, "strict": true});
    let chat = |name: &str, schema: &Value| json!({"type": "function", "function": {"name": name, "parameters": schema, "strict": true}});
    let named = json!({"type": "function", "function": {"name": "g"}});
    for (path, body, param, name) in [
        (
            RESPONSES,
            json!({"input": "a", "tools": [{"type": "web_search"}, flat("f", &right), flat("g", &wrong)]}),
            "tools[2].parameters",
            "g",
        ),
        (
            RESPONSES,
            json!({"input": "a", "tools": [namespace]}),
            "tools[0].tools[1].parameters",
            "n__g",
        ),
        (
            MESSAGES,
            json!({"messages": messages(), "tools": [{"type": "web_search_20250305"}, anthropic("f", &right), anthropic("g", &wrong)]}),
            "tools[2].input_schema",
            "g",
        ),
        (
            CHAT,
            json!({"messages": messages(), "tools": [chat("f", &right), chat("g", &wrong)], "tool_choice": named}),
            "tools[1].function.parameters",
            "g",
        ),
    ] {
        let refused = serving.post(path, &body);
        let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(refused.status, 400, "{message}");
        assert!(message.starts_with(&format!("{param}: tool \"{name}\": ")), "{message}");
        assert!(message.contains("at /properties/a: ") && !message.contains('\n'), "{message}");
    }
}

#[test]
fn vllm_s_constraints_hold_an_answer() {
    let (_folder, serving) = saying(&[("no", TEXT), ("yes", TEXT), ("7", TEXT)], "<go>");
    for (more, wanted) in [
        (json!({"guided_choice": ["yes", "maybe"]}), "yes"),
        (json!({"structured_outputs": {"regex": "[0-9]"}}), "7"),
        (json!({"guided_grammar": "root ::= \"yes\""}), "yes"),
        (json!({"guided_json": {"type": "integer", "minimum": 7, "maximum": 7}}), "7"),
    ] {
        let whole =
            serving.post(CHAT, &with(json!({"messages": messages(), "max_tokens": 5}), &more));
        assert_eq!(whole.json()["choices"][0]["message"]["content"], wanted, "{}", whole.text());
    }
    let two = json!({"messages": messages(), "guided_regex": "a", "structured_outputs": {"choice": ["a"]}});
    let refused = serving.post(CHAT, &two);
    assert_eq!(
        (refused.status, &refused.json()["error"]["param"]),
        (400, &json!("structured_outputs.choice"))
    );
}

/// The notation of a model is known from its template and its tokens; another one may be given.
#[test]
fn the_format_of_calls_is_shown_and_may_be_given() {
    let folder = tempfile::tempdir().unwrap();
    // No mark is a token, and the template has none.
    let call = "{\"name\": \"f\", \"arguments\": {\"b\": 1}}";
    let said =
        [("<tool", TEXT), ("_calls>[", TEXT), (call, TEXT), ("]</tool_", TEXT), ("calls>", TEXT)];
    let model = said::model(folder.path(), &said, 0);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    let body =
        json!({"messages": [{"role": "user", "content": "a"}], "tools": tools, "temperature": 0});
    for (given, name, reason) in
        [(&[][..], "plain", "stop"), (&["--tool-format", "tool-calls"], "tool-calls", "tool_calls")]
    {
        let serving = Serving::start(&[&[&*model, "--no-cache"], given].concat());
        assert_eq!(serving.get("/props").json()["tool_format"], name);
        let choice = &serving.post("/v1/chat/completions", &body).json()["choices"][0];
        assert_eq!(choice["finish_reason"], reason, "{choice}");
        if !given.is_empty() {
            assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"b\": 1}");
        }
    }
    let inspected = alight(&["inspect", &model]).succeeds().stdout;
    assert!(inspected.contains("\ntool format   plain\n"), "{inspected}");
    let inspected = alight(&["inspect", &model, "--json"]).succeeds().stdout;
    assert_eq!(serde_json::from_str::<Value>(&inspected).unwrap()["tool_format"], "plain");
    for command in ["run", "serve"] {
        let done = alight(&[command, &model, "--tool-format", "Kimi"]);
        done.fails_as_usage("there is no such format: there are plain, chatml");
    }
    // Thinking is read in it, too.
    let said = [("[TH", TEXT), ("INK]So.[/THI", TEXT), ("NK]", TEXT), ("Yes.", TEXT)];
    let model = said::model(folder.path(), &said, 0);
    let args = ["run", &model, "a", "--temp", "0", "--json", "--tool-format", "mistral"];
    let line: Value = serde_json::from_str(&alight(&args).succeeds().stdout).unwrap();
    assert_eq!((&line["thinking"], &line["answer"]), (&json!("So."), &json!("Yes.")));
}
