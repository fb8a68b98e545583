//! Handling of Ctrl-C on Windows, where there are no signals, in a program that wraps another.
//!
//! Ctrl-C and Ctrl-Break go to all processes of the console, so to the program too: the wrapper merely
//! does not end because of them. Nothing else can be passed on.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use windows_sys::Win32::System::Console::{CTRL_BREAK_EVENT, CTRL_C_EVENT, SetConsoleCtrlHandler};
use windows_sys::core::BOOL;

/// The status of a program that ended because of Ctrl-C (STATUS_CONTROL_C_EXIT).
const ENDED_BY_CTRL_C: u32 = 0xC000_013A;
/// The number of the signal that Ctrl-C sends on other systems.
const CTRL_C: i32 = 2;

static CAME: AtomicBool = AtomicBool::new(false);

/// As long as this lives, Ctrl-C is handled as the [module](self) describes. One at a time.
#[derive(Debug)]
pub struct Passed(());

impl Passed {
    /// Starts handling Ctrl-C.
    pub fn on() -> Passed {
        CAME.store(false, Relaxed);
        // SAFETY: the handler has the right type and accesses only an atomic. Without a console it is
        // never called.
        unsafe { SetConsoleCtrlHandler(Some(stay), 1) };
        Passed(())
    }

    /// 2 (as if it were SIGINT) if Ctrl-C or Ctrl-Break arrived since [`on`](Passed::on).
    pub fn came(&self) -> Option<i32> {
        CAME.load(Relaxed).then_some(CTRL_C)
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        // SAFETY: removes the handler that `on` set.
        unsafe { SetConsoleCtrlHandler(Some(stay), 0) };
    }
}

/// Ends this process with the status of one that Ctrl-C ended. There is no signal to die by.
pub fn die_by(_: i32) {
    std::process::exit(ENDED_BY_CTRL_C as i32);
}

/// Called on a separate thread. Returns true if the event is handled.
unsafe extern "system" fn stay(event: u32) -> BOOL {
    let ours = matches!(event, CTRL_C_EVENT | CTRL_BREAK_EVENT);
    if ours {
        CAME.store(true, Relaxed);
    }
    BOOL::from(ours)
}
