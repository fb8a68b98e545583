//! The terminal of a chat, whose settings are changed for its duration, and by the line editor while a line is edited; or of a picture that fills
//! the whole screen. Everything is restored if a signal or a panic ends the program meanwhile.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::getpgrp;
use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcgetpgrp, tcsetattr,
};

use crate::{output, say};

/// The terminal, and its settings before the first line was edited.
#[derive(Debug)]
pub struct Terminal {
    tty: File,
    before: Termios,
    edited: AtomicBool,
    warned: AtomicBool,
    hushed: AtomicBool,
    screened: AtomicBool,
}

static TERMINAL: OnceLock<Terminal> = OnceLock::new();

impl Terminal {
    /// Returns the terminal of this process, or else that on stdin, in the same order as the line editor.
    ///
    /// # Errors
    /// There is no terminal.
    pub fn of_process() -> io::Result<&'static Terminal> {
        if let Some(known) = TERMINAL.get() {
            return Ok(known);
        }
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty");
        let tty = tty.or_else(|_| {
            use std::os::fd::AsFd;
            io::stdin().as_fd().try_clone_to_owned().map(File::from)
        })?;
        let before = tcgetattr(&tty)?;
        Ok(TERMINAL.get_or_init(|| Terminal {
            tty,
            before,
            edited: AtomicBool::new(false),
            warned: AtomicBool::new(false),
            hushed: AtomicBool::new(false),
            screened: AtomicBool::new(false),
        }))
    }

    /// Runs `edit`, which reads a line and changes the terminal's settings meanwhile.
    pub fn editing<T>(&self, edit: impl FnOnce() -> T) -> T {
        self.warned.store(false, Ordering::SeqCst);
        self.edited.store(true, Ordering::SeqCst);
        let line = edit();
        self.edited.store(false, Ordering::SeqCst);
        line
    }

    /// Runs `work`, which writes. Input that is typed meanwhile is not shown within the output, but waits for the next line.
    /// Ctrl-C remains a signal.
    pub fn hushed<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut quiet = self.before.clone();
        quiet.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON);
        // Otherwise Ctrl-C would discard the input typed before it.
        quiet.local_modes.insert(LocalModes::NOFLSH);
        // If no line is edited, the terminal reads whole lines and shows the input, as before.
        let hush = self.is_ours() && !say::is_dumb();
        if hush {
            self.hushed.store(true, Ordering::SeqCst);
            // If this fails, the input is shown.
            let _ = tcsetattr(&self.tty, OptionalActions::Now, &quiet);
        }
        let done = work();
        if hush {
            if self.is_ours() {
                let _ = tcsetattr(&self.tty, OptionalActions::Now, &self.before);
            }
            self.hushed.store(false, Ordering::SeqCst);
        }
        done
    }

    /// Runs `work`, which draws on the whole screen, on standard output, without a cursor; afterwards the screen is restored. Input that is
    /// typed meanwhile is not shown, and is available key by key from [`keys`](Terminal::keys).
    pub fn screened<T>(&self, work: impl FnOnce() -> T) -> T {
        self.screened.store(true, Ordering::SeqCst);
        // If the terminal is gone, drawing fails.
        let _ = output::report("\x1b[?1049h\x1b[?25l");
        let done = self.hushed(work);
        self.unscreen();
        done
    }

    fn unscreen(&self) {
        if self.screened.swap(false, Ordering::SeqCst) {
            let _ = output::report("\x1b[?25h\x1b[?1049l");
        }
    }

    /// Returns the typed input.
    pub fn keys(&self) -> &File {
        &self.tty
    }

    /// Returns true if another process is in the foreground.
    pub fn is_others(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|group| group != getpgrp())
    }

    /// Returns true if this process is in the foreground. From the background a change of settings would stop it, and the
    /// terminal is in use by another process.
    fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|group| group == getpgrp())
    }

    /// Returns true if a line is being edited.
    pub fn is_edited(&self) -> bool {
        self.edited.load(Ordering::SeqCst)
    }

    /// Returns true if a line is being edited and Ctrl-C is a key. Where it is a signal, the line has ended, and the editor has only not returned yet;
    /// a dumb terminal edits lines itself.
    pub fn takes_keys(&self) -> bool {
        let is_signal =
            || tcgetattr(&self.tty).is_ok_and(|now| now.local_modes.contains(LocalModes::ISIG));
        self.is_edited() && (say::is_dumb() || !is_signal())
    }

    /// Returns true if this is the first Ctrl-C since the line was begun that arrives as a signal because no line is edited; the system
    /// has discarded the typed input.
    pub fn is_first_break(&self) -> bool {
        self.is_edited() && say::is_dumb() && !self.warned.swap(true, Ordering::SeqCst)
    }

    /// Discards input that has been typed and not read.
    pub fn discard_input(&self) {
        let _ = tcflush(&self.tty, QueueSelector::IFlush);
    }

    /// Restores the settings if they are changed. Failures are ignored.
    pub fn restore(&self) {
        self.unscreen();
        let (edited, hushed) = (self.is_edited(), self.hushed.load(Ordering::SeqCst));
        if !(edited || hushed) || !self.is_ours() {
            return;
        }
        if edited {
            // Bracketed paste is enabled only while the editor reads; a new line is begun.
            let unmarked = if say::is_dumb() { "" } else { "\x1b[?2004l" };
            let _ = write!(&self.tty, "{unmarked}\r\n");
        }
        let _ = tcsetattr(&self.tty, OptionalActions::Now, &self.before);
    }
}

/// Restores the terminal with [`Terminal::restore`], if there is one whose lines are edited.
pub fn restore() {
    if let Some(terminal) = TERMINAL.get() {
        terminal.restore();
    }
}
