//! A limit on the size of files (`ulimit -f`): whatever is written, the command says which file and which limit, and is not ended by
//! the system's signal without a word.

use std::fs;
use std::process::{Command, Stdio};

use crate::support::{Done, alight, command, done, source, text, wild, write};

/// Runs it where no file may have more than a block of a shell's, which is 512 or 1024 bytes.
fn limited(args: &[&str]) -> Done {
    let program = command(args);
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "ulimit -f 1 && exec \"$@\"", "sh"]).arg(program.get_program());
    shell.args(program.get_args()).stdin(Stdio::null());
    done(shell.output().unwrap())
}

#[track_caller]
fn fails(out: &Done, name: &str) {
    let Done { status, stderr, .. } = out;
    assert_eq!(*status, Some(1), "{stderr}");
    let line = stderr.lines().find(|line| line.starts_with("alight: error: ")).unwrap_or_default();
    for part in [name, "File too large", "ulimit -f"] {
        assert!(line.contains(part), "{part:?} is not in {stderr:?}");
    }
    assert!([" 512 bytes", " 1024 bytes"].iter().any(|limit| line.contains(limit)), "{line}");
}

#[test]
fn every_command_that_writes_a_file_names_it_and_the_limit() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let model = wild::model(folder.path());
    let large = source(folder.path(), 1);
    let large = text(&large);
    let at = |name: &str| text(&folder.path().join(name)).to_owned();
    let (packed, out) = (at("packed.gguf"), at("out"));
    alight(&["pack", large, "-o", &packed]).succeeds();
    let lines = write(folder.path(), "lines", "\"a\"\n".repeat(9));
    let words = write(folder.path(), "words", "a".repeat(300));
    for args in [
        &["batch", &model, &lines, "--raw", "-n", "2", "-t", "1", "-o", &out][..],
        &["pack", large, "-o", &out],
        &["unpack", &packed, "-o", &out],
        &["quantize", large, "--type", "q8_0", "-o", &out],
        &["convert", large, "-o", &out],
        &["cp", large, &out],
        &["cp", "--reflink=never", large, &out],
        &["perplexity", &model, &words, "-c", "64", "-t", "1", "--save-logits", &out],
    ] {
        fails(&limited(args), "out");
        // Without the limit, the run continues after the results in the file.
        assert_eq!(fs::exists(&out).unwrap(), args[0] == "batch", "{args:?}");
        if args[0] == "batch" {
            alight(args).succeeds();
            assert_eq!(fs::read_to_string(&out).unwrap().lines().count(), 9);
            fs::remove_file(&out).unwrap();
        }
    }
}

#[test]
fn so_is_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let args = ["run", &model, "--raw", "a", "-n", "500", "--ignore-eos", "-t", "1"];
    let program = command(&args);
    let out = folder.path().join("out");
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "ulimit -f 1 && exec \"$@\"", "sh"]).arg(program.get_program());
    shell.args(program.get_args()).stdin(Stdio::null()).stdout(fs::File::create(&out).unwrap());
    shell.stderr(Stdio::piped());
    let child = shell.spawn().unwrap();
    fails(&done(child.wait_with_output().unwrap()), "cannot write to standard output");
}
