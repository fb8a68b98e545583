//! `alight completions`: a completion script for the user's shell.

use clap::Command;
use clap_complete::Shell;

use crate::outcome::Outcome;
use crate::output;

/// Arguments of `alight completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  alight completions bash > ~/.local/share/bash-completion/completions/alight
  alight completions zsh  > ~/.zfunc/_alight        # a folder in $fpath
  alight completions fish > ~/.config/fish/completions/alight.fish")]
pub struct CompletionsArgs {
    /// The shell to write for
    shell: Shell,
}

/// Writes the script for `command` to stdout.
pub fn main(args: &CompletionsArgs, mut command: Command) -> Outcome {
    // Into memory first: the generator panics when it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "alight", &mut script);
    output::report(script)
}
