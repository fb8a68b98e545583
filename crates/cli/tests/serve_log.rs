//! `alight serve --log`: the line of each request.

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::http::Serving;
use crate::support::pty::Pty;
use crate::support::said::{self, TEXT};
use crate::support::{PATIENCE, command, write};

const CHAT: &str = "/v1/chat/completions";

/// The arguments of a server with a model that always says the same, for one request at a time.
fn args(folder: &std::path::Path) -> Vec<String> {
    let model = said::model(folder, &[("b", TEXT), ("Yes.", TEXT)], 0);
    let args = ["--no-cache", "--temp", "0", "--parallel", "1"];
    let more = ["--ctx-size", "1000000", "--alias", "said\u{1b}[2J,other"];
    [&[&*model], &args[..], &more].concat().into_iter().map(str::to_owned).collect()
}

fn started(folder: &std::path::Path, more: &[&str]) -> Serving {
    let args = args(folder);
    let args: Vec<&str> = args.iter().map(String::as_str).chain(more.iter().copied()).collect();
    Serving::start(&args)
}

/// The body of a chat with these fields.
fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "a".repeat(200)}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The lines of the log among all that was printed, without the time and the client's port.
fn lines(said: &str) -> Vec<String> {
    let logged = said.lines().filter_map(|line| {
        let (date, rest) = line.split_once(' ')?;
        let (client, rest) = rest.split_once(' ')?;
        let is_date = date.len() == 20 && date.starts_with("20") && date.ends_with('Z');
        (is_date && client.starts_with("127.0.0.1:")).then(|| rest.to_owned())
    });
    logged.collect()
}

#[test]
fn each_request_has_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let serving = started(folder.path(), &["--log", "on"]);
    let whole = serving.post(CHAT, &chat(json!({"user": "u", "x\n\u{1b}y": 1, "top_k": null})));
    assert_eq!(whole.status, 200, "{}", whole.text());
    let stream =
        json!({"stream": true, "stream_options": {"include_usage": true}, "model": "other"});
    let streamed = serving.post(CHAT, &chat(stream)).events();
    assert_eq!(serving.get("/v1/no\u{9b}31mthing?key=secret").status, 404);
    let bob = json!({"messages": [{"role": "bob", "content": "a"}]});
    assert_eq!(serving.post(CHAT, &bob).status, 400);
    let tools =
        json!([{"type": "web_search"}, {"type": "function", "name": "f", "parameters": {}}]);
    let body = json!({"input": "a", "tools": tools, "store": false});
    assert_eq!(serving.post("/v1/responses", &body).status, 200);
    let stamped =
        json!({"system": "x-anthropic-billing-header: cch=1;\nBe kind.", "max_tokens": 1});
    assert_eq!(serving.post("/v1/messages", &chat(stamped)).status, 200);
    assert_eq!(serving.post("/v1/embeddings", &json!({"input": ["a", "b"]})).status, 200);
    let ollama = json!({"keep_alive": 5, "stream": false, "options": {"num_ctx": 9}});
    assert_eq!(serving.post("/api/chat", &chat(ollama)).status, 200);
    // These are asked again and again, and have no line as long as they are well.
    assert_eq!(serving.get("/health").status, 200);
    assert_eq!(serving.get("/alight/memory").status, 200);
    let (status, said) = serving.stop(libc::SIGTERM);
    assert!(status.success(), "{said}");
    assert!(!said.contains(['\u{1b}', '\u{9b}']), "{said:?}");
    assert!(!said.contains("secret"), "{said}");

    let usage = &whole.json()["usage"];
    let number = |value: &Value| value.as_u64().unwrap();
    let (read, written) = (number(&usage["prompt_tokens"]), number(&usage["completion_tokens"]));
    let model = "model said\\u{1b}[2J";
    let seconds = |line: &str| {
        let (before, after) = line.split_once(", ").unwrap();
        let (seconds, after) = after.split_once(" s").unwrap();
        assert!(seconds.parse::<f64>().unwrap() < 120.0, "{line}");
        format!("{before}{after}")
    };
    let got: Vec<String> = lines(&said).iter().map(|line| seconds(line)).collect();
    let tokens = format!("tokens: {read} read, 0 reused, {written} written");
    assert_eq!(
        got[0],
        format!("POST {CHAT} 200, {model}, {tokens}; unknown: x\\n\\u{{1b}}y; ignored: user")
    );
    // The same prompt again: what is reused is not read.
    let known = &streamed.last().unwrap()["usage"]["prompt_tokens_details"]["cached_tokens"];
    let known = number(known);
    assert!(known > 0, "{said}");
    let tokens = format!("tokens: {} read, {known} reused, {written} written", read - known);
    assert_eq!(got[1], format!("POST {CHAT} 200, {model}, {tokens}"));
    assert!(
        got[2].starts_with("GET /v1/no\\u{9b}31mthing 404; there is nothing at "),
        "{}",
        got[2]
    );
    let wanted = format!("POST {CHAT} 400, {model}; messages[0].role: it is \"bob\", expected ");
    assert!(got[3].starts_with(&wanted), "{}", got[3]);
    assert!(got[4].starts_with(&format!("POST /v1/responses 200, {model}, ")), "{}", got[4]);
    assert!(got[4].ends_with("maker's are left out: 1"), "{}", got[4]);
    assert!(
        got[5].ends_with("1 written; a stamp before the system prompt is left out"),
        "{}",
        got[5]
    );
    assert!(got[6].starts_with(&format!("POST /v1/embeddings 200, {model}, ")), "{}", got[6]);
    assert!(got[6].ends_with(" read, 0 reused, 0 written"), "{}", got[6]);
    assert!(got[7].ends_with(" written; ignored: keep_alive, options.num_ctx"), "{}", got[7]);
    assert_eq!(got.len(), 8, "{said}");
}

#[test]
fn a_client_that_left_is_logged_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let serving = started(folder.path(), &["--log", "on"]);
    let endless = |stream: bool| chat(json!({"ignore_eos": true, "stream": stream}));
    let mut stream = serving.begin(CHAT, &endless(true));
    stream.wait_for("\"content\":\"");
    drop(stream);
    assert_eq!(serving.post(CHAT, &chat(json!({}))).status, 200);
    let whole = serving.begin(CHAT, &endless(false));
    let until = Instant::now() + PATIENCE;
    while serving.get("/slots").json()[0]["is_processing"] == false {
        assert!(Instant::now() < until, "the request has not begun");
    }
    drop(whole);
    assert_eq!(serving.post(CHAT, &chat(json!({}))).status, 200);
    let (_, said) = serving.stop(libc::SIGTERM);
    let left: Vec<String> =
        lines(&said).into_iter().filter(|line| line.contains(" 499 client left, ")).collect();
    assert_eq!(left.len(), 2, "{said}");
    assert!(left[0].contains(" written") && !left[0].contains(" 0 written"), "{}", left[0]);
    // On a busy machine the second one may leave before it is computed: what was seen then was the end of the request before it.
    assert!(left.iter().all(|line| line.contains(", model said")), "{left:?}");
}

#[test]
fn only_a_terminal_has_a_log_unless_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    for more in [&[][..], &["--log", "off"], &["--log", "auto"]] {
        let serving = started(folder.path(), more);
        assert_eq!(serving.post(CHAT, &chat(json!({}))).status, 200);
        let (_, said) = serving.stop(libc::SIGTERM);
        assert_eq!(lines(&said), [""; 0], "{said}");
    }
    let args = args(folder.path());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut terminal = Pty::start(command(&[&["serve", "--port", "0"], &args[..]].concat()), None);
    terminal.expect("listening on http://");
    terminal.expect("\n");
    let text = terminal.text();
    let address = text.split_once("listening on http://").unwrap().1.trim().to_owned();
    let mut client = std::net::TcpStream::connect(address).unwrap();
    let request = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    std::io::Write::write_all(&mut client, request).unwrap();
    terminal.expect(" GET /v1/models 200, ");
}

#[test]
fn what_is_changed_for_a_template_is_logged() {
    let folder = tempfile::tempdir().unwrap();
    let template = "{% if messages[0].role == 'system' %}{{ raise_exception('no such role') }}{% endif %}{{ messages[-1].content }}<go>";
    let template = write(folder.path(), "template", template);
    let serving = started(folder.path(), &["--log", "on", "--chat-template-file", &template]);
    let messages = json!([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    let body = json!({"messages": messages, "tools": tools});
    for _ in 0..2 {
        let answer = serving.post(CHAT, &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let (_, printed) = serving.stop(libc::SIGTERM);
    let line = &lines(&printed)[0];
    let notes = "; the template shows no tools in a known notation: they are described in words; the system message is the user's";
    assert!(line.ends_with(notes), "{line}");
    // Once for the model, too.
    let about = "the chat template of '";
    assert_eq!(printed.lines().filter(|line| line.starts_with(about)).count(), 1, "{printed}");
}
