//! `alight bench collective`: measured by the Python package (`alight.jax.bench`), because it needs
//! JAX.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::outcome::Outcome;
use crate::python;

/// Arguments of `alight bench collective`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Both ways are 64 layers in one program, and take turns in one process. CPU devices are threads that share \
this machine's cores: their figures say nothing about a GPU. On GPUs each of XLA's own ways stands beside the \
collective.

The Python is that in ALIGHT_PYTHON, of the virtual environment that this command is in, or python3.")]
pub struct CollectiveArgs {
    /// How many devices [default: 2 4 8; GPUs: as many as there are]
    #[arg(long, value_name = "N", num_args = 1.., value_parser = clap::value_parser!(u32).range(2..=64))]
    devices: Vec<u32>,

    /// Tokens at once [default: 1 8 32]
    #[arg(long, value_name = "N", num_args = 1.., value_parser = super::at_least_one)]
    rows: Vec<usize>,

    /// Widths of the residual stream [default: 4608]
    #[arg(long, value_name = "N", num_args = 1.., value_parser = super::at_least_one)]
    hidden: Vec<usize>,

    /// Processes that share the devices: psum is Gloo's then [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    processes: Option<u32>,

    /// Turns of each program [default: 41]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(3..=100_000))]
    turns: Option<u32>,

    /// What to measure on [default: GPUs if there are two]
    #[arg(long, value_name = "NAME", value_parser = ["cpu", "gpu"])]
    platform: Option<String>,

    /// One line of JSON
    #[arg(long)]
    json: bool,

    /// Draw a picture as well
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Replace the file of --svg if it exists
    #[arg(long, requires = "svg")]
    force: bool,
}

/// Replaces this process with Python.
pub fn main(args: &CollectiveArgs) -> Outcome {
    let mut out = vec![OsString::from("collective")];
    let numbers = |list: &[usize]| list.iter().map(|n| n.to_string().into()).collect();
    let devices: Vec<usize> = args.devices.iter().map(|&n| n as usize).collect();
    let lists = [("--devices", &devices), ("--rows", &args.rows), ("--hidden", &args.hidden)];
    for (name, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
        out.push(name.into());
        let mut values: Vec<OsString> = numbers(list);
        out.append(&mut values);
    }
    for (name, value) in [("--processes", args.processes), ("--turns", args.turns)] {
        out.extend(value.map(|n| format!("{name}={n}").into()));
    }
    out.extend(args.platform.iter().map(|name| format!("--platform={name}").into()));
    if args.json {
        out.push("--json".into());
    }
    if args.force {
        out.push("--force".into());
    }
    if let Some(path) = &args.svg {
        // In one argument, because a name may look like an option.
        let mut option = OsString::from("--svg=");
        option.push(path);
        out.push(option);
    }
    python::exec("alight.jax.bench._main", "alight bench", "bench collective", &out)
}
