//! Input without end or measure: texts, names and numbers are refused, or shown, in bounded memory.

use std::fs;
use std::io::{BufRead, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use crate::support::http::Serving;
use crate::support::{alight, command, done, ended, inspect_json, kill, wild, write};

/// Runs in 4 GiB of address space, so that a test that fails does not take the machine's memory.
fn limited(args: &[&str]) -> Command {
    within(4 << 20, args)
}

/// Runs in so many KiB of address space.
fn within(limit: u32, args: &[&str]) -> Command {
    let program = command(args);
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &format!("ulimit -v {limit}; exec \"$@\""), "sh"]).arg(program.get_program());
    shell.args(program.get_args()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell
}

#[test]
fn texts_that_never_end_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let text = ["longer than 16 MiB", "shorter"];
    let prompt = ["longer than 64 MiB", "shorter"];
    let zeros = || Stdio::from(fs::File::open("/dev/zero").unwrap());
    let from = |args: &[&str], stdin: Stdio| done(limited(args).stdin(stdin).output().unwrap());
    from(&["run", &model, "--raw", "-f", "/dev/zero"], Stdio::null()).fails(1, &prompt);
    from(&["run", &model, "--raw"], zeros()).fails(1, &prompt);
    from(&["run", &model, "--raw", "-"], zeros()).fails(1, &prompt);
    from(&["run", &model, "--raw", "-f", "-"], zeros()).fails(1, &prompt);
    from(&["perplexity", &model, "/dev/zero"], Stdio::null()).fails(1, &text);
    from(&["perplexity", &model, "/dev/stdin"], zeros()).fails(1, &text);

    // A pipe: its writer finds that nobody reads any more.
    let mut child = limited(&["run", &model, "--raw"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        let lines = b"y\n".repeat(1 << 15);
        let mut written = 0_u64;
        while pipe.write_all(&lines).is_ok() {
            written += lines.len() as u64;
        }
        written
    });
    done(child.wait_with_output().unwrap()).fails(1, &prompt);
    assert!(writer.join().unwrap() < 80 << 20);

    // A file is refused by its length, whatever it would take to read it.
    let sparse = folder.path().join("sparse");
    fs::File::create(&sparse).unwrap().set_len(1 << 40).unwrap();
    let sparse = sparse.to_str().unwrap();
    from(&["run", &model, "--raw", "-f", sparse], Stdio::null())
        .fails(1, &[&[sparse][..], &prompt].concat());
    from(&["perplexity", &model, sparse], Stdio::null()).fails(1, &[&[sparse][..], &text].concat());
}

#[test]
fn a_prompt_that_no_context_holds_is_refused_before_its_tokens_are_sought() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    // The longest token has 9 bytes (`<0x..>` are not in this vocabulary), the context 512 tokens.
    let long = "a".repeat(30 << 20);
    let path = write(folder.path(), "long", &long);
    let args = ["run", &model, "--raw", "-f", &path];
    let output = limited(&args).stdin(Stdio::null()).output().unwrap();
    done(output).fails(1, &["the prompt has 31457280 bytes", "context of 512 tokens", "-c"]);
    // What might fit is asked about properly.
    let path = write(folder.path(), "short", "a".repeat(600));
    let output = limited(&["run", &model, "--raw", "-f", &path]).stdin(Stdio::null()).output();
    done(output.unwrap()).fails(1, &["601", "512"]);
}

/// A safetensors file of byte tensors with these names and shapes.
fn safetensors(tensors: &[(String, String, usize)]) -> Vec<u8> {
    let mut header = String::from("{");
    let mut at = 0;
    for (name, shape, len) in tensors {
        let comma = if at > 0 || header.len() > 1 { "," } else { "" };
        let end = at + len;
        header += &format!(
            "{comma}\"{name}\":{{\"dtype\":\"U8\",\"shape\":[{shape}],\"data_offsets\":[{at},{end}]}}"
        );
        at = end;
    }
    header.push('}');
    while header.len() % 8 != 0 {
        header.push(' ');
    }
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend(vec![0; at]);
    file
}

#[test]
fn names_and_shapes_of_any_length_are_shown_in_a_table_that_is_not_large() {
    let folder = tempfile::tempdir().unwrap();
    // One that no column may be as wide as, one that a column may, and many that share its table.
    for length in [70_000, 60_000] {
        let long = format!("begin.{}.end", "x".repeat(length));
        let mut tensors = vec![(long.clone(), "1".to_owned(), 1)];
        tensors.extend((0..3000).map(|i| (format!("t{i}"), "1".to_owned(), 1)));
        let path = write(folder.path(), "names.safetensors", safetensors(&tensors));
        let text = alight(&["inspect", &path, "--tensors"]).succeeds().stdout;
        assert!(text.len() < 3100 * 300, "{}", text.len());
        assert!(text.contains("  begin.xxx") && text.contains("…") && text.contains("xxx.end "));
        assert_eq!(inspect_json(&path)["tensors"][0]["name"], long, "whole in JSON");
    }
    let deep = vec!["1"; 40_000].join(",");
    let tensors = [("deep".to_owned(), deep, 1), ("plain".to_owned(), "2,3".to_owned(), 6)];
    let path = write(folder.path(), "shapes.safetensors", safetensors(&tensors));
    let out = alight(&["inspect", &path]);
    assert!(matches!(out.status, Some(0 | 1)) && !out.stderr.contains("internal error"));
    assert!(out.stdout.len() < 4000, "{}", out.stdout.len());

    // So are keys.
    let mut builder = alight_formats::gguf::write::Builder::new();
    builder.str("general.architecture", "x").str(&"k".repeat(65_000), "v");
    let path = write(folder.path(), "keys.gguf", builder.file(|_, _| ()));
    let text = alight(&["inspect", &path, "--tensors"]).succeeds().stdout;
    assert!(text.len() < 4000 && text.contains("kkk…kkk"), "{}", text.len());
}

#[test]
fn numbers_that_would_wrap_are_wrong_usage_and_what_is_not_to_be_had_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    for what in ["decode", "prefill"] {
        for depth in ["18446744073709551615", "18446744073709551614", "16777217", "-1"] {
            let out = alight(&["bench", what, &model, "-d", depth]);
            assert_eq!(out.status, Some(2), "{depth}: {}", out.stderr);
            assert!(!out.stderr.contains("internal error"), "{}", out.stderr);
        }
        let output = limited(&["bench", what, &model, "-d", "16777216"]).output().unwrap();
        let out = done(output);
        assert_eq!(out.status, Some(1), "{}", out.stderr);
        assert!(out.stderr.starts_with("alight: error: "), "{}", out.stderr);
        assert!(!out.stderr.contains("internal error"), "{}", out.stderr);
    }
    for (context, said) in [
        ("18446744073709551615", "at most 1073741824"),
        ("99999999999", "at most 1073741824"),
        ("18446744073709551616", "that is too large"),
    ] {
        for command in ["run", "batch", "serve"] {
            alight(&[command, &model, "-c", context]).fails_as_usage(said);
        }
    }
    alight(&["run", &model, "--raw", "a", "--memory", "8"]).fails_as_usage("such as 8G");
    let run = ["run", &model, "--raw", "a", "-n", "1", "--load", "mmap", "--memory", "1k"];
    let out = alight(&run).succeeds();
    assert!(out.stderr.contains("--memory changes nothing"), "{}", out.stderr);
    assert!(out.stderr.contains("--load mmap was given"), "{}", out.stderr);
}

#[test]
fn a_benchmark_measures_with_as_much_memory_as_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let args = ["bench", "decode", &model, "-n", "4", "-r", "1", "-t", "1", "--json"];
    let out = done(within(450 << 10, &args).output().unwrap()).succeeds();
    let read = |text: &str| {
        let got: serde_json::Value = serde_json::from_str(text).unwrap();
        assert!(got["limits"]["read_bytes_per_second"].as_f64().unwrap() > 0.0, "{got}");
        got["limits"]["read_bytes"].as_u64().unwrap()
    };
    assert!((1 << 20..512 << 20).contains(&read(&out.stdout)), "{}", out.stdout);
    assert!(out.stderr.contains("alight: note: there was memory for "), "{}", out.stderr);
}

/// Status of the shell where the system's loader has too little memory for the program.
const NOT_LOADED: Option<i32> = Some(127);

/// Limits of the address space in KiB: from the smallest at which the program is loaded on, this many more, in steps.
fn limits_from_the_smallest(more: u32, step: usize) -> impl Iterator<Item = u32> {
    let loads = |limit: &u32| {
        let output = within(*limit, &["--version"]).output().unwrap();
        output.status.code() != NOT_LOADED && output.status.success()
    };
    let smallest = (8 << 10..1 << 20).step_by(1 << 10).find(loads).unwrap();
    (smallest - 1024..smallest + more).step_by(step)
}

/// Asserts that a run which has not succeeded says why.
#[track_caller]
fn ends_in_a_message(limit: u32, status: Option<i32>, stderr: &str) {
    if status == Some(0) || status == NOT_LOADED && stderr.contains("shared libraries") {
        return;
    }
    assert_eq!(status, Some(1), "{limit} KiB: {stderr}");
    // The C library may have its own line, and the last word.
    let is_error = |line: &str| line.starts_with("alight: error: ");
    assert_eq!(stderr.lines().filter(|line| is_error(line)).count(), 1, "{limit} KiB: {stderr}");
    assert!(!stderr.contains("internal error"), "{limit} KiB: {stderr}");
}

#[cfg(target_os = "linux")]
#[test]
fn an_address_space_that_is_too_small_ends_a_run_with_a_message() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let (mut refused, mut done) = (0, 0);
    for limit in limits_from_the_smallest(20 << 10, 256) {
        let args = ["run", &model, "--raw", "a", "-n", "1", "-t", "2", "--temp", "0"];
        let output = within(limit, &args).stdin(Stdio::null()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        ends_in_a_message(limit, output.status.code(), &stderr);
        refused += u32::from(stderr.contains("ulimit -v"));
        done += u32::from(output.status.success());
    }
    assert!(refused > 0 && done > 0, "{refused} {done}");
}

#[cfg(target_os = "linux")]
#[test]
fn an_address_space_that_is_too_small_ends_a_server_with_a_message() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let (mut refused, mut served) = (0, 0);
    for limit in limits_from_the_smallest(110 << 10, 2 << 10) {
        let args = ["serve", &model, "--no-cache", "-t", "2", "--ctx-size", "64", "--port", "0"];
        let mut child = within(limit, &args).stdin(Stdio::null()).spawn().unwrap();
        let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        let mut before = 0;
        while stderr.read_line(&mut said).unwrap() > 0 {
            if said[before..].starts_with("listening on") {
                kill(&child, libc::SIGTERM);
            }
            before = said.len();
        }
        let status = ended(&mut child).code();
        ends_in_a_message(limit, status, &said);
        refused += u32::from(said.contains("ulimit -v"));
        served += u32::from(status == Some(0));
    }
    assert!(refused > 0 && served > 0, "{refused} {served}");
}

/// Its parent must see how it ended.
#[test]
fn a_process_that_is_aborted_ends_by_that_signal() {
    let folder = tempfile::tempdir().unwrap();
    let serving = Serving::start(&[&wild::model(folder.path()), "--no-cache"]);
    assert_eq!(serving.stop(libc::SIGABRT).0.signal(), Some(libc::SIGABRT));
}
