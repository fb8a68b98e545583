//! What a panic does: the person reads one line that says so, and the terminal is as it was.

use std::panic::{self, PanicHookInfo};

use crate::{say, terminal};

/// A panic is a bug of ours: say so in one line and leave with status 1, whichever thread it was.
pub fn end_the_process() {
    panic::set_hook(Box::new(|info| {
        terminal::restore();
        panicked(info);
        std::process::exit(1);
    }));
}

/// A panic is a bug of ours, and is said; but it ends only what has caused it. For a server, whose other requests go on.
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
    let place = info.location().map(|l| format!(" ({l})")).unwrap_or_default();
    say::error(&format!("internal error: {what}{place}"));
    say::plain(&format!(
        "This is a bug in alight {}. Please report it with the command line and the model's \
         `alight inspect` output.",
        env!("CARGO_PKG_VERSION")
    ));
}
