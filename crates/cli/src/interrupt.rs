//! Ctrl-C as a flag that the token loop looks at.
//!
//! Before [`Interrupt::catch`] the signal has its default effect, so that opening a file or waiting
//! for stdin can always be broken off. After it, the first Ctrl-C sets the flag; one more, before
//! the flag has been [taken](Interrupt::take), ends the program at once with status 130.

use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGINT;

static PRESSED: AtomicBool = AtomicBool::new(false);

/// Proof that the handler is installed.
#[derive(Clone, Copy, Debug)]
pub struct Interrupt(());

impl Interrupt {
    /// Installs the handler.
    pub fn catch() -> anyhow::Result<Interrupt> {
        // The order matters: the shutdown looks at the flag before this press sets it.
        signal_hook::flag::register_conditional_shutdown(SIGINT, 130, &PRESSED)?;
        signal_hook::flag::register(SIGINT, &PRESSED)?;
        Ok(Interrupt(()))
    }

    /// Whether Ctrl-C has been pressed since the flag was last taken.
    pub fn pressed(self) -> bool {
        PRESSED.load(Ordering::Relaxed)
    }

    /// Returns the flag and clears it.
    pub fn take(self) -> bool {
        PRESSED.swap(false, Ordering::Relaxed)
    }
}
