//! The sources of the prompt: an argument or a file, preceded by stdin; stdin alone; or a user at a terminal. And the style that
//! all prompts have: with a template or without one.

use std::io::{IsTerminal, stdin};
use std::os::fd::AsFd;
use std::path::Path;

use alight_text::{Style, Vocabulary};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};

use crate::outcome::{Outcome, Stop};
use crate::{say, text_input};

/// Maximum bytes of a prompt: more than any context holds.
const LIMIT: u64 = 64 << 20;

/// The silence of standard input after which a note is printed that it is being waited for.
const SILENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Names of standard input in place of a file: opened again, it would already have been read.
const STDIN: [&str; 3] = ["-", "/dev/stdin", "/dev/fd/0"];

/// The source of the prompt, determined from the arguments and the type of standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// Given with the command; if `piped`, the text on stdin precedes it.
    Given { text: TextArgument<'a>, piped: bool },
    /// Everything on stdin.
    Stdin,
    /// A user: chat.
    Terminal,
}

/// A text that is given with the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextArgument<'a> {
    /// As an argument.
    Argument(&'a str),
    /// As a file.
    File(&'a Path),
}

impl<'a> Source<'a> {
    /// Returns the source: a text is given by an argument or in a file (`-` in place of either is stdin), and the input from a
    /// pipe or a file on stdin belongs to it. Without a text, that input alone is the prompt; a terminal means a chat.
    pub fn of(argument: Option<&'a str>, file: Option<&'a Path>) -> Source<'a> {
        let given = |text| Source::Given { text, piped: holds_text(stdin()) };
        match (argument, file) {
            (Some("-"), _) => Source::Stdin,
            (Some(text), _) => given(TextArgument::Argument(text)),
            (None, Some(path)) if STDIN.iter().any(|name| path == Path::new(name)) => Source::Stdin,
            (None, Some(path)) => given(TextArgument::File(path)),
            (None, None) if stdin().is_terminal() => Source::Terminal,
            (None, None) => Source::Stdin,
        }
    }

    /// Returns the same source without stdin, if that belongs to only one of several processes that all need the same prompt.
    pub fn without_input(self) -> Source<'a> {
        match self {
            Source::Given { text, .. } => Source::Given { text, piped: false },
            other => other,
        }
    }

    /// Reads the text. One newline at the end of a file or of stdin is not part of the prompt. With `strict`, other encodings than UTF-8 are errors;
    /// otherwise they are decoded, with a note.
    pub fn read(&self, strict: bool) -> Outcome<String> {
        let (given, piped) = match *self {
            Source::Given { text, piped } => (Some(text), piped),
            Source::Stdin | Source::Terminal => (None, true),
        };
        let input = if piped { read(text_input::From::Stdin, strict)? } else { String::new() };
        let text = match given {
            None => return not_empty(input, text_input::From::Stdin),
            Some(TextArgument::Argument("")) if input.is_empty() => {
                return Err(Stop::Usage(
                    "the prompt is empty: give a text, or none at all to chat on a terminal"
                        .to_owned(),
                ));
            }
            Some(TextArgument::Argument(text)) => text.to_owned(),
            Some(TextArgument::File(path)) => {
                let from = text_input::From::File(path);
                not_empty(read(from, strict)?, from)?
            }
        };
        Ok(match (&*input, &*text) {
            ("", _) => text,
            (_, "") => input,
            _ => format!("{input}\n\n{text}"),
        })
    }
}

/// Returns true if stdin may contain a text: a pipe, a socket or a file, not a device.
fn holds_text(stdin: impl AsFd) -> bool {
    use FileType::{Fifo, RegularFile, Socket};
    fstat(stdin).is_ok_and(|stat| {
        matches!(FileType::from_raw_mode(stat.st_mode), Fifo | RegularFile | Socket)
    })
}

fn read(from: text_input::From<'_>, strict: bool) -> Outcome<String> {
    if matches!(from, text_input::From::Stdin) {
        let input = stdin();
        let mut awaited = [PollFd::new(&input, PollFlags::IN)];
        if poll(&mut awaited, Some(&SILENCE)).is_ok_and(|ready| ready == 0) {
            say::note(
                "waiting for standard input, which belongs to the prompt: `< /dev/null` leaves it out",
            );
        }
    }
    let (mut text, encoding) = match strict {
        true => (text_input::read(from, "the prompt", LIMIT)?, None),
        false => text_input::read_any(from, "the prompt", LIMIT)?,
    };
    if let Some(encoding) = encoding {
        say::note(&format!(
            "the prompt {} is not UTF-8: it is read as {encoding} (--strict-utf8 refuses it)",
            from.place()
        ));
    }
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

fn not_empty(text: String, from: text_input::From<'_>) -> Outcome<String> {
    if text.is_empty() {
        return Err(Stop::Usage(format!(
            "there is no prompt: {from} is empty. Give one as an argument, pipe one in, or \
             run alight on a terminal to chat"
        )));
    }
    Ok(text)
}

/// Returns the style: with the chat template of the model at `path`, or without one if there is none or `raw` is set; prints a
/// note if the file decides it.
pub fn style(vocabulary: &Vocabulary, path: &Path, raw: bool) -> Style {
    if raw {
        return Style::Raw;
    }
    match vocabulary.template() {
        Some(Ok(_)) => return Style::Chat,
        Some(Err(error)) => say::note(&format!(
            "the chat template in '{}' cannot be used ({error}): continuing the text as with --raw",
            path.display()
        )),
        None => say::note(&format!(
            "'{}' has no chat template: continuing the text as with --raw",
            path.display()
        )),
    }
    Style::Raw
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_given_or_comes_on_stdin() {
        let path = Path::new("p.txt");
        let text = |source| match source {
            Source::Given { text, .. } => Some(text),
            _ => None,
        };
        assert_eq!(text(Source::of(Some("hi"), None)), Some(TextArgument::Argument("hi")));
        assert_eq!(Source::of(Some("-"), None), Source::Stdin);
        assert_eq!(text(Source::of(None, Some(path))), Some(TextArgument::File(path)));
        for stdin in ["-", "/dev/stdin"] {
            assert_eq!(Source::of(None, Some(Path::new(stdin))), Source::Stdin);
        }
    }

    #[test]
    fn one_trailing_newline_is_not_the_prompt() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Source::Given { text: TextArgument::File(&path), piped: false }.read(true)
        };
        assert_eq!(read(b"a\nb\n\n").unwrap(), "a\nb\n");
        assert_eq!(read(b"a\r\n").unwrap(), "a");
        assert!(matches!(read(b"\n"), Err(Stop::Usage(_))));
        assert!(
            matches!(read(b"ab\xff"), Err(Stop::Failed(e)) if e.to_string().contains("byte 2"))
        );
    }
}
