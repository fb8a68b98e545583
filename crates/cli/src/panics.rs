//! The handling of panics: the user sees a one-line report, and the terminal is restored.

use std::panic::{self, PanicHookInfo};

use crate::{memory, say, terminal};

/// Makes a panic, which is a bug in alight, print one line and end the process with status 1, on any thread.
pub fn end_the_process() {
    panic::set_hook(Box::new(|info| {
        terminal::restore();
        panicked(info);
        std::process::exit(1);
    }));
}

/// Makes a panic, which is a bug in alight, print a report but end only the task that caused it. For a server, whose other
/// requests continue.
pub fn end_their_task() {
    panic::set_hook(Box::new(panicked));
}

fn panicked(info: &PanicHookInfo<'_>) {
    let what = info
        .payload()
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| info.payload().downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "unknown".to_owned());
    memory::end_after(&what);
    let place = info.location().map(|l| format!(" ({l})")).unwrap_or_default();
    say::error(&format!("internal error: {what}{place}"));
    say::plain(&format!(
        "This is a bug in alight {}. Please report it with the command line and the model's \
         `alight inspect` output.",
        env!("CARGO_PKG_VERSION")
    ));
}
