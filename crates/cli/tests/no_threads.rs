//! No threads to be had, as under `ulimit -u` or a control group's limit: every command does what it does
//! with all of them, byte for byte, and says once that it takes longer. The refusal is real: a filter of
//! system calls, which binds root as well.
#![cfg(target_os = "linux")]

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::support::{self, Done, command, done, refuse, source, text, wild};

/// The command without any thread but its first.
fn alone(args: &[&str]) -> Command {
    let mut command = command(args);
    let refuse = || {
        [libc::SYS_clone3, libc::SYS_clone]
            .into_iter()
            .try_for_each(|call| refuse::forbid(call, libc::EAGAIN))
    };
    // SAFETY: it makes system calls that are allowed between fork and exec, and nothing else.
    unsafe { command.pre_exec(refuse) };
    command
}

fn run(mut command: Command) -> io::Result<Done> {
    Ok(done(command.stdin(Stdio::null()).output()?))
}

#[test]
fn every_command_that_works_with_fewer_threads_says_so_once() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let model = wild::model(folder.path());
    // Large enough for several threads, and for a way of copying that has some.
    let large = source(folder.path(), 40);
    let large = text(&large);
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let packed = at("packed");
    support::alight(&["pack", large, "-o", &packed]).succeeds();
    let (many, some) = (at("many"), at("some"));
    fs::create_dir(&many).unwrap();
    for name in ["a", "b"] {
        fs::copy(large, format!("{many}/{name}")).unwrap();
    }
    let lines = support::write(folder.path(), "lines", "\"a\"\n\"a\"\n");
    let batch = vec!["batch", &model, &lines, "--raw", "-n", "2", "-t", "3", "--temp", "0"];
    for (args, to) in [
        (batch, None),
        (vec!["run", &model, "--raw", "a", "-n", "2", "-t", "3", "--temp", "0"], None),
        (vec!["pack", large], Some("-o")),
        (vec!["unpack", &packed], Some("-o")),
        (vec!["quantize", large, "--type", "q8_0", "-t", "3"], Some("-o")),
        (vec!["convert", large, "-t", "3"], Some("-o")),
        (vec!["cp", "--reflink=never", "--json", large], Some("")),
        (vec!["cp", "--reflink=never", "--json", "-r", "-T", &many], Some("")),
    ] {
        // With all threads, and with one: the same.
        let mut made = Vec::new();
        for alone_or_not in [alone, |args: &[&str]| command(args)] {
            let mut args = args.clone();
            args.extend(to.filter(|to| !to.is_empty()));
            args.extend(to.map(|_| some.as_str()));
            let got = match run(alone_or_not(&args)) {
                Ok(got) => got.succeeds(),
                Err(error) => return eprintln!("skipped: no seccomp filters: {error}"),
            };
            let files: Vec<Vec<u8>> = match fs::read_dir(&some) {
                Ok(entries) => entries.map(|e| fs::read(e.unwrap().path()).unwrap()).collect(),
                Err(_) => fs::read(&some).into_iter().collect(),
            };
            let _ = fs::remove_file(&some).or_else(|_| fs::remove_dir_all(&some));
            made.push((got, files));
        }
        let [(alone, one), (free, all)] = &made[..] else { unreachable!() };
        assert!(one == all && one.len() >= usize::from(to.is_some()), "{args:?}");
        assert_eq!(free.stderr.matches("the system gave").count(), 0, "{args:?}: {}", free.stderr);
        // Around the page cache a copy has threads; where this filesystem allows no such way, it has none.
        let threads = args[0] != "cp" || free.stdout.contains("\"method\":\"direct\"");
        if !threads {
            eprintln!("skipped: cp copies without threads here: {}", free.stdout);
        }
        let said = alone.stderr.matches("alight: note: the system gave 1 of ").count();
        assert_eq!(said, usize::from(threads), "{args:?}: {}", alone.stderr);
        if args[0] == "run" {
            assert_eq!(alone.stdout, free.stdout);
        }
    }
}

/// A grammar is compiled on a thread of its own. Where there is none, that is an error of its line and of no other.
#[test]
fn a_line_whose_grammar_cannot_be_compiled_fails_alone() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let model = wild::model(folder.path());
    let held = "{\"prompt\": \"a\", \"regex\": \"a+\", \"custom_id\": \"held\"}";
    let lines = support::write(folder.path(), "lines", format!("\"a\"\n{held}\n\"a\"\n"));
    let path = folder.path().join("results");
    let args = ["batch", &model, &lines, "--raw", "-n", "2", "-t", "1", "-q", "-o", text(&path)];
    for _again in 0..2 {
        let out = match run(alone(&args)) {
            Ok(out) => out,
            Err(error) => return eprintln!("skipped: no seccomp filters: {error}"),
        };
        out.fails(1, &["1 of 3 lines failed"]);
        let results = fs::read_to_string(&path).unwrap();
        let results: Vec<serde_json::Value> =
            results.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let status = |i: usize| results[i]["response"]["status_code"].as_u64().unwrap();
        assert_eq!((results.len(), status(0), status(1), status(2)), (3, 200, 500, 200));
        let error = &results[1]["error"];
        assert_eq!(
            (&results[1]["custom_id"], &error["code"]),
            (&"held".into(), &"grammar_error".into())
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with("line 2: its grammar was not compiled: "), "{message}");
    }
}
