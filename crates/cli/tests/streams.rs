//! Streams that are closed or full, and signals that are to stay ignored.

use std::fs;
use std::io::{PipeReader, PipeWriter, Read};
use std::process::{Child, Command, Stdio};

use crate::support::{self, Done, command, done, ended, kill, signals, wild};

/// What the program does with a stdout that a shell arranges, as in `>/dev/full`.
fn with_stdout(arranged: &str, args: &[&str]) -> Done {
    let program = command(args);
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &format!("exec \"$@\" {arranged}"), "sh"]).arg(program.get_program());
    done(shell.args(program.get_args()).stdin(Stdio::null()).output().unwrap())
}

#[test]
fn what_cannot_be_written_is_never_success() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let copy = folder.path().join("copy");
    let lines = support::write(folder.path(), "lines", "\"a\"\n\"a\"\n");
    for args in [
        &["--help"][..],
        &["--version"],
        &["run", "--help"],
        &["help", "inspect"],
        &["completions", "zsh"],
        &["inspect", &model],
        &["inspect", &model, "--json"],
        &["run", &model, "--raw", "a", "-n", "1"],
        &["run", &model, "--raw", "a", "-n", "0", "--json"],
        &["batch", &model, &lines, "--raw", "-n", "1"],
        &["cp", "--json", &model, copy.to_str().unwrap()],
    ] {
        for (arranged, why) in [
            (">/dev/full", "No space left"),
            (">&-", "Bad file descriptor"),
            ("1</dev/null", "Bad file descriptor"),
        ] {
            let done = with_stdout(arranged, args);
            done.fails(1, &["cannot write to standard output", why]);
        }
        // Nobody is left to tell.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = command(args);
        command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
        let gone = done(command.output().unwrap());
        assert_eq!((gone.status, gone.stderr.as_str()), (Some(0), ""), "{args:?}");
        assert_eq!(with_stdout(">/dev/null", args).status, Some(0), "{args:?}");
        // As a program in another language arranges it.
        assert_eq!(with_stdout("1<>/dev/null", args).status, Some(0), "{args:?}");
    }
    // Where nothing is written there, it does not matter.
    let (from, to) = (model.as_str(), folder.path().join("quiet"));
    assert_eq!(with_stdout(">&-", &["cp", from, to.to_str().unwrap()]).status, Some(0));
}

/// A pipe that holds a page: a writer of more than that waits for a reader.
#[cfg(target_os = "linux")]
fn small_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    (reader, writer)
}

/// An answer that is being written into a pipe, and the pipe's other end, from which a byte has been read.
/// The answer is longer than the pipe: it cannot end before it is read.
#[cfg(target_os = "linux")]
fn answering(model: &str, ignored: &'static [i32]) -> (Child, PipeReader) {
    let args =
        ["run", model, "--raw", "a", "--ignore-eos", "-n", "4000", "-c", "4096", "--temp", "9"];
    let (mut reader, writer) = small_pipe();
    let mut alight = command(&args);
    signals(&mut alight, ignored, libc::SIG_IGN);
    alight.stdin(Stdio::null()).stdout(writer).stderr(Stdio::null());
    let child = alight.spawn().unwrap();
    // Its handlers are in place when there is text.
    reader.read_exact(&mut [0; 1]).unwrap();
    (child, reader)
}

/// What `nohup` and a script's `&` do to signals, it keeps.
#[cfg(target_os = "linux")]
#[test]
fn signals_that_are_ignored_stay_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let (mut child, mut out) = answering(&model, &[libc::SIGINT, libc::SIGHUP, libc::SIGQUIT]);
    for signal in [libc::SIGINT, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        kill(&child, signal);
    }
    out.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(ended(&mut child).code(), Some(0));

    // The control: where it is not ignored, it ends the answer.
    let (mut child, mut out) = answering(&model, &[]);
    kill(&child, libc::SIGINT);
    out.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(ended(&mut child).code(), Some(130));
}

#[cfg(target_os = "linux")]
#[test]
fn a_copy_goes_on_where_ctrl_c_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    fs::create_dir(&from).unwrap();
    for i in 0..100 {
        fs::write(from.join(i.to_string()), b"x").unwrap();
    }
    let (mut reader, writer) = small_pipe();
    let mut alight = command(&["cp", "-r", "--json", from.to_str().unwrap(), to.to_str().unwrap()]);
    signals(&mut alight, &[libc::SIGINT], libc::SIG_IGN);
    let mut child =
        alight.stdout(writer).stderr(Stdio::null()).stdin(Stdio::null()).spawn().unwrap();
    drop(alight);
    // The pipe is full long before all is said, so the copy has begun and cannot have ended.
    reader.read_exact(&mut [0; 1]).unwrap();
    kill(&child, libc::SIGINT);
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert_eq!(ended(&mut child).code(), Some(0));
    assert_eq!(rest.lines().count(), 100);
    assert_eq!(fs::read_dir(&to).unwrap().count(), 100);
}
