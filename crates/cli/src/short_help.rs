//! `-h` of the commands with many options: it fits a screen, and `--help` has the rest.

use clap::Arg;

/// The last line of `-h`.
pub const END: &str = "`--help` has all options, and examples.";

/// Options that `-h` shows, by their ids, each with a shorter text for `-h` if its own is long.
pub type Shown = &'static [(&'static str, Option<&'static str>)];

/// Hides arguments from `-h`, except these.
pub fn only(shown: Shown) -> impl Fn(Arg) -> Arg {
    move |argument| {
        let found = shown.iter().find(|(id, _)| argument.get_id() == id);
        let Some((_, text)) = found else { return argument.hide_short_help(true) };
        let Some(text) = text else { return argument };
        match argument.get_long_help().or(argument.get_help()).cloned() {
            Some(long) => argument.help(*text).long_help(long),
            None => argument.help(*text),
        }
    }
}
