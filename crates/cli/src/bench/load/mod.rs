//! `alight bench load`: the time to the first token, with every method of loading weights.
//!
//! A cell is a state of the page cache, a file (canonical, or packed by `alight pack`), whether it
//! is repacked, and a load method. Cells that start cold or warm are new processes of this program,
//! `alight run`; a cell `resident` is one process that answers a prompt again and again. Cells are
//! interleaved, so that a disturbance of the machine affects all of them.
//!
//! Measurements of each process:
//! - `first token`: by itself, from the start of its `main` to the first token;
//! - `process`: from outside, from before its start until after its exit (its memory figures are
//!   gathered in between);
//! - its reads from the disk, its memory and its faults: see [`child`].

mod cells;
mod child;
pub mod disk;
mod files;
mod report;
mod resident;
mod state;
mod svg;
mod table;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, anyhow};

use crate::interrupt::Interrupt;
use crate::outcome::{Outcome, Stop};
use crate::{new_file, output, say};
use cells::{Cell, State, Variant};
use child::{Child, Sample};
use files::Files;
use report::LoadReport;
pub use resident::ResidentArgs;
pub use resident::main as resident;

/// Arguments of `alight bench load`.
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    /// The model: a .gguf file (of a split model, its first shard), not packed
    pub model: PathBuf,

    /// The same model as `alight pack` writes it [default: made for the time of the benchmark beside
    /// the model, or where temporary files go]
    #[arg(long, value_name = "FILE")]
    packed: Option<PathBuf>,

    /// Leave the packed file out
    #[arg(long, conflicts_with = "packed")]
    no_packed: bool,

    /// States to start from: cold, warm, resident [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    state: Vec<State>,

    /// Ways to load: mmap, direct, read, auto [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    load: Vec<alight_pages::Load>,

    /// Repetitions of each cell
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5,
          value_parser = super::at_least_one)]
    repetitions: usize,

    /// Text whose first token of continuation is waited for
    #[arg(short = 'p', long, value_name = "TEXT", default_value = "The capital of France is")]
    prompt: String,

    /// Threads to compute with [default: one per core]
    #[arg(short = 't', long, value_name = "N", value_parser = crate::threads::number)]
    threads: Option<usize>,

    /// One line of JSON
    #[arg(long)]
    json: bool,

    /// Draw the times to the first token into a file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Replace the file of --svg if it exists
    #[arg(long, requires = "svg")]
    force: bool,
}

/// Runs the command.
pub fn main(args: &LoadArgs) -> Outcome {
    // Ctrl-C ends the running child, and then this process.
    let interrupt = Interrupt::catch()?;
    let canonical = Files::of(&args.model)?;
    let given = args.packed.as_deref().map(Files::of).transpose()?;
    let inputs =
        new_file::inputs(canonical.iter().chain(given.iter().flat_map(Files::iter)).map(|f| f.0))?;
    if let Some(path) = &args.svg {
        new_file::check(path, args.force, &inputs)?;
    }
    let mut packing = None;
    let packed = match given {
        Some(files) => Some(files),
        None if args.no_packed => None,
        None => {
            say::progress("packing");
            match files::pack(&args.model, interrupt) {
                Ok(Some(made)) => {
                    let files = Files::of(&made.path)?;
                    packing = Some(made);
                    Some(files)
                }
                Ok(None) => return Err(Stop::Interrupted),
                Err(error) => {
                    say::note(&format!("without a packed file: {}", crate::outcome::chain(&error)));
                    None
                }
            }
        }
    };
    let cells = cells::matrix(&args.state, &args.load, packed.is_some());
    if cells.is_empty() {
        return Err(Stop::Usage("nothing to measure is left".to_owned()));
    }
    let measured = measure(args, &cells, &canonical, packed.as_ref(), interrupt);
    // The children open it until here.
    drop(packing);
    if interrupt.pressed() {
        return Err(Stop::Interrupted);
    }
    let report = measured?;
    if let Some(path) = &args.svg {
        let picture = svg::draw(&report);
        let new = new_file::create(path, args.force, &inputs, picture.len() as u64)?;
        let written = new.file().write_all(picture.as_bytes());
        written.with_context(|| format!("cannot write '{}'", path.display()))?;
        new.commit().map_err(|e| anyhow!(e))?;
    }
    if args.json {
        output::json(&report)
    } else {
        output::lines(&table::write(&report, output::columns()))
    }
}

fn measure(
    args: &LoadArgs,
    cells: &[Cell],
    canonical: &Files,
    packed: Option<&Files>,
    interrupt: Interrupt,
) -> anyhow::Result<LoadReport> {
    let files = |cell: &Cell| match cell.variant {
        Variant::Packed => packed.ok_or_else(|| anyhow!("there is no packed file")),
        _ => Ok(canonical),
    };
    let child = Child { prompt: &args.prompt, threads: args.threads };
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); cells.len()];
    let mut disk = disk::Disk::default();
    for i in 0..args.repetitions {
        let said = |what: &str| {
            say::progress(&format!("repetition {} of {}: {what}", i + 1, args.repetitions));
        };
        if cells.iter().any(|cell| cell.state == State::Cold) {
            said("the disk");
            disk.measure(canonical)?;
        }
        // Forward and then backward, so that no cell always follows the same one.
        let mut order: Vec<usize> = (0..cells.len()).collect();
        if i % 2 == 1 {
            order.reverse();
        }
        for at in order {
            if interrupt.pressed() {
                return Err(anyhow!("interrupted"));
            }
            let cell = &cells[at];
            said(&cell.name());
            let files = files(cell)?;
            let proof = match cell.state {
                State::Cold => state::cold(files)?,
                State::Warm | State::Resident => state::warm(files)?,
            };
            let sample = child.run(cell, files.first(), proof).with_context(|| cell.name())?;
            samples[at].push(sample);
        }
    }
    say::progress("");
    Ok(LoadReport::new(canonical, packed, args.repetitions, &disk, cells, &samples))
}
