//! What `alight serve` keeps of prompts in files that a client names, what it gives back when nothing is asked of it, and what it is
//! given: a socket, a template.

use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::http::{Answer, Serving};
use crate::support::said::{self, OWN, TEXT};
use crate::support::{self, alight, write};

const SAID: [(&str, i32); 3] = [("<think>", OWN), ("Yes", TEXT), (". No.", TEXT)];

/// A prompt of `n` tokens, answered with one token.
fn prompt(n: usize) -> Value {
    json!({"prompt": "a".repeat(n), "max_tokens": 1, "temperature": 0})
}

fn cached(serving: &Serving, n: usize) -> u64 {
    let told = serving.post("/v1/completions", &prompt(n)).json();
    told["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap_or_else(|| panic!("{told}"))
}

fn slot(serving: &Serving, action: &str, name: &str) -> Answer {
    serving.post(&format!("/slots/0?action={action}"), &json!({"filename": name}))
}

#[test]
fn a_slot_is_saved_restored_and_erased() {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &SAID, 1);
    let slots = folder.path().join("slots");
    std::fs::create_dir(&slots).unwrap();
    let args =
        [&*model, "--no-cache", "--parallel", "1", "--slot-save-path", slots.to_str().unwrap()];
    let serving = Serving::start(&args);
    assert_eq!(slot(&serving, "save", "one").status, 400, "nothing was read yet");
    assert_eq!(cached(&serving, 300), 0);
    let saved = slot(&serving, "save", "one.bin").json();
    let tokens = saved["n_saved"].as_u64().unwrap_or_else(|| panic!("{saved}"));
    assert!(tokens >= 300, "{saved}");
    let file = slots.join("one.bin");
    let metadata = std::fs::metadata(&file).unwrap();
    assert_eq!(
        (Some(metadata.len()), metadata.permissions().mode() & 0o777),
        (saved["n_written"].as_u64(), 0o600)
    );
    // All but the last token, which is always computed.
    let known = cached(&serving, 300);
    assert!(known >= 299, "{known}");
    let erased = slot(&serving, "erase", "").json();
    assert_eq!(erased["n_erased"].as_u64(), Some(tokens), "{erased}");
    assert_eq!(cached(&serving, 300), 0);
    drop(serving);

    let serving = Serving::start(&args);
    let restored = slot(&serving, "restore", "one.bin").json();
    assert_eq!(
        (restored["n_restored"].as_u64(), &restored["id_slot"]),
        (Some(tokens), &json!(0)),
        "{restored}"
    );
    assert_eq!(cached(&serving, 300), known);
    // What was restored can be saved again, under the same name too.
    assert_eq!(slot(&serving, "save", "one.bin").json()["n_saved"].as_u64(), Some(tokens));
    for name in ["", "..", "../one.bin", "/etc/passwd", ".hidden", "a/b", "a\u{0}b", "a\nb"] {
        for action in ["save", "restore"] {
            let refused = slot(&serving, action, name);
            assert_eq!(
                (refused.status, &refused.json()["error"]["param"]),
                (400, &json!("filename")),
                "{name:?}"
            );
        }
    }
    for (path, said) in [
        ("/slots/1?action=save", "expected 0 to 0"),
        ("/slots/x?action=save", "expected 0"),
        ("/slots/0", "action=save"),
    ] {
        let refused = serving.post(path, &json!({"filename": "x"}));
        assert_eq!(refused.status, 400);
        assert!(refused.text().contains(said), "{}", refused.text());
    }
    // Files of somebody else's.
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() - 100;
    for (name, change) in [("short", bytes.len() / 2), ("empty", 0), ("foreign", bytes.len())] {
        let mut bytes = bytes[..change].to_vec();
        if name == "foreign" {
            bytes[..8].copy_from_slice(b"GGUF\x03\0\0\0");
        }
        std::fs::write(slots.join(name), bytes).unwrap();
    }
    bytes[middle] ^= 1;
    std::fs::write(slots.join("changed"), bytes).unwrap();
    for name in ["short", "empty", "foreign", "changed", "missing"] {
        let refused = slot(&serving, "restore", name);
        assert_eq!(refused.status, 400, "{name}: {}", refused.text());
    }
    assert_eq!(cached(&serving, 300), known);
    drop(serving);
    let serving = Serving::start(&[&*model, "--no-cache"]);
    assert_eq!(slot(&serving, "save", "x").status, 501);
}

/// Entries of the folder that are no prompt files stay, and nothing is read through them. An answer names the file without its folder.
#[test]
fn a_slot_is_saved_and_restored_through_nothing_but_a_prompt_file() {
    use std::os::unix::fs::{MetadataExt, chown, symlink};
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &SAID, 1);
    let slots = folder.path().join("slots");
    std::fs::create_dir(&slots).unwrap();
    let args =
        [&*model, "--no-cache", "--parallel", "1", "--slot-save-path", slots.to_str().unwrap()];
    let serving = Serving::start(&args);
    assert_eq!(cached(&serving, 300), 0);
    assert_eq!(slot(&serving, "save", "good").status, 200);
    let (victim, good) = (folder.path().join("victim"), slots.join("good"));
    std::fs::copy(&good, &victim).unwrap();
    let before = std::fs::read(&victim).unwrap();
    symlink(&victim, slots.join("link")).unwrap();
    symlink(folder.path().join("nowhere"), slots.join("dangling")).unwrap();
    std::fs::write(slots.join("text"), "the words of a person").unwrap();
    assert!(Command::new("mkfifo").arg(slots.join("pipe")).status().unwrap().success());
    let outside = folder.path().to_str().unwrap();
    for (name, why) in [
        ("link", "is a symbolic link"),
        ("dangling", "is a symbolic link"),
        ("pipe", "is a pipe"),
        ("text", "prompt file"),
    ] {
        for action in ["save", "restore"] {
            let refused = slot(&serving, action, name);
            let text = refused.text();
            assert_eq!(refused.status, 400, "{action} {name}: {text}");
            assert!(text.contains(why) && text.contains(name), "{text}");
            assert!(!text.contains(outside) && !text.contains("words"), "{text}");
        }
    }
    assert!(std::fs::read(&victim).unwrap() == before && !folder.path().join("nowhere").exists());
    assert_eq!(std::fs::read(slots.join("text")).unwrap(), b"the words of a person");
    let missing = slot(&serving, "restore", "missing");
    assert!(missing.status == 400 && !missing.text().contains(outside), "{}", missing.text());
    // A folder of another user, and then none.
    let owner = std::fs::metadata(&slots).unwrap().uid();
    match chown(&slots, Some(owner + 12_345), None) {
        Ok(()) => {
            std::fs::set_permissions(&slots, std::fs::Permissions::from_mode(0o777)).unwrap();
            let (saved, restored) =
                (slot(&serving, "save", "good"), slot(&serving, "restore", "good"));
            assert_eq!((saved.status, restored.status), (500, 400));
            for text in [saved.text(), restored.text()] {
                assert!(text.contains("belongs to another user"), "{text}");
                assert!(!text.contains(outside), "{text}");
            }
        }
        Err(_) => eprintln!("skipped: only root can give a folder to another user"),
    }
    std::fs::remove_dir_all(&slots).unwrap();
    let saved = slot(&serving, "save", "good");
    assert!(saved.status == 500 && !saved.text().contains(outside), "{}", saved.text());
    let (_, logged) = serving.stop(libc::SIGTERM);
    assert!(logged.contains(slots.to_str().unwrap()), "the log has the whole path: {logged}");
}

#[test]
fn an_error_of_the_server_names_a_file_and_not_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &SAID, 1);
    let serving = Serving::start(&[&*model, "--no-cache"]);
    assert_eq!(cached(&serving, 30), 0);
    std::fs::OpenOptions::new().write(true).open(&model).unwrap().set_len(100).unwrap();
    let name = Path::new(&model).file_name().unwrap().to_str().unwrap();
    let mut streamed = prompt(30);
    streamed["stream"] = true.into();
    for (body, status) in [(prompt(30), Some(500)), (streamed, None)] {
        let failed = serving.post("/v1/completions", &body);
        let text = failed.text();
        assert!(status.is_none_or(|status| failed.status == status), "{text}");
        assert!(text.contains(name) && text.contains("cut short"), "{text}");
        assert!(!text.contains(folder.path().to_str().unwrap()), "{text}");
    }
    let (_, logged) = serving.stop(libc::SIGTERM);
    assert!(logged.contains(&model), "the log has the whole path: {logged}");
}

#[test]
fn one_key_s_slot_is_not_another_one_s() {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &SAID, 1);
    let path = folder.path().to_str().unwrap();
    let serving = Serving::start(&[
        &model,
        "--no-cache",
        "--parallel",
        "1",
        "--slot-save-path",
        path,
        "--api-key",
        "one,two",
    ]);
    let ask = |key: &str, path: &str, body: &Value| {
        serving.request("POST", path, &[("x-api-key", key)], body.to_string().as_bytes())
    };
    assert_eq!(ask("one", "/v1/completions", &prompt(200)).status, 200);
    let named = json!({"filename": "mine"});
    assert_eq!(ask("two", "/slots/0?action=save", &named).status, 400);
    assert_eq!(ask("two", "/slots/0?action=erase", &json!({})).json()["n_erased"], 0);
    assert_eq!(ask("one", "/slots/0?action=save", &named).status, 200);
    let refused = ask("two", "/slots/0?action=restore", &named);
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert_eq!(ask("one", "/slots/0?action=restore", &named).status, 200);
}

#[test]
fn an_engine_rests_and_is_woken() {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &SAID, 1);
    let cache = folder.path().join("cache");
    let serving = Serving::start(&[
        &model,
        "--cache-dir",
        cache.to_str().unwrap(),
        "--sleep-idle-seconds",
        "0",
        "--metrics",
    ]);
    let rests = |serving: &Serving| {
        let began = Instant::now();
        while serving.get("/props").json()["is_sleeping"] != true {
            assert!(began.elapsed() < support::PATIENCE);
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    };
    rests(&serving);
    for path in ["/health", "/v1/models", "/slots", "/metrics", "/alight/memory", "/"] {
        assert_eq!(serving.get(path).status, 200, "{path}");
    }
    assert_eq!(serving.get("/props").json()["is_sleeping"], true, "nothing of that has woken it");
    let whole = serving.post("/v1/completions", &prompt(300)).json();
    rests(&serving);
    // The prompt was written before the engine went, and is found by the next one.
    let again = serving.post("/v1/completions", &prompt(300)).json();
    assert_eq!(whole["choices"], again["choices"]);
    assert!(
        again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(250),
        "{again}"
    );
    rests(&serving);
    let (status, said) = serving.stop(libc::SIGTERM);
    assert!(status.success() && said.contains("rests"), "{said}");
}

#[test]
fn a_given_socket_is_listened_at() {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &SAID, 1);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // As a service manager starts it: the process has its own number in its environment.
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"",
        "sh",
        env!("CARGO_BIN_EXE_alight"),
    ]);
    shell.args(["serve", &model, "--no-cache", "--port", "1"]);
    let fd = listener.as_raw_fd();
    let give = move || {
        // SAFETY: a system call about numbers, allowed between fork and exec. What it makes is not closed by exec.
        match unsafe { libc::dup2(fd, 3) } {
            3 if fd != 3 => Ok(()),
            // SAFETY: likewise.
            3 => match unsafe { libc::fcntl(3, libc::F_SETFD, 0) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            },
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: it makes system calls that are allowed between fork and exec, and nothing else.
    unsafe { shell.pre_exec(give) };
    let serving = Serving::of(shell);
    assert_eq!(serving.address, format!("127.0.0.1:{port}"));
    assert_eq!(serving.get("/health").status, 200);
}

#[test]
fn a_chat_template_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &SAID, 1);
    let template =
        write(folder.path(), "template", "{% for m in messages %}{{ m.content }}a{% endfor %}<no>");
    let serving = Serving::start(&[&model, "--no-cache", "--chat-template-file", &template]);
    let told =
        serving.post("/apply-template", &json!({"messages": [{"role": "user", "content": "a"}]}));
    assert_eq!(told.json()["prompt"], "<s>aa<no>", "{}", told.text());
    drop(serving);
    let wrong = write(folder.path(), "wrong", "{% for %}");
    alight(&["serve", &model, "--chat-template-file", &wrong]).fails(1, &[&wrong, "chat template"]);
    let missing = Path::new(&wrong).with_file_name("missing").display().to_string();
    alight(&["serve", &model, "--chat-template-file", &missing]).fails(1, &[&missing]);
}
