//! Every command that writes a file: it replaces nothing that it was not told to replace, whenever that
//! appears, and neither a device nor what it reads; and what it writes may be read by nobody who may not
//! read what it is made of.
#![cfg(target_os = "linux")]

use std::fs::{self, File, FileTimes};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::support::{
    Done, Stopped, alight, command, done, ended, everything, names, smollm2, source, text, write,
};

/// A folder on a disk (not in memory).
fn folder() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// It failed, whatever it has said before.
#[track_caller]
fn fails(out: &Done, parts: &[&str]) {
    assert_eq!((out.status, &out.stdout[..]), (Some(1), ""), "{}", out.stderr);
    for part in parts {
        assert!(out.stderr.contains(part), "{part:?} is not in {:?}", out.stderr);
    }
}

/// The commands that make a model of a model, with their arguments except for `--force`.
fn makers<'a>(from: &'a str, packed: &'a str, to: &'a str) -> [Vec<&'a str>; 4] {
    [
        vec!["pack", from, "-o", to],
        vec!["unpack", packed, "-o", to],
        vec!["quantize", from, "-o", to, "--type", "q8_0"],
        vec!["convert", from, "-o", to],
    ]
}

#[test]
fn what_appears_during_the_run_is_not_overwritten() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    let (from, packed, to) = (source(dir.path(), 200), at("packed.gguf"), at("out"));
    alight(&["pack", text(&from), "-o", text(&packed)]).succeeds();
    for args in makers(text(&from), text(&packed), text(&to)) {
        // All of them write by the same `Replacement`.
        if args[0] != "quantize" && !everything() {
            continue;
        }
        for force in [false, true] {
            let args = [&args[..], if force { &["--force"] } else { &[] }].concat();
            let Some(stopped) = Stopped::making(&args, dir.path()) else { return };
            fs::write(&to, "precious").unwrap();
            let out = stopped.goes_on();
            if force {
                out.succeeds();
                assert_ne!(fs::read(&to).unwrap(), b"precious", "{args:?}");
            } else {
                fails(&out, &["out' appeared while", "--force"]);
                assert_eq!(fs::read(&to).unwrap(), b"precious", "{args:?}");
            }
            assert_eq!(names(dir.path()), ["out", "packed.gguf", "source.gguf"], "{args:?}");
            fs::remove_file(&to).unwrap();
        }
    }
    // A copy leaves it alone with -n, and replaces it without, as cp does.
    for (flags, left) in [("-nv", true), ("-v", false)] {
        let args = ["cp", flags, "--reflink=never", text(&from), text(&to)];
        let Some(stopped) = Stopped::making(&args, dir.path()) else { return };
        fs::write(&to, "precious").unwrap();
        let out = stopped.goes_on().succeeds();
        assert_eq!(fs::read(&to).unwrap() == b"precious", left, "{flags}");
        assert_eq!(
            out.stderr.contains("already exists, and is left alone"),
            left,
            "{}",
            out.stderr
        );
        assert_eq!(names(dir.path()), ["out", "packed.gguf", "source.gguf"], "{flags}");
        fs::remove_file(&to).unwrap();
    }
}

/// Changes one byte of a file, and puts the time of its last change back.
fn change(path: &Path) {
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    let mut file = File::options().read(true).write(true).open(path).unwrap();
    let (mut byte, middle) = ([0], SeekFrom::Start(fs::metadata(path).unwrap().len() / 2));
    file.seek(middle).unwrap();
    file.read_exact(&mut byte).unwrap();
    file.seek(middle).unwrap();
    file.write_all(&[!byte[0]]).unwrap();
    file.set_times(FileTimes::new().set_modified(modified)).unwrap();
}

#[test]
fn a_source_that_changes_during_the_run_is_noticed() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    let (from, packed, to) = (source(dir.path(), 200), at("packed.gguf"), at("out"));
    alight(&["pack", text(&from), "-o", text(&packed)]).succeeds();
    let copy = ["cp", "--reflink=never", text(&from), text(&to)].to_vec();
    let verified = ["cp", "--reflink=never", "--verify", text(&from), text(&to)].to_vec();
    let all = makers(text(&from), text(&packed), text(&to)).into_iter().chain([copy, verified]);
    for args in all {
        let Some(stopped) = Stopped::making(&args, dir.path()) else { return };
        let changed = if args[0] == "unpack" { &packed } else { &from };
        change(changed);
        let name = changed.file_name().unwrap().to_str().unwrap();
        fails(&stopped.goes_on(), &[name, "was changed by another program"]);
        assert_eq!(names(dir.path()), ["packed.gguf", "source.gguf"], "{args:?}");
        // As it was, for the next one.
        change(changed);
    }
}

#[test]
fn a_model_made_of_a_private_one_is_private() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    let (from, packed, to) = (source(dir.path(), 1), at("packed.gguf"), at("out"));
    alight(&["pack", text(&from), "-o", text(&packed)]).succeeds();
    for path in [&from, &packed] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    for args in makers(text(&from), text(&packed), text(&to)) {
        alight(&args).succeeds();
        assert_eq!(fs::metadata(&to).unwrap().mode() & 0o777, 0o600, "{args:?}");
        fs::remove_file(&to).unwrap();
    }
}

#[test]
fn a_link_that_leads_nowhere_is_not_replaced_unasked() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    let (from, packed, to) = (source(dir.path(), 1), at("packed.gguf"), at("out"));
    alight(&["pack", text(&from), "-o", text(&packed)]).succeeds();
    for args in makers(text(&from), text(&packed), "-") {
        alight(&args).fails_as_usage("a model is written to a file, and not to standard output");
    }
    symlink("nowhere", &to).unwrap();
    for args in makers(text(&from), text(&packed), text(&to)) {
        fails(&alight(&args), &["out' is a link that leads nowhere", "--force"]);
        assert!(fs::symlink_metadata(&to).unwrap().is_symlink());
    }
    assert_eq!(names(dir.path()), ["out", "packed.gguf", "source.gguf"]);
}

/// Runs a command that must not wait for anything.
#[track_caller]
fn at_once(args: &[&str]) -> Done {
    let mut child = command(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    ended(&mut child);
    done(child.wait_with_output().unwrap())
}

#[test]
fn a_pipe_for_a_reference_is_refused_and_not_waited_for() {
    let dir = folder();
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let args = ["perplexity", "/nowhere.gguf", "--kl-base", text(&pipe)];
    at_once(&args).fails(1, &["pipe' is a pipe, expected a regular file"]);
    at_once(&["bench", "load", text(&pipe), "--no-packed"]).fails(1, &["is not a regular file"]);
}

/// What of it is cached is found out without a look at every page of its holes, which takes minutes.
#[test]
fn a_file_of_many_terabytes_of_holes_takes_no_time() {
    let dir = folder();
    let from = dir.path().join("large.gguf");
    let header = alight_formats::gguf::write::Builder::new().header();
    fs::write(&from, header).unwrap();
    if File::options().write(true).open(&from).unwrap().set_len(15 << 40).is_err() {
        return eprintln!("skipped: no such large files here");
    }
    let to = dir.path().join("out");
    // In processor time, of which a hundredth part is enough; a signal ends what takes more.
    let exe = env!("CARGO_BIN_EXE_alight");
    let limited = |args: String| {
        let line = format!("ulimit -t 10; exec '{exe}' {args}");
        done(Command::new("sh").args(["-c", &line]).output().unwrap())
    };
    let (from, out) = (text(&from), text(&to));
    let converted = limited(format!("convert '{from}' -o '{out}'"));
    assert!(converted.status.is_some(), "{}", converted.stderr);
    limited(format!("cp --verify '{from}' '{out}'")).succeeds();
    assert_eq!(fs::metadata(&to).unwrap().len(), 15 << 40);
}

/// What a file of log-probabilities, or a picture, may not replace.
#[test]
fn neither_devices_nor_what_is_measured_nor_anything_unasked() {
    let Some(model) = smollm2() else { return };
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    // A model of our own to lose: its bytes, and no other name of the real one.
    fs::copy(&model, at("model.gguf")).unwrap();
    let words =
        write(dir.path(), "words", "one two three four five six seven eight nine ten ".repeat(8));
    write(dir.path(), "old", "precious");
    write(dir.path(), "new.partial", "somebody else's");
    fs::hard_link(at("model.gguf"), at("hard")).unwrap();
    symlink("model.gguf", at("soft")).unwrap();
    symlink("words", at("soft words")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    let pipe = at("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let before = names(dir.path());
    let model = at("model.gguf");
    let len = fs::metadata(&model).unwrap().len();
    let perplexity = ["perplexity", text(&model), &words, "-c", "8", "--chunks", "1"];
    let load = ["bench", "load", text(&model), "--no-packed", "-r", "1", "--load", "mmap"];
    let load = [&load[..], &["--state", "warm", "-p", "x"]].concat();
    for (args, option) in [(&perplexity[..], "--save-logits"), (&load, "--svg")] {
        let refuses = |name: &str, force: bool, why: &str| {
            let (path, force) = (at(name), if force { &["--force"][..] } else { &[] });
            let args = [args, &[option, text(&path)], force].concat();
            at_once(&args).fails(1, &[why]);
            assert_eq!(names(dir.path()), before, "{args:?}");
        };
        refuses("old", false, "old' exists already; --force replaces it");
        refuses("dangling", false, "dangling' is a link that leads nowhere");
        for force in [false, true] {
            refuses("pipe", force, "pipe' is a pipe, expected a regular file");
            refuses("/dev/null", force, "is a character device, expected a regular file");
        }
        for name in ["model.gguf", "hard", "soft"] {
            refuses(name, true, "is the source itself");
        }
        if option == "--save-logits" {
            for name in ["words", "soft words"] {
                refuses(name, true, "is the source itself");
            }
        }
        for path in ["/dev/null", text(&pipe)] {
            assert!(!fs::metadata(path).unwrap().file_type().is_file());
        }
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        assert_eq!(fs::metadata(&model).unwrap().len(), len);
        assert_eq!(fs::read(at("old")).unwrap(), b"precious");

        // What it may write is whole, and as private as the model.
        fs::set_permissions(&model, fs::Permissions::from_mode(0o600)).unwrap();
        let new = at("new");
        alight(&[args, &[option, text(&new)]].concat()).succeeds();
        assert_eq!(fs::metadata(&new).unwrap().mode() & 0o777, 0o600);
        alight(&[args, &[option, text(&at("old")), "--force"]].concat()).succeeds();
        assert!(fs::metadata(at("old")).unwrap().len() > 100);
        assert_eq!(fs::read(at("new.partial")).unwrap(), b"somebody else's");
        fs::remove_file(&new).unwrap();
        fs::write(at("old"), "precious").unwrap();
        assert_eq!(names(dir.path()), before);
        fs::set_permissions(&model, fs::Permissions::from_mode(0o644)).unwrap();
    }
}

/// While the file is made nothing of it is there, under any name; nor after a kill.
#[test]
fn log_probabilities_appear_when_they_are_complete() {
    let Some(model) = smollm2() else { return };
    let dir = folder();
    let words = write(dir.path(), "words", "one two three four five six seven ".repeat(120));
    let new = dir.path().join("new");
    let args = ["perplexity", &model, &words, "-c", "64", "--save-logits", text(&new)];
    let Some(Stopped(mut child)) = Stopped::making(&args, dir.path()) else { return };
    assert_eq!(names(dir.path()), ["words"]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(names(dir.path()), ["words"]);
    // What appears meanwhile is not replaced.
    let Some(stopped) = Stopped::making(&args, dir.path()) else { return };
    fs::write(&new, "precious").unwrap();
    stopped.goes_on().fails(1, &["new' appeared while"]);
    assert_eq!(fs::read(&new).unwrap(), b"precious");
}
