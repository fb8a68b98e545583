//! Where the prompt comes from: an argument, a file, stdin, or a person at a terminal. And what all prompts have in
//! common, wherever they come from: a limit, and a template or none.

use std::io::{IsTerminal, stdin};
use std::path::Path;

use alight_text::{Style, Tokenizer, Vocabulary};
use anyhow::anyhow;

use crate::outcome::{Outcome, Stop};
use crate::{say, text_input};

/// Most bytes of a prompt: beyond what any context holds.
const LIMIT: u64 = 64 << 20;

/// The source of the prompt, decided from the arguments alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// Given as an argument.
    Argument(&'a str),
    /// A file.
    File(&'a Path),
    /// Everything on stdin.
    Stdin,
    /// A person: chat.
    Terminal,
}

impl<'a> Source<'a> {
    /// An argument wins (`-` means stdin), then a file; with neither, stdin is the prompt if it is
    /// a pipe or a file, and the chat partner if it is a terminal. A pipe is left unread when an
    /// argument is given, as in the body of a shell loop.
    pub fn of(argument: Option<&'a str>, file: Option<&'a Path>) -> Source<'a> {
        match (argument, file) {
            (Some("-"), _) => Source::Stdin,
            (Some(text), _) => Source::Argument(text),
            (None, Some(path)) if path == Path::new("-") => Source::Stdin,
            (None, Some(path)) => Source::File(path),
            (None, None) if stdin().is_terminal() => Source::Terminal,
            (None, None) => Source::Stdin,
        }
    }

    /// Reads the text. One newline at the end of a file or of stdin is not part of the prompt.
    pub fn read(&self) -> Outcome<String> {
        let from = match self {
            Source::Argument(text) => return Ok((*text).to_owned()),
            Source::File(path) => text_input::From::File(path),
            Source::Stdin | Source::Terminal => text_input::From::Stdin,
        };
        let mut text = text_input::read(from, "the prompt", LIMIT)?;
        if text.ends_with('\n') {
            text.pop();
            if text.ends_with('\r') {
                text.pop();
            }
        }
        if text.is_empty() {
            return Err(Stop::Usage(format!(
                "there is no prompt: {from} is empty. Give one as an argument, pipe one in, or \
                 run alight on a terminal to chat"
            )));
        }
        Ok(text)
    }
}

/// Refuses a prompt of `bytes` that is too long for the context whatever its tokens are.
pub fn check_length(bytes: usize, tokenizer: &Tokenizer, context: usize) -> anyhow::Result<()> {
    alight_server::body::prompt::check_length(bytes, tokenizer, context).map_err(|why| anyhow!(why))
}

/// With the chat template of the model at `path`, or without one where there is none or `raw` asks for it; says so where
/// the file decides it.
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
    fn an_argument_wins_over_stdin() {
        let path = Path::new("p.txt");
        assert_eq!(Source::of(Some("hi"), None), Source::Argument("hi"));
        assert_eq!(Source::of(Some("-"), None), Source::Stdin);
        assert_eq!(Source::of(None, Some(path)), Source::File(path));
        assert_eq!(Source::of(None, Some(Path::new("-"))), Source::Stdin);
    }

    #[test]
    fn one_trailing_newline_is_not_the_prompt() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Source::File(&path).read()
        };
        assert_eq!(read(b"a\nb\n\n").unwrap(), "a\nb\n");
        assert_eq!(read(b"a\r\n").unwrap(), "a");
        assert!(matches!(read(b"\n"), Err(Stop::Usage(_))));
        assert!(
            matches!(read(b"ab\xff"), Err(Stop::Failed(e)) if e.to_string().contains("byte 2"))
        );
    }
}
