//! `alight cp`: copies files to the disk, leaving the page cache as it was.

mod report;

use std::ops::ControlFlow;
use std::path::PathBuf;

use alight_copy::{CopyError, Event, Method, Options, Progress, Reflink};
use anyhow::anyhow;
use clap::ValueEnum;

use crate::bar::Bar;
use crate::interrupt::Interrupt;
use crate::outcome::{Outcome, Stop};
use crate::{say, units};

/// Arguments of `alight cp`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  alight cp model.gguf /mnt/backup/        into a folder
  alight cp model.gguf copy.gguf --verify  and reads it again
  alight cp -r models /mnt/backup          a folder with everything in it
  alight cp -v model.gguf copy.gguf        says how it was copied

What was cached in memory stays cached, and the copy does not take its place: at most 64 MiB are \
cached on its behalf at any moment, and nothing at the end. When it is done, the copy is on the disk.

Holes, permissions, times, extended attributes and ACLs are kept; the owner too, if you may give \
files away. An existing file is replaced, as with cp; but the new one appears as a whole, when it \
is complete: until then, whatever happens, the old one stays. A link that DEST is, is followed; a link in \
a folder that is copied to is not, and is an error in the place of a file. A source that is changed \
while it is copied is an error. Where the filesystem can, the copy \
shares its bytes with the source until one of them is changed (--reflink).")]
pub struct CpArgs {
    /// What to copy
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<PathBuf>,

    /// Where to: a folder to copy into, or the name of the copy
    #[arg(required = true)]
    dest: PathBuf,

    /// Copy folders too, with everything in them; links are copied as links
    #[arg(short, long, visible_short_aliases = ['R', 'a'])]
    recursive: bool,

    /// Leave files alone that are there already
    #[arg(short, long)]
    no_clobber: bool,

    /// DEST is the name of the copy, even if there is a folder of that name
    #[arg(short = 'T', long)]
    no_target_directory: bool,

    /// Read every copy again, from the disk, and compare it before it appears
    #[arg(long)]
    verify: bool,

    /// Whether the copy may share its bytes with the source until one of them is changed
    #[arg(long, value_name = "WHEN", default_value = "auto", default_missing_value = "always",
          num_args = 0..=1, require_equals = true)]
    reflink: ReflinkArg,

    /// The way to try first, to compare them; by itself it finds the best
    #[arg(long, value_name = "WAY", hide_short_help = true)]
    method: Option<MethodArg>,

    /// Name every file as it is done, how it was copied, and why so
    #[arg(short, long)]
    verbose: bool,

    /// A line of JSON on standard output for every file
    #[arg(long)]
    json: bool,

    /// For habits: both always hold
    #[arg(short, long, hide = true)]
    preserve: bool,
    #[arg(short, long, hide = true)]
    force: bool,
}

/// `--reflink`
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ReflinkArg {
    /// If the filesystem can
    Auto,
    /// Or else it is an error
    Always,
    /// The copy has bytes of its own
    Never,
}

/// `--method`
#[derive(Clone, Copy, Debug, ValueEnum)]
enum MethodArg {
    /// Around the page cache
    Direct,
    /// The kernel copies, in windows
    CopyFileRange,
    /// Reading and writing, in windows
    ReadWrite,
}

/// Runs the command.
pub fn main(args: &CpArgs) -> Outcome {
    let interrupt = Interrupt::catch()?;
    let options = Options {
        recursive: args.recursive,
        no_clobber: args.no_clobber,
        no_target_directory: args.no_target_directory,
        verify: args.verify,
        reflink: match args.reflink {
            ReflinkArg::Auto => Reflink::Auto,
            ReflinkArg::Always => Reflink::Always,
            ReflinkArg::Never => Reflink::Never,
        },
        method: args.method.map(|method| match method {
            MethodArg::Direct => Method::Direct,
            MethodArg::CopyFileRange => Method::CopyFileRange,
            MethodArg::ReadWrite => Method::ReadWrite,
        }),
        // The total is only needed for a bar.
        count: say::is_terminal(),
    };
    let (mut bar, mut verifying) = (Bar::new("copying"), Bar::new("verifying"));
    let mut output = Ok(());
    let done = alight_copy::copy(&args.sources, &args.dest, &options, &mut |event| {
        match event {
            Event::Progress(Progress { durable, total, verified: None }) => {
                bar.show(durable, total.max(durable));
            }
            Event::Progress(Progress { total, verified: Some(done), .. }) => {
                verifying.show(done, total.max(done));
            }
            other => {
                bar.clear();
                verifying.clear();
                output = report::event(&other, args.verbose, args.json);
            }
        }
        match interrupt.pressed() || output.is_err() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    bar.clear();
    verifying.clear();
    output?;
    match done {
        Ok(summary) if summary.failed > 0 => Err(Stop::AlreadyReported),
        Ok(summary) => {
            if say::is_terminal() && !args.verbose && summary.files > 1 {
                say::line(&format!("{} files, {}", summary.files, units::bytes(summary.bytes)));
            }
            Ok(())
        }
        Err(CopyError::Stopped) => Err(Stop::Interrupted),
        Err(error) => Err(Stop::Failed(anyhow!(error))),
    }
}
