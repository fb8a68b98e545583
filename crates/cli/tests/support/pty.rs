//! The program on a pseudo-terminal of its own, as a person has it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use rustix::pty::{grantpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

use super::{PATIENCE, ended};

/// A program that has a terminal.
pub struct Pty {
    pub child: Child,
    /// The side of the person.
    master: File,
    /// Kept open, so that the terminal outlives the program.
    slave: File,
    pieces: Receiver<Vec<u8>>,
    /// All that was shown.
    pub shown: Vec<u8>,
    /// Bytes of it that were expected already.
    seen: usize,
}

/// Where `what` ends in what is shown, with a blank or a line break for each blank between its words.
fn end_of(what: &[u8], shown: &[u8]) -> Option<usize> {
    let end = |from: usize| {
        let mut rest = &shown[from..];
        for (i, byte) in what.iter().enumerate() {
            rest = match byte {
                b' ' if i > 0 && i + 1 < what.len() => {
                    [&b" "[..], b"\r\n", b"\n"].iter().find_map(|one| rest.strip_prefix(*one))?
                }
                _ => rest.strip_prefix(&[*byte])?,
            };
        }
        Some(shown.len() - rest.len())
    };
    (0..=shown.len()).find_map(end)
}

impl Pty {
    /// Starts it with the terminal as stdin, stderr, and stdout if that is not set to something else.
    pub fn start(mut command: Command, stdout: Option<Stdio>) -> Pty {
        // By the standard library, which closes it in all that other tests start meanwhile: they would keep the terminal.
        let open = |name: &str| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).custom_flags(libc::O_NOCTTY).open(name).unwrap()
        };
        let master = open("/dev/ptmx");
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = open(&name);
        let own = |file: &File| -> OwnedFd { file.as_fd().try_clone_to_owned().unwrap() };
        command.stdin(own(&slave)).stderr(own(&slave));
        command.stdout(stdout.unwrap_or_else(|| own(&slave).into()));
        let terminal = || {
            rustix::process::setsid()?;
            // SAFETY: stdin is open here.
            let stdin = unsafe { std::os::fd::BorrowedFd::borrow_raw(0) };
            Ok(rustix::process::ioctl_tiocsctty(stdin)?)
        };
        // SAFETY: two system calls, which are allowed between fork and exec.
        unsafe { command.pre_exec(terminal) };
        let child = command.spawn().unwrap();
        let mut reader = master.try_clone().unwrap();
        let (send, pieces) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 1 << 16];
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                if send.send(buffer[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        Pty { child, master, slave, pieces, shown: Vec::new(), seen: 0 }
    }

    /// Waits until this is shown after what was expected before; where it has a blank, a line may have been broken.
    #[track_caller]
    pub fn expect(&mut self, what: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            let new = &self.shown[self.seen..];
            if let Some(end) = end_of(what.as_bytes(), new) {
                self.seen += end;
                return;
            }
            let rest = until.saturating_duration_since(Instant::now());
            match self.pieces.recv_timeout(rest) {
                Ok(piece) => self.shown.extend(piece),
                Err(error) => panic!("{error}: {what:?} is not in {:?}", self.text()),
            }
        }
    }

    /// The terminal has so many columns from now on.
    pub fn resize(&self, columns: u16) {
        let size =
            rustix::termios::Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&self.master, size).unwrap();
    }

    /// Where what was expected last ends in what was shown.
    pub fn seen(&self) -> usize {
        self.seen
    }

    /// Types this.
    pub fn send(&mut self, keys: &[u8]) {
        self.master.write_all(keys).unwrap();
    }

    /// True if lines are read as a shell has it: whole, and shown while they are typed.
    pub fn is_ordinary(&self) -> bool {
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    /// True if a line is being edited: Ctrl-C is a key then, and no signal.
    fn is_edited(&self) -> bool {
        !tcgetattr(&self.slave).unwrap().local_modes.contains(LocalModes::ISIG)
    }

    /// Waits until a line is being edited.
    pub fn wait_for_editing(&self) {
        self.wait_for(true);
    }

    /// Waits until no line is being edited: Ctrl-C is a signal again.
    pub fn wait_for_signals(&self) {
        self.wait_for(false);
    }

    fn wait_for(&self, edited: bool) {
        let until = Instant::now() + PATIENCE;
        while self.is_edited() != edited {
            assert!(Instant::now() < until, "a line is edited: {}", !edited);
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }

    /// Waits for its end, and takes what it showed until then.
    pub fn end(&mut self) -> ExitStatus {
        let status = ended(&mut self.child);
        // What was written before the end may still be on its way, for as long as the machine is busy; what is written now comes after it.
        const MARK: &[u8] = b"\x00that was all\x00";
        self.slave.write_all(MARK).unwrap();
        let until = Instant::now() + PATIENCE;
        loop {
            let mark = self.shown.windows(MARK.len()).rposition(|part| part == MARK);
            if let Some(at) = mark {
                self.shown.drain(at..at + MARK.len());
                return status;
            }
            match self.pieces.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(piece) => self.shown.extend(piece),
                Err(error) => panic!("{error}: the terminal keeps back what was written to it"),
            }
        }
    }

    /// All that was shown, with the newlines that the program wrote.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown).replace("\r\n", "\n")
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
