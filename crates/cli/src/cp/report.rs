//! The messages about a file that was copied, or was not.

use alight_copy::{Copied, Event};
use serde_json::json;

use crate::outcome::{Outcome, chain_of};
use crate::{output, say, threads, units};

/// Reports one event.
pub fn event(event: &Event<'_>, verbose: bool, as_json: bool) -> Outcome {
    match event {
        Event::Copied(copied) => {
            for lost in &copied.not_kept {
                if verbose || !lost.is_expected() {
                    say::note(&format!("{}: {lost}", copied.to.display()));
                }
            }
            if let Some(report) = &copied.report {
                threads::note(report.threads);
            }
            if verbose {
                say::line(&line(copied));
            }
            if as_json {
                output::json(&json(copied))?;
            }
        }
        Event::Skipped(path) if verbose => {
            say::line(&format!("{}: already exists, and is left alone", path.display()));
        }
        Event::Failed(error) => say::error(&chain_of(*error)),
        _ => {}
    }
    Ok(())
}

/// `a -> b: 1.92 GB in 1.85 s, 1.04 GB/s, copy_file_range (reflink is refused: …)`
fn line(copied: &Copied) -> String {
    let mut text = format!("{} -> {}", copied.from.display(), copied.to.display());
    let Some(report) = &copied.report else { return text };
    let seconds = copied.took.as_secs_f64().max(1e-9);
    text += &format!(
        ": {} in {}, {}/s, {}",
        units::bytes(report.bytes),
        units::ms(seconds * 1000.0),
        units::bytes((report.bytes as f64 / seconds) as u64),
        report.method.name(),
    );
    let why: Vec<String> = report.fallbacks.iter().map(ToString::to_string).collect();
    if !why.is_empty() {
        text += &format!(" ({})", why.join("; "));
    }
    if report.holes > 0 {
        text += &format!("; {} of holes kept", units::bytes(report.holes));
    }
    if let Some(verified) = copied.verified {
        text += &format!("; verified, {}", verified.name());
    }
    text
}

fn json(copied: &Copied) -> serde_json::Value {
    let texts = |all: Vec<String>| all;
    let report = copied.report.as_ref();
    json!({
        "from": copied.from.to_string_lossy(),
        "to": copied.to.to_string_lossy(),
        "method": report.map(|r| r.method.name()),
        "fallbacks": texts(report.map_or(vec![], |r| r.fallbacks.iter().map(ToString::to_string).collect())),
        "bytes": report.map(|r| r.bytes),
        "hole_bytes": report.map(|r| r.holes),
        "source_cached_before_bytes": report.map(|r| r.source_was_cached),
        "source_dropped_bytes": report.map(|r| r.source_dropped),
        "verified": copied.verified.map(|v| v.name()),
        "not_kept": texts(copied.not_kept.iter().map(ToString::to_string).collect()),
        "wall_us": copied.took.as_micros() as u64,
    })
}
