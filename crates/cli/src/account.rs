//! `alight rusage`: this process becomes the program `rusage`, which is installed next to this one.
//!
//! A separate program is small, and the commands it runs are not measured from inside a large one.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, anyhow};

use crate::outcome::Outcome;

/// Arguments of `alight rusage`.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct RusageArgs {
    /// What `rusage` takes: see `alight rusage --help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// Replaces this process with `rusage`.
pub fn main(args: &RusageArgs) -> Outcome {
    let own = env::current_exe().context("cannot find out where this program is")?;
    let path = own.with_file_name("rusage");
    let error = Command::new(&path).args(&args.arguments).exec();
    let shown = path.display();
    if error.kind() == io::ErrorKind::NotFound {
        return Err(anyhow!(
            "there is no '{shown}': `rusage` is a program of its own, which `cargo install --path crates/rusage` puts beside `alight`"
        )
        .into());
    }
    Err(anyhow!(error).context(format!("'{shown}'")).into())
}
