//! `--engine jax`: this process becomes Python's, with the streams and the options that it was given.
//!
//! The engine is in the Python package, so everything but the checks of the command line is done there
//! (`alight.jax._run`). An option that it does not have is refused here, by its name.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches};

use crate::outcome::{Outcome, Stop};
use crate::python;

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Engine {
    /// This program.
    Native,
    /// JAX, through the Python package `alight` and jax.
    Jax,
}

/// The choice of engine, and what only JAX has.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineChoice {
    /// What computes: this program, or JAX, which needs the Python package `alight` and jax: that of the
    /// Python in ALIGHT_PYTHON, of the virtual environment that this command is in, or of python3
    #[arg(long, value_name = "NAME", default_value = "native")]
    pub engine: Engine,

    /// With --engine jax: devices that share the work [default: 1]
    #[arg(long, value_name = "N", value_parser = ranks)]
    tp: Option<usize>,

    /// With --engine jax: native (where they lie in the file, on the CPU), or arrays of bf16 or f32
    #[arg(long, value_name = "KIND", value_parser = ["native", "bf16", "f32"])]
    weights: Option<String>,

    /// With --engine jax, for a run in several processes: where process 0 listens
    #[arg(long, value_name = "HOST:PORT")]
    coordinator: Option<String>,

    /// With --engine jax: how many processes there are
    #[arg(long, value_name = "N", value_parser = ranks)]
    processes: Option<usize>,

    /// With --engine jax: which of them this is, from 0 on
    #[arg(long, value_name = "I")]
    process: Option<usize>,

    /// With --engine jax: compile anew, and keep nothing for the next time
    #[arg(long)]
    no_cache: bool,
}

/// A number of devices.
fn ranks(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=64) => Ok(n),
        _ => Err("expected a number from 1 to 64".to_owned()),
    }
}

/// What only the JAX engine has, by the ids of the arguments.
const ONLY_JAX: [&str; 6] = ["tp", "weights", "coordinator", "processes", "process", "no_cache"];

/// What both have and call the same.
const BOTH: [&str; 15] = [
    "p",
    "file",
    "system",
    "raw",
    "parse_special",
    "json",
    "stats",
    "predict",
    "ctx_size",
    "ignore_eos",
    "temp",
    "top_k",
    "top_p",
    "min_p",
    "seed",
];

/// The options of the JAX engine without it are mistakes.
pub fn check_native(given: &ArgMatches) -> Outcome {
    match ONLY_JAX.iter().find(|id| by_hand(given, id)) {
        None => Ok(()),
        Some(id) => Err(Stop::Usage(format!("--{} needs --engine jax", id.replace('_', "-")))),
    }
}

/// Becomes Python. Returns only what prevented that.
pub fn exec(command: &clap::Command, given: &ArgMatches) -> Outcome {
    let arguments = arguments(command, given)?;
    python::exec("alight.jax._run", "alight run --engine jax", "--engine jax", &arguments)
}

fn by_hand(given: &ArgMatches, id: &str) -> bool {
    given.value_source(id) == Some(ValueSource::CommandLine)
}

/// The options and the positional arguments that were given, in the form of Python's parser.
fn arguments(command: &clap::Command, given: &ArgMatches) -> Outcome<Vec<OsString>> {
    let (mut options, mut positional) = (Vec::new(), vec![OsString::from("--")]);
    for argument in command.get_arguments().filter(|a| by_hand(given, a.get_id().as_str())) {
        let id = argument.get_id().as_str();
        let mut values = given.get_raw(id).into_iter().flatten();
        let Some(name) = argument.get_long() else {
            positional.extend(values.map(OsString::from));
            continue;
        };
        if id == "engine" {
            continue;
        }
        if !BOTH.contains(&id) && !ONLY_JAX.contains(&id) {
            return Err(Stop::Usage(format!("--{name} is not an option of the JAX engine")));
        }
        let mut option = OsString::from(format!("--{name}"));
        if !matches!(argument.get_action(), ArgAction::SetTrue)
            && let Some(value) = values.next()
        {
            // Together, because a value may look like an option.
            option.push("=");
            option.push(value);
        }
        options.push(option);
    }
    options.append(&mut positional);
    Ok(options)
}
