//! `alight man`: manual pages, made from `--help`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::Command;
use clap_mangen::Man;

use crate::outcome::{Outcome, Stop};
use crate::output;

/// Arguments of `alight man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  alight man | man -l -                  the page of the program
  alight man run | man -l -              that of `alight run`
  alight man -o ~/.local/share/man/man1  all pages, as files")]
pub struct ManArgs {
    /// The command whose page is written to standard output [default: that of the program]
    #[arg(value_name = "COMMAND", conflicts_with = "output")]
    command: Vec<String>,

    /// Write the pages of all commands into this folder
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

/// Writes pages of `command`.
pub fn main(args: &ManArgs, mut command: Command) -> Outcome {
    command.build();
    if let Some(folder) = &args.output {
        fs::create_dir_all(folder).with_context(|| format!("'{}'", folder.display()))?;
        for page in pages(&command) {
            let path = folder.join(format!("{}.1", name(page)));
            let written = fs::write(&path, text(page)?);
            written.with_context(|| format!("'{}'", path.display()))?;
        }
        return Ok(());
    }
    let mut wanted = &command;
    for word in &args.command {
        wanted = wanted.find_subcommand(word).ok_or_else(|| {
            Stop::Usage(format!("there is no command '{word}': see `alight --help`"))
        })?;
    }
    output::report(text(wanted)?)
}

/// Returns a command and its subcommands, without the hidden ones.
fn pages(command: &Command) -> Vec<&Command> {
    let shown = |inner: &&Command| !inner.is_hide_set() && inner.get_name() != "help";
    let inner = command.get_subcommands().filter(shown).flat_map(pages);
    [command].into_iter().chain(inner).collect()
}

/// Returns the name of its page.
fn name(command: &Command) -> String {
    command.get_display_name().unwrap_or(command.get_name()).to_owned()
}

fn text(command: &Command) -> Outcome<Vec<u8>> {
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    // Options that `-h` leaves out for brevity are included here.
    let mut command = command.clone().mut_args(|argument| argument.hide_short_help(false));
    if command.get_version().is_some() {
        // The program's version names the kernels of this machine, and a page is read on others.
        command = command.version(VERSION).long_version(VERSION);
    }
    let mut page = Vec::new();
    let man = Man::new(command.clone()).title(name(&command));
    let rendered = man.source(format!("alight {VERSION}")).render(&mut page);
    rendered.map_err(|error| anyhow!(error).context("a manual page"))?;
    Ok(page)
}
