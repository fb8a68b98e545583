//! The input that a user types in a chat, message by message.
//!
//! No typed input is lost: input that arrives together is kept for the following prompts; Ctrl-C clears a line and leaves only
//! from an empty one, and only if it is pressed again.

use std::borrow::Cow;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::anyhow;
use rustyline::completion::Completer;
use rustyline::config::{Behavior, CompletionType};
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{
    Cmd, ConditionalEventHandler, Config, Context, Editor, Event, EventContext, EventHandler,
    Helper, KeyCode, KeyEvent, Modifiers, RepeatCount,
};

use crate::interrupt::{LEAVES, PROMPT};
use crate::outcome::{Outcome, chain_of};
use crate::say;
use crate::terminal::Terminal;

/// The prompt of continuation lines.
const MORE: &str = ". ";
/// Begins and ends a message of several lines.
const QUOTES: &str = "\"\"\"";
/// Number of messages that the history keeps.
const KEPT: usize = 1000;

/// The messages of a user at a terminal.
pub struct Lines {
    editor: Editor<Person, FileHistory>,
    terminal: &'static Terminal,
    /// True if the last line was ended by Ctrl-C.
    broken: Arc<AtomicBool>,
    /// The file in which the history is kept from one chat to the next.
    history: Option<PathBuf>,
}

/// The end of a line.
enum EnteredLine {
    Entered(String),
    /// By Ctrl-C, with this text on the line.
    Broken(String),
    /// By Ctrl-D.
    End,
    /// It cannot be read, which has been reported.
    Unreadable,
}

impl Lines {
    /// Reads from `terminal`. `history`: the file of messages typed in earlier chats. Tab completes by `complete`.
    pub fn new(
        terminal: &'static Terminal,
        history: Option<PathBuf>,
        complete: Complete,
    ) -> Outcome<Lines> {
        // The terminal itself, so that stdout carries only the answers even when it is redirected.
        let config = Config::builder()
            .behavior(Behavior::PreferTerm)
            .completion_type(CompletionType::List)
            .max_history_size(KEPT)
            .map_err(|e| anyhow!(e))?
            .history_ignore_space(true)
            .build();
        let typed = FileHistory::with_config(&config);
        let mut editor: Editor<Person, FileHistory> =
            Editor::with_history(config, typed).map_err(|e| anyhow!(e))?;
        editor.set_helper(Some(Person { coloured: say::colour(), complete }));
        let broken = Arc::new(AtomicBool::new(false));
        let handler = EventHandler::Conditional(Box::new(Break(Arc::clone(&broken))));
        editor.bind_sequence(KeyEvent::ctrl('C'), handler);
        let newline = EventHandler::Simple(Cmd::Newline);
        editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), newline);
        if let Some(path) = history.as_ref().filter(|path| path.exists())
            && let Err(error) = editor.load_history(path)
        {
            say::note(&format!("the history in '{}' cannot be read: {error}", path.display()));
        }
        Ok(Lines { editor, terminal, broken, history })
    }

    /// Returns the next message that is not empty; `None` when the user leaves.
    pub fn next(&mut self) -> Outcome<Option<String>> {
        let mut hinted = false;
        loop {
            let mut message = match self.line(PROMPT)? {
                EnteredLine::Entered(line) if line.trim().is_empty() => continue,
                EnteredLine::Entered(line) => line,
                EnteredLine::Broken(line) if line.is_empty() && hinted => return Ok(None),
                EnteredLine::Broken(line) => {
                    if line.is_empty() {
                        say::plain(LEAVES);
                    }
                    hinted = line.is_empty();
                    continue;
                }
                EnteredLine::End => return Ok(None),
                EnteredLine::Unreadable => continue,
            };
            hinted = false;
            if let Some(quoted) = message.trim_start().strip_prefix(QUOTES) {
                match self.quoted(quoted.to_owned())? {
                    Some(quoted) => message = quoted,
                    None => continue,
                }
            }
            if message.trim().is_empty() {
                continue;
            }
            self.remember(&message);
            return Ok(Some(message));
        }
    }

    /// Returns the rest of a message that began with quotes and `text`; `None` if it was abandoned.
    fn quoted(&mut self, mut text: String) -> Outcome<Option<String>> {
        loop {
            if let Some(whole) = text.trim_end().strip_suffix(QUOTES) {
                return Ok(Some(whole.trim_matches('\n').to_owned()));
            }
            match self.line(MORE)? {
                EnteredLine::Entered(line) => {
                    text.push('\n');
                    text.push_str(&line);
                }
                EnteredLine::End => return Ok(Some(text.trim_matches('\n').to_owned())),
                EnteredLine::Broken(_) => return Ok(None),
                EnteredLine::Unreadable => {}
            }
        }
    }

    fn line(&mut self, prompt: &str) -> Outcome<EnteredLine> {
        self.broken.store(false, Ordering::Relaxed);
        let Lines { editor, terminal, .. } = self;
        let read = || if say::is_dumb() { whole_line(prompt) } else { editor.readline(prompt) };
        match terminal.editing(read) {
            Ok(line) if self.broken.load(Ordering::Relaxed) => Ok(EnteredLine::Broken(line)),
            Ok(line) => Ok(EnteredLine::Entered(line)),
            Err(ReadlineError::Interrupted) => Ok(EnteredLine::Broken(String::new())),
            Err(ReadlineError::Eof) => Ok(EnteredLine::End),
            Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                terminal.discard_input();
                say::note("that was not UTF-8 text, so it is not asked: type it again");
                Ok(EnteredLine::Unreadable)
            }
            Err(error) => Err(anyhow!(error).context("the terminal").into()),
        }
    }

    /// Keeps a message for the arrow keys, also for later chats.
    fn remember(&mut self, message: &str) {
        let added = self.editor.add_history_entry(message);
        let (Ok(true), Some(path)) = (added, &self.history) else { return };
        let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        let kept = folder.map_err(ReadlineError::from);
        if let Err(error) = kept.and_then(|()| self.editor.append_history(path)) {
            let why = chain_of(&error);
            say::note(&format!("the history is not kept in '{}': {why}", path.display()));
            self.history = None;
        }
    }
}

/// Reads a line in the terminal's own mode, for a dumb terminal: Ctrl-C is then a signal, and the editor would write to stdout.
fn whole_line(prompt: &str) -> Result<String, ReadlineError> {
    say::styled(prompt);
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line)? == 0 {
        return Err(ReadlineError::Eof);
    }
    line.truncate(line.trim_end_matches(['\n', '\r']).len());
    Ok(line)
}

/// Ctrl-C: accepts the line as it is, keeps the input after it, and marks the line.
struct Break(Arc<AtomicBool>);

impl ConditionalEventHandler for Break {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, _: &EventContext<'_>) -> Option<Cmd> {
        self.0.store(true, Ordering::Relaxed);
        Some(Cmd::AcceptLine)
    }
}

/// Returns the completions of what was typed before the cursor, and where the text that they replace begins.
pub type Complete = fn(&str) -> (usize, Vec<String>);

/// The display of the user's input: in its own colour, to distinguish it from the answers; and what Tab does.
struct Person {
    coloured: bool,
    complete: Complete,
}

/// The escape sequences that begin and end the colour.
const COLOUR: [&str; 2] = ["\x1b[1;32m", "\x1b[0m"];

impl Person {
    fn coloured<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let [begin, end] = COLOUR;
        match self.coloured && !text.is_empty() {
            true => Cow::Owned(format!("{begin}{text}{end}")),
            false => Cow::Borrowed(text),
        }
    }
}

impl Highlighter for Person {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        self.coloured(line)
    }

    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _: bool) -> Cow<'b, str> {
        self.coloured(prompt)
    }

    fn highlight_char(&self, _: &str, _: usize, _: CmdKind) -> bool {
        self.coloured
    }
}

impl Completer for Person {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &Context<'_>,
    ) -> Result<(usize, Vec<String>), ReadlineError> {
        Ok((self.complete)(&line[..at]))
    }
}

impl Hinter for Person {
    type Hint = String;
}

impl Validator for Person {}

impl Helper for Person {}
