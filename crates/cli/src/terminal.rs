//! The terminal of a chat, whose settings are changed while it lasts, and by the line editor while a line is edited; or of a picture that takes the
//! whole screen. All is put back before the program ends in the middle of that, by a signal or by a panic.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::getpgrp;
use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcgetpgrp, tcsetattr,
};

use crate::{output, say};

/// The terminal, and how it was before the first line was edited.
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
    /// The terminal of this process, or else that on stdin, as the line editor chooses it.
    ///
    /// # Errors
    /// There is none.
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

    /// `edit` reads a line, with the terminal's settings changed meanwhile.
    pub fn editing<T>(&self, edit: impl FnOnce() -> T) -> T {
        self.warned.store(false, Ordering::SeqCst);
        self.edited.store(true, Ordering::SeqCst);
        let line = edit();
        self.edited.store(false, Ordering::SeqCst);
        line
    }

    /// `work` writes, and what is typed while no line is edited is not shown in the middle of that: it waits
    /// for the next line. Ctrl-C stays a signal then.
    pub fn hushed<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut quiet = self.before.clone();
        quiet.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON);
        // Otherwise Ctrl-C would throw away what was typed before it.
        quiet.local_modes.insert(LocalModes::NOFLSH);
        // Where no line is edited, the terminal reads whole lines and shows what is typed, as it did before.
        let hush = self.is_ours() && !say::is_dumb();
        if hush {
            self.hushed.store(true, Ordering::SeqCst);
            // Where it is not possible, what is typed is shown.
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

    /// `work` draws on the whole screen, on standard output, without a cursor; afterwards the screen shows what it showed before. What is typed
    /// meanwhile is not shown, and comes key by key to who reads [`keys`](Terminal::keys).
    pub fn screened<T>(&self, work: impl FnOnce() -> T) -> T {
        self.screened.store(true, Ordering::SeqCst);
        // A terminal that is gone is noticed by who draws.
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

    /// What is typed.
    pub fn keys(&self) -> &File {
        &self.tty
    }

    /// True if another process is in the foreground.
    pub fn is_others(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|group| group != getpgrp())
    }

    /// True if this process is in the foreground. From the background a change of settings would stop
    /// it, and somebody else has the terminal.
    fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|group| group == getpgrp())
    }

    /// True if a line is being edited.
    pub fn is_edited(&self) -> bool {
        self.edited.load(Ordering::SeqCst)
    }

    /// True if this is the first Ctrl-C since the line was begun that comes as a signal because no line is edited; the system has thrown
    /// away what was typed.
    pub fn is_first_break(&self) -> bool {
        self.is_edited() && say::is_dumb() && !self.warned.swap(true, Ordering::SeqCst)
    }

    /// Forgets what has been typed and not read.
    pub fn discard_input(&self) {
        let _ = tcflush(&self.tty, QueueSelector::IFlush);
    }

    /// Puts the settings back if they are changed. Nothing can be done about a failure.
    pub fn restore(&self) {
        self.unscreen();
        let (edited, hushed) = (self.is_edited(), self.hushed.load(Ordering::SeqCst));
        if !(edited || hushed) || !self.is_ours() {
            return;
        }
        if edited {
            // Pasted text is marked by the terminal only while the editor reads; a new line is begun.
            let unmarked = if say::is_dumb() { "" } else { "\x1b[?2004l" };
            let _ = write!(&self.tty, "{unmarked}\r\n");
        }
        let _ = tcsetattr(&self.tty, OptionalActions::Now, &self.before);
    }
}

/// [`Terminal::restore`] of the terminal, if there is one whose lines are edited.
pub fn restore() {
    if let Some(terminal) = TERMINAL.get() {
        terminal.restore();
    }
}
