//! The file of `alight batch -o` while other programs do something to it: a run does not end as if its results were there.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::time::Instant;

use crate::support::{Done, PATIENCE, command, done, text, wild, write};

/// A run that has written a result, and waits for its next line.
struct Running {
    child: Child,
    input: ChildStdin,
}

impl Running {
    fn start(model: &str, path: &Path) -> Running {
        let args = ["batch", model, "--raw", "-n", "2", "-t", "1", "-q", "-o", text(path)];
        let mut child = command(&args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let mut running = Running { child, input };
        running.ask();
        let began = Instant::now();
        while fs::read(path).map_or(0, |bytes| bytes.len()) < 100 {
            assert!(began.elapsed() < PATIENCE, "no result is written");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        running
    }

    fn ask(&mut self) {
        // It may have left.
        let _ = self.input.write_all(b"\"a\"\n");
    }

    fn ends(self) -> Done {
        drop(self.input);
        done(self.child.wait_with_output().unwrap())
    }
}

#[test]
fn results_that_are_not_there_at_the_end_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let (path, aside) = (folder.path().join("results"), folder.path().join("aside"));
    let change = || File::options().append(true).open(&path).unwrap();
    let cases: [(&dyn Fn(), [&str; 2]); 6] = [
        (&|| fs::remove_file(&path).unwrap(), ["was removed while", "they are gone"]),
        (&|| fs::rename(&path, &aside).unwrap(), ["was moved while", "move it back"]),
        (
            &|| {
                let other = write(folder.path(), "other", "of another program");
                fs::rename(other, &path).unwrap();
            },
            ["was replaced by another file while", "they are gone"],
        ),
        (
            &|| {
                fs::rename(&path, &aside).unwrap();
                fs::write(&path, "of another program").unwrap();
            },
            ["was replaced by another file while", "move it back"],
        ),
        (&|| change().set_len(10).unwrap(), ["it has 10 bytes, expected ", "the same command"]),
        (&|| change().write_all(b"{").unwrap(), ["was changed while", "the same command"]),
    ];
    for (happens, parts) in cases {
        for another_line in [false, true] {
            let _ = fs::remove_file(&path);
            let mut running = Running::start(&model, &path);
            happens();
            if another_line {
                running.ask();
            }
            running.ends().fails(1, &[&["results' "][..], &parts].concat());
            let other = fs::read(&path).unwrap_or_default();
            let is_other = parts[0].contains("replaced");
            assert!(!is_other || other == b"of another program", "nothing is written to it");
        }
    }
}

#[test]
fn what_was_moved_is_moved_back_and_continued() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let (path, aside) = (folder.path().join("results"), folder.path().join("aside"));
    let mut running = Running::start(&model, &path);
    fs::rename(&path, &aside).unwrap();
    running.ask();
    running.ends().fails(1, &["move it back, and the same command continues"]);
    fs::rename(&aside, &path).unwrap();
    let mut running = Running::start(&model, &path);
    running.ask();
    running.ends().succeeds();
    let mut results = String::new();
    File::open(&path).unwrap().read_to_string(&mut results).unwrap();
    assert_eq!(results.lines().count(), 2);
}

/// A link is not the file, and may be any other from one moment to the next as long as it leads there.
#[cfg(unix)]
#[test]
fn a_file_is_found_through_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let (path, link) = (folder.path().join("results"), folder.path().join("link"));
    fs::write(&path, "").unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let mut running = Running::start(&model, &link);
    running.ask();
    running.ends().succeeds();
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
}
