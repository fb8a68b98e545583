//! Jobs that make model files: their progress on a terminal, and their speed.

use std::ops::ControlFlow;

use alight_convert::{ConvertError, Progress, Volume};
use anyhow::anyhow;

use crate::bar::Bar;
use crate::interrupt::Interrupt;
use crate::outcome::{Outcome, Stop};
use crate::units;

/// Runs a job with a progress bar on a terminal; Ctrl-C stops it and leaves no files.
pub fn with_progress<T>(
    what: &'static str,
    job: impl FnOnce(&mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<T, ConvertError>,
) -> Outcome<T> {
    let interrupt = Interrupt::catch()?;
    let mut bar = Bar::new(what);
    let done = job(&mut |progress| {
        bar.show(progress.done, progress.total);
        if interrupt.pressed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.clear();
    match done {
        Ok(done) => Ok(done),
        Err(ConvertError::Stopped) => Err(Stop::Interrupted),
        Err(error) => Err(Stop::Failed(anyhow!(error))),
    }
}

/// Returns bytes, seconds, and both together.
pub fn speed(volume: &Volume) -> String {
    let seconds = volume.took.as_secs_f64().max(1e-9);
    format!(
        "{} in {}, {}/s",
        units::bytes(volume.written),
        units::ms(seconds * 1000.0),
        units::bytes((volume.written as f64 / seconds) as u64),
    )
}
