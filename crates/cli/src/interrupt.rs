//! Signals that would end the program: Ctrl-C as a flag that the token loop checks, and a terminal
//! that is restored before any of them takes effect.
//!
//! Before [`Interrupt::catch`] Ctrl-C has its default effect, so that opening a file or waiting for
//! stdin can always be interrupted. After it, the first Ctrl-C sets the flag; one more, before the
//! flag has been [taken](Interrupt::take), ends the program at once with status 130. With a
//! terminal, whose conversation would be lost, it only does so if it comes [`PATIENCE`] later: a
//! key pressed twice was meant for the answer.
//!
//! A signal that was ignored when the program was started stays ignored (`nohup`, `trap '' INT`,
//! and SIGINT and SIGQUIT of what a script starts with `&`): no handler is installed for it.

use std::cell::Cell;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use alight_model::Cancel;
use rusage::inherited::is_ignored;
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::say;
use crate::terminal::Terminal;

/// Shown before a message of a chat.
pub const PROMPT: &str = "> ";
/// Printed when Ctrl-C was pressed with nothing to clear.
pub const LEAVES: &str = "(press Ctrl-C again or Ctrl-D to leave)";

/// Exit status after Ctrl-C.
const STATUS: i32 = 130;

/// How long to wait for the end of an answer before Ctrl-C ends a chat.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often Ctrl-C is looked for while a thread works.
const INTERVAL: Duration = Duration::from_millis(50);

static PRESSED: AtomicBool = AtomicBool::new(false);

/// True if Ctrl-C ends the program although there is a handler: after [`Interrupt::during`], until it is caught permanently.
static DEFAULT: AtomicBool = AtomicBool::new(false);

/// Proof that Ctrl-C sets the flag, unless it is ignored.
#[derive(Clone, Copy, Debug)]
pub struct Interrupt(());

impl Interrupt {
    /// Installs the handler.
    pub fn catch() -> anyhow::Result<Interrupt> {
        static CAUGHT: OnceLock<()> = OnceLock::new();
        if CAUGHT.get().is_none() && !is_ignored(SIGINT) {
            // The order matters: the shutdown checks the flag before this press sets it.
            signal_hook::flag::register_conditional_shutdown(SIGINT, STATUS, &PRESSED)?;
            signal_hook::flag::register(SIGINT, &PRESSED)?;
        }
        CAUGHT.get_or_init(|| ());
        Interrupt::leave_to_others();
        Ok(Interrupt(()))
    }

    /// Like [`catch`](Interrupt::catch), and `terminal` is restored before any signal ends the
    /// program. While a line is being edited, a SIGINT sent by another process (the terminal itself
    /// sends none then) ends it like any other signal.
    pub fn catch_with(terminal: &'static Terminal) -> anyhow::Result<Interrupt> {
        let wanted = [SIGINT, SIGTERM, SIGHUP, SIGQUIT].into_iter().filter(|&s| !is_ignored(s));
        let mut signals = Signals::new(wanted)?;
        Interrupt::leave_to_others();
        // On a thread, because restoring a terminal's settings is not allowed in a signal handler.
        let listen = move || {
            let mut pressed = Instant::now();
            signals.forever().for_each(|signal| came(signal, terminal, &mut pressed));
        };
        thread::Builder::new().name("signals".into()).spawn(listen)?;
        Ok(Interrupt(()))
    }

    /// From now on the other handlers installed for Ctrl-C decide, whatever was done [`during`](Interrupt::during) before.
    pub fn leave_to_others() {
        DEFAULT.store(false, Ordering::Relaxed);
    }

    /// Runs `work`, which can check if Ctrl-C was pressed meanwhile; a second press ends the program at once. Afterwards Ctrl-C
    /// has its default effect, as before, and a press that `work` did not notice has it then. If the system does not allow a handler, it has that effect throughout.
    pub fn during<T>(work: impl FnOnce(&dyn Fn() -> bool) -> T) -> T {
        let pressed = Arc::new(AtomicBool::new(false));
        let install = || -> std::io::Result<Vec<SigId>> {
            static INSTALLED: OnceLock<()> = OnceLock::new();
            if is_ignored(SIGINT) {
                return Ok(vec![]);
            }
            if INSTALLED.set(()).is_ok() {
                signal_hook::flag::register_conditional_default(SIGINT, &DEFAULT)?;
            }
            let status =
                signal_hook::flag::register_conditional_shutdown(SIGINT, STATUS, pressed.clone())?;
            Ok(vec![status, signal_hook::flag::register(SIGINT, pressed.clone())?])
        };
        let handlers = install().unwrap_or_default();
        DEFAULT.store(false, Ordering::Relaxed);
        let was_reported = Cell::new(false);
        // Ctrl-C may have been pressed before, after the last look at the other flag.
        let done = work(&|| {
            let now = pressed.load(Ordering::Relaxed);
            was_reported.set(now || was_reported.get());
            now || PRESSED.load(Ordering::Relaxed)
        });
        // In this order, so that Ctrl-C has an effect at every moment.
        DEFAULT.store(true, Ordering::Relaxed);
        for handler in handlers {
            signal_hook::low_level::unregister(handler);
        }
        if pressed.load(Ordering::Relaxed) && !was_reported.get() {
            // Pressed after the last look of `work`, which is over, so nothing else reports it.
            let _ = signal_hook::low_level::emulate_default_handler(SIGINT);
        }
        done
    }

    /// Returns true if Ctrl-C has been pressed since the flag was last taken.
    pub fn pressed(self) -> bool {
        PRESSED.load(Ordering::Relaxed)
    }

    /// Returns what ends a computation while it is [pressed](Interrupt::pressed).
    pub fn cancel(self) -> Cancel {
        Cancel::when(move || self.pressed())
    }

    /// Runs `work` on a thread of its own, so that Ctrl-C has its effect at once, whatever that thread is doing: this returns
    /// `None`, and leaves the thread to itself. `work` is passed a function that returns true from then on, so that it can end
    /// early. If the system starts no thread, `work` runs on this one, to its end.
    pub fn unless_pressed<T, W>(self, work: W) -> Option<T>
    where
        T: Send + 'static,
        W: FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
    {
        // If a thread cannot be started, the values moved into it are lost, so it is sent the work afterwards.
        let (give, given) = sync_channel::<W>(1);
        let (send, done) = sync_channel(1);
        let is_left = Arc::new(AtomicBool::new(false));
        let is_left_there = Arc::clone(&is_left);
        let there = move || {
            if let Ok(work) = given.recv() {
                // If it has been left, nothing receives the result.
                let _ = send.send(work(&|| is_left_there.load(Ordering::Relaxed)));
            }
        };
        if thread::Builder::new().name("work".into()).spawn(there).is_err() {
            return Some(work(&|| false));
        }
        if let Err(SendError(work)) = give.send(work) {
            return Some(work(&|| false));
        }
        loop {
            match done.recv_timeout(INTERVAL) {
                Err(RecvTimeoutError::Timeout) if !self.pressed() => {}
                result => {
                    is_left.store(true, Ordering::Relaxed);
                    // (A panic of the thread has ended the process.)
                    return result.ok();
                }
            }
        }
    }

    /// Returns the flag and clears it.
    pub fn take(self) -> bool {
        PRESSED.swap(false, Ordering::Relaxed)
    }
}

/// Handles a signal that was caught with a terminal. `pressed`: when Ctrl-C last requested the end of an answer.
fn came(signal: i32, terminal: &Terminal, pressed: &mut Instant) {
    if signal == SIGINT && terminal.is_first_break() {
        say::styled(&format!("\n{LEAVES}\n{PROMPT}"));
        return;
    }
    if signal == SIGINT && !terminal.takes_keys() {
        if !PRESSED.swap(true, Ordering::Relaxed) {
            *pressed = Instant::now();
        }
        if pressed.elapsed() < PATIENCE {
            return;
        }
    }
    terminal.restore();
    match signal {
        SIGINT => process::exit(STATUS),
        other => rusage::signals::die_by(other),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    /// Set in the process whose signals are tried.
    const NOTICES: &str = "ALIGHT_TEST_NOTICES";

    /// One process for each case, since a signal is the whole process's.
    fn press_during_work(notices: bool) -> std::process::Output {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "interrupt::tests::pressed_once", "--ignored", "--nocapture"]);
        command.env(NOTICES, notices.to_string()).output().unwrap()
    }

    #[test]
    #[ignore = "ends its process: started by the test below"]
    fn pressed_once() {
        let Ok(notices) = std::env::var(NOTICES) else { return };
        Interrupt::during(|pressed| {
            assert!(!pressed());
            signal_hook::low_level::raise(SIGINT).unwrap();
            assert!(notices == "false" || pressed());
        });
        println!("continues");
    }

    #[test]
    fn a_press_that_the_work_did_not_notice_has_its_default_effect() {
        if is_ignored(SIGINT) {
            eprintln!("skipped: SIGINT is ignored here, and stays so");
            return;
        }
        let noticed = press_during_work(true);
        assert!(String::from_utf8_lossy(&noticed.stdout).contains("continues"), "{noticed:?}");
        let missed = press_during_work(false);
        assert_eq!(missed.status.signal(), Some(SIGINT), "{missed:?}");
    }
}
