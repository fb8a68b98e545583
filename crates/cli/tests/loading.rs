//! A model that is not in memory yet: a terminal is told how far it has come while an answer waits for it, and a pipe is not.
#![cfg(target_os = "linux")]

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use alight_formats::GgmlType;

use crate::support::held::{Held, hold};
use crate::support::pty::Pty;
use crate::support::{alight, command, done, wild, write};

/// From there on the file does not come: half of it.
const HALF: u32 = 12 << 20;
/// Removes a line.
const CLEARED: &str = "\r\u{1b}[K";

/// A model of about 24 MiB.
fn model(folder: &Path) -> String {
    let spec =
        wild::Spec { embd: 256, ff: 4096, layers: 2, ty: GgmlType::F32, ..wild::Spec::llama() };
    let file =
        wild::with_tokens(spec, &[("a", 1), ("b", 1), ("\u{2581}", 1)]).file(|tensor, out| {
            let weights = out.chunks_exact_mut(4).enumerate();
            weights.for_each(|(i, weight)| {
                let x = (i.wrapping_mul(2_654_435_761).wrapping_add(tensor) >> 7 & 0xff) as f32;
                weight.copy_from_slice(&(x / 1e4 - 0.0128).to_le_bytes());
            });
        });
    write(folder, "slow.gguf", file)
}

/// Reads come through calls that can be held, whatever is in the page cache.
const READ: [&str; 4] = ["--load", "read", "-c", "64"];

/// A command whose file does not come. `None` (said on stderr) where the system does not let a test hold it.
fn start<T>(args: &[&str], with: impl FnOnce(Command) -> io::Result<T>) -> Option<T> {
    let mut command = command(args);
    // A terminal without colours has the line, too.
    command.env("NO_COLOR", "1");
    hold(&mut command, HALF);
    with(command).map_err(|error| eprintln!("skipped: reads cannot be held: {error}")).ok()
}

#[test]
fn a_terminal_is_told_how_far_the_model_has_come_until_the_first_token() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let args =
        [&["run", &model, "--raw", "aab", "--ignore-eos", "-n", "5", "--temp", "0"], &READ[..]];
    let args = args.concat();
    let expected = alight(&args).succeeds();
    assert_eq!(expected.stderr, "");

    let started = start(&args, |command| {
        let pty = Pty::start(command, None);
        Ok((Held::of(&pty.child)?, pty))
    });
    let Some((held, mut shown)) = started else { return };
    // What has come is told until more comes.
    for _ in 0..2 {
        shown.expect("loading [██");
        shown.expect("] 12.6 MB of 25.6 MB, ");
    }
    held.release();
    assert!(shown.end().success());
    let text = shown.text();
    let (line, answer) = text.rsplit_once(CLEARED).unwrap();
    assert_eq!(answer, expected.stdout, "{text:?}");
    // Nothing but the line was shown before, without any colour. A busy machine may show that the prompt is read, too.
    let progress = |line: &str| line.starts_with("loading [") || line.starts_with("reading ");
    assert!(line.split(CLEARED).skip(1).all(progress), "{line:?}");
    assert!(!line.replace(CLEARED, "").contains('\u{1b}'), "{line:?}");
}

#[test]
fn the_line_goes_where_the_answer_will_not_come() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let args = [&["run", &model, "--raw", "aab", "-n", "5"], &READ[..]].concat();
    let started = start(&args, |command| {
        let pty = Pty::start(command, None);
        Ok((Held::of(&pty.child)?, pty))
    });
    let Some((held, mut shown)) = started else { return };
    shown.expect("loading [█");
    // The file ends where the next piece begins.
    let file = std::fs::File::options().write(true).open(&model).unwrap();
    file.set_len(HALF.into()).unwrap();
    held.release();
    assert_eq!(shown.end().code(), Some(1));
    let text = shown.text();
    let (_, error) = text.rsplit_once(CLEARED).unwrap();
    assert!(
        error.starts_with("alight: error: ") && error.matches("alight").count() == 1,
        "{text:?}"
    );
}

#[test]
fn neither_a_pipe_nor_a_terminal_that_shows_text_alone_gets_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let args = [&["run", &model, "--raw", "aab", "--ignore-eos", "-n", "5"], &READ[..]].concat();
    // Longer than a terminal waits for the line. (Where the machine is slower than that, this shows less, and fails nothing.)
    let wait = |held: Held| {
        held.wait();
        std::thread::sleep(Duration::from_millis(900));
        held.release();
    };
    let started = start(&args, |mut command| {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn()?;
        Ok((Held::of(&child)?, child))
    });
    let Some((held, child)) = started else { return };
    wait(held);
    let done = done(child.wait_with_output().unwrap()).succeeds();
    assert_eq!(done.stderr, "");

    let started = start(&args, |mut command| {
        let pty = Pty::start(
            {
                command.env("TERM", "dumb");
                command
            },
            None,
        );
        Ok((Held::of(&pty.child)?, pty))
    });
    let Some((held, mut shown)) = started else { return };
    wait(held);
    assert!(shown.end().success());
    assert!(
        !shown.text().contains("loading") && !shown.text().contains('\u{1b}'),
        "{:?}",
        shown.text()
    );
}
