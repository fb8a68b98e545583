//! `alight serve` under requests that cost much: their work ends when their limit ends, or when their client leaves, and others are answered.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::http::{Begun, Serving};
use crate::support::{self, PATIENCE, everything, smollm2, wild};

const CHAT: &str = "/v1/chat/completions";

/// A server with a model that has every letter; `None`: it was not fetched.
fn serving(args: &[&str]) -> Option<Serving> {
    let model = smollm2()?;
    Some(Serving::start(&[&[&*model, "--no-cache", "--temp", "0"], args].concat()))
}

/// A request whose schema takes hours and gigabytes to compile.
fn hostile(i: usize) -> Value {
    let schema = match i % 2 {
        0 => json!({"type": "integer", "multipleOf": 62_615_533 + i}),
        _ => {
            let pattern = |n: usize| json!({"pattern": format!("(a|b)*{}(a|b){{{n}}}{i}", ["a", "b"][n % 2])});
            json!({"type": "string", "allOf": (1..60).map(pattern).collect::<Value>()})
        }
    };
    asking(schema)
}

fn asking(schema: Value) -> Value {
    let format = json!({"type": "json_schema", "json_schema": {"schema": schema}});
    json!({"messages": [{"role": "user", "content": "a"}], "response_format": format, "max_tokens": 8})
}

fn simple() -> Value {
    asking(json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}))
}

/// The processes that this one has started.
fn children(child: &Child) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    let of_task =
        |path: std::path::PathBuf| fs::read_to_string(path.join("children")).unwrap_or_default();
    let all: String = tasks.map(|task| of_task(task.unwrap().path())).collect();
    all.split_whitespace().map(String::from).collect()
}

/// Resident memory that no file backs, in bytes.
fn anonymous(child: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Clock ticks of processor time.
fn ticks(child: &Child) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn compilations_that_do_not_end_are_ended() {
    let Some(serving) = serving(&[]) else { return };
    let before = anonymous(&serving.child);
    let all: Vec<Begun> = (0..2).map(|i| serving.begin(CHAT, &hostile(i))).collect();
    // Others are compiled as soon as one of these is ended.
    let answer = serving.post(CHAT, &simple());
    assert_eq!(answer.status, 200, "{}", answer.text());
    for one in all {
        let answer = one.answer();
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().contains("to compile: make it simpler"), "{}", answer.text());
    }
    assert_eq!(children(&serving.child), [""; 0]);
    let grown = anonymous(&serving.child).saturating_sub(before);
    assert!(grown < 128 << 20, "{grown}");
    assert_eq!(serving.post(CHAT, &simple()).status, 200);
}

#[test]
fn nothing_is_compiled_for_a_client_that_has_left() {
    let Some(serving) = serving(&[]) else { return };
    // The third one waits for its turn.
    let all: Vec<Begun> = (0..3).map(|i| serving.begin(CHAT, &hostile(2 * i))).collect();
    eventually("they are compiled", || children(&serving.child).len() == 2);
    drop(all);
    let began = Instant::now();
    eventually("they are ended", || children(&serving.child).is_empty());
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(serving.post(CHAT, &simple()).status, 200);
}

#[test]
fn the_end_of_the_server_is_an_answer_to_those_that_wait_for_a_compilation() {
    // Two compilations take all the time that they may; the next test sees the same of requests that wait for something else.
    if !everything() {
        return;
    }
    let Some(serving) = serving(&[]) else { return };
    let all: Vec<Begun> = (0..6).map(|i| serving.begin(CHAT, &hostile(2 * i))).collect();
    eventually("they are compiled", || children(&serving.child).len() == 2);
    support::kill(&serving.child, libc::SIGTERM);
    let statuses: Vec<u16> = all.into_iter().map(|one| one.answer().status).collect();
    assert!(statuses.iter().all(|status| [400, 503].contains(status)), "{statuses:?}");
    assert!(statuses.contains(&503), "{statuses:?}");
    assert!(serving.wait().0.success());
}

/// It does not depend on what they wait for: here, their own bodies.
#[test]
fn the_end_of_the_server_is_an_answer_to_whatever_has_none() {
    let Some(serving) = serving(&[]) else { return };
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{{");
    let all: Vec<Begun> = (0..3).map(|_| serving.begin_with(head.as_bytes())).collect();
    // The requests are read before this one is answered.
    assert_eq!(serving.post(CHAT, &simple()).status, 200);
    support::kill(&serving.child, libc::SIGTERM);
    for one in all {
        let answer = one.answer();
        assert_eq!(
            (answer.status, answer.header("retry-after")),
            (503, Some("1")),
            "{}",
            answer.text()
        );
    }
    assert!(serving.wait().0.success());
}

#[test]
fn texts_of_clients_that_have_left_are_not_encoded() {
    let Some(serving) = serving(&[]) else { return };
    let text = "some words of a text, 1234 of them; ".repeat(400);
    let input: Vec<&str> = vec![&text; 2000];
    let body = json!({"input": input, "model": "x", "truncate": true});
    let all: Vec<Begun> = (0..4).map(|_| serving.begin("/api/embed", &body)).collect();
    let before = ticks(&serving.child);
    eventually("they are encoded", || ticks(&serving.child) > before + 20);
    drop(all);
    eventually("the server rests", || {
        let before = ticks(&serving.child);
        thread::sleep(Duration::from_millis(300));
        ticks(&serving.child) <= before + 3
    });
    let ask = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2});
    assert_eq!(serving.post(CHAT, &ask).status, 200);
}

/// Not only the contents of messages make a prompt.
#[test]
fn a_conversation_that_no_context_holds_is_refused_before_its_tokens_are_sought() {
    let Some(serving) = serving(&[]) else { return };
    let long = "a b ".repeat(1 << 20);
    let call = |arguments: &str| json!([{"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}]);
    let tool = |description: &str| json!([{"type": "function", "function": {"name": "f", "description": description}}]);
    let user = json!({"role": "user", "content": "a"});
    for (messages, tools) in [
        (json!([user, {"role": "assistant", "tool_calls": call(&long)}, user]), json!([])),
        (json!([user]), tool(&long)),
    ] {
        let answer = serving.post(CHAT, &json!({"messages": messages, "tools": tools}));
        let error = &answer.json()["error"];
        let found = (answer.status, &error["type"]);
        assert_eq!(found, (400, &json!("exceed_context_size_error")), "{error}");
        assert!(answer.text().contains("bytes, and the context of 8192 tokens"), "{error}");
    }
}

/// It is not kept for the next ones.
#[cfg(target_env = "gnu")]
#[test]
fn the_memory_of_large_bodies_goes_back_to_the_system() {
    let Some(serving) = serving(&[]) else { return };
    assert_eq!(serving.post(CHAT, &simple()).status, 200);
    let before = anonymous(&serving.child);
    let message = json!({"role": "user", "content": "word ".repeat(2 << 20)});
    let text = json!({"messages": [message]});
    let value = json!({"key": "some text of a value"});
    let values = json!({"messages": [], "metadata": vec![&value; 100_000]});
    for _ in 0..3 {
        let all: Vec<Begun> =
            [&text, &values, &text, &values].map(|body| serving.begin(CHAT, body)).into();
        assert!(all.into_iter().all(|one| one.answer().status == 400));
    }
    eventually("it is given back", || anonymous(&serving.child).saturating_sub(before) < 64 << 20);
}

#[test]
fn what_multiplies_has_a_budget() {
    let Some(serving) = serving(&["--ctx-size", "8192"]) else { return };
    let prompt = "a ".repeat(3000);
    let echo =
        json!({"prompt": vec![&prompt; 8], "echo": true, "logprobs": 5, "max_tokens": 1, "n": 4});
    for stream in [false, true] {
        let mut echo = echo.clone();
        echo["stream"] = stream.into();
        let refused = serving.post("/v1/completions", &echo);
        assert_eq!(
            (refused.status, &refused.json()["error"]["param"]),
            (400, &json!("echo")),
            "{}",
            refused.text()
        );
        assert!(refused.text().contains("send fewer prompts"), "{}", refused.text());
    }
    let tokenized = |bytes| {
        serving.post("/tokenize", &json!({"content": "a".repeat(bytes), "with_pieces": true}))
    };
    let refused = tokenized((4 << 20) + 1);
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("expected at most 4194304"), "{}", refused.text());
    // A request that fits is answered.
    assert_eq!(tokenized(1 << 10).status, 200);
    let echo = json!({"prompt": "a a a", "echo": true, "logprobs": 5, "max_tokens": 1});
    assert_eq!(serving.post("/v1/completions", &echo).status, 200);
}

/// A grammar that allows too much at once is a fault of its client, and a large object is none.
#[test]
fn a_grammar_that_allows_too_much_is_refused() {
    let Some(serving) = serving(&[]) else { return };
    let formats = ["date-time", "email", "uri", "uuid", "ipv4", "date"];
    let property =
        |i: usize| (format!("p{i}"), json!({"type": "string", "format": formats[i % 6]}));
    let object = |n: usize| json!({"type": "object", "properties": (0..n).map(property).collect::<serde_json::Map<_, _>>()});
    let answer = serving.post(CHAT, &asking(object(500)));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = serving.post(CHAT, &asking(object(3000)));
    assert_eq!((answer.status, answer.header("x-should-retry")), (400, None), "{}", answer.text());
    // Its compilation takes too long, or allows too much to begin with: that depends on the machine.
    let reasons = ["make it simpler", "no answer can begin with it"];
    assert!(reasons.iter().any(|why| answer.text().contains(why)), "{}", answer.text());
}

/// Under each limit of processes, it serves or it says why it does not: it neither hangs nor panics.
#[test]
fn too_few_threads_are_reported_at_the_start() {
    const NOBODY: u32 = 65534;
    let folder = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir_in("/tmp")
        .unwrap();
    let model = wild::model(folder.path());
    // SAFETY: it has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    let (mut served, mut refused) = (0, 0);
    // The system does not count the processes of root. As another user, this test has others beside it, whose number changes.
    for limit in if root { vec![1, 4, 12, 24, 30, 36, 200] } else { vec![1, 4] } {
        let mut command: Command =
            support::command(&["serve", &model, "--no-cache", "--port", "0", "-t", "2"]);
        if root {
            command.uid(NOBODY).gid(NOBODY);
        }
        let lower = move || {
            let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
            // SAFETY: `limit` is valid for reads.
            match unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &limit) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: it makes a system call that is allowed between fork and exec, and nothing else.
        unsafe { command.pre_exec(lower) };
        let mut child =
            match command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
            {
                Ok(child) => child,
                // The program, or a library of it, is in a folder that is root's alone.
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    return eprintln!("skipped: another user cannot start the program: {error}");
                }
                Err(error) => panic!("{error}"),
            };
        let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        let address = loop {
            let before = said.len();
            if std::io::BufRead::read_line(&mut stderr, &mut said).unwrap() == 0 {
                break None;
            }
            if let Some(address) = said[before..].strip_prefix("listening on http://") {
                break Some(address.trim().to_owned());
            }
        };
        match address {
            Some(address) => {
                served += 1;
                for path in ["/health", "/v1/models"] {
                    let mut stream = std::net::TcpStream::connect(&address).unwrap();
                    let head = format!(
                        "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
                    );
                    std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
                    let mut answer = String::new();
                    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
                    assert!(answer.starts_with("HTTP/1.1 200"), "limit {limit}: {answer}");
                }
                support::kill(&child, libc::SIGTERM);
                assert!(support::ended(&mut child).success());
            }
            None => {
                refused += 1;
                let status = support::ended(&mut child);
                assert_eq!(status.code(), Some(1), "limit {limit}: {said}");
                assert!(
                    !said.contains("panicked") && said.contains("thread"),
                    "limit {limit}: {said}"
                );
            }
        }
    }
    assert!(refused >= 1 && (served >= 1 || !root), "{served} {refused}");
}
